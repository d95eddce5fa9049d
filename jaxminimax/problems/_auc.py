"""AUC maximisation with the squared surrogate, as a saddle problem.

For a scorer s = h(theta; x), labels y in {0, 1}, w = (theta, a, b), a scalar v and the public class
prior p,

    f = (s - a)^2 [y=1]/p + (s - b)^2 [y=0]/(1-p)
        + 2 (1 + v) (s [y=0]/(1-p) - s [y=1]/p)  -  v^2,

whose maximum over v and minimum over a, b is E (1 - s_+ + s_-)^2 - 1 over pairs of a positive and a
negative: the squared surrogate of 1 - AUC.

Source: Ying, Wen and Lyu, "Stochastic online AUC maximization", NeurIPS 2016, as used by Yang et
al., arXiv:2201.09046, Algorithm 2, with their empirical form multiplied by n: no label count enters
the objective, only the public p. The term -v^2 reads no data and stays outside clip and noise.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxminimax.base import checks, tree
from jaxminimax.base.types import Problem, PyTree, Saddle, saddle_operator
from jaxminimax.mechanism import Repeat
from jaxminimax.problems._vi import mean_of
from jaxminimax.releases import sums

__all__ = ["auc", "auc_score", "auc_start", "linear_scorer", "mlp_init", "mlp_scorer",
           "release_prior", "release_shares"]

Scorer = Callable[[PyTree, jax.Array], jax.Array]


def linear_scorer(theta: jax.Array, x: jax.Array) -> jax.Array:
    """The linear score <theta, x>, `[]`, of parameters theta `[d]` and features x `[d]`.

    Examples:
        >>> float(jmm.problems.linear_scorer(jnp.array([1.0, 2.0]), jnp.array([3.0, 4.0])))
        11.0
    """
    return x @ theta


def mlp_scorer(theta: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """The score of a network of two layers, with a leaky ReLU of slope 0.01.

    `theta` has W1 `[d, h]`, b1 `[h]`, W2 `[h]`, and x is a record's features `[d]`. There is no
    output bias: a and b absorb it.

    Examples:
        >>> theta = jmm.problems.mlp_init(jax.random.key(0), dim=3, hidden=4)
        >>> jmm.problems.mlp_scorer(theta, jnp.ones(3)).shape
        ()
    """
    return jax.nn.leaky_relu(x @ theta["W1"] + theta["b1"]) @ theta["W2"]


def mlp_init(key: jax.Array, dim: int, hidden: int, *, scale: float = 0.3) -> dict[str, jax.Array]:
    """Draws parameters of `mlp_scorer`: W1 is N(0, 1), W2 is N(0, scale^2 / h), b1 is 0.

    Args:
      key: a key for the start; it draws no noise, and is no secret.
      dim: d, the number of features.
      hidden: h, the number of hidden units.
      scale: the standard deviation of W2 times h^(1/2).

    Returns:
      A dictionary of W1 `[d, h]`, b1 `[h]` and W2 `[h]`.

    Examples:
        >>> theta = jmm.problems.mlp_init(jax.random.key(0), dim=3, hidden=4)
        >>> {name: x.shape for name, x in sorted(theta.items())}
        {'W1': (3, 4), 'W2': (4,), 'b1': (4,)}
    """
    first_key, two = jax.random.split(key)
    return {"W1": jax.random.normal(first_key, (dim, hidden)), "b1": jnp.zeros(hidden),
            "W2": jax.random.normal(two, (hidden,)) * (scale / hidden**0.5)}


def auc_start(theta: PyTree) -> Saddle:
    """The initial point w = (theta, 0, 0), v = 0.

    Examples:
        >>> start = jmm.problems.auc_start(jnp.zeros(3))
        >>> sorted(start.w), float(start.v)
        (['a', 'b', 'theta'], 0.0)
    """
    zero = jnp.zeros((), jnp.result_type(*jax.tree.leaves(theta)))
    return Saddle({"theta": theta, "a": zero, "b": zero}, zero)


def square_terms(s: jax.Array, plus: jax.Array | float, minus: jax.Array | float, a: jax.Array,
                 b: jax.Array, v: jax.Array) -> jax.Array:
    """Computes f of one record without -v^2, by its weights as a positive and as a negative."""
    return plus * (s - a) ** 2 + minus * (s - b) ** 2 + 2 * (1 + v) * s * (minus - plus)


def projection(radius: Saddle, dual: str) -> Callable[[Saddle], Saddle]:
    """Returns the projection of w = (theta, a, b, ...) and v; under "best_response" v is b - a.

    Raises:
      ValueError: for a radius that is not positive, or an unknown dual.
    """
    checks.positive(**{"radius.w": radius.w, "radius.v": radius.v})
    checks.one_of("dual", dual, ("ascent", "best_response"))

    def project(z: Saddle) -> Saddle:
        w = optax.projections.projection_l2_ball(z.w, radius.w)
        v = w["b"] - w["a"] if dual == "best_response" else z.v
        return Saddle(w, jnp.clip(v, -radius.v, radius.v))

    return project


def auc(scorer: Scorer, *, prior: float, radius: Saddle, dual: str = "ascent") -> Problem:
    """The saddle problem of AUC maximisation with the squared surrogate.

    Data are pairs (x, y): x `[n, ...]`, y `[n]` in {0, 1}.

    Args:
      scorer: `(theta, x) -> []`, the score of one record.
      prior: p in (0, 1), the share of positives: a public constant, or the result of
        `release_prior`, whose mechanism must then be charged too. A rough guess is enough: a
        factor of 1.4 either way moves the AUC by less than a tenth of a point.
      radius: R_w of the ball of (theta, a, b) together, and R_v of the interval of v.
      dual: "ascent": v moves by its own released gradient. "best_response": v = b - a, its
        maximiser given the private a and b; give v no clip norm (`clip=Saddle(c, None)`), so that
        the whole budget goes to w.

    Raises:
      ValueError: for a prior outside (0, 1), a radius that is not positive, an unknown dual.

    Examples:
        >>> radius = Saddle(10.0, 10.0)
        >>> problem = jmm.problems.auc(jmm.problems.linear_scorer, prior=0.7, radius=radius)
        >>> start = jmm.problems.auc_start(jnp.zeros(3))
        >>> g = problem.operator(start, (jnp.ones(3), jnp.ones(())))
        >>> g.w["theta"].shape
        (3,)
    """
    checks.number("prior", prior, low=0.0, high=1.0)
    project = projection(radius, dual)

    def weights(y: jax.Array) -> tuple[jax.Array, jax.Array]:
        return y / prior, (1 - y) / (1 - prior)

    def loss(w: PyTree, v: jax.Array, example: PyTree) -> jax.Array:
        x, y = example
        s = scorer(w["theta"], x)
        plus, minus = weights(jnp.asarray(y, s.dtype))
        return square_terms(s, plus, minus, w["a"], w["b"], v)

    def public(z: Saddle) -> Saddle:
        return Saddle(jax.tree.map(jnp.zeros_like, z.w), 2 * z.v)

    def value(z: Saddle, data: PyTree) -> jax.Array:
        return mean_of(loss)(z, data) - z.v**2

    def best_v(w: PyTree, data: PyTree) -> jax.Array:
        x, y = data
        s = jax.vmap(scorer, (None, 0))(w["theta"], x)
        plus, minus = weights(y.astype(s.dtype))
        return jnp.clip(jnp.mean(s * minus) - jnp.mean(s * plus), -radius.v, radius.v)

    return Problem(operator=saddle_operator(loss), public=public, project=project,
                   value=value, best_response=Saddle(None, best_v), labels=(0, 1))


def auc_score(scorer: Scorer, *, prior: float) -> Callable[[Saddle, PyTree], jax.Array]:
    """A score for `jmm.tune` that rises with the AUC: a mean over records of numbers in [0, 1].

    At a point w = (theta, a, b) of `auc`, where a and b are near the classes' mean scores, a
    positive counts p' / p sigma(4 (s - b) / (a - b)) and a negative p' / (1 - p)
    sigma(4 (a - s) / (a - b)), with sigma the logistic function and p' = min(p, 1 - p). AUC is the
    mean over a class of the chance to be on the right side of the other one; this puts sigma of
    the distance to the other class's mean in place of that chance. Every record counts in [0, 1],
    so replacing one moves the sum by at most 1: pass `score_range=(0.0, 1.0)`, and `jmm.tune`
    charges for that. If a - b is below 1e-3, it is taken as 1e-3.

    No source: the form is by analogy, and its slope was chosen on validation rows of ijcnn1.

    Args:
      scorer: the scorer of the problem, `(theta, x) -> []`.
      prior: p of the problem, in (0, 1).

    Raises:
      ValueError: for a prior outside (0, 1).

    Examples:
        >>> score = jmm.problems.auc_score(jmm.problems.linear_scorer, prior=0.5)
        >>> w = {"theta": jnp.ones(1), "a": jnp.array(1.0), "b": jnp.array(0.0)}
        >>> above, below = (score(Saddle(w, 0.0), (jnp.full(1, x), 1.0)) for x in (2.0, -1.0))
        >>> bool(above > 0.99 and below < 0.02)  # both records are positive
        True
    """
    checks.number("prior", prior, low=0.0, high=1.0)
    rare = min(prior, 1 - prior)

    def score(z: Saddle, record: PyTree) -> jax.Array:
        x, y = record
        a, b, s = z.w["a"], z.w["b"], scorer(z.w["theta"], x)
        positive = jnp.asarray(y) > 0.5
        margin = jnp.where(positive, s - b, a - s) / jnp.maximum(a - b, 1e-3)
        weight = jnp.where(positive, rare / prior, rare / (1 - prior))
        return weight * jax.nn.sigmoid(4.0 * margin)

    return score


# --- released shares of classes and of groups ---


def release_prior(key: jax.Array, mechanism: Repeat, y: jax.Array) -> jax.Array:
    """Releases a private estimate of P[y = 1], clamped to [0.01, 0.99].

    It is one release of the mean of y - 1/2, of norm at most 1/2: replacing a record moves the
    count by at most 1. Charge it by `calibrate(..., alongside=(mechanism,))`, and in
    `statement` too.

        mechanism = Repeat(query=Query(clip=Saddle(0.5, None), population=n,
                                       noise_multiplier=Saddle(100.0, None)), times=1)

    Args:
      key: a secret key of its own, not the run's.
      mechanism: one release with clip.w = 0.5 and clip.v None.
      y: labels in {0, 1}, `[n]`.

    Raises:
      ValueError: for another clip norm, which would bias the estimate.

    Examples:
        >>> y = jnp.arange(1000) < 700
        >>> ask = jmm.Repeat(query=jmm.Query(clip=Saddle(0.5, None), population=1000,
        ...                                  noise_multiplier=Saddle(20.0, None)), times=1)
        >>> key = jax.random.key(0)  # of real data jmm.noise.secret_key()
        >>> prior = jmm.problems.release_prior(key, ask, y)
        >>> bool(0.6 < prior < 0.8)
        True
    """
    clip = getattr(mechanism.query, "clip", None)
    if clip != Saddle(0.5, None):
        raise ValueError(f"clip must be Saddle(0.5, None), got {clip!r}.")
    count = Problem(operator=lambda z, y: Saddle(jnp.asarray(y, z.w.dtype) - 0.5, None))
    z = Saddle(jnp.zeros(()), ())
    key = jax.random.fold_in(key, 0x7072)  # apart from a run that was given the same key
    answer = sums.release(key, mechanism, jnp.int32(0), count, z, y)
    return jnp.clip(answer.w + 0.5, 0.01, 0.99)


def release_shares(key: jax.Array, mechanism: Repeat, cells: jax.Array | np.ndarray,
                   count: int, weight: jax.Array | np.ndarray | None = None) -> jax.Array:
    """Releases private shares of records in each of `count` cells, positive and with sum 1.

    It is one release of the mean of a one-hot row minus 1 / count. That row has the norm
    (1 - 1 / count)^(1/2), the clip norm: no smaller ball holds the rows. Replacing a record
    moves the mean by sqrt(2) / n, and twice the clip norm, at least as much, is charged. Charge it
    with a run by `calibrate(..., alongside=(mechanism,))`, and the same in `statement`.

    Args:
      key: a secret key of its own, not the run's.
      mechanism: one release with that clip norm and clip.v None.
      cells: numbers from 0 to count - 1, `[n]`: groups s, or y * k + s for odds; a record with
        another number is in none.
      count: the public number of cells.
      weight: for cells `[n, rows]` of persons, the weights of rows, of sum 1 at most; else None.

    Raises:
      ValueError: for fewer than two cells, or another clip norm, which would bias the shares.

    Examples:
        >>> cells = np.arange(1000) % 4 // 3  # a quarter is in the second cell
        >>> ask = jmm.Repeat(query=jmm.Query(clip=Saddle(0.5**0.5, None), population=1000,
        ...                                  noise_multiplier=Saddle(20.0, None)), times=1)
        >>> key = jax.random.key(0)  # of real data jmm.noise.secret_key()
        >>> shares = jmm.problems.release_shares(key, ask, cells, 2)
        >>> bool(0.15 < shares[1] < 0.35)
        True
    """
    checks.count("count", count, low=2)
    clip: Any = getattr(mechanism.query, "clip", None)
    only_w = isinstance(clip, Saddle) and clip.w is not None and clip.v is None
    if not only_w or not (isinstance(clip.w, jax.core.Tracer)  # which was a number before
                       or abs(clip.w - math.sqrt(1 - 1 / count)) <= 1e-6):
        raise ValueError(f"clip must be Saddle((1 - 1 / {count})**0.5, None), got {clip!r}.")

    cells = jnp.asarray(cells, jnp.int32)
    if weight is None:
        cells, weight = cells[:, None], jnp.ones((len(cells), 1))
    key = jax.random.fold_in(key, 0x7368)  # apart from a run that was given the same key
    answer = sums.compiled_release(key, mechanism, Problem(_shifted), Saddle(jnp.zeros(count), ()),
                                   (cells, weight))
    positive = jnp.clip(answer.w + 1 / count, 1e-3, 1.0)  # noise may leave less than 0
    return positive / jnp.sum(positive)


def _shifted(z: Saddle, record: PyTree) -> Saddle:
    """A person's mean one-hot row, less 1 / count."""
    cell, weight = record
    one_hot = jax.nn.one_hot(cell, len(z.w), dtype=z.w.dtype)
    share = jnp.matmul(jnp.asarray(weight, z.w.dtype), one_hot, precision=tree.EXACT)
    return Saddle(share - 1 / len(z.w), None)
