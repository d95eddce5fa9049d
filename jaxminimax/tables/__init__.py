"""Tables: from a public schema and a file to a private scorer, without an option to set."""

from jaxminimax.tables.columns import Category as Category
from jaxminimax.tables.columns import Number as Number
from jaxminimax.tables.rule import Defaults as Defaults
from jaxminimax.tables.rule import defaults as defaults
from jaxminimax.tables.schema import Schema as Schema
from jaxminimax.tables.scorer import Scorer as Scorer
from jaxminimax.tables.scorer import train as train
