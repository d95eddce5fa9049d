"""Descriptions of what a run does to the data, in the few numbers that decide its privacy.

The door (`release`) draws its sample and its noise from these descriptions; the accountant reads
the same ones. Neither has another source.
"""

import dataclasses
import math
from typing import Any

import jax
import numpy as np
from scipy import special

from jaxminimax import _check
from jaxminimax._types import Saddle, record

# P[a Poisson sample outgrows a capacity that was not given], per release. With 10^6 releases the
# charge to delta stays near 1e-11 at epsilon = 1.
OVERFLOW = 1e-17


@record
class Full:
    """Every record takes part in every release."""


@record
class Poisson:
    """Every record takes part independently with probability `rate`, anew in every release.

    Both fields are static: the thresholds of the sampler are computed from `rate` with exact
    integer arithmetic on the host, and `capacity` is a shape.

    Attributes:
      rate: q in (0, 1].
      capacity: most records that a release can hold. A larger sample makes the release NaN, and
        the probability of that is charged to delta. None: the smallest capacity that overflows
        with probability at most 1e-17.
    """

    rate: float = jax.tree.static()
    capacity: int | None = jax.tree.static(default=None)


@record
class Disjoint:
    """Release k reads rows [k b, (k + 1) b), then the next b, and starts over after a pass.

    Rows beyond the last whole batch are never read. The order of the rows must be public: shuffle
    the data once with a permutation that does not depend on it.

    Attributes:
      batch: b, records in a release.
    """

    batch: int = jax.tree.static()


@record
class FixedSize:
    """Exactly `batch` records take part, uniformly, anew in every release; replace-one only.

    Attributes:
      batch: m.
      replacement: whether a record may be drawn several times, as the papers' listings write it.
        It then costs much more than a Poisson sample of the same expected size.
    """

    batch: int = jax.tree.static()
    replacement: bool = jax.tree.static(default=False)


@record
class Query:
    """Release both players' clipped sums of per-record operators over one shared sample.

    Attributes:
      clip: per player, bound on the L2 norm of one record's operator [gradient units]. None for
        a player whose operator reads no data: it is neither computed, nor noised, nor charged.
      noise_multiplier: per player, standard deviation of the noise on the clipped sum / clip
        [dimensionless]; None where the clip is. Set by `calibrate`, which keeps the ratio between
        the players. None altogether: not calibrated yet, and `release` refuses.
      sampling: `Full()`, `Poisson(rate=...)`, `FixedSize(batch=...)` or `Disjoint(batch=...)`.
      population: n, the number of records; public.
      joint: one clip for both players: a record's operator g is scaled so that
        sum_p (||g_p|| / C_p)^2 <= 1, instead of ||g_p|| <= C_p for each p. It costs as much as the
        player with the smaller noise multiplier alone, and keeps the operator's direction.
    """

    clip: Saddle
    noise_multiplier: Saddle | None = None
    sampling: Full | Poisson | FixedSize | Disjoint = Full()
    population: int = jax.tree.static()
    joint: bool = jax.tree.static(default=False)


@record
class Resolvent:
    """Release the solution of a regularised problem over a sample, plus Gaussian noise.

        u in W solves the variational inequality of  G(u) = (1/m) sum_{i in B} F_i(u) + lambda (u-w)

    up to a certified residual of rho M / m. With G mu-strongly monotone and ||F_i|| <= M, replacing
    a record moves what is released by at most 2 (1 + rho) M / (m mu), in the norm of both players
    together: by strong monotonicity of the two perturbed problems, added up. The noise is
    `noise_multiplier` times half of that; see `displacement`.

    `assumes` says where mu comes from. It is part of the privacy argument, so statements print it:

      "monotone"   every record's operator is monotone on W and of norm at most M, as it is: records
                   must be sanitised so that this holds for whatever they contain. mu = lambda.
                   Clipped operators are refused: clipping destroys monotonicity.
      "lipschitz"  every record's operator is L-Lipschitz on W; the code clips it to norm M, which
                   keeps L. mu = lambda - s L, which must be positive.

    Here s = 1, but for Poisson samples s = capacity / m: a sum over more records than m, divided by
    m, is as many times steeper. A smaller capacity costs delta and lowers s.

    Attributes:
      bound: M, on the norm of one record's operator, both players together [gradient units].
      prox: lambda, weight of the proximal term.
      lipschitz: L, of one record's operator plus that of the public terms; 0 for constant ones.
      diameter: of W; decides how many steps of the inner solver are proven to be enough. Where
        nothing is projected, a bound on the distance of the solution from the centre, M / mu.
      steps: of operator extrapolation, from `proximal.certified`; one number a part if `doubling`.
      doubling: whether part t = 1, 2, ... of the data has the proximal weight (2^t - 1) lambda
        instead of lambda, as in recursive regularisation. The noise shrinks with it.
      solver: what looks for the solution first, `(key, solvers.Regularised, residual) -> point`, a
        black box such as `solvers.near_linear`. Its point is released if it is certified; otherwise
        operator extrapolation takes its proven number of steps from there. None: that alone. Keep
        one function object: it is hashed by identity. It runs in float64; with 64-bit types off,
        give random draws a dtype of 32 bits.
      slack: rho, certified residual over M / m.
      noise_multiplier: as in `Query`, one number for all coordinates.
      sampling: as in `Query`.
      population: n, the number of records; public.
      assumes: "monotone" or "lipschitz".

    Source: Boob and Guzman, arXiv:2104.02988, Propositions 9 and 10, with the sensitivity of the
    residual in place of theirs (which is twice as large) and the Lipschitz mode added.
    """

    bound: float | jax.Array
    prox: float | jax.Array
    lipschitz: float | jax.Array
    diameter: float | jax.Array
    steps: int | tuple[int, ...] | None = jax.tree.static(default=None)
    doubling: bool = jax.tree.static(default=False)
    solver: Any = jax.tree.static(default=None)
    slack: float | jax.Array = 0.01
    noise_multiplier: float | jax.Array | None = None
    sampling: Full | Poisson | FixedSize | Disjoint = Full()
    population: int = jax.tree.static()
    assumes: str = jax.tree.static()


@record
class GroupGradients:
    """Release the clipped sum of per-record gradients over a sample of one of p groups.

    The group may be chosen by looking at everything released before, so it is charged as if every
    release read the differing record's group: neither p nor the groups' weights amplify anything.
    The sum is divided by the public n_i, q n_i or m.

    Attributes:
      clip: C, bound on the L2 norm of one record's gradient [gradient units].
      noise_multiplier: standard deviation of the noise on the clipped sum / clip [dimensionless].
        Set by `calibrate`; None: not calibrated yet.
      sampling: inside the group: `Full()`, `Poisson(rate=...)` or `FixedSize(batch=...)`. A Poisson
        sample's capacity is one for all groups; by default the largest group's.
      sizes: n_1, ..., n_p, records of each group; public.
    """

    clip: float | jax.Array
    noise_multiplier: float | jax.Array | None = None
    sampling: Full | Poisson | FixedSize = Full()
    sizes: tuple[int, ...] = jax.tree.static()


@record
class Repeat:
    """`times` adaptive uses of `query`, each on a fresh sample with fresh noise.

    With several parts, `times` uses on each of them, one part after the other: part p is rows
    [p m, (p + 1) m) of the data, m = `query.population`, and rows beyond the last part are never
    read. The order of the rows must be public. A record is in one part, so what is charged is
    `times` uses, however many parts there are.

    Attributes:
      query: what is released, and from how many records.
      times: uses on a part.
      parts: of the data.
    """

    query: Query | Resolvent | GroupGradients
    times: int = jax.tree.static()
    parts: int = jax.tree.static(default=1)


@record
class GroupLosses:
    """`times` releases of p groups' mean losses over all their records, plus Laplace noise.

    A replaced record belongs to one group, so one coordinate moves, by at most B / n_i, and its
    noise has scale noise_multiplier * B / n_i: unequal groups cost what equal ones do. With
    `only_argmax` the noisy values stay inside and the index of the largest is released, which costs
    the same: nothing better is proved for it. No minibatch may be read: amplification would have to
    cover this release and the gradient's together.

    Attributes:
      bound: B, losses lie in [0, B].
      sizes: n_1, ..., n_p, records of each group; public.
      noise_multiplier: Laplace scale over B / n_i [dimensionless].
      times: number of releases. Algorithms set it to their own number of rounds.
      only_argmax: whether only the index of the largest noisy loss is released.
    """

    bound: float | jax.Array
    sizes: tuple[int, ...] = jax.tree.static()
    noise_multiplier: float | jax.Array | None = None
    times: int = jax.tree.static(default=1)
    only_argmax: bool = jax.tree.static(default=False)


@record
class Tree:
    """All prefix sums of one pass of clipped vectors, by a binary tree of Gaussian sums (DP-FTRL).

    A record is in one leaf, hence in ceil(log2(leaves + 1)) nodes; replacing it moves each of them
    by at most twice the clip norm. (The published guarantee replaces it by zero: half of that.)

    Attributes:
      clip: bound on the L2 norm of a leaf's per-record vector.
      noise_multiplier: standard deviation of a node's noise over the clip norm.
      leaves: Q, the number of leaves.
    """

    clip: float | jax.Array
    noise_multiplier: float | jax.Array | None = None
    leaves: int = jax.tree.static()


@record
class Solution:
    """One release of a solver's certified solution plus Gaussian noise (output perturbation).

    Attributes:
      sensitivity: replace-one bound on how far the exact solution moves.
      slack: rho, certified distance of what is released from the exact solution over the
        sensitivity; the noise covers (1 + 2 rho) times the sensitivity.
      noise_multiplier: standard deviation over (1 + 2 rho) * sensitivity.
      because: the assumptions that the sensitivity rests on; printed in the statement.
    """

    sensitivity: float | jax.Array
    slack: float | jax.Array = 0.0
    noise_multiplier: float | jax.Array | None = None
    because: str = jax.tree.static()


@record
class GroupSolution:
    """`phases` releases of certified solutions of the regularised worst-group problem.

    Phase t = 1, ..., T reads n_t = floor(n_i / T) records of every group i that no other phase
    reads, and releases, blurred, the w of the saddle point of

        sum_i v_i L_i(w) - mu_v sum_i v_i ln v_i + (mu_t / 2) ||w - c||^2     over W x simplex,

    with mu_t = 2^(t-1) `reg_w` and c released before. Replacing a record moves the exact point by
    at most `exact_sensitivity`; solutions are certified to within `slack` times that, and the noise
    is `noise_multiplier` times (1 + 2 slack) times it, see `solution_length`.

    Nothing is clipped: clipping would break the proof. Every record's loss must itself be convex,
    L-Lipschitz and in [0, B] on W, whatever the record contains; statements print it.

    Attributes:
      lipschitz: L, of one record's loss on W.
      bound: B, length of an interval that its values on W lie in.
      smooth: beta, Lipschitz constant of its gradient on W; None: not smooth.
      diameter: M, of W.
      reg_w: mu_1, weight of the quadratic in the first phase.
      reg_lam: mu_v, weight of the entropy.
      slack: certified distance from the exact point over the exact sensitivity.
      steps: of the inner solver, from `phased_erm.certified`.
      noise_multiplier: standard deviation of the noise over (1 + 2 slack) times the replace-one
        sensitivity [dimensionless]; as in `Solution`, not over half of it.
      sizes: n_1, ..., n_p, records of each group; public.
      phases: T.
    """

    lipschitz: float | jax.Array
    bound: float | jax.Array
    smooth: float | jax.Array | None
    diameter: float | jax.Array
    reg_w: float | jax.Array
    reg_lam: float | jax.Array
    slack: float | jax.Array = 0.01
    steps: int | None = jax.tree.static(default=None)
    noise_multiplier: float | jax.Array | None = None
    sizes: tuple[int, ...] = jax.tree.static()
    phases: int = jax.tree.static()


@record
class RecordLosses:
    """`times` releases of one record's loss each plus Laplace noise, no record more than once.

    Which record is next may depend on what was released. A replaced record is in one release and
    moves it by at most B, so the whole stream costs as much as one release.

    Attributes:
      bound: B, losses are clipped to [0, B].
      noise_multiplier: Laplace scale over B [dimensionless].
      times: number of releases.
    """

    bound: float | jax.Array
    noise_multiplier: float | jax.Array | None = None
    times: int = jax.tree.static()


@record
class Sequence:
    """Mechanisms on the same data, each free to look at the earlier answers.

    Attributes:
      parts: the mechanisms.
      in_turn: whether they take turns, one release of each in a round, instead of running one after
        the other; decides what a run that stopped early has spent.
    """

    parts: tuple[Any, ...]
    in_turn: bool = jax.tree.static(default=False)


@record
class Parallel:
    """Mechanisms on disjoint data sets, fixed in advance; each may look at the earlier answers.

    A record is in one of them, so the largest cost counts, never the sum; and each part is charged
    in full.

    Attributes:
      parts: the mechanisms.
      in_turn: whether a round makes one release of every part, so that they end together; if not,
        they run one after the other.
    """

    parts: tuple[Any, ...]
    in_turn: bool = jax.tree.static(default=False)


Leaf = Repeat | GroupLosses | Tree | Solution | GroupSolution | RecordLosses
Mechanism = Leaf | Sequence | Parallel


def releases(mechanism: Mechanism) -> int:
    """Number of releases that the mechanism allows."""
    match mechanism:
        case Repeat(times=times, parts=parts):
            return times * parts
        case GroupLosses(times=times) | RecordLosses(times=times):
            return times
        case Tree(leaves=count) | GroupSolution(phases=count):
            return count
        case Solution():
            return 1
    return sum(map(releases, mechanism.parts))


def leaves(mechanism: Mechanism) -> list[Leaf]:
    """The mechanisms that `Sequence` and `Parallel` are built from, in order."""
    if isinstance(mechanism, Sequence | Parallel):
        return [leaf for part in mechanism.parts for leaf in leaves(part)]
    return [mechanism]


def in_group(query: GroupGradients, size: int) -> Query:
    """What a release does to the data of a group of `size` records, as if it were all the data.

    A Poisson sample is drawn among as many rows as the largest group has, and rows beyond the group
    are dropped, which leaves a Poisson sample of the group: population, capacity and overflow are
    the largest group's for all.
    """
    z = query.noise_multiplier
    n = max(query.sizes) if isinstance(query.sampling, Poisson) else size
    return Query(clip=Saddle(query.clip, None), sampling=query.sampling, population=n,
                 noise_multiplier=None if z is None else Saddle(z, None))


def batch_size(query: Query | Resolvent) -> float:
    """The public number that a sum is divided by: n, q n or b; never the realised batch size."""
    match query.sampling:
        case Poisson(rate=rate):
            return rate * query.population
        case Disjoint(batch=batch) | FixedSize(batch=batch):
            return float(batch)
    return float(query.population)


def group_batch_sizes(query: GroupGradients) -> tuple[float, ...]:
    """The public number that each group's sum is divided by: n_i, q n_i or m."""
    match query.sampling:
        case Poisson(rate=rate):
            return tuple(rate * n for n in query.sizes)
        case FixedSize(batch=batch):
            return (float(batch),) * len(query.sizes)
    return tuple(map(float, query.sizes))


def rows_read(query: Query | Resolvent) -> int:
    """Rows of the fixed-shape batch that a release works on."""
    match query.sampling:
        case Poisson(capacity=int() as capacity):
            return min(query.population, capacity)
        case Poisson(rate=rate):
            mean = rate * query.population
            room = np.arange(int(mean), int(mean + 20 * math.sqrt(mean)) + 40)
            fits = special.bdtrc(room, query.population, rate) <= OVERFLOW
            return min(query.population, int(room[np.argmax(fits)]))
        case Disjoint(batch=batch) | FixedSize(batch=batch):
            return batch
    return query.population


def overflow_probability(query: Query | Resolvent) -> float:
    """P[a Poisson sample does not fit], for one release; 0 for the other samplings."""
    n = query.population
    if not isinstance(query.sampling, Poisson) or rows_read(query) >= n:
        return 0.0
    return float(special.bdtrc(rows_read(query), n, query.sampling.rate))


def batch_lipschitz(query: Resolvent) -> Any:
    """Lipschitz constant s L of a sample's mean operator, however many records it holds."""
    return max(1.0, rows_read(query) / batch_size(query)) * query.lipschitz


def modulus(query: Resolvent) -> Any:
    """mu, of strong monotonicity of the regularised problem."""
    return query.prox - batch_lipschitz(query) if query.assumes == "lipschitz" else query.prox


def weight_of_part(query: Resolvent, part: Any) -> Any:
    """Proximal weight on part 0, 1, ... over that on part 0: 1, or 2^(part + 1) - 1."""
    return 2.0 ** (part + 1) - 1 if query.doubling else 1.0


def on_part(query: Resolvent, part: Any) -> Resolvent:
    """`query` with the proximal weight that it has on a part of the data."""
    return dataclasses.replace(query, prox=weight_of_part(query, part) * query.prox, doubling=False)


def split(query: Resolvent) -> tuple[Any, Any]:
    """A weight a that makes F + a (u - c) monotone, and the Lipschitz constant of that.

    The proximal term keeps lambda - a = mu. What is Lipschitz is so with any larger constant too: a
    hundredth of mu more spares the solvers a division by 0 where the operator is constant.
    """
    steep = batch_lipschitz(query)
    shift = steep if query.assumes == "lipschitz" else 0.0
    return shift, steep + shift + 0.01 * modulus(query)


def rounding(query: Resolvent, size: Any) -> Any:
    """What a certificate's residual may miss: rounding of the point and of the mean, in float64.

    A point of norm |v| is rounded by eps |v|, which the residual, computed from it, cannot see.

    Args:
      query: the description.
      size: bound on the norms of what is computed with, up to the diameter.
    """
    steep = split(query)[1] + modulus(query)
    mean = math.sqrt(rows_read(query)) * query.bound
    return 16 * 2.0**-52 * (steep * (size + query.diameter) + mean)


def displacement(query: Resolvent) -> Any:
    """The length that a resolvent's noise multiplier is a multiple of; a clip norm's counterpart.

    Half of the replace-one sensitivity, (1 + rho) M / (m mu). For Poisson and full batches it is
    (1 + 2 rho) M / (m mu), which also bounds what adding or removing a record does: both solutions
    are inexact.
    """
    inexact = 1 if isinstance(query.sampling, FixedSize | Disjoint) else 2
    mu = modulus(query)
    if query.assumes == "lipschitz":  # a difference, of which float32 descriptions lose some digits
        mu = mu - 2.0**-22 * query.prox
    return (1 + inexact * query.slack) * query.bound / (batch_size(query) * mu)


def phase_sizes(query: GroupSolution) -> tuple[int, ...]:
    """Records of each group that a phase reads; what is left over is never read."""
    return tuple(n // query.phases for n in query.sizes)


def exact_sensitivity(query: GroupSolution, reg_w: Any) -> Any:
    """Replace-one bound on how far the exact solution of a phase moves, mu = `reg_w`.

    (a + (a^2 + b^2)^(1/2)) / (2 mu^(1/2)),   a = 2 L / (n mu^(1/2)),   b = B / (2 n mu_v^(1/2)),

    n the smallest group's records in the phase. For two neighbouring problems F and F' differ by
    v_i d(w) / n, d the difference of two records' losses, 2 L-Lipschitz and at most B in size. At
    the saddle points (w, v) of F and (w', v') of F', F is mu-strongly convex in w and, by Pinsker's
    inequality, mu_v-strongly concave in v in the 1-norm, and so is F'; adding up,

        mu ||w - w'||^2 + mu_v ||v - v'||_1^2 <= (v_i d(w') - v'_i d(w)) / n
            <= (2 L / n) ||w - w'|| + (B / 2n) ||v - v'||_1,

    as v_i <= 1 and |v_i - v'_i| <= ||v - v'||_1 / 2. In x = mu^(1/2) ||w - w'|| and y = mu_v^(1/2)
    ||v - v'||_1 that is the disc x^2 + y^2 <= a x + b y, and this is its largest x over mu^(1/2). A
    group with more records moves it less. (The paper's Lemma 3, for inexact solutions, is 6 to 12
    times as large.)
    """
    n = min(phase_sizes(query))
    a, b = 2 * query.lipschitz / (n * reg_w**0.5), query.bound / (2 * n * query.reg_lam**0.5)
    return (a + (a * a + b * b) ** 0.5) / (2 * reg_w**0.5)


def solution_length(query: GroupSolution, reg_w: Any) -> Any:
    """The length that a phase's noise multiplier is a multiple of: two solutions are inexact."""
    return (1 + 2 * query.slack) * exact_sensitivity(query, reg_w)


def solution_smooth(query: GroupSolution, reg_w: Any) -> Any:
    """Smoothness of the problem in w alone, l = beta + L^2 / mu_v + mu; for smooth losses."""
    assert query.smooth is not None
    return query.smooth + query.lipschitz**2 / query.reg_lam + reg_w


def with_noise(query: Any, scale: float) -> Any:
    """`query` with its noise multipliers (1 each if not set) times `scale`, as Python floats."""
    ratio = query.noise_multiplier
    if not isinstance(query, Query):
        one = 1.0 if ratio is None else concrete(ratio)
        return dataclasses.replace(query, noise_multiplier=one * scale)
    if ratio is None:
        ratio = Saddle(*(None if c is None else 1.0 for c in query.clip))
    scaled = jax.tree.map(lambda x: float(x) * scale, ratio)
    return dataclasses.replace(query, noise_multiplier=scaled)


def budget_split(w: float) -> Saddle:
    """Ratio of noise multipliers that gives player w the share `w` of the budget, v the rest.

    The budget is the squared Gaussian parameter mu^2 = sum_p (2 / z_p)^2 T, so z_p goes like
    share_p^(-1/2).

    Raises:
      ValueError: unless 0 < w < 1.
    """
    _check.number("w", w, low=0.0, high=1.0)
    return Saddle(w**-0.5, (1.0 - w) ** -0.5)


def check_noise(query: Any) -> Any:
    """The noise multipliers of `query`: a `Saddle` of a `Query`, one number of the others.

    Raises:
      ValueError: if they were never set.
    """
    if query.noise_multiplier is None:
        raise ValueError("noise_multiplier is not set: calibrate(algorithm, hyper, epsilon=..., "
                         "delta=...) sets it; noise_multiplier=Saddle(0.0, 0.0) runs without "
                         "privacy.")
    return query.noise_multiplier


def concrete(x: Any) -> float:
    """A number out of a description as a Python float.

    Raises:
      ValueError: for a tracer or an array of several numbers: accounting runs on the host, on one
        description at a time.
    """
    if isinstance(x, jax.core.Tracer) or np.ndim(x) != 0:
        raise ValueError(f"Accounting needs one plain number, got {x!r}: call it outside jit and "
                         "vmap, on one description at a time.")
    return float(x)
