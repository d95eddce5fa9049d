"""Tables: from a public schema and a file to a private scorer, without an option to set."""

from jaxminimax.base import public_names as _public_names
from jaxminimax.tables.columns import Category as Category
from jaxminimax.tables.columns import Charged as Charged
from jaxminimax.tables.columns import Number as Number
from jaxminimax.tables.fair import FairDefaults as FairDefaults
from jaxminimax.tables.fair import fair_defaults as fair_defaults
from jaxminimax.tables.rule import Defaults as Defaults
from jaxminimax.tables.rule import defaults as defaults
from jaxminimax.tables.schema import Schema as Schema
from jaxminimax.tables.scorer import Scorer as Scorer
from jaxminimax.tables.scorer import train as train


def __dir__() -> list[str]:
    return _public_names(globals())
