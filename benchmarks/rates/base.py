"""Parts of the cases of `benchmarks.rates`: jobs, cases, shared pieces of problems."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxminimax import Saddle

DELTA = 1e-5


@dataclasses.dataclass(frozen=True)
class Job:
    """Runs at one n.

    Attributes:
      algorithm: a module.
      hyper: calibrated.
      problem: with the operator or the loss of one record.
      start: the initial point.
      sample: `key -> data`, n fresh records, of all groups together.
      gap: `z -> []`, exact, on the population.
    """

    algorithm: Any
    hyper: Any
    problem: Any
    start: Saddle
    sample: Callable[[jax.Array], Any]
    gap: Callable[[Saddle], jax.Array]


@dataclasses.dataclass(frozen=True)
class Case:
    """One line of the plot.

    Attributes:
      algorithm: name.
      variant: of the algorithm.
      problem: in words.
      measure: the gap that the theorem bounds: "strong", "weak" or "primal", the excess of the
        worst group's risk.
      epsilon: of every run.
      theory: exponent of n in the theorem's term that falls slower.
      build: `n -> Job`.
      rate: `n ->` the theorem's rate, both terms, without constants and logarithms.
      private: `n ->` whether its privacy term is the larger one.
      cost: `n ->` operator evaluations of one run by the theorem's schedule.
      lower: `n ->` the order of the gap that no private algorithm beats on all such problems.
      ns: numbers of records.
      quick: fewer.
      coins: groups of runs with the same coins, for weak gaps.
      note: what a reader must know beside the numbers.
      settings: whose steps, batches and rounds they are.
    """

    algorithm: str
    variant: str
    problem: str
    measure: str
    epsilon: float
    theory: float
    build: Callable[[int], Job]
    rate: Callable[[int], float]
    private: Callable[[int], bool]
    cost: Callable[[int], int]
    lower: Callable[[int], float]
    ns: list[int]
    quick: list[int]
    coins: int = 8
    note: str = ""
    settings: str = "default plan"

    @property
    def name(self) -> str:
        """Algorithm, variant and epsilon."""
        return f"{self.algorithm}, {self.variant}, epsilon {self.epsilon:g}"


def spread(epsilon: float, dim: int) -> float:
    """sqrt(d ln(1/delta)) / epsilon, what rates divide by n."""
    return math.sqrt(dim * math.log(1 / DELTA)) / epsilon


def around(mean: tuple[jax.Array, jax.Array], width: float,
           n: int) -> Callable[[jax.Array], tuple[jax.Array, jax.Array]]:
    """Pairs with the uniform laws on spheres around two means."""
    def sample(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        u = jax.random.normal(key, (2, n, mean[0].shape[1]), jnp.float32)
        u = width * u / jnp.linalg.norm(u, axis=2, keepdims=True)
        return mean[0] + u[0], mean[1] + u[1]

    return sample


def zeros(dim: int) -> Saddle:
    """The origin, of two players of equal dimension."""
    return Saddle(jnp.zeros(dim, jnp.float32), jnp.zeros(dim, jnp.float32))
