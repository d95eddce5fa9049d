"""Step sizes that depend on the round: a number, or any schedule `t -> step` with t = 1, 2, ..."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import scipy

from jaxminimax.base import checks, types
from jaxminimax.base import public_names as _public_names

Step = float | jax.Array | Callable[[jax.Array], jax.Array]

__all__ = ["Cosine", "Decay"]


def __dir__() -> list[str]:
    return _public_names(globals())


@types.pytree_dataclass
class Decay:
    """The step min(scale / (t + offset)^power, cap) of round t.

    Attributes:
      scale: the step at t + offset = 1 [parameter units / gradient units].
      power: the power at which the step falls.
      offset: the number of rounds that the schedule is ahead.
      cap: the largest step.

    Examples:
        >>> falling = jmm.schedules.Decay(scale=1.0, power=0.5, cap=0.4)
        >>> query = jmm.Query(clip=Saddle(1.0, 1.0), population=100)
        >>> hyper = jmm.sgda.Hyper(query=query, step=Saddle(falling, 0.1), iterations=20)
        >>> float(falling(jnp.asarray(16.0)))
        0.25
    """

    scale: float | jax.Array
    power: float | jax.Array = 1.0
    offset: float | jax.Array = 0.0
    cap: float | jax.Array = float("inf")

    def __call__(self, t: jax.Array) -> jax.Array:
        """The step of round t = 1, 2, ..."""
        return jnp.minimum(self.scale / (t + self.offset) ** self.power, self.cap)


@types.pytree_dataclass
class Cosine:
    """The step scale (1 + cos(pi (t - 1) / rounds)) / 2 of round t, down to nearly 0.

    Attributes:
      scale: step of the first round [parameter units / gradient units].
      rounds: rounds that it is meant for; later ones take no step.

    Examples:
        >>> falling = jmm.schedules.Cosine(scale=1.0, rounds=100)
        >>> float(falling(jnp.asarray(1))), float(falling(jnp.asarray(101)))
        (1.0, 0.0)
    """

    scale: float | jax.Array
    rounds: float | jax.Array

    def __call__(self, t: jax.Array) -> jax.Array:
        """The step of round t = 1, 2, ..."""
        done = jnp.minimum((t - 1) / self.rounds, 1.0)
        return self.scale * (1 + jnp.cos(jnp.pi * done)) / 2


@types.pytree_dataclass
class Linear:
    """The step scale (1 - (t - 1) / rounds) of round t, down to scale / rounds along a line.

    Attributes:
      scale: step of the first round [parameter units / gradient units].
      rounds: rounds that it is meant for; later ones take no step.
    """

    scale: float | jax.Array
    rounds: float | jax.Array

    def __call__(self, t: jax.Array) -> jax.Array:
        """The step of round t = 1, 2, ..."""
        return self.scale * jnp.maximum(1 - (t - 1) / self.rounds, 0.0)


def at(step: Step, t: jax.Array) -> jax.Array:
    """The step of round t = 1, 2, ..., from a number or a schedule."""
    return step(t) if callable(step) else jnp.asarray(step)


def check(name: str, step: Step) -> None:
    """Refuses a step that is no positive number, or a schedule with numbers out of range.

    Raises:
      ValueError: naming the value.
    """
    if isinstance(step, Decay):
        checks.number(f"{name}.scale", step.scale, low=0.0)
        checks.number(f"{name}.power", step.power, low=0.0, high=100.0, closed=True)
        checks.number(f"{name}.offset", step.offset, low=0.0, high=1e30, closed=True)
        checks.number(f"{name}.cap", step.cap, low=0.0, infinite=True)
    elif isinstance(step, Cosine | Linear):
        checks.number(f"{name}.scale", step.scale, low=0.0)
        checks.number(f"{name}.rounds", step.rounds, low=0.0)
    elif not callable(step):
        checks.number(name, step, low=0.0)


def gaussian_multiplier(epsilon: float, delta: float) -> float:
    """The ratio of noise to sensitivity of one Gaussian release that is (epsilon, delta)-private.

    It is for step sizes that depend on the size of the noise, and never for the noise itself, which
    `calibrate` sets.
    """
    checks.number("epsilon", epsilon, low=0.0)
    checks.number("delta", delta, low=0.0, high=1.0)
    low, high = 1e-6, 1e12
    for _ in range(100):
        z = math.sqrt(low * high)
        mass = scipy.special.ndtr(0.5 / z - epsilon * z) - math.exp(
            min(epsilon + float(scipy.special.log_ndtr(-0.5 / z - epsilon * z)), 0.0))
        low, high = (z, high) if mass > delta else (low, z)
    return high
