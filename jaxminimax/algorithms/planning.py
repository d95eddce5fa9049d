"""Step sizes, and plans: settings of an algorithm from public numbers, with a theorem's guarantee.

A step is a number, or any schedule `t -> step` with t = 1, 2, ...; `jaxminimax.schedules` is this
module, with the names of schedules. A plan

    algorithm.plan(target, *, population, ...) -> Plan

is in each module that has a theorem. Users call `jaxminimax.plan(algorithm, epsilon=..., delta=...,
population=..., ...)`, which makes the target. A plan may need its noise, and the accountant that
sets the noise is in a layer above the algorithms.

Privacy never rests on a plan, because the noise is calibrated to the description that the run
executes. Utility does.
"""

import math
import types
from collections.abc import Callable
from typing import Any, Generic, NamedTuple

import jax
import jax.numpy as jnp
import scipy

from jaxminimax.base import checks
from jaxminimax.base.types import AnyProblem, HyperT, Saddle, pytree_dataclass
from jaxminimax.mechanism import Query

Step = float | jax.Array | Callable[[jax.Array], jax.Array]
MOST_ROUNDS = 100_000  # more cost time, and the sampler's error in every release costs epsilon
_NO_PUBLIC = "_planned_without_public_terms"

__all__ = ["Cosine", "Decay", "FromOptax"]  # what users see of it as `schedules`


# --- steps ---


@pytree_dataclass
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


@pytree_dataclass
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
        progress = jnp.minimum((t - 1) / self.rounds, 1.0)
        return self.scale * (1 + jnp.cos(jnp.pi * progress)) / 2


@pytree_dataclass
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


@pytree_dataclass
class FromOptax:
    """The step schedule(t - 1) of round t, of a schedule of optax, which counts from 0.

    Attributes:
      schedule: `count -> step`; must not depend on the data. Use the same object again: a new
        function is compiled anew.

    Examples:
        >>> import optax
        >>> falling = jmm.schedules.FromOptax(schedule=optax.linear_schedule(1.0, 0.0, 10))
        >>> query = jmm.Query(clip=Saddle(1.0, 1.0), population=100)
        >>> hyper = jmm.sgda.Hyper(query=query, step=Saddle(falling, 0.1), iterations=10)
        >>> float(falling(1)), float(falling(6))
        (1.0, 0.5)
    """

    schedule: Callable[[jax.typing.ArrayLike], jax.Array] = jax.tree.static()

    def __call__(self, t: jax.Array) -> jax.Array:
        """The step of round t = 1, 2, ..."""
        return jnp.asarray(self.schedule(t - 1))


def step_at(step: Step, t: jax.Array) -> jax.Array:
    """The step of round t = 1, 2, ..., from a number or a schedule."""
    return step(t) if callable(step) else jnp.asarray(step)


def check_step(name: str, step: Step, closed: bool = False) -> None:
    """Refuses a step that is no positive number, or a schedule with numbers out of range.

    Args:
      name: what to call it in messages.
      step: a number or a schedule.
      closed: whether it may be the number 0.

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
        checks.number(name, step, low=0.0, closed=closed)


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


# --- plans ---


class Plan(NamedTuple, Generic[HyperT]):
    """Settings from a theorem, with its guarantee and its reasons.

    Attributes:
      hyper: the algorithm's `Hyper`, calibrated.
      guarantee: a bound on the expectation of `gap` on `on`, with all constants, for the noise of
        `hyper`; None if the theorem is a rate.
      vacuous: whether the theorem promises nothing here: one of its conditions fails, or its bound
        is no better than the trivial one. The run is as private as any other.
      why: sentences on the theorem, its measure, the bound and the trivial one, and departures.
      trivial: the bound that every point of the feasible set keeps, (bound + public_bound) times
        diameter, or the range of losses; None if the theorem is a rate.
      gap: what is bounded: the "strong" or the "weak" gap, the average "regret", or the excess
        worst-group "risk".
      on: of which problem: that of the "population" or that of the "records" themselves.
    """

    hyper: HyperT
    guarantee: float | None
    vacuous: bool
    why: tuple[str, ...]
    trivial: float | None = None
    gap: str = "strong"
    on: str = "population"


class Variant(NamedTuple):
    """One way to plan an algorithm; a module's `plan_variants` are what `jmm.plans` tries.

    Attributes:
      arguments: of the module's plan.
      measured: the gap in `benchmarks/rates/results/plans.json` at 1,000 records and epsilon = 1;
        None if there is none.
      needs: numbers that this way must be given, though the plan has a default for them.
    """

    arguments: dict[str, Any] = {}  # noqa: RUF012  # nobody changes it
    measured: float | None = None
    needs: tuple[str, ...] = ()


def with_trivial(bound: float, trivial: float) -> str:
    """Returns a sentence that compares a bound with the trivial one."""
    verdict = ("so it says nothing here" if bound >= trivial
               else "so it says something, of the worst problem with these constants")
    return f"The bound is {bound:.3g}; any point at all has one of {trivial:.3g}, {verdict}."


def guaranteed(hyper: HyperT, bound: float, trivial: float, *why: str, gap: str = "strong",
               on: str = "population") -> Plan[HyperT]:
    """Returns a plan whose guarantee is a bound, compared with the trivial one."""
    return Plan(hyper, bound, bound >= trivial, (*why, with_trivial(bound, trivial)), trivial, gap,
                on)


def batches(largest: int) -> list[int]:
    """Returns a geometric grid of batches up to `most`, from which a schedule takes the best."""
    return sorted({min(largest, round(2 ** (k / 8))) for k in range(8 * largest.bit_length() + 1)})


class Target(NamedTuple):
    """The privacy target of a plan.

    Attributes:
      epsilon: epsilon of the target; None for no noise and no privacy.
      delta: delta of the target.
      noise: `hyper -> hyper`, with noise multipliers calibrated to the target.
      multiplier: returns z_1, the noise multiplier of a full release that alone meets the target,
        for its neighbouring relation: a replaced record moves a sum by twice the clip norm, one
        that is added or removed by once that; 0 without privacy.
      parts: whether its neighbouring relation has a guarantee for releases on disjoint parts.
    """

    epsilon: float | None
    delta: float
    noise: Callable[[Any], Any]
    multiplier: Callable[[], float]
    parts: bool = True


def check_numbers(**numbers: Any) -> None:
    """Refuses public numbers out of range: of counts, shares, and others that are not positive.

    Raises:
      ValueError: naming the number.
    """
    lowest_counts = {"population": 1, "dim": 1, "dim.w": 1, "dim.v": 1, "iterations": 1,
                     "rounds": 1, "batch": 1, "groups": 1, "inner": 2, "phases": 1}
    for name, value in numbers.items():
        if isinstance(value, Saddle):
            check_numbers(**{f"{name}.{player}": x for player, x in value._asdict().items()})
        elif name in lowest_counts:
            checks.count(name, value, low=lowest_counts[name])
        else:
            zero_allowed = name in ("public_bound", "public_smooth", "smooth_difference")
            checks.number(name, value, low=0.0, closed=zero_allowed,
                          high=1.0 if name in ("delta", "anchors") else math.inf)


def check_given(numbers: dict[str, Any]) -> None:
    """Calls `check_numbers` of a plan's numbers, leaving out None, words, flags and objects."""
    # the others are checked by their users
    apart = ("problem", "sizes", "rounds", "records", "geometry", "modulus", "sampling", "solver")
    check_numbers(**{name: x for name, x in numbers.items() if name not in apart and not (
        x is None or isinstance(x, str | bool | types.ModuleType) or callable(x))})


# --- public terms ---


def remember(hyper: Any, numbers: dict[str, Any]) -> None:
    """Marks settings that a plan made for a problem without public terms.

    A plan never sees the problem: a forgotten `public_bound` would make its number false, and a
    forgotten `public_smooth` its certified solutions NaN, without a word.
    """
    if not numbers.get("public_bound"):
        object.__setattr__(hyper, _NO_PUBLIC, True)


def warnings_of_public(hyper: Any, problem: AnyProblem) -> tuple[str, ...]:
    """Returns a warning if the problem has public terms, and a plan made `hyper` for none."""
    if getattr(problem, "public", None) is None or not getattr(hyper, _NO_PUBLIC, False):
        return ()
    return ("The problem has public terms, and the plan of these settings was made for none: its "
            "guarantee and its certificates hold only if bound and smooth include them, which "
            "costs noise. Give jmm.plan public_bound=, and public_smooth= where it takes that.",)


def privacy_term(dim: int, epsilon: float, delta: float) -> float:
    """Returns sqrt(d ln(1/delta)) / epsilon, n times the privacy term of most rates."""
    return math.sqrt(dim * math.log(1 / delta)) / epsilon


def joint_query(bound: float, population: int, sampling: Any) -> Query:
    """Makes a query of operators clipped at `bound`, players together, without noise."""
    return Query(clip=Saddle(bound, bound), joint=True, population=population, sampling=sampling)
