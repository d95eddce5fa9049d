"""Differentially private stochastic gradient descent-ascent (DP-SGDA).

    min over w in W, max over v in V, of  F(w, v) = (1/n) sum_i f(w, v; x_i) + r(w, v).

Both players move at once from z_t = (w_t, v_t), along one private estimate of the saddle operator
g = (grad_w f, -grad_v f):

    g_t     = (sum_{i in B_t} clip(g(z_t; x_i)) + Gaussian) / m  +  (grad_w r, -grad_v r)(z_t)
    z_{t+1} = P_{W x V}(z_t - step_t * g_t),                              t = 1, ..., T.

Source: Yang, Hu, Lei, Varshney, Lyu and Ying, "Differentially Private SGDA for Minimax Problems",
UAI 2022, arXiv:2201.09046, Algorithm 1. Departures: B_t is the sample that the mechanism describes
(Poisson, full batch or disjoint passes) instead of indices drawn with replacement, and the noise is
calibrated to it instead of by Theorem 1; clipping replaces the Lipschitz assumption; each player
has its own clip norm and noise, and clip norms may follow a quantile of the records' norms
(`AdaptiveClip`); the terms r that read no data are neither clipped nor noised; any
optax optimiser may take the step; averages are over the points z_1 ... z_T at which the operator
was taken, as in the proofs.

With `turns` = (k_w, k_v) the players move one after the other in every round, as in alternating
descent-ascent and in GANs with several critic steps:

    k_v steps of v, each along a release of v's operator at the latest point, then k_w steps of w.

Each step is a release of its own, with its player's clip norm and noise, so a round costs
k_w + k_v releases, all of which `mechanism` lists. A player without a clip norm has none: it moves
along its public terms, once a round, with the other player's last step. Steps and averages count
rounds. (Nouiehed et al., NeurIPS 2019, arXiv:1902.08297, have such steps without noise.)

Examples:
    >>> query = jmm.Query(clip=Saddle(5.0, 1.0), sampling=jmm.Poisson(rate=0.01),
    ...                   population=20_000)
    >>> hyper = jmm.sgda.Hyper(query=query, step=Saddle(0.1, 0.1), iterations=100)
    >>> hyper = jmm.calibrate(jmm.sgda, hyper, epsilon=1.0, delta=1e-6)
    >>> jmm.epsilon(jmm.sgda.mechanism(hyper), 1e-6) <= 1
    True
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import optax
import scipy

from jaxminimax.algorithms import bounds, descent, planning
from jaxminimax.base import arguments, checks
from jaxminimax.base.types import Problem, PyTree, Saddle, pytree_dataclass
from jaxminimax.mechanism import Disjoint, Poisson, Query, Repeat, Sequence
from jaxminimax.mechanism.costs import concrete
from jaxminimax.releases.sums import noisy_operator

State = descent.State  # its memory: both players' optimisers


@pytree_dataclass
class Hyper:
    """The settings of a run; its numbers are leaves, which may be traced and vmapped over.

    Attributes:
      query: clip norms, noise multipliers, sampling, population.
      step: per player, a number or a schedule `t -> step` (`schedules.Decay`)
        [parameter units / gradient units].
      iterations: T, the number of rounds and of releases.
      averaging: weights of the average of the iterates.
      optimiser: per player, a factory `step -> optax.GradientTransformation`; it sees released
        operators only. Keep one function object: it is hashed by identity.
      geometry: per player, "euclidean", or "entropy" for one whose leaves are probability vectors.
      preconditioner: per player, a public matrix `[d, d]` that a released operator, `[d, ...]`, is
        multiplied by before the optimiser sees it; None for none.
      turns: (k_w, k_v), the steps of each player in a round, see the module; 1 for a player without
        a clip norm. None: both players move at once, along one release.
    """

    query: Query
    step: Saddle
    iterations: int = jax.tree.static()
    averaging: descent.Averaging = descent.UNIFORM
    optimiser: Saddle = jax.tree.static(default=Saddle(optax.sgd, optax.sgd))
    geometry: Saddle = jax.tree.static(default=descent.EUCLIDEAN)
    preconditioner: Saddle = Saddle(None, None)
    turns: Saddle | None = jax.tree.static(default=None)


def mechanism(hyper: Hyper) -> Repeat | Sequence:
    """Describes a run: one release a round, or one for each step of players that take turns.

    The accountant reads nothing else.

    Raises:
      ValueError: for turns that are no counts, or of a query that joins the players or the rounds.
    """
    return _together(hyper) if hyper.turns is None else _in_turn(hyper)


def _together(hyper: Hyper) -> Repeat:
    return Repeat(query=hyper.query, times=hyper.iterations)


def _in_turn(hyper: Hyper) -> Sequence:
    """Describes the steps of players that take turns."""
    assert hyper.turns is not None
    _check_turns(hyper.query, hyper.turns)
    players = [p for p in ("v", "w") if getattr(hyper.query.clip, p) is not None]
    turns = tuple(getattr(hyper.turns, p) for p in players)
    return Sequence(parts=tuple(Repeat(query=_alone(hyper.query, p), times=k * hyper.iterations)
                                for p, k in zip(players, turns, strict=True)),
                    in_turn=True, each=turns)


def _alone(query: Query, player: str) -> Query:
    """Returns the query of one player's operator."""
    def player_values(values: Saddle) -> Saddle:
        return Saddle(None, None)._replace(**{player: getattr(values, player)})

    noise = query.noise_multiplier
    return dataclasses.replace(query, clip=player_values(query.clip),
                               noise_multiplier=None if noise is None else player_values(noise))


def _check_turns(query: Query, turns: Saddle) -> None:
    arguments.players("turns", turns, "the steps of each player in a round")
    for name, k, clip in zip(Saddle._fields, turns, query.clip, strict=True):
        checks.count(f"turns.{name}", k)
        if clip is None and k > 1:
            raise ValueError(f"turns.{name} must be 1, got {k}: without a clip norm the player "
                             "moves once a round, along public terms.")
    if query.joint or query.adaptive is not None or query.bands > 1:
        raise ValueError("turns release each player by itself, with fixed clip norms and new "
                         "noise: leave joint, adaptive and bands out of the query, or turns out "
                         "of Hyper.")


def example(query: Query, iterations: int) -> Hyper:
    """Returns the smallest legal settings around a description, for accounting and audits."""
    return Hyper(query=query, step=Saddle(0.5, 0.25), iterations=iterations)


def _optimisers(hyper: Hyper, t: jax.Array) -> Saddle:
    return Saddle(*(make(planning.step_at(step, t))
                    for make, step in zip(hyper.optimiser, hyper.step, strict=True)))


def _preconditioned(matrix: jax.Array | None, g: PyTree) -> PyTree:
    return g if matrix is None else jax.tree.map(
        lambda x: jnp.tensordot(jnp.asarray(matrix, x.dtype), x, 1), g)


def rule(hyper: Hyper, t: jax.Array, g: Saddle, state: State) -> tuple[Saddle, Saddle]:
    """Returns -step_t g_t, or each player's optimiser applied to g_t and its memory."""
    g = Saddle(*map(_preconditioned, hyper.preconditioner, g))
    moves = [checks.without_value(f"optimiser.{name}", tx.update, *x)
             for name, tx, *x in zip(Saddle._fields, _optimisers(hyper, t), g, state.memory,
                                     state.z, strict=True)]
    change, memory = (Saddle(*x) for x in zip(*moves, strict=True))
    return change, memory


def init(z: Saddle, hyper: Hyper) -> State:
    """Returns the state before the first round, at z, which must not depend on the data."""
    def memory(z: Saddle) -> Saddle:
        return Saddle(*(tx.init(x) for tx, x in zip(
            _optimisers(hyper, jnp.int32(1)), z, strict=True)))

    return descent.init(z, hyper, memory)


def _where(moves: list[Any], new: Saddle, old: Saddle) -> Saddle:
    """Returns what is new of the players that move, and what is old of the others."""
    return Saddle(*(jax.tree.map(lambda x, y, move=move: jnp.where(move, x, y), *pair)
                    for move, *pair in zip(moves, new, old, strict=True)))


def update(key: jax.Array, state: State, data: PyTree, hyper: Hyper, problem: Problem) -> State:
    """Makes one round: a release on `data`, leaves `[n, ...]`, and a step from the last state.

    `key` is the secret root key of the run. The result is NaN once all releases are spent.
    """
    if hyper.turns is None:
        return descent.update(key, state, data, hyper, problem, _together(hyper), rule)
    described = _in_turn(hyper)
    rounds, position = state.spent // sum(described.each), (state.z, state.memory)
    for part, times in zip(described.parts, described.each, strict=True):
        def step(j: jax.Array, position: tuple[Saddle, Saddle], part: Repeat = part,
                 times: int = times) -> tuple[Saddle, Saddle]:
            z, memory = position
            g = noisy_operator(key, part, rounds * times + j, problem, z, data)
            change, later = rule(hyper, rounds + 1, g, state._replace(z=z, memory=memory))
            last = j == times - 1  # then a player that reads no data moves too
            moves = [part_clip is not None or (last if clip is None else False)
                     for part_clip, clip in zip(part.query.clip, hyper.query.clip, strict=True)]
            new = descent.moved(z, change, problem, hyper.geometry)
            return _where(moves, new, z), _where(moves, later, memory)

        position = jax.lax.fori_loop(0, times, step, position)
    mean = descent.include(state.mean, state.z, hyper.averaging, rounds + 1, hyper.iterations)
    return State(*position, mean, state.spent + sum(described.each))


plan_variants = (planning.Variant({"passes": "one"}, 0.19, ("diameter",)),
                 planning.Variant({"passes": "many"}, 0.036, ("smooth",)))


def plan(target: planning.Target, *, population: int, dim: int, bound: float,
         smooth: float | None = None, diameter: float | None = None, passes: str = "many",
         batch: int | None = None, mode: str = "tight", public_bound: float = 0.0,
         public_smooth: float = 0.0, radius: float | None = None) -> planning.Plan[Hyper]:
    """Plans many passes over Poisson samples, or one pass over disjoint batches.

    **Many passes** take samples of m = max{1, n sqrt(epsilon / (4 T))} records in T = n rounds, or
    without `smooth` in T = n^2. With `diameter` the step minimises a bound on the weak gap on the
    population,

        R^2 / (2 eta T) + (eta / 2) (L_all^2 + V) + rho_D (V / T)^(1/2)  +  2^(1/2) L E gamma,

    V = (1 - q) L^2 / m + d sigma^2 (`bounds.average_gap` and `bounds.descent_stability`, for
    records whose operators are monotone). Steps with mode="paper", or without a diameter, are those
    of Theorem 2, `theorem2_step`, two to four times as long.

    **One pass** is the baseline of Appendix A.2 in Bassily, Guzman and Menart, COLT 2023,
    arXiv:2302.12909, with sigma = L z / b, z the noise multiplier, and T = n / b:

        step = R / (T (L_all^2 + d sigma^2))^(1/2),
        R^2 / (2 step T) + (step / 2) (L_all^2 + d sigma^2)
            + rho_D ((L^2 / b + d sigma^2) / T)^(1/2)

    bounds its strong gap on the population (`bounds`, Theorem (A)). The second moment of a step is
    at most that: with a = ||E G(z)|| it is (a + P)^2 + (L^2 - a^2) / b + d sigma^2, which grows
    with a up to L. The published noise forgets that replacing a record moves its operator by 2 L,
    and the published step divides by epsilon where it should multiply. With batches of one record
    each release is private for the owner of the record, without a trusted server (local privacy);
    larger batches need a server and have less noise.

    Args:
      target: the privacy target.
      population: n, the number of records.
      dim: d, the number of coordinates of both players together; for Theorem 2's steps that of the
        larger player.
      bound: L, the largest norm of a record's operator, players together: the joint clip.
      smooth: the Lipschitz constant of a record's operator, for many passes; None if unknown.
      diameter: D, the diameter of W x V, for one pass and for a guarantee.
      passes: "many" or "one".
      batch: the batch size of one pass; None for that of the smallest bound.
      mode: "tight", the step of the smallest bound of many passes, or "paper".
      public_bound: P, the largest norm of the public terms' operator; 0 for none.
      public_smooth: its Lipschitz constant.
      radius: R, the largest distance of a point of the set from the start; None for D.

    Raises:
      ValueError: for numbers that are out of range or missing.
    """
    checks.one_of("passes", passes, ("one", "many"))
    checks.one_of("mode", mode, ("tight", "paper"))
    if passes == "one":
        planning.check_numbers(diameter=diameter)
        assert diameter is not None
        return _one_pass(target, population, dim, bound, batch, public_bound, diameter, radius)
    if batch is not None:
        raise ValueError("batch is for passes='one': leave it out, Theorem 2 sets it.")
    epsilon: float = target.epsilon  # type: ignore[assignment]  # checked by `theorem2_step`
    steep = None if smooth is None else smooth + public_smooth
    step = theorem2_step(population=population, dim=dim, smooth=steep, epsilon=epsilon,
                         delta=target.delta)
    rounds = int(population) ** 2 if smooth is None else population
    if rounds >= 2**31:
        raise ValueError(f"population must be at most {math.isqrt(2**31 - 1)} for n^2 rounds, got "
                         f"{population}: the counter of releases has 32 bits. Give smooth, or take "
                         "jmm.recursive_sgda, which needs none.")
    size = min(population, max(1, round(population * math.sqrt(epsilon / (4 * rounds)))))
    sampling = Poisson(rate=size / population)
    query = planning.joint_query(bound, population, sampling)
    hyper = target.noise(Hyper(query=query, step=step, iterations=rounds))
    case = "b" if smooth is None else "a"
    why = (f"Theorem 2({case}) of Yang et al. (2022) has this order, here on Poisson samples.",)
    if diameter is None:
        return planning.Plan(hyper, None, False, (
            "The weak gap, as a rate: for a bound, and for its step, give diameter.", *why),
            gap="weak")
    spread: Any = sampling.spread(population)
    variance = bounds.fresh_variance(bound=bound, batch=size, dim=dim, spread=spread,
                                     multiplier=concrete(hyper.query.noise_multiplier.w))
    total, among = bound + public_bound, dict[str, Any](diameter=diameter, radius=radius)

    def gap(step: float) -> float:
        empirical = bounds.average_gap(step=step, rounds=rounds, second=total**2 + variance,
                                       variance=variance, **among)
        moved = bounds.descent_stability(
            population=population, bound=bound, step=step, rounds=rounds, batch=size,
            spread=spread, smooth=steep, public_bound=public_bound)
        return bounds.weak_gap(
            empirical=bounds.with_redraws(
                empirical, sampling.shortfall(population), bound=bound, diameter=diameter,
                public_bound=public_bound), stability=moved, bound=bound)

    chosen = step.w
    if mode == "tight":
        longest = math.log(bounds.best_step(rounds=rounds, second=total**2 + variance, **among))
        chosen = math.exp(scipy.optimize.minimize_scalar(
            lambda x: gap(math.exp(x)), bounds=(longest - 15, longest), method="bounded",
            options={"xatol": 1e-4}).x)
    return planning.guaranteed(
        dataclasses.replace(hyper, step=Saddle(chosen, chosen)), gap(chosen), total * diameter,
        "The weak gap, for independent records of which nothing is clipped and each of which has a "
        "monotone operator, by the bounds of `sgda.plan`.", *why, gap="weak")


def _one_pass(target: planning.Target, population: int, dim: int, bound: float, batch: int | None,
              public_bound: float, diameter: float, radius: float | None) -> planning.Plan[Hyper]:
    total = bound + public_bound

    def gap_and_step(batch: int, multiplier: float) -> tuple[float, float, int]:
        rounds, noise = max(1, population // batch), dim * (bound * multiplier / batch) ** 2
        among: Any = dict(rounds=rounds, second=total**2 + noise, diameter=diameter, radius=radius)
        step = bounds.best_step(**among)
        return bounds.average_gap(step=step, variance=bound**2 / batch + noise,
                                  **among), step, batch

    single_z = target.multiplier()
    batches = planning.batches(population) if batch is None else [batch]
    batch = min(gap_and_step(b, single_z) for b in batches)[2]
    query = planning.joint_query(bound, population, Disjoint(batch=batch))
    hyper = target.noise(Hyper(query=query, step=Saddle(1.0, 1.0),
                               iterations=max(1, population // batch)))
    gap, step, _ = gap_and_step(batch, concrete(hyper.query.noise_multiplier.w))
    return planning.guaranteed(
        dataclasses.replace(hyper, step=Saddle(step, step)), gap, total * diameter,
        "The strong gap of one pass over independent records of which nothing is clipped, by the "
        "bound of `sgda.plan`, after Appendix A.2 of Bassily, Guzman and Menart (2023).")


def theorem2_step(*, population: int, dim: int, epsilon: float, delta: float,
                  smooth: float | None = None) -> Saddle:
    """Constant steps of Theorem 2, for convex-concave losses.

    They are step = 1 / (L max{sqrt(n), sqrt(d ln(1/delta)) / epsilon}), the same for both players;
    d is the larger of their dimensions. L = `smooth` is the Lipschitz constant of the operator, and
    T = n (Theorem 2(a)). (The statement in the paper's main text omits L; its proof has it.)
    Without smoothness L = n and T = n^2 (Theorem 2(b)).
    """
    planning.check_numbers(population=population, dim=dim, epsilon=epsilon, delta=delta)
    factor = population if smooth is None else smooth
    planning.check_numbers(smooth=factor)
    step = 1.0 / (factor * max(math.sqrt(population), planning.privacy_term(dim, epsilon, delta)))
    return Saddle(step, step)


def theorem3_step(*, pl: float, smooth: float, modulus: float) -> Saddle:
    """Decaying steps of Theorems 3 and 5: Polyak-Lojasiewicz in w, strongly concave in v.

        step_w(t) = min{2 / (mu t), 1 / (L + L^2/rho)}
        step_v(t) = min{2 c / (mu t^(2/3)), 1/L},
        c = max{8 kappa^2 sqrt((L + L^2/rho) / mu), 4 sqrt(2) kappa^2},  kappa = L / rho.

    The caps are conditions of the proof that the printed schedules break in the first rounds
    (uncapped they overflow on a quadratic). Its third one, step_w <= step_v / c, holds from round 2
    c L / mu on; with it from the first round, by the cap 1 / (c L) on step_w, the bound is a
    number, `bounds.pl_empirical_gap` of `benchmarks.papers`, and w moves slowly.

    Args:
      pl: mu, the PL constant of the primal function.
      smooth: L, the Lipschitz constant of the operator.
      modulus: rho, the modulus of strong concavity in v.
    """
    planning.check_numbers(pl=pl, smooth=smooth, modulus=modulus)
    kappa, primal = smooth / modulus, smooth + smooth**2 / modulus
    ratio = max(8 * kappa**2 * math.sqrt(primal / pl), 4 * math.sqrt(2) * kappa**2)
    return Saddle(planning.Decay(scale=2 / pl, power=1.0, cap=1 / primal),
                  planning.Decay(scale=2 * ratio / pl, power=2 / 3, cap=1 / smooth))
