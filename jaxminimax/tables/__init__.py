"""Tables: from a public schema and a file to a private scorer, without an option to set."""

from jaxminimax.tables.columns import Category, Charged, Number
from jaxminimax.tables.fair import FairDefaults, fair_defaults
from jaxminimax.tables.rule import Defaults, defaults
from jaxminimax.tables.schema import Schema
from jaxminimax.tables.scorer import Scorer, train

__all__ = ["Category", "Charged", "Defaults", "FairDefaults", "Number", "Schema", "Scorer",
           "defaults", "fair_defaults", "train"]


def __dir__() -> list[str]:
    return __all__
