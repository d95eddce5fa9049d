"""Descent-ascent along released operators: the round that its algorithms share, and the step.

    g_t                   = release at z_t, with the public terms there
    (change_t, memory_t)  = rule_t(g_t, memory_{t-1}, z_t)
    z_{t+1}               = P_{W x V}(z_t + change_t),                     t = 1, ..., T,

and the state keeps the weighted mean of z_1, ..., z_t, the points at which the operator was taken.
A rule reads released values and nothing else, so a run costs its T releases for any rule.

A player whose set is the simplex may take entropic steps, geometry "entropy" in place of
"euclidean": with D the Kullback-Leibler divergence,

    x'_j  =  x_j exp(-step g_j) / sum_k x_k exp(-step g_k)
          =  argmin over y in the simplex of  step <g, y> + D(y, x),

along the last axis of each of the player's leaves. It is a function of the released g like any
other step, so the clip norms, the noise and the charge are those of Euclidean steps.

`jaxminimax.averaging` is this module, with the names of averages.

Source: Nemirovski, Juditsky, Lan and Shapiro, "Robust stochastic approximation approach to
stochastic programming", SIAM J. Optim. 19 (2009), Section 3.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax.algorithms import planning
from jaxminimax.base import arguments, checks, tree
from jaxminimax.base.types import AnyProblem, Problem, PyTree, Saddle, pytree_dataclass
from jaxminimax.mechanism import Query, Repeat, batch_size, grid, repeat
from jaxminimax.mechanism.costs import concrete
from jaxminimax.releases.sums import noisy_operator_and_clip

__all__ = ["TAIL", "UNIFORM", "WEIGHTED", "Averaging"]  # what users see of it as `averaging`


# --- averages of iterates, which are postprocessing ---


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
        averaged = t > jnp.asarray(self.skip, dtype) * rounds
        return jnp.where(averaged, t ** jnp.asarray(self.power, dtype), 0)


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


def check_averaging(averaging: Averaging) -> None:
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


def start_mean(z: Saddle) -> Mean:
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


# --- rounds ---

EUCLIDEAN = Saddle("euclidean", "euclidean")
ENTROPIC = Saddle("entropy", "entropy")


class State(NamedTuple):
    """The state of a run, all of it private output, which may be published and stored.

    Attributes:
      z: the iterate.
      memory: values that the rule keeps from one round to the next.
      mean: running average of the iterates.
      spent: number of releases so far, int32 `[]`.
      clip: per player, the clip norm of the next round, float32 `[]`; None if it is fixed.
    """

    z: Saddle
    memory: Any
    mean: Mean
    spent: jax.Array
    clip: Saddle | None = None

    @property
    def average(self) -> Saddle:
        """The averaged iterate, in the dtypes of z."""
        return tree.cast_like(self.mean.value, self.z)


# (hyper, t, g_t, state before the round) -> (change_t, memory_t)
Rule = Callable[[Any, jax.Array, Saddle, State], tuple[Saddle, Any]]


def init(z: Saddle, hyper: Any, memory: Callable[[Saddle], Any] = lambda z: ()) -> State:
    """Returns the state before the first round.

    Args:
      z: initial point; must not depend on the data. Leaves of any shape and float dtype.
      hyper: see `started`.
      memory: `z -> memory_0` of the rule.

    Raises:
      ValueError: for an undefined step, average or geometry.
    """
    z, clip = started(z, hyper), None
    if hyper.query.adaptive is not None:
        clip = jax.tree.map(lambda c: jnp.asarray(c, jnp.float32), hyper.query.clip)
    return State(z, memory(z), start_mean(z), jnp.int32(0), clip)


def fixed_clip(query: Query) -> Query:
    """Returns the query, for an algorithm with fixed clip norms.

    Raises:
      ValueError: for clip norms that follow a quantile.
    """
    if getattr(query, "adaptive", None) is not None:
        raise ValueError("adaptive clip norms are for jmm.sgda: leave Query.adaptive out, or take "
                         "jmm.sgda.")
    return query


def update(key: jax.Array, state: State, data: PyTree, hyper: Any, problem: Problem,
           described: Repeat, rule: Rule) -> State:
    """Makes one round and returns the next state.

    Args:
      key: secret root key of the run, which is never part of the state.
      state: from `init` or the previous round.
      data: leaves `[n, ...]`, with n = `hyper.query.population`.
      hyper: with `iterations`, `averaging` and, if it has it, `geometry`.
      problem: operator, public terms and projection.
      described: the mechanism of the run.
      rule: see the module.

    Returns:
      The next state, in the dtypes of `state.z`; NaN once `iterations` releases are spent.

    Raises:
      ValueError: while tracing, if `data` does not have n rows or no noise was calibrated.
    """
    t = state.spent + 1
    g, clip = noisy_operator_and_clip(key, described, state.spent, problem, state.z, data,
                                      state.clip)  # g_t
    change, memory = rule(hyper, t, g, state)
    z = moved(state.z, change, problem, getattr(hyper, "geometry", EUCLIDEAN))  # z_{t+1}
    mean = include(state.mean, state.z, hyper.averaging, t, hyper.iterations)
    return State(z, memory, mean, t, clip)


def started(z: Saddle, hyper: Any) -> Saddle:
    """Checks the settings of a run and returns the initial point as arrays.

    Args:
      z: initial point; leaves of any shape and float dtype.
      hyper: with `iterations`; `averaging`, if it has it, is an `Averaging`; `step` and
        `weight_step`, if it has them, are a number or a schedule, or a `Saddle` of one for each
        player; `geometry`, if it has it, is "euclidean" or "entropy" for each player.

    Raises:
      ValueError: for an undefined count, step, average or geometry; for a player with entropic
        steps that does not start inside the simplex.
      TypeError: for a point, a step or optimisers of another kind.
    """
    if not hasattr(hyper, "iterations") or isinstance(hyper, type):
        raise TypeError("hyper must be the algorithm's Hyper(query=..., ...), got "
                        f"{checks.describe(hyper)}.")
    if isinstance(hyper.query, repeat.OneRelease):
        hyper.query.check_own()
    checks.count("iterations", hyper.iterations)
    if isinstance(getattr(type(hyper), "optimiser", None), Saddle):  # its default: one a player
        _check_optimisers(hyper.optimiser)
        arguments.players("step", hyper.step, "a number or a schedule for each player")
    if hasattr(hyper, "averaging"):
        check_averaging(hyper.averaging)
    for name in ("step", "weight_step"):
        step: Any = getattr(hyper, name, None)
        if isinstance(step, Saddle):
            for player, player_step in step._asdict().items():
                clip = getattr(hyper.query, "clip", None)  # without it the player does not move
                unmoved = isinstance(clip, Saddle) and getattr(clip, player) is None
                planning.check_step(f"{name}.{player}", player_step, closed=unmoved)
        elif hasattr(hyper, name):
            planning.check_step(name, step)
    z = arguments.point(z)
    check_geometry(getattr(hyper, "geometry", EUCLIDEAN), z)
    return z


def _check_optimisers(optimiser: Any) -> None:
    """Refuses an object that is no pair of factories."""
    factories = "a factory step -> optax.GradientTransformation for each player"
    if hasattr(optimiser, "update") and not isinstance(optimiser, Saddle):
        raise TypeError(f"optimiser must be a Saddle, {factories}, got an optax transformation: "
                        "give Saddle(optax.adam, optax.adam), and the steps as Hyper.step.")
    arguments.players("optimiser", optimiser, factories)
    for name, make in optimiser._asdict().items():
        if hasattr(make, "update"):
            raise TypeError(f"optimiser.{name} must be {factories.removesuffix(' for each player')}"
                            ", such as optax.adam, got a transformation that is made already: its "
                            f"step is Hyper.step.{name}.")
        checks.takes(f"optimiser.{name}", make, "step")


def check_geometry(geometry: Saddle, z: Saddle) -> None:
    """Refuses an unknown geometry, and entropic steps from outside of the simplex.

    Raises:
      ValueError: naming the player and the fix.
    """
    if not isinstance(geometry, Saddle):
        raise ValueError("geometry must be a Saddle, one of euclidean, entropy for each "
                         f"player, got {geometry!r}.")
    for player, kind in geometry._asdict().items():
        checks.one_of(f"geometry.{player}", kind, ("euclidean", "entropy"))
        for x in jax.tree.leaves(getattr(z, player)) if kind == "entropy" else ():
            if np.ndim(x) == 0:
                raise ValueError(f"geometry.{player} is 'entropy', but a leaf of z.{player} is one "
                                 "number: give it the axis of a probability vector.")
            if isinstance(x, jax.core.Tracer):
                continue  # checked where it was a number
            x = np.asarray(x, np.float64)
            if not (np.all(x > 0) and np.allclose(x.sum(-1), 1, atol=1e-2)):
                raise ValueError(f"geometry.{player} is 'entropy', but z.{player} is not inside "
                                 "the simplex: start at equal weights, 1/d each.")


def along(z: PyTree, g: PyTree, step: planning.Step | Saddle, t: jax.Array) -> PyTree:
    """Returns -step_t g in the dtypes of z; a `Saddle` of steps has one for each player."""
    if isinstance(step, Saddle):
        return Saddle(*(along(*player, t) for player in zip(z, g, step, strict=True)))
    length = planning.step_at(step, t)
    return jax.tree.map(lambda x, a: -length.astype(x.dtype) * a.astype(x.dtype), z, g)


def stepped(z: PyTree, g: PyTree, step: planning.Step | Saddle, t: jax.Array,
            problem: AnyProblem, geometry: Saddle = EUCLIDEAN) -> PyTree:
    """Returns P(z - step_t g) in the dtypes of z, with entropic steps for players that take them.

    Args:
      z: the point, or the w of a `GroupProblem`.
      g: the direction to descend along, like z.
      step: a number or a schedule; for a `Saddle` z, also one for each player.
      t: the round, from 1, int32 `[]`.
      problem: `project` is used, for players with Euclidean steps.
      geometry: the geometry of each player of a `Saddle` z.
    """
    return moved(z, along(z, g, step, t), problem, geometry)


def projected(new: PyTree, z: PyTree, problem: AnyProblem) -> PyTree:
    """Returns P(new) in the dtypes of z."""
    return tree.cast_like(problem.project(new), z)


def moved(z: PyTree, change: PyTree, problem: AnyProblem, geometry: Saddle = EUCLIDEAN) -> PyTree:
    """Returns P(z + change) in the dtypes of z; softmax(log z + change) for entropic players.

    An entropic step stays inside the simplex by itself. Projecting it as well would set the
    smallest probabilities to 0, which the next steps multiply.
    """
    new = projected(tree.add(z, change), z, problem)
    if geometry == EUCLIDEAN:
        return new
    return Saddle(*(jax.tree.map(_entropic, x, c) if kind == "entropy" else reached
                    for kind, x, c, reached in zip(geometry, z, change, new, strict=True)))


def _entropic(x: jax.Array, change: jax.Array) -> jax.Array:
    wide = tree.at_least_float32(x.dtype)
    # a probability below 1e-30 counts as this much: what became 0 may come back
    logits = jnp.log(jnp.maximum(x.astype(wide), 1e-30)) + change.astype(wide)
    return jax.nn.softmax(logits, axis=-1).astype(x.dtype)


def release_variance(query: Query, dim: int | Saddle, geometry: Saddle = EUCLIDEAN) -> float:
    """Returns V, a bound on E||xi||^2, xi the released operator less the mean of all clipped ones.

    Noise of deviation sigma = z C / m on each of d coordinates, and the sample's own error, in l2
    at most (1 - q) C^2 / (q n) for Poisson samples and C^2 / m for those of a fixed size:

        V = d_w sigma_w^2 + d_v sigma_v^2 + sample                            Euclidean,
        V = 2 sigma_w^2 ln(2 d_w) + 2 sigma_v^2 ln(2 d_v) + 2 sample ...      entropic,

    where the noise counts twice too if there is a sample: the l-infinity norm has no Pythagoras.
    (E max_j x_j^2 <= 2 ln(2 d) for d standard normals: with a such that 2 d Phi(-a) = 1 it is at
    most 1 + a phi(a) / Phi(-a), by the union bound.) The rounding of a sum to its grid is not
    counted: it is below the noise by many bits.

    Args:
      query: a calibrated query of full batches or of samples drawn anew in every release.
      dim: d of both players together, for one noise; or a `Saddle` of each player's.
      geometry: the geometry of the norm, the same for both players.

    Raises:
      ValueError: for disjoint batches, whose errors are not independent of the past; for different
        noise or entropic steps without the dimension of each player.
    """
    m = batch_size(query)
    sigmas = Saddle(*(0.0 if c is None else concrete(c) * concrete(z) / m for c, z in zip(
        query.clip, grid.check_noise(query), strict=True)))
    if not isinstance(dim, Saddle):
        if geometry != EUCLIDEAN or (sigmas.w != sigmas.v and None not in query.clip):
            raise ValueError(f"dim must be a Saddle, the dimension of each player, got {dim!r}.")
        dim = Saddle(dim, 0) if query.clip.w is not None else Saddle(0, dim)
    clips = [concrete(c) ** 2 for c in query.clip if c is not None]
    square = max(clips) if query.joint else sum(clips)
    spread = query.sampling.spread(query.population)
    if spread is None:
        raise ValueError("sampling must be Full, Poisson or FixedSize, drawn anew in every "
                         f"release, got {query.sampling!r}.")
    sample = spread * square / m
    if geometry == ENTROPIC:
        noise = sum(2 * s**2 * math.log(2 * d) for s, d in zip(sigmas, dim, strict=True) if d)
        return noise if sample == 0 else 2 * (noise + sample)
    return sum(d * s**2 for s, d in zip(sigmas, dim, strict=True)) + sample
