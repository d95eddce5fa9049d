"""Per-example gradients of both players, clipped and added up."""

from jaxminimax.gradients.clipping import STRATEGIES as STRATEGIES
from jaxminimax.gradients.clipping import ClippedOperator as ClippedOperator
from jaxminimax.gradients.clipping import ClippedSum as ClippedSum
from jaxminimax.gradients.clipping import clipped_sum as clipped_sum
