"""Noisy optimistic descent-ascent: extragradient's stability for one release a round.

    min over w in W, max over v in V, of  F(w, v) = (1/n) sum_i f(w, v; x_i) + r(w, v).

Each step extrapolates from the last two operators, the released ones with their public terms:

    g_t     = (sum_{i in B_t} clip(g(z_t; x_i)) + Gaussian) / m  +  (grad_w r, -grad_v r)(z_t)
    z_{t+1} = P_{W x V}(z_t - step_t (2 g_t - g_{t-1})),   g_0 = g_1,      t = 1, ..., T.

On a bilinear game, where the last iterate of plain descent-ascent spirals outwards, this one comes
in to the saddle. The noise of a step is that of 2 g_t - g_{t-1}, five times the variance of one
release; the sum over rounds has each release once. A run has the charge of a run of `sgda`, because
it makes the same releases: extrapolating and stepping are functions of them.

**Theorem.** Let F be monotone and L-Lipschitz, F the mean of the operators as clipped (where a clip
binds the mean need not be monotone), E[xi_t | past] = 0 and E||xi_t||^2 <= V for xi_t = g_t -
F(z_t), ||u - z_1|| <= R on the set. For a constant step eta <= 1 / (4 L),

    E gap((z_2 + ... + z_T) / (T - 1))
        <=  R^2 / (2 eta (T - 1)) + 2 eta V + rho_D (V / (T - 1))^(1/2),

with rho_D of Lemma (J) in `bounds`, and the strong gap, or that of the variational inequality, of
the records' own mean (`docs/variational_inequalities.md` has the proof). At a fixed epsilon V grows
like T, so at the best step the noise costs the same for every T, and the rest is below it from T of
order n epsilon / sqrt(d) on, where `sgda` needs the square of that.

Source: Daskalakis, Ilyas, Syrgkanis and Zeng, "Training GANs with Optimism", ICLR 2018,
arXiv:1711.00141, Section 2, after Popov, "A modification of the Arrow-Hurwicz method for search of
saddle points", 1980; with a projection, Malitsky and Tam, "A forward-backward splitting method for
monotone inclusions without cocoercivity", SIAM J. Optim. 30 (2020). Departures: they read the
operator itself, here it is clipped per record, noised and charged; g_0 = g_1 makes the first step a
plain one.

Examples:
    >>> query = jmm.Query(clip=Saddle(1.0, 1.0), population=1000)
    >>> hyper = jmm.optimistic.Hyper(query=query, step=Saddle(0.1, 0.1), iterations=50)
    >>> jmm.mechanism.releases(jmm.optimistic.mechanism(hyper))  # one in a round
    50
"""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxminimax.algorithms import bounds, descent, planning
from jaxminimax.algorithms.descent import ENTROPIC, EUCLIDEAN
from jaxminimax.base import checks
from jaxminimax.base.types import Problem, PyTree, Saddle, pytree_dataclass
from jaxminimax.mechanism import Full, Query, Repeat, Sampling

State = descent.State  # its memory: g_{t-1}, the operator of the round before


@pytree_dataclass
class Hyper:
    """The settings of a run; its numbers are leaves, which may be traced and vmapped over.

    Attributes:
      query: clip norms, noise multipliers, sampling, population.
      step: per player, a number or a schedule `t -> step` (`schedules.Decay`)
        [parameter units / gradient units]; at most 1 / (2 L) for an L-Lipschitz operator.
      iterations: T, the number of rounds and of releases.
      averaging: weights of the average of the iterates.
      geometry: per player, "euclidean", or "entropy" for one whose leaves are probability vectors.
    """

    query: Query
    step: Saddle
    iterations: int = jax.tree.static()
    averaging: descent.Averaging = descent.UNIFORM
    geometry: Saddle = jax.tree.static(default=EUCLIDEAN)


def mechanism(hyper: Hyper) -> Repeat:
    """Describes a run: one release a round. The accountant reads nothing else.

    Raises:
      ValueError: for clip norms that follow a quantile.
    """
    return Repeat(query=descent.fixed_clip(hyper.query), times=hyper.iterations)


def example(query: Query, iterations: int) -> Hyper:
    """Returns the smallest legal settings around a description, for accounting and audits."""
    return Hyper(query=query, step=Saddle(0.5, 0.25), iterations=iterations)


def rule(hyper: Hyper, t: jax.Array, g: Saddle, state: State) -> tuple[Saddle, Saddle]:
    """Returns the change -step_t (2 g_t - g_{t-1}), with g_0 = g_1, and the memory g_t."""
    previous = jax.tree.map(lambda a, b: jnp.where(t == 1, a, b), g, state.memory)  # g_{t-1}
    extrapolated = jax.tree.map(lambda a, b: 2 * a - b, g, previous)
    return descent.along(state.z, extrapolated, hyper.step, t), g


def init(z: Saddle, hyper: Hyper) -> State:
    """Returns the state before the first round, at z, which must not depend on the data."""
    return descent.init(z, hyper, lambda z: jax.tree.map(jnp.zeros_like, z))


def update(key: jax.Array, state: State, data: PyTree, hyper: Hyper, problem: Problem) -> State:
    """Makes one round: a release on `data`, leaves `[n, ...]`, and a step from the last state.

    `key` is the secret root key of the run. The result is NaN once all releases are spent.
    """
    return descent.update(key, state, data, hyper, problem, mechanism(hyper), rule)


plan_variants = (planning.Variant({}, 0.03, ("smooth", "diameter")),
                 planning.Variant({"proved": True}, None, ("smooth", "diameter")))


def plan(target: planning.Target, *, population: int, dim: int | Saddle, bound: float,
         smooth: float | None = None, smooth_l1: float | None = None,
         diameter: float | None = None, radius: float | None = None, game: str = "monotone",
         proved: bool = False, kappa: float = 1.0, iterations: int | None = None,
         geometry: Saddle | None = None, public_bound: float = 0.0,
         records: tuple[float, float] | None = None,
         sampling: Sampling = Full()) -> planning.Plan[Hyper]:  # noqa: B008
    """Plans a smooth game from public numbers: by measured settings, or by the theorem.

    With V the variance of the calibrated noise (`release_variance`),

        step = c min{1 / (2 L), kappa R / (T V)^(1/2)},      c = 1 Euclidean, 2 entropic.

    A monotone game gets weights t in the average, a bilinear one equal weights, from z_2 on; a
    strongly monotone one a step that falls linearly to 0, and its last iterate for the average
    (choose that only for games that hardly turn: with a modulus well below L and a skew part,
    averages are closer). These settings rest on measurement: beyond 1 / (4 L), and for other
    weights, nothing is proved here. With `proved` the cap is 1 / (4 L), weights are equal, c = 1,
    and kappa = 1/2 minimises the bound. If the theorem covers the settings, the plan has its
    guarantee, on the records themselves. That on the population is larger by what sampling adds; of
    a game that is bilinear for each record, `records` gives it, see `bounds.bilinear_sampling`.

    In the entropic geometry norms are l1 for points and l-infinity for operators, so R^2 = 2 (ln
    d_w + ln d_v), V = 2 sigma^2 (ln 2 d_w + ln 2 d_v), and L is `smooth_l1`. The clip is still in
    l2. For full batches, whose noise is Gaussian and independent, the theorem holds with R for
    rho_D: a sum of Gaussians has a variance that adds up in any norm. If both constants are given,
    the plan takes the geometry whose bound with `proved` is smaller; for measured settings by R^2 /
    (step T) + 2.5 step V, which chooses the measured better one.

    Args:
      target: the privacy target.
      population: n, the number of records.
      dim: d, the number of coordinates of both players together; with `smooth_l1` a `Saddle` of
        each player's number.
      bound: M, the largest norm of a record's operator, players together: the joint clip.
      smooth: L in l2, the Lipschitz constant of the mean operator, public terms included; for
        Euclidean steps.
      smooth_l1: L from l1 to l-infinity, for entropic steps of two players on simplices; never
        above L in l2. It is the largest entry of the mean matrix of a matrix game.
      diameter: D, the diameter of W x V; follows from `dim` with `smooth_l1`.
      radius: R, the largest distance of a point of W x V from the start; None for D, and with
        `smooth_l1` for that from equal weights.
      game: "monotone", "bilinear" or "strongly_monotone".
      proved: whether to keep to settings that the theorem covers.
      kappa: factor of the noise-limited step; ignored with `proved`.
      iterations: T, at least 2; None for `rounds`.
      geometry: Euclidean or entropic, the same for both players; the latter starts at equal
        weights. None for the one of the smaller bound.
      public_bound: the largest norm of the public terms' operator, for the trivial bound; 0 for
        none.
      records: (L_0, L_1), bounds on the norm of a record's operator at the start and on the
        Frobenius norm of its matrix, for a guarantee on the population.
      sampling: full batches, or samples drawn anew in every round.

    Raises:
      ValueError: for numbers out of range or missing.
    """
    checks.one_of("game", game, ("monotone", "bilinear", "strongly_monotone"))
    if records is not None:
        _check_records(records)
    norms = _norms(dim, smooth, smooth_l1, diameter, radius, geometry)
    if iterations is None:
        iterations = min(rounds(norm.smooth, norm.radius, norm.size(dim) * (
            bound * target.multiplier() / population)) for norm in norms)  # of a single release
    checks.count("iterations", iterations, low=2)
    query = planning.joint_query(bound, population, sampling)
    hyper = target.noise(Hyper(query=query, step=Saddle(1.0, 1.0), iterations=iterations))

    step_and_bound = functools.partial(_step_and_bound, hyper.query, dim, iterations)

    def measure(norm: _Norm) -> float:
        step, gap = step_and_bound(norm, 0.25, 0.5)
        spread = descent.release_variance(hyper.query, dim, norm.geometry)
        return gap if proved else (
            norm.radius**2 / (step * (iterations - 1)) + 2.5 * step * spread)

    norm = min(norms, key=measure)
    entropic = norm.geometry == ENTROPIC
    cap, factor = (0.25, 0.5) if proved else (1.0, 2 * kappa) if entropic else (0.5, kappa)
    step, gap = step_and_bound(norm, cap, factor)
    rule: tuple[planning.Step, descent.Averaging] = (step, descent.WEIGHTED)
    if proved or game == "bilinear":
        rule = step, descent.Averaging(skip=1.5 / iterations)  # z_2, ..., z_T
    elif game == "strongly_monotone":
        falling = planning.Linear(scale=step, rounds=iterations)
        rule = falling, descent.Averaging(skip=1 - 0.5 / iterations)  # z_T
    planned = dataclasses.replace(hyper, step=Saddle(rule[0], rule[0]), averaging=rule[1],
                                  geometry=norm.geometry)
    chosen = () if len(norms) == 1 else (
        f"Of the two geometries, {norm.geometry.w} steps have the smaller bound.",)
    covered = (proved or game == "bilinear") and step * norm.smooth <= 0.25 and (
        not entropic or sampling.spread(population) == 0)
    if not covered:
        return planning.Plan(planned, None, False, (
            *chosen,
            "No theorem covers these settings: they rest on measurement (docs/choosing.md).",
            f"The step is {step * norm.smooth:.3g} / L; up to 1 / (4 L), with equal weights"
            f"{' and full batches' if entropic else ''}, there is one: proved=True."), on="records")
    gap = bounds.with_redraws(gap, sampling.shortfall(population), bound=bound,
                              diameter=norm.diameter, public_bound=public_bound)
    sentence = ("It is on the records themselves: that on the population is larger by what "
                "sampling adds.")
    if records is not None:
        gap += bounds.bilinear_sampling(
            population=population, start=records[0], slope=records[1], diameter=norm.diameter,
            radius=norm.diameter if entropic else norm.radius)
        sentence = "It is on the population, for independent records whose losses are bilinear."
    return planning.guaranteed(
        planned, gap, (bound + public_bound) * norm.diameter, *chosen,
        "The strong gap by the theorem on forward-reflected-backward steps with noise, "
        "docs/variational_inequalities.md.", sentence,
        "It is for a monotone, L-Lipschitz mean operator of which nothing is clipped.",
        on="records" if records is None else "population")


def _check_records(records: Any) -> None:
    """Refuses what is no pair of bounds on a record's operator and on its matrix."""
    if not isinstance(records, tuple | list) or len(records) != 2:
        raise ValueError("records must be a pair (L_0, L_1), bounds on the norm of a record's "
                         "operator at the start and on that of its matrix, got "
                         f"{checks.describe(records)}.")
    for name, x in zip(("records[0]", "records[1]"), records, strict=True):
        checks.number(name, x, low=0.0, closed=True)


def _step_and_bound(query: Query, dim: int | Saddle, iterations: int, norm: "_Norm", cap: float,
                    factor: float) -> tuple[float, float]:
    """The step min{cap / L, factor R / (T V)^(1/2)} in a geometry, and the theorem's bound."""
    spread = descent.release_variance(query, dim, norm.geometry)  # V
    noisy = factor * norm.radius / math.sqrt(iterations * spread) if spread else math.inf
    step = min(cap / norm.smooth, noisy)
    # as of one radius: rho_D is min{R, D / 2^(1/2)} in l2, and R in l1
    wide = norm.radius * math.sqrt(2) if norm.geometry == ENTROPIC else norm.diameter
    return step, bounds.average_gap(step=step, rounds=iterations - 1, second=4 * spread,
                                    variance=spread, radius=norm.radius,
                                    diameter=max(wide, norm.radius))


def rounds(smooth: float, radius: float, noise: float) -> int:
    """Returns T up to which the noise does not limit the step, 2 L R / V_1^(1/2), in [300, 3000].

    V_1^(1/2) = `noise` is that of a single release. The noise of all rounds together does not
    depend on T, and with fewer rounds the distance from the start is the larger term.
    """
    return int(min(3000.0, max(300.0, 2 * smooth * radius / noise if noise else 0.0)))


class _Norm(NamedTuple):
    """The constants of one geometry: L and R in its norm, D in l2."""

    geometry: Saddle
    smooth: float
    radius: float
    diameter: float

    def size(self, dim: int | Saddle) -> float:
        """V^(1/2) of a full batch whose noise has deviation 1."""
        if not isinstance(dim, Saddle):
            return math.sqrt(dim)
        return math.sqrt(dim.w + dim.v if self.geometry == EUCLIDEAN else
                         2 * math.log(2 * dim.w) + 2 * math.log(2 * dim.v))


def _norms(dim: int | Saddle, smooth: float | None, smooth_l1: float | None,
           diameter: float | None, radius: float | None, geometry: Saddle | None) -> list[_Norm]:
    """Returns the geometries that a plan may take."""
    if geometry not in (None, EUCLIDEAN, ENTROPIC):
        raise ValueError(f"a plan has one geometry for both players, got {geometry!r}: make the "
                         "Hyper yourself for two different ones, and calibrate it.")
    if geometry == ENTROPIC and smooth_l1 is None:
        raise ValueError("entropic steps take smooth_l1, the Lipschitz constant from l1 to "
                         "l-infinity, the largest payoff of a matrix game; smooth is that of l2.")
    if smooth_l1 is None:
        checks.count("dim", dim)
        planning.check_numbers(smooth=smooth, diameter=diameter)
        assert smooth is not None
        assert diameter is not None
        return [_Norm(EUCLIDEAN, smooth, bounds.reaches(diameter, radius)[0], diameter)]
    if not isinstance(dim, Saddle) or diameter is not None or radius is not None:
        raise ValueError("smooth_l1 is for simplices: it takes dim=Saddle(d_w, d_v), and neither "
                         f"diameter nor radius, which follow from it; got dim={dim!r}, "
                         f"diameter={diameter!r}, radius={radius!r}.")
    for name, d in dim._asdict().items():
        checks.count(f"dim.{name}", d, low=2)
    planning.check_numbers(smooth_l1=smooth_l1)
    radius = math.sqrt(2 * (math.log(dim.w) + math.log(dim.v)))
    norms = [_Norm(ENTROPIC, smooth_l1, radius, 2.0)]
    if smooth is not None:
        checks.number("smooth", smooth, low=smooth_l1, closed=True)
        norms.append(_Norm(EUCLIDEAN, smooth, math.sqrt(2 - 1 / dim.w - 1 / dim.v), 2.0))
    elif geometry != ENTROPIC:
        raise ValueError("smooth is missing, the Lipschitz constant in l2: for entropic steps "
                         "alone, add geometry=jmm.optimistic.ENTROPIC.")
    return [norm for norm in norms if geometry in (None, norm.geometry)]
