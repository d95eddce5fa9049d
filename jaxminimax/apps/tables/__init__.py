"""Tables: from a public schema and a file to a private scorer, without an option to set.

A schema and a scorer need NumPy alone. The names that train load JAX when they are asked for.
"""

import importlib
from typing import TYPE_CHECKING, Any

from jaxminimax.apps.tables.columns import Category, Charged, Number
from jaxminimax.apps.tables.notes import Note, NoteWarning, StoppedOnNotesError
from jaxminimax.apps.tables.schema import Schema
from jaxminimax.apps.tables.scorer import Scorer
from jaxminimax.base.saved_json import DamagedFileError

if TYPE_CHECKING:
    from jaxminimax.apps.tables.fair import FairDefaults, fair_defaults
    from jaxminimax.apps.tables.rule import Defaults, defaults
    from jaxminimax.apps.tables.training import train

__all__ = ["Category", "Charged", "DamagedFileError", "Defaults", "FairDefaults", "Note",
           "NoteWarning", "Number", "Schema", "Scorer", "StoppedOnNotesError", "defaults",
           "fair_defaults", "train"]


def __getattr__(name: str) -> Any:
    """Imports the module of a name that trains."""
    modules = {"Defaults": "rule", "defaults": "rule", "FairDefaults": "fair",
               "fair_defaults": "fair", "train": "training"}
    if name not in modules:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{modules[name]}"), name)


def __dir__() -> list[str]:
    return __all__
