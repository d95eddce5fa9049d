"""Types for annotations, and makers of types: what runs are made of, and what drivers return."""

from jaxminimax.base.types import (
    Algorithm,
    OnlineOptimiser,
    SaddleOperator,
    pytree_dataclass,
    with_strategy,
)
from jaxminimax.checkup import Report
from jaxminimax.drivers import Run, Tuned
from jaxminimax.gradients.clipping import ClippedSum

__all__ = ["Algorithm", "ClippedSum", "OnlineOptimiser", "Report", "Run", "SaddleOperator",
           "Tuned", "pytree_dataclass", "with_strategy"]


def __dir__() -> list[str]:
    return __all__
