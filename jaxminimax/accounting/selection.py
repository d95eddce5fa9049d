"""Privacy profile of `k` adaptive releases of the index of the largest score (`Selection`).

One release. The index i has probability softmax(s)_i. A record of group i moves s_i alone, by at
most t, so all indices but i keep their ratios, and the release is as private as the bit "is it i":
one with odds x against one with odds x e^t or x e^-t, x chosen with the other scores.
Its loss is c with probability 1 - p_c and c - t with probability

    p_c = (e^c - 1) / (e^t - 1),      0 <= c <= t,

under P, for some c; both signs of the move, and P and Q exchanged, give the same family, c going to
t - c. The largest divergence of one release is, by calculus over c,

    sup_c H_a = (1 - e^((epsilon - t) / 2))^2 / (1 - e^-t),     a = e^epsilon,  |epsilon| <= t.

k releases. c may depend on what was released before, so the largest divergence is V_k(-epsilon),

    V_0(y) = (1 - e^-y)_+,     V_{j+1}(y) = sup_c (1 - p_c) V_j(y + c) + p_c V_j(y + c - t).    (1)

The step A is a supremum of means: monotone, sublinear, and it commutes with shifts of y. So if G is
the step of a release with one pair, a mean of shifts, A G V <= G A V (the supremum of a mean is at
most the mean of suprema), and k steps A of V_0, then the steps of all else, bound every order of
the releases. As epsilon -> V_k(-epsilon) is convex in e^epsilon, at least 1 - e^epsilon and tends
to 1 at -inf, it is the profile of one pair; A^k is at most a mean over the pair's losses on every
V that is a mixture of shifted V_0, as it is sublinear. So this pair, composed as often as there are
blocks, bounds everything that they release, among other releases or not. It is its own mirror
image, as the family is: V_k(y) = 1 - e^-y + e^-y V_k(-y).

Families A_1, A_2, ... of several scales need not commute, and need no order either. Let G_i(m) be
the mean over the losses of the pair whose profile is that of A_i^m, so that G_i(m) V_0 = A_i^m V_0;
means commute. After m_i steps of each the bound is G_1(m_1) G_2(m_2) ... V_0, by induction: with G
the product of the others, one more step of A_i makes it A_i G A_i^m_i V_0 <= G A_i^(m_i + 1) V_0.

Between points of a grid. c is taken on multiples of h = t / M, and y too, so that every shift stays
on the grid. For c = c_j + r in between, with V and W the values at y + c and y + c - t at both ends
of the interval, dV, dW and dp their growth,

    value(c) <= max(value_j, value_{j+1}) + dp (dV - dW)_+ / 4 + (e^h - 1) max(dV, dW) / 4.

Proof. V and W are convex in e^-y, hence below their chords, of weight mu = (1 - e^-r) / (1 - e^-h);
p_c is on its chord in e^c, of weight kappa = (e^r - 1) / (e^h - 1). As mu / kappa = e^(h - r) >= 1
and e^(h-r) - 1 = (1 - kappa) (e^h - 1) e^-r, 0 <= mu - kappa <= kappa (1 - kappa) (e^h - 1). With
kappa in the place of mu the value changes by at most (e^h - 1) max(dV, dW) / 4, and becomes a
quadratic in kappa that exceeds its chord by kappa (1 - kappa) dp (dV - dW).

dV and dW count as 0 where rounding makes them negative. All operations are of positive numbers, so
every value keeps its relative accuracy; `_ROUNDED` in each step is a thousand times what is lost.

Source: the family is that of Dong, Durfee and Rogers, "Optimal differential privacy composition for
exponential mechanisms", ICML 2020. The blocks, and what is between the points of the grid, are this
library's. Checks, not used here: t^2 / 8 zero-concentrated differential privacy (Cesar and Rogers,
"Bounding, concentrating, and truncating", ALT 2021), and the limit of many releases, a Gaussian of
parameter mu^2 = k t^2 / 4.
"""

import functools
import math
from typing import NamedTuple

import numpy as np

LONGEST = 96  # releases of a block
_POINTS = 24  # of the grid of c, at least
_WIDEST = 1 / 16  # cell, where that takes no more than `_MOST_POINTS`
_MOST_POINTS = 2000
_WORK = 2.5e7  # cells times points of a recursion
_ROUNDED = 1 + 1e-12
_SMALLEST = 1e-290  # what a divergence counts as at least, so that none underflows


class Block(NamedTuple):
    """The profile of several releases.

    Attributes:
      times: k.
      cell: h.
      values: at least H at e^epsilon for epsilon = 0, h, 2 h, ..., k t; the last one is 0.
    """

    times: int
    cell: float
    values: np.ndarray

    @property
    def largest(self) -> float:
        """The largest loss, k t: H is 0 from there on."""
        return self.cell * (len(self.values) - 1)

    def profile(self, epsilon: np.ndarray) -> np.ndarray:
        """Bounds H at e^epsilon, epsilon >= 0, by chords in e^epsilon.

        The same for both orders of the pair; for epsilon < 0 see its mirror image above.
        """
        epsilon = np.asarray(epsilon, np.float64)
        last = len(self.values) - 1
        i = np.clip(np.floor(epsilon / self.cell).astype(np.int64), 0, last - 1)
        inside = np.minimum(epsilon, self.largest) - i * self.cell
        weight = np.clip(np.expm1(inside) / math.expm1(self.cell), 0.0, 1.0)
        between = (1 - weight) * self.values[i] + weight * self.values[i + 1]
        # the rounding of the weight, besides that of the values
        between = np.minimum(between * _ROUNDED + 1e-12 * self.values[i], 1.0)
        return np.where(epsilon >= self.largest, 0.0, between)


def one_release(t: float, epsilon: np.ndarray) -> np.ndarray:
    """Returns the largest divergence of one release, in closed form; 0 <= epsilon, 0 from t on."""
    rest = -np.expm1(np.minimum((np.asarray(epsilon, np.float64) - t) / 2, 0.0))
    return rest**2 / -math.expm1(-t)


def points(t: float) -> int:
    """Returns M, the number of cells of the grid in [0, t]."""
    return min(max(_POINTS, math.ceil(t / _WIDEST)), _MOST_POINTS)


def split(t: float, times: int) -> tuple[int, int, int]:
    """Returns the releases of a block, the number of blocks, and the releases left over.

    The blocks are as equal as their number allows, and short enough for the work that is allowed.
    """
    longest = max(1, min(LONGEST, int(math.sqrt(2 * _WORK) / points(t))))
    blocks = -(-times // longest)
    each = -(-times // blocks)
    return each, times // each, times % each


@functools.lru_cache(maxsize=64)
def _blocks(t: float, lengths: tuple[int, ...]) -> tuple[Block, ...]:
    if not (t > 0 and math.isfinite(t)):
        raise ValueError(f"t must lie in (0, inf), got {t!r}.")
    m = points(t)
    t *= _ROUNDED  # or multiples of h could fall short of k t
    h = t / m
    c = h * np.arange(m + 1)
    p = np.exp(c - t) * -np.expm1(-c) / -math.expm1(-t)  # 0, ..., 1
    rest = -np.expm1(c - t) / -math.expm1(-t)
    dp, steep = np.diff(p), min(math.expm1(h), 1e300) / 4
    cells = h * np.arange(m + 1)
    values = one_release(t, cells) * _ROUNDED
    block_of = {1: Block(1, h, values)}
    for k in range(2, max(lengths) + 1):
        last = k * m
        # V at y = t, ..., h by reflection, then at 0, -h, ..., then nothing
        above = (-np.expm1(-cells) + np.exp(-cells) * values[: m + 1])[:0:-1]
        v = np.concatenate([above, values, np.zeros(2 * m)])
        here = [v[m - j: m - j + last + 1] for j in range(m + 1)]  # y + c_j
        shifted = [v[2 * m - j: 2 * m - j + last + 1] for j in range(m + 1)]  # y + c_j - t
        at = [rest[j] * here[j] + p[j] * shifted[j] for j in range(m + 1)]
        best = np.zeros(last + 1)
        for j in range(m):
            dv, dw = here[j + 1] - here[j], shifted[j + 1] - shifted[j]
            grown = np.maximum(np.maximum(dv, dw), 0.0)
            slack = dp[j] / 4 * np.maximum(dv - dw, 0.0) + steep * grown
            best = np.maximum(best, np.maximum(at[j], at[j + 1]) + slack)
        values = np.clip(best * _ROUNDED, _SMALLEST, 1.0)
        values[-1] = 0.0
        block_of[k] = Block(k, h, values)
    return tuple(block_of[k] for k in lengths)


def block(t: float, times: int) -> Block:
    """Returns the profile of `times` releases of one block, an upper bound.

    Args:
      t: how far a record (or, for several, all of them together) moves one score, in units of the
        scale of the Gumbel noise.
      times: k; memory and time are for some hundreds at most, see `split`.
    """
    return _blocks(float(t), (times,))[0]


def blocks(t: float, times: int) -> tuple[tuple[Block, int], ...]:
    """Returns the pairs to compose for `times` releases, and how often each."""
    each, many, left = split(t, times)
    if not left:
        return ((block(t, each), many),)
    long, short = _blocks(float(t), (each, left))
    return (long, many), (short, 1)
