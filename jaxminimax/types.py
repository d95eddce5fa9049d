"""Types for annotations: the parts of a run, and the results of drivers."""

from jaxminimax.base.types import (
    Algorithm,
    OnlineOptimiser,
    SaddleOperator,
    pytree_dataclass,
    with_strategy,
)
from jaxminimax.checkup import Report
from jaxminimax.drivers import Certificate, Choice, Run, Tuned
from jaxminimax.drivers.long_runs import Metrics
from jaxminimax.drivers.private_gradient import PrivateGradient, Ticket
from jaxminimax.gradients.clipping import ClippedSum

__all__ = ["Algorithm", "Certificate", "Choice", "ClippedSum", "Metrics", "OnlineOptimiser",
           "PrivateGradient", "Report", "Run", "SaddleOperator", "Ticket", "Tuned",
           "pytree_dataclass", "with_strategy"]
