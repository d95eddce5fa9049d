"""Average precision: a surrogate of the area under the curve of precision and recall.

Source: Eban et al., "Scalable learning of non-decomposable objectives", AISTATS 2017,
arXiv:1608.04802. Departures: the logistic loss in place of the hinge, bounded multipliers, and the
class prior p in place of a count.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax.base import checks
from jaxminimax.base.types import Problem, PyTree, Saddle, saddle_operator
from jaxminimax.problems import _vi

_SLOPE, _CURVATURE = 1 / math.log(2), 1 / (4 * math.log(2))  # largest, of log2(1 + e^t)


def average_precision(*, prior: float, feature_bound: float, radius: float, anchors: int = 10,
                      multiplier: float = 2.0) -> _vi.Bounded:
    """The saddle problem of the area under the curve of precision and recall, of linear scores.

    Average precision is no mean over records: the precision at a record's score is a ratio of sums
    over all of them. Methods that track this ratio keep one number for each positive record, which
    a private algorithm cannot release. This problem is a surrogate that is one sum over records.

    The area is the mean over alpha in [0, 1] of the largest recall at precision alpha, which is 1
    for alpha <= p. This problem has one threshold b_k and one multiplier v_k for each of m
    precisions alpha_k between p and 1, at equal distances:

        min over theta, b, max over 0 <= v_k <= V, of   (1/m) sum_k of
            (1 + v_k) E h(b_k - s)[y=1]/p + v_k alpha_k / (1 - alpha_k) E h(s - b_k)[y=0]/p - v_k,

    h(t) = log2(1 + e^t) at least [t >= 0]. The first term bounds 1 - recall at threshold b_k, and
    v_k is the price of precision below alpha_k. It is a surrogate: where no constraint is violated,
    it bounds (1 - area) / (1 - p) from above, up to the grid of alpha, where the area is that of
    the interpolated curve, never below average precision. A bounded multiplier may leave
    constraints violated.

    Every record's operator is monotone: convex in w = {"theta", "threshold"}, linear in v. Records
    (x, y), y in {0, 1}; x is projected to ||x|| <= r, and M, L and D hold for any content. They are
    derived in the code. The term -v_k / m reads no data. Start from `average_precision_start`.

    Args:
      prior: p in (0, 1), as in `auc`. It decides which precisions are asked for.
      feature_bound: r.
      radius: R, of the ball of theta. Thresholds lie in [-r R, r R].
      anchors: m, the number of precisions.
      multiplier: V.

    Returns:
      A `Bounded`, for `jmm.plan` of `sgda`, `extragradient`, `optimistic` and `proximal`.

    Raises:
      ValueError: for numbers out of range.
    """
    checks.number("prior", prior, low=0.0, high=1.0)
    checks.count("anchors", anchors)
    checks.positive(feature_bound=feature_bound, radius=radius, multiplier=multiplier)
    alpha = prior + (1 - prior) * (np.arange(anchors) + 0.5) / anchors
    price, reach = alpha / (1 - alpha), feature_bound * radius
    domain = _vi.ball(radius)

    def of_v(w: PyTree, v: jax.Array, record: PyTree) -> tuple[jax.Array, jax.Array]:
        x, y = record
        x = _vi.sanitise(_vi.shaped("x", x, w["theta"].shape).astype(v.dtype), feature_bound)
        y = _vi.interval(jnp.asarray(y, v.dtype), 0.0, 1.0)
        above = x @ w["theta"] - w["threshold"]
        missed, wrong = (jax.nn.softplus(t) * _SLOPE for t in (-above, above))
        return (y / prior * missed,
                y / prior * missed + (1 - y) / prior * jnp.asarray(price, v.dtype) * wrong)

    def loss(w: PyTree, v: jax.Array, record: PyTree) -> jax.Array:
        missed, violated = of_v(w, v, record)
        return jnp.mean(missed + v * violated)

    def project(z: Saddle) -> Saddle:
        return Saddle({"theta": domain.project(z.w["theta"]),
                       "threshold": jnp.clip(z.w["threshold"], -reach, reach)},
                      jnp.clip(z.v, 0, multiplier))

    def best_v(w: PyTree, data: PyTree) -> jax.Array:
        zero = jnp.zeros_like(w["threshold"])
        violated = jax.vmap(lambda record: of_v(w, zero, record)[1])(data)
        return jnp.where(jnp.mean(violated, 0) > 1, multiplier, zero)

    problem = Problem(
        operator=saddle_operator(loss), project=project, labels=(0, 1),
        public=lambda z: Saddle(jax.tree.map(jnp.zeros_like, z.w), jnp.full_like(z.v, 1 / anchors)),
        value=lambda z, data: _vi.mean_of(loss)(z, data) - jnp.mean(z.v),
        best_response=Saddle(None, best_v))

    def constants(of_w: np.ndarray, of_v: np.ndarray) -> tuple[float, float]:
        """Computes M and L of a record from the largest weight of each h, in f and in v_k."""
        highest = math.log2(1 + math.exp(2 * reach))
        bound = math.sqrt(_SLOPE**2 * ((feature_bound * of_w.sum()) ** 2 + np.sum(of_w**2))
                          + highest**2 * np.sum(of_v**2))
        skew = _SLOPE * math.sqrt(feature_bound**2 * np.sum(of_v**2) + of_v.max() ** 2)
        return bound, _CURVATURE * (feature_bound**2 + 1) * float(of_w.sum()) + skew

    share = np.full(anchors, 1 / (anchors * prior))
    both: Any = [constants((1 + multiplier) * share, share),
                 constants(multiplier * price * share, price * share)]
    bound, smooth = np.max(both, 0)
    diameter = math.sqrt(4 * radius**2 + anchors * (4 * reach**2 + multiplier**2))
    return _vi.Bounded(problem, float(bound), float(smooth), diameter)


def average_precision_start(theta: jax.Array, *, anchors: int = 10) -> Saddle:
    """The initial point of `average_precision`: theta, thresholds of 0, and multipliers of 1."""
    threshold = jnp.zeros(anchors, theta.dtype)
    return Saddle({"theta": theta, "threshold": threshold}, jnp.ones_like(threshold))
