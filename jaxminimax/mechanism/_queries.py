"""What one release answers."""

from typing import Any

import jax

from jaxminimax._types import Saddle, record
from jaxminimax.mechanism._grid import PARAMETERS
from jaxminimax.mechanism._samplings import Disjoint, FixedSize, Full, Poisson


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
      parameters: d, at least the numbers that a release has, both players together; public. The
        sum is rounded to a grid, which costs a little that grows with d; a release of more numbers
        is refused.
      exact: whether the noise is an integer multiple of the grid, added without rounding. If not,
        it is a floating-point number: quicker for large models, and open to attacks on its last
        bits.
    """

    clip: Saddle
    noise_multiplier: Saddle | None = None
    sampling: Full | Poisson | FixedSize | Disjoint = Full()
    population: int = jax.tree.static()
    joint: bool = jax.tree.static(default=False)
    parameters: int = jax.tree.static(default=PARAMETERS)
    exact: bool = jax.tree.static(default=True)


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
      parameters: as in `Query`.
      exact: as in `Query`.

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
    parameters: int = jax.tree.static(default=PARAMETERS)
    exact: bool = jax.tree.static(default=True)


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
      parameters: as in `Query`.
      exact: as in `Query`.
    """

    clip: float | jax.Array
    noise_multiplier: float | jax.Array | None = None
    sampling: Full | Poisson | FixedSize = Full()
    sizes: tuple[int, ...] = jax.tree.static()
    parameters: int = jax.tree.static(default=PARAMETERS)
    exact: bool = jax.tree.static(default=True)
