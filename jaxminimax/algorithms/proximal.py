"""Noisy inexact stochastic proximal point (NISPP) for monotone variational inequalities.

    find z* in W with <F(z*), z - z*> >= 0 for all z in W,      F(z) = (1/n) sum_i F(z; x_i) + r(z).

A round solves a regularised problem on a sample, exactly enough, and releases its solution:

    u_t  in W  solves the variational inequality of  (1/m) sum_{i in B_t} F(u; x_i) + r(u)
                                                     + prox (u - z_t)
    z_{t+1} = u_t + N(0, sigma^2 I),                                       t = 1, ..., T,

output P_W((z_2 + ... + z_{T+1}) / T). Only this average is projected: projecting each z would bias
the noise that the average cancels, and averaging u would release it.

The noise rests on more than clipping: on strong monotonicity of the regularised problem, see
`mechanism.Resolvent` for the two ways to have it, and on a certificate of each solution.

Source: Boob and Guzman, "Optimal algorithms for differentially private stochastic monotone
variational inequalities and saddle-point problems", arXiv:2104.02988, Algorithm 2. Departures: the
sensitivity is that of certified residuals, half of Proposition 9's; noise is calibrated to it and
to the sampling (Corollary 2 misprints its own); the inner solver starts at P_W(z_t), where the
operator is defined, and takes a number of steps that is proven; T rounds, where the listing has
T + 1 and batches for T; in "lipschitz" mode operators are clipped and need not be monotone; prox,
batch, noise and the weights of the average are the same in all rounds, where Theorem 5 and
Proposition 10 allow lambda_k, B_k, sigma_k and gamma_k with gamma_k lambda_k constant (their
corollaries take constants too); an operator that is strongly monotone by itself has less noise.

Examples:
    >>> query = jmm.mechanism.Resolvent(bound=1.0, prox=2.0, lipschitz=1.0, diameter=2.0,
    ...                                 population=1000,
    ...                                 assumes="monotone")
    >>> query = jmm.proximal.certified(query)  # the steps that its certificate needs
    >>> hyper = jmm.proximal.Hyper(query=query, iterations=20)
    >>> hyper = jmm.calibrate(jmm.proximal, hyper, epsilon=1.0, delta=1e-6)
    >>> jmm.epsilon(jmm.proximal.mechanism(hyper), 1e-6) <= 1
    True
"""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import scipy

from jaxminimax.algorithms import bounds, descent, planning
from jaxminimax.base import arguments, checks, tree
from jaxminimax.base.types import Problem, PyTree, Saddle, pytree_dataclass
from jaxminimax.mechanism import Disjoint, FixedSize, Repeat, Resolvent, composed, resolvent
from jaxminimax.mechanism.costs import concrete
from jaxminimax.releases.solutions import release_resolvent


@pytree_dataclass
class Hyper:
    """The settings of a run; its numbers are leaves, which may be traced and vmapped over.

    Attributes:
      query: bound, proximal weight, Lipschitz constant, diameter, noise multiplier, sampling,
        population; its inner steps are set by `certified`.
      iterations: T, the number of rounds and of releases.
    """

    query: Resolvent
    iterations: int = jax.tree.static()


class State(NamedTuple):
    """The state of a run, all of it private output, which may be published and stored.

    Attributes:
      z: the last release, noisy and possibly outside W.
      mean: running average of the releases, not projected.
      average: the projected average, the algorithm's output, in the dtypes of z.
      spent: number of releases so far, int32 `[]`.
    """

    z: Saddle
    mean: descent.Mean
    average: Saddle
    spent: jax.Array


def mechanism(hyper: Hyper) -> Repeat:
    """Describes a run: one release a round. The accountant reads nothing else."""
    return Repeat(query=hyper.query, times=hyper.iterations)


def example(query: Resolvent, iterations: int) -> Hyper:
    """Returns the smallest legal settings around a description, for accounting and audits."""
    return Hyper(query=query, iterations=iterations)


def certified(query: Resolvent) -> Resolvent:
    """Returns `query` with the steps of the inner solver after which its certificate cannot fail.

    Args:
      query: a description with plain numbers; the noise multiplier is not used.

    Raises:
      ValueError: for numbers out of range, or a modulus that is not positive.
    """
    if query.doubling:
        raise ValueError("doubling is recursive regularisation's: recursive.certified sets its "
                         "steps.")
    composed.check(Repeat(query=dataclasses.replace(query, steps=None), times=1))
    return dataclasses.replace(query, steps=resolvent.inner_steps(query))


def init(z: Saddle, hyper: Hyper) -> State:
    """Returns the state before the first round.

    Args:
      z: initial point in W; must not depend on the data. Leaves of any shape and float dtype.
      hyper: see `Hyper`.

    Raises:
      ValueError: for a count that is not positive.
    """
    checks.count("iterations", hyper.iterations)
    composed.check(mechanism(hyper))
    z = arguments.point(z)
    return State(z, descent.start_mean(z), z, jnp.int32(0))


def update(key: jax.Array, state: State, data: PyTree, hyper: Hyper, problem: Problem) -> State:
    """Makes one round and returns the next state.

    Args:
      key: secret root key of the run, which is never part of the state.
      state: from `init` or the previous round.
      data: leaves `[n, ...]`, with n = `hyper.query.population`.
      hyper: see `Hyper`.
      problem: operator, public terms (monotone) and the Euclidean projection on W.

    Returns:
      The next state, in the dtypes of `state.z`; NaN once `iterations` releases are spent, or if a
      solution could not be certified.

    Raises:
      ValueError: while tracing, if `data` does not have n rows, no noise was calibrated, or a
        clipped operator is assumed to be monotone.
    """
    t = state.spent + 1
    z = release_resolvent(key, mechanism(hyper), state.spent, problem, state.z, data)
    z = tree.cast_like(z, state.z)  # z_{t+1}
    mean = descent.include(state.mean, z, descent.UNIFORM, t, hyper.iterations)
    average = descent.projected(mean.value, z, problem)  # the output
    return State(z, mean, average, t)


plan_variants = (planning.Variant({"passes": "one"}, 0.095),
                 planning.Variant({"passes": "many"}, 0.036))


def plan(target: planning.Target, *, population: int, dim: int, bound: float, smooth: float,
         diameter: float, passes: str = "one", modulus: float = 0.0, slack: float = 0.01,
         solver: Any = None, smooth_difference: float | None = None, public_bound: float = 0.0,
         public_smooth: float = 0.0, radius: float | None = None) -> planning.Plan[Hyper]:
    """Plans one pass over disjoint batches by its smallest bound, or Theorem 7's uniform subsets.

    See `single_pass` and `multi_pass`. Privacy rests on the constants of this call: the operator of
    a record of any content must be monotone, bounded and Lipschitz with them.

    Args:
      target: the privacy target.
      population: n, the number of records.
      dim: d, the number of coordinates of both players together.
      bound: M, the largest norm of a record's operator, players together.
      smooth: the Lipschitz constant of a record's operator.
      diameter: D, the diameter of W.
      passes: "one" or "many".
      modulus: mu_0, the modulus of strong monotonicity of every record's operator; see
        `mechanism.Resolvent`. The noise falls with it, and the schedule does not change.
      slack: the slack of certificates, see `mechanism.Resolvent`.
      solver: `(key, problem, residual) -> point`, see `mechanism.Resolvent`.
      smooth_difference: of one pass, see `single_pass`; no privacy rests on it.
      public_bound: P, the largest norm of the public terms' operator; 0 for none.
      public_smooth: its Lipschitz constant: without it certificates of a problem with public terms
        fail, and the result is NaN.
      radius: R, the largest distance of a point of W from the start; None for D.

    Raises:
      ValueError: for numbers out of range, or a `smooth_difference` of many passes.
    """
    checks.one_of("passes", passes, ("one", "many"))
    planning.check_numbers(epsilon=target.epsilon)
    numbers: Any = dict(population=population, dim=dim, bound=bound, diameter=diameter)
    in_one_pass, steep = passes == "one", smooth + public_smooth
    if not in_one_pass and smooth_difference is not None:
        raise ValueError("smooth_difference is for passes='one': leave it out.")
    if in_one_pass:
        numbers |= dict(smooth=smooth, slack=slack, smooth_difference=smooth_difference,
                        public_bound=public_bound, radius=radius)
        chosen = single_pass(multiplier=target.multiplier(), **numbers)
    else:
        chosen = multi_pass(smooth=steep, **numbers, delta=target.delta,
                            epsilon=target.epsilon)  # type: ignore[arg-type]  # no None
    query = Resolvent(bound=bound, prox=chosen.prox, lipschitz=steep, diameter=diameter,
                      sampling=(Disjoint if in_one_pass else FixedSize)(batch=chosen.batch),
                      population=population, assumes="monotone", slack=slack, modulus=modulus,
                      solver=solver)
    hyper = target.noise(Hyper(query=certified(query), iterations=chosen.iterations))
    noise = "The noise is that of certified residuals, half of Proposition 9's."
    if not in_one_pass:
        return planning.Plan(hyper, None, False, (
            "The weak gap by Theorem 7 of Boob and Guzman (2023), a rate.", noise), gap="weak")
    gap = single_pass(multiplier=concrete(hyper.query.noise_multiplier), run=chosen,
                      **numbers).gap_bound
    return planning.guaranteed(
        hyper, gap, (bound + public_bound) * diameter,
        "The strong gap, for independent records, by the bound of `proximal.single_pass`, not by "
        "that of Corollary 2.", noise)


class Schedule(NamedTuple):
    """The parameters that a theorem prescribes.

    Attributes:
      batch: B, the number of records of a release.
      iterations: T, the number of rounds.
      prox: lambda, the proximal weight.
      gap_bound: a bound on the strong gap; infinite for a rate.
    """

    batch: int
    iterations: int
    prox: float
    gap_bound: float = math.inf


def single_pass(*, population: int, dim: int, bound: float, smooth: float, diameter: float,
                multiplier: float, slack: float = 0.01, smooth_difference: float | None = None,
                public_bound: float = 0.0, radius: float | None = None,
                run: Schedule | None = None) -> Schedule:
    """Sets one pass over disjoint batches, with the weight and the batch of the smallest bound.

    Let records be independent, T = n / B, eta = 1 / lambda, z the noise multiplier, rho the slack,
    L' the Lipschitz constant of F(.; x) - F(.; x') for any two records, at most 2 L, N = d ((1 +
    rho) z M / B)^2, k = 1 + (1 + rho) eta L' and V = N + (k M)^2 / B. With R and rho_D of Lemma (J)
    in `bounds` and L_all = M + P, for any lambda and B the expected strong gap is at most

        R^2 / (2 eta T) + eta V / 2 + rho_D (V / T)^(1/2) + (1 + rho) eta L' D M / B
        + eta L_all (2 N / T)^(1/2) + rho M D / B.

    lambda minimises it, and B is the best of a geometric grid. The bound is of the optimal order
    n^(-1/2), where Corollary 2 has B = n^(1/3) and the order n^(-1/3).

    *Proof.* Drop t. Let F_B be the batch's operator, x the noise, with lambda^2 E||x||^2 <= N, and
    v any point of W. The inequality of u, with its residual of rho M / B, and ||z_{t+1} - v||^2 =
    ||u - v||^2 + 2 <x, u - v> + ||x||^2 give

        <F_B(u), u - v> <= (lambda / 2) (||z - v||^2 - ||z_{t+1} - v||^2 - ||u - z||^2 + ||x||^2)
                           + lambda <x, u - v> + rho M D / B.

    (a) Let y = F(u) - F_B(u), b its mean given the past, and c = P_W(z), so that ||u - c|| <= ||u -
    z||. Then <y, u - v> = <y, u - c> + <b, c - v> + <y - b, c - v>, where <y, u - c> <= (eta / 2)
    ||y||^2 + (lambda / 2) ||u - z||^2, whose last term cancels. (b) Exchanging record i (public
    terms cancel) with a fresh one moves u to some u_i, by at most 2 (1 + rho) eta M / B. With G the
    operator of the fresh record less that of record i, b is the mean of G(u) over i and the
    records, and also that of -G(u_i), so that of (G(u) - G(u_i)) / 2. So ||b|| <= (1 + rho) eta L'
    M / B. (c) Let u* solve the problem exactly, with F for F_B: it does not depend on the batch. By
    strong monotonicity ||u - u*|| <= eta (||F(u*) - F_B(u*)|| + rho M / B), and F - F_B, a mean of
    differences, is L'-Lipschitz, so E||y||^2 <= (k M)^2 / B. (d) lambda <x, u - v> + <y - b, c - v>
    is, with the centre o of the ball of (J), lambda <x, u - o> + <y - b, c - o>, of mean 0, and a
    part in v: the sum has a supremum of at most rho_D (T V)^(1/2) in the mean. As F is monotone,
    the sum over T of all this bounds the gap of the mean of the u. (e) The output is at most ||x_1
    + ... + x_T|| / T from that mean, and gaps are sqrt(2) L_all-Lipschitz. QED.

    Args:
      population: n, the number of records.
      dim: d, the number of coordinates of both players together.
      bound: M, the largest norm of a record's operator, players together.
      smooth: L, the operator's Lipschitz constant.
      diameter: D, the diameter of W.
      multiplier: z, of one release that alone meets the target, or the calibrated one.
      slack: rho, the slack of certificates.
      smooth_difference: L'; 0 if records only shift the operator; None for 2 L.
      public_bound: P.
      radius: R; None for D.
      run: a schedule whose bound to compute, for this z; None for the best one.
    """
    steep = 2 * smooth if smooth_difference is None else smooth_difference
    checks.number("smooth_difference", steep, low=0.0, high=2 * smooth, closed=True)

    def schedule_of(batch: int) -> Schedule:
        rounds, each = population // batch, (1 + slack) * bound / batch
        noise = dim * (multiplier * each) ** 2  # N

        def gap(log_step: float) -> float:
            step = math.exp(log_step)
            spread = noise + ((1 + (1 + slack) * step * steep) * bound) ** 2 / batch  # V
            average = bounds.average_gap(step=step, rounds=rounds, second=spread, variance=spread,
                                         diameter=diameter, radius=radius)
            return (average + step * steep * diameter * each
                    + step * (bound + public_bound) * math.sqrt(2 * noise / rounds)
                    + slack * bound * diameter / batch)

        if run is not None:
            return run._replace(gap_bound=gap(-math.log(run.prox)))
        longest = math.log(diameter / math.sqrt(rounds * (noise + bound**2 / batch)))
        best = scipy.optimize.minimize_scalar(  # it is convex in ln eta
            gap, bounds=(longest - 30, longest), method="bounded", options={"xatol": 1e-6})
        return Schedule(batch, rounds, math.exp(-best.x), float(best.fun))

    possible = planning.batches(population) if run is None else [run.batch]
    return min(map(schedule_of, possible), key=lambda chosen: chosen.gap_bound)


def multi_pass(*, population: int, dim: int, bound: float, smooth: float, diameter: float,
               epsilon: float, delta: float) -> Schedule:
    """Sets uniform subsets by Theorem 7: a weak gap of optimal order in n^(3/2) log n evaluations.

        B = sqrt n,   T = n,   lambda = max{M / D, L} max{sqrt n, sqrt(d ln(1/delta)) / epsilon}

    with B rounded. Use `FixedSize(batch=B)` or `Poisson(rate=B / n)`. The arguments
    are those of `single_pass`, and the privacy target.
    """
    prox = max(bound / diameter, smooth) * max(
        math.sqrt(population), planning.privacy_term(dim, epsilon, delta))
    return Schedule(max(1, round(math.sqrt(population))), population, prox)
