"""Running averages of iterates: uniform, tail and polynomial weights. They are postprocessing."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxminimax.base import checks, tree
from jaxminimax.base import public_names as _public_names
from jaxminimax.base.types import Saddle, pytree_dataclass

__all__ = ["TAIL", "UNIFORM", "WEIGHTED", "Averaging"]


def __dir__() -> list[str]:
    return _public_names(globals())


@pytree_dataclass
class Averaging:
    """The weights of z_1 ... z_T in the average: t^power for t > skip * T, and 0 before.

    Attributes:
      power: 0 for equal weights; k for weights t^k.
      skip: the share of rounds to leave out at the start, in [0, 1).

    Examples:
        >>> last_quarter = jmm.averaging.Averaging(skip=0.75)
        >>> [float(last_quarter.weight(jnp.asarray(t), 4, jnp.float32)) for t in (3, 4)]
        [0.0, 1.0]
    """

    power: float | jax.Array = 0.0
    skip: float | jax.Array = 0.0

    def weight(self, t: jax.Array, rounds: int, dtype: jnp.dtype) -> jax.Array:
        """Returns the weight of the iterate of round t = 1, 2, ..."""
        t = t.astype(dtype)
        kept = t > jnp.asarray(self.skip, dtype) * rounds
        return jnp.where(kept, t ** jnp.asarray(self.power, dtype), 0)


UNIFORM = Averaging()
TAIL = Averaging(skip=0.5)
WEIGHTED = Averaging(power=1.0)


class Mean(NamedTuple):
    """A running weighted mean of points.

    Attributes:
      value: the mean, in at least float32; the newest iterate while the weight is 0.
      weight: sum of the weights, `[]`.
    """

    value: Saddle
    weight: jax.Array


def check(averaging: Averaging) -> None:
    """Refuses weights that are not defined.

    Raises:
      ValueError: naming the value.
      TypeError: for an object that is no `Averaging`.
    """
    if not isinstance(averaging, Averaging):
        raise TypeError("averaging must be UNIFORM, TAIL, WEIGHTED or an Averaging(power, skip), "
                        f"got {checks.describe(averaging)}.")
    checks.number("averaging.power", averaging.power, low=0.0, high=100.0, closed=True)
    checks.number("averaging.skip", averaging.skip, low=-1e-300, high=1.0)


def start(z: Saddle) -> Mean:
    """Returns the mean of no points: weight 0, with z as its value."""
    value = jax.tree.map(lambda x: x.astype(tree.at_least_float32(x.dtype)), z)
    return Mean(value, jnp.zeros((), tree.float_dtype(z)))


def include(mean: Mean, z: Saddle, averaging: Averaging, t: jax.Array, rounds: int) -> Mean:
    """Adds the iterate z of round t (from 1) of `rounds` to a mean."""
    return weigh(mean, z, averaging.weight(t, rounds, mean.weight.dtype))


def weigh(mean: Mean, z: Saddle, weight: jax.Array) -> Mean:
    """Adds the point z with a weight `[]`, at least 0, to a mean."""
    new = weight.astype(mean.weight.dtype)
    total = mean.weight + new
    share = jnp.where(total > 0, new / jnp.where(total > 0, total, 1), 1)
    return Mean(tree.lerp(mean.value, z, share), total)
