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

Examples:
    >>> query = jmm.Query(clip=Saddle(5.0, 1.0), sampling=jmm.Poisson(rate=0.01),
    ...                   population=20_000)
    >>> hyper = jmm.sgda.Hyper(query=query, step=Saddle(0.1, 0.1), iterations=100)
    >>> hyper = jmm.calibrate(jmm.sgda, hyper, epsilon=1.0, delta=1e-6)
    >>> jmm.epsilon(jmm.sgda.mechanism(hyper), 1e-6) <= 1
    True
"""

import math

import jax
import jax.numpy as jnp
import optax

from jaxminimax.algorithms import descent, planning
from jaxminimax.base import checks
from jaxminimax.base.types import Problem, PyTree, Saddle, pytree_dataclass
from jaxminimax.mechanism import Disjoint, Poisson, Query, Repeat

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
    """

    query: Query
    step: Saddle
    iterations: int = jax.tree.static()
    averaging: descent.Averaging = descent.UNIFORM
    optimiser: Saddle = jax.tree.static(default=Saddle(optax.sgd, optax.sgd))
    geometry: Saddle = jax.tree.static(default=descent.EUCLIDEAN)
    preconditioner: Saddle = Saddle(None, None)


def mechanism(hyper: Hyper) -> Repeat:
    """Describes a run: one release a round. The accountant reads nothing else."""
    return Repeat(query=hyper.query, times=hyper.iterations)


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
    moves = [tx.update(*x)
             for tx, *x in zip(_optimisers(hyper, t), g, state.memory, state.z, strict=True)]
    change, memory = (Saddle(*x) for x in zip(*moves, strict=True))
    return change, memory


def init(z: Saddle, hyper: Hyper) -> State:
    """Returns the state before the first round, at z, which must not depend on the data."""
    def memory(z: Saddle) -> Saddle:
        return Saddle(*(tx.init(x) for tx, x in zip(
            _optimisers(hyper, jnp.int32(1)), z, strict=True)))

    return descent.init(z, hyper, memory)


def update(key: jax.Array, state: State, data: PyTree, hyper: Hyper, problem: Problem) -> State:
    """Makes one round: a release on `data`, leaves `[n, ...]`, and a step from the last state.

    `key` is the secret root key of the run. The result is NaN once all releases are spent.
    """
    return descent.update(key, state, data, hyper, problem, mechanism(hyper), rule)


def plan(target: planning.Target, *, population: int, dim: int, bound: float,
         smooth: float | None = None, diameter: float | None = None, passes: str = "many",
         batch: int | None = None) -> planning.Plan[Hyper]:
    """Plans many passes by Theorem 2, or one pass over disjoint batches.

    Many passes take Poisson samples of m = max{1, n sqrt(epsilon / (4 T))} records in T = n rounds
    with the steps of `theorem2_step`, or without `smooth` in T = n^2 rounds. One pass is the
    baseline of Appendix A.2 in Bassily, Guzman and Menart, COLT 2023, arXiv:2302.12909:

        sigma = 2 L r / b,   step = B / sqrt(T (L^2 + d sigma^2)),   T = n / b,

    whose strong gap is at most 2 B ((L^2 + d sigma^2) / T)^(1/2). With batches of one record each
    release is private for the owner of the record, without a trusted server (local privacy);
    larger batches need a server and have less noise.

    Args:
      target: the privacy target.
      population: n, the number of records.
      dim: d, the number of coordinates of both players together; of the larger player for many
        passes.
      bound: L, the largest norm of a record's operator, players together: the joint clip. The
        guarantee of one pass is for an L that includes the public terms.
      smooth: the operator's Lipschitz constant, for many passes; None if unknown.
      diameter: B, the diameter of W x V, for one pass.
      passes: "many" or "one".
      batch: the batch size of one pass; None for the best, 2 r sqrt(d).

    Raises:
      ValueError: for numbers that are out of range or missing.
    """
    checks.one_of("passes", passes, ("one", "many"))
    planning.check_numbers(population=population, dim=dim, bound=bound)
    if passes == "one":
        return _one_pass(target, population, dim, bound, diameter, batch)
    if batch is not None:
        raise ValueError("batch is for passes='one': leave it out, Theorem 2 sets it.")
    epsilon: float = target.epsilon  # type: ignore[assignment]  # checked by `theorem2_step`
    step = theorem2_step(population=population, dim=dim, smooth=smooth, epsilon=epsilon,
                         delta=target.delta)
    rounds = int(population) ** 2 if smooth is None else population
    if rounds >= 2**31:
        raise ValueError(f"population must be at most {math.isqrt(2**31 - 1)} for n^2 rounds, got "
                         f"{population}: the counter of releases has 32 bits. Give smooth, or take "
                         "jmm.recursive_sgda, which needs none.")
    size = min(population, max(1, round(population * math.sqrt(epsilon / (4 * rounds)))))
    query = planning.joint_query(bound, population, Poisson(rate=size / population))
    hyper = target.noise(Hyper(query=query, step=step, iterations=rounds))
    return planning.Plan(hyper, None, False, (
        f"The weak gap by Theorem 2({'b' if smooth is None else 'a'}) of Yang et al. (2022), a "
        "rate.", "Samples are Poisson's, and the noise is calibrated to them."), gap="weak")


def _one_pass(target: planning.Target, population: int, dim: int, bound: float,
              diameter: float | None, batch: int | None) -> planning.Plan[Hyper]:
    planning.check_numbers(diameter=diameter)
    assert diameter is not None
    ratio = target.gaussian()
    if batch is None:
        batch = min(population, max(1, round(2 * ratio * math.sqrt(dim))))
    checks.count("batch", batch)
    query = planning.joint_query(bound, population, Disjoint(batch=batch))
    rounds = max(1, population // batch)
    second = bound**2 * (1 + dim * (2 * ratio / batch) ** 2)
    step = diameter / math.sqrt(rounds * second)
    hyper = target.noise(Hyper(query=query, step=Saddle(step, step), iterations=rounds))
    gap = 2 * diameter * math.sqrt(second / rounds)
    trivial = bound * diameter
    return planning.Plan(hyper, gap, gap >= trivial, (
        "The strong gap of one pass, for saddle points, Appendix A.2 of Bassily, Guzman and Menart "
        "(2023).", planning.with_trivial(gap, trivial),
        "It is for losses of which nothing is clipped: L bounds the norm of every record's "
        "operator, public terms included.",
        "The published noise forgets that replacing a record moves its operator by 2 L, and the "
        "published step divides by epsilon where it should multiply."), trivial)


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
    (uncapped they overflow on a quadratic).

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
