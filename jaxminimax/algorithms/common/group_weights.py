"""A model and the logarithms of the groups' weights, which start uniform, and their averages."""

import math
from typing import Any

import jax
import jax.numpy as jnp

from jaxminimax.algorithms.common import averaging
from jaxminimax.algorithms.common.steps import started
from jaxminimax.base import tree
from jaxminimax.base.types import Saddle


def check_same_groups(hyper: Any) -> None:
    """Refuses gradients and losses that are described for different groups.

    Raises:
      ValueError: naming both sizes.
    """
    if hyper.query.sizes != hyper.losses.sizes:
        raise ValueError(f"query has sizes {hyper.query.sizes}, but losses has "
                         f"{hyper.losses.sizes}: they read the same groups.")


def uniform(z: Saddle, hyper: Any) -> tuple[Saddle, averaging.Mean]:
    """The model with uniform weights, and the average that has this point.

    Args:
      z: `Saddle(w, ())`.
      hyper: `query`, `averaging` and `iterations` are used, and what `started` checks.

    Raises:
      ValueError: for weights, or a step or an average that is not defined.
    """
    if jax.tree.leaves(z.v):
        raise ValueError("z must be Saddle(w, ()): the weights start uniform.")
    w = started(z, hyper).w
    p = len(hyper.query.sizes)
    z = Saddle(w, jnp.full(p, -math.log(p), tree.float_dtype(w)))
    return z, averaged(averaging.start(_point(z)), z, jnp.int32(1), hyper)


def _point(z: Saddle) -> Saddle:
    return Saddle(z.w, jnp.exp(z.v))


def averaged(mean: averaging.Mean, z: Saddle, t: jax.Array, hyper: Any) -> averaging.Mean:
    """The mean with the model and the weights of round t = 1, ..., iterations + 1."""
    return averaging.include(mean, _point(z), hyper.averaging, t, hyper.iterations + 1)
