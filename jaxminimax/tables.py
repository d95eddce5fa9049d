"""Tables: the public names of `jaxminimax.apps.tables`, each loaded when it is asked for."""

import importlib
from typing import TYPE_CHECKING, Any

from jaxminimax.apps.tables import __all__

if TYPE_CHECKING:
    from jaxminimax.apps.tables import *  # noqa: F403


def __getattr__(name: str) -> Any:
    """Looks a public name up in `jaxminimax.apps.tables`."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("jaxminimax.apps.tables"), name)


def __dir__() -> list[str]:
    return __all__
