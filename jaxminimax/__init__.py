"""Differentially private minimax optimisation, as pure functions on JAX.

The import alone loads nothing else. The first name that needs JAX loads it, and the library.
"""

import importlib.util
from typing import TYPE_CHECKING, Any

from jaxminimax.base import VERSION

if TYPE_CHECKING:
    from jaxminimax.face import *  # noqa: F403

__version__ = VERSION


def __getattr__(name: str) -> Any:
    """Imports a module of the package, or looks a name up in `face`."""
    if importlib.util.find_spec(f"{__name__}.{name}") is not None:
        return importlib.import_module(f"{__name__}.{name}")
    return getattr(importlib.import_module(f"{__name__}.face"), name)


def __dir__() -> list[str]:
    return list(importlib.import_module(f"{__name__}.face").__all__)
