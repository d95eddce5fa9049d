"""Numbers that follow from a description: sizes, sensitivities, lengths that noise is scaled by."""

import dataclasses
import math
from typing import Any

import numpy as np
from scipy import special

from jaxminimax._types import Saddle
from jaxminimax.mechanism._queries import GroupGradients, Query, Resolvent
from jaxminimax.mechanism._runs import GroupSolution
from jaxminimax.mechanism._samplings import OVERFLOW, Disjoint, FixedSize, Poisson


def in_group(query: GroupGradients, size: int) -> Query:
    """What a release does to the data of a group of `size` records, as if it were all the data.

    A Poisson sample is drawn among as many rows as the largest group has, and rows beyond the group
    are dropped, which leaves a Poisson sample of the group: population, capacity and overflow are
    the largest group's for all.
    """
    z = query.noise_multiplier
    n = max(query.sizes) if isinstance(query.sampling, Poisson) else size
    return Query(clip=Saddle(query.clip, None), sampling=query.sampling, population=n,
                 noise_multiplier=None if z is None else Saddle(z, None),
                 parameters=query.parameters, exact=query.exact)


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


def solution_rounding(query: GroupSolution, reg_w: Any, size: Any) -> Any:
    """What a certificate's distance may miss: rounding of the point and of P, in float64.

    Args:
      query: the description, its steps set.
      reg_w: mu of the phase.
      size: bound on the norms of the points, up to the diameter.
    """
    tiny, reach = 256 * 2.0**-52, size + query.diameter
    if query.smooth is not None:
        # a gradient's weights are as exact as risks over reg_lam
        gradient = query.lipschitz * (1 + query.bound / query.reg_lam)
        return tiny * (gradient + solution_smooth(query, reg_w) * reach) / reg_w
    assert query.steps is not None
    steep = query.lipschitz + reg_w * query.diameter
    value = query.bound + query.diameter * steep + query.lipschitz * size
    # the value and its lower model, a sum over the steps
    return (2 * tiny * query.steps**0.5 * value / reg_w) ** 0.5 + tiny * reach
