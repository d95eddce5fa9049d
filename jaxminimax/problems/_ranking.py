"""Ranking beyond the AUC: several classes or labels, and a part of the ROC curve.

Each problem is one sum over records: a record's operator reads that record, the point and public
numbers. So a release is the library's clipped sum, replacing a record moves it by at most twice
the clip norm, and nothing else is released. Shares of classes are public guesses, or released and
charged (`release_prior`, `release_shares`), as in `auc`.

Source: Hand and Till, "A simple generalisation of the area under the ROC curve for multiple class
classification problems", 2001. Shao et al., "Asymptotically unbiased instance-wise partial AUC
optimization", NeurIPS 2022, arXiv:2210.03967 (the partial AUC; they smooth by a softplus, here
weights are penalised as in `dro`).
"""

import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax.base import checks
from jaxminimax.base.types import Problem, PyTree, Saddle, saddle_operator
from jaxminimax.problems import _auc, _robust, _vi

__all__ = ["auc_constants", "multiclass_auc", "multiclass_auc_start", "multilabel_auc",
           "partial_auc", "partial_auc_start"]

FORMS = ("macro", "hand_till")
_Weigh = Callable[[jax.Array, jnp.dtype], tuple[jax.Array, jax.Array]]
Scorer = Callable[[PyTree, jax.Array], jax.Array]


# --- several classes, or several labels ---


def _weights(shares: Sequence[float] | np.ndarray, form: str) -> tuple[np.ndarray, np.ndarray]:
    """Computes the weights of a record of each class in each comparison, `[k, k, j]` twice."""
    checks.one_of("form", form, FORMS)
    p = np.asarray(shares, np.float64)
    if p.ndim != 1 or len(p) < 2 or not np.all(p > 0) or abs(p.sum() - 1) > 1e-6:
        raise ValueError(f"shares must be two or more, positive, and add up to 1, got {shares!r}.")
    identity, k = np.eye(len(p)), len(p)
    if form == "macro":  # class i with all others; one comparison a score
        return ((identity / p)[:, :, None] / k, ((1 - identity) / (1 - p))[:, :, None] / k)
    pairs = (1 - identity) / (k * (k - 1))  # score i ranks class i above class j
    return (identity / p)[:, :, None] * pairs, (identity / p)[:, None, :] * pairs


def multiclass_auc(scorer: Scorer, *, shares: Sequence[float] | np.ndarray, form: str,
                   radius: Saddle, dual: str = "ascent") -> Problem:
    """The saddle problem of the AUC of several classes, with the squared surrogate of `auc`.

    Data are pairs (x, y), y `[n]` integers in {0, ..., K - 1}. A scorer gives one score a class.

      "macro"      the mean over classes i of the AUC of score i for class i against all others;
      "hand_till"  the mean over ordered pairs i != j of the AUC of score i for class i against
                   class j: the measure M of Hand and Till.

    Each comparison is an `auc` with a, b and v of its own: `[K, 1]` or `[K, K]` numbers, of which
    the diagonal is idle. f is the mean of their terms. A record of class y counts 1 / p_y in its
    own comparisons, so a rare class has long gradients; `auc_constants` has their bound.

    Args:
      scorer: `(theta, x) -> [K]`.
      shares: p `[K]`, of the classes: public, or a private release that is charged too.
      form: "macro" or "hand_till".
      radius: R_w of the ball of (theta, a, b) together, and R_v of the interval of each v.
      dual: "ascent", or "best_response" for v = b - a (no clip norm for v), as in `auc`.

    Raises:
      ValueError: for shares that are no positive probabilities, a radius that is not positive, or
        an unknown form or dual.

    Examples:
        >>> problem = jmm.problems.multiclass_auc(
        ...     jmm.problems.linear_scorer, shares=[0.6, 0.3, 0.1], form="hand_till",
        ...     radius=Saddle(10.0, 10.0))
        >>> start = jmm.problems.multiclass_auc_start(jnp.zeros((2, 3)), classes=3,
        ...                                           form="hand_till")
        >>> g = problem.operator(start, (jnp.ones(2), jnp.array(2)))
        >>> g.w["theta"].shape, g.v.shape
        ((2, 3), (3, 3))
    """
    plus, minus = _weights(shares, form)
    mass = np.einsum("k,kij->ij", np.asarray(shares, np.float64), plus)

    def weigh(y: jax.Array, dtype: jnp.dtype) -> tuple[jax.Array, jax.Array]:
        one_hot = jax.nn.one_hot(y, len(plus), dtype=dtype)
        return (jnp.tensordot(one_hot, jnp.asarray(plus, dtype), 1),
                jnp.tensordot(one_hot, jnp.asarray(minus, dtype), 1))

    return _compared(scorer, weigh, mass, radius, dual)._replace(
        labels=tuple(range(len(plus))))


def _compared(scorer: Scorer, weigh: _Weigh, mass: np.ndarray, radius: Saddle,
              dual: str) -> Problem:
    """Makes the sum of comparisons, each an `auc` with its own a, b and v, `[K, j]` as `mass`.

    `weigh` gives the weights of a record above and below in each, from its labels; `mass` is the
    mean weight above, by which -v^2 counts.
    """
    def loss(w: PyTree, v: jax.Array, example: PyTree) -> jax.Array:
        x, y = example
        s = _vi.shaped("the vector of scores", scorer(w["theta"], x), (len(mass),))[:, None]
        above, below = weigh(y, s.dtype)
        return jnp.sum(_auc.square_terms(s, above, below, w["a"], w["b"], v))

    def mass_like(v: jax.Array) -> jax.Array:
        return jnp.asarray(mass, v.dtype)

    return Problem(
        operator=saddle_operator(loss), project=_auc.projection(radius, dual),
        public=lambda z: Saddle(jax.tree.map(jnp.zeros_like, z.w), 2 * mass_like(z.v) * z.v),
        value=lambda z, data: _vi.mean_of(loss)(z, data) - jnp.sum(mass_like(z.v) * z.v**2))


def multilabel_auc(scorer: Scorer, *, prior: Sequence[float] | np.ndarray,
                   labelled: Sequence[float] | np.ndarray | None = None, radius: Saddle,
                   dual: str = "ascent") -> Problem:
    """The saddle problem of the mean AUC of k labels at once, some of which may be missing.

    Data are pairs (x, y), y `[n, k]` in [0, 1]; any other number, such as -1 or NaN, is a missing
    label, which counts nowhere. Label j compares its positives with its negatives by score j. It
    is an `auc` with a, b and v of its own, `[k, 1]` numbers each, and f is the mean of the k terms.
    A record's gradient of all labels is one vector with one clip norm, so k labels cost what one
    does. Start from `multiclass_auc_start(theta, classes=k, form="macro")`.

    Args:
      scorer: `(theta, x) -> [k]`.
      prior: p `[k]`, the shares of positives among the records with that label, each in (0, 1):
        public, or private releases that are charged too. A rough guess is enough, as in `auc`.
      labelled: the shares of records with each label, `[k]`, in (0, 1]; None if none is missing.
      radius: R_w of the ball of (theta, a, b) together, and R_v of the interval of each v.
      dual: "ascent", or "best_response" for v = b - a (no clip norm for v), as in `auc`.

    Raises:
      ValueError: for shares out of range or of another length, a radius that is not positive, or an
        unknown dual.

    Examples:
        >>> problem = jmm.problems.multilabel_auc(
        ...     jmm.problems.linear_scorer, prior=[0.1, 0.3], labelled=[1.0, 0.5],
        ...     radius=Saddle(10.0, 10.0))
        >>> start = jmm.problems.multiclass_auc_start(jnp.zeros((3, 2)), classes=2, form="macro")
        >>> g = problem.operator(start, (jnp.ones(3), jnp.array([1.0, jnp.nan])))
        >>> g.w["theta"][0].tolist()  # the second label is missing
        [-10.0, 0.0]
    """
    p, here = _checked_shares(prior, labelled)
    k = len(p)

    def weigh(y: jax.Array, dtype: jnp.dtype) -> tuple[jax.Array, jax.Array]:
        y = _vi.shaped("the vector of labels", y, (k,))
        labelled = (y >= 0) & (y <= 1)
        own_label = jnp.where(labelled, y, 0).astype(dtype)
        return ((own_label * jnp.asarray(1 / (k * here * p), dtype))[:, None],
                ((labelled - own_label) * jnp.asarray(1 / (k * here * (1 - p)), dtype))[:, None])

    return _compared(scorer, weigh, np.full((k, 1), 1 / k), radius, dual)


def _checked_shares(prior: Sequence[float] | np.ndarray,
                    labelled: Sequence[float] | np.ndarray | None,
                    ) -> tuple[np.ndarray, np.ndarray]:
    """Checks the shares of positives and of labelled records, `[k]` each."""
    p = np.asarray(prior, np.float64)
    here = np.ones_like(p) if labelled is None else np.asarray(labelled, np.float64)
    if p.ndim != 1 or not len(p) or not np.all((p > 0) & (p < 1)):
        raise ValueError("prior must be a share in (0, 1) for each label, [k], got "
                         f"{prior!r}: leave out labels that have only one value.")
    if here.shape != p.shape or not np.all((here > 0) & (here <= 1)):
        raise ValueError(f"labelled must be {len(p)} shares in (0, 1], one for each label, got "
                         f"{labelled!r}: leave it out if no label is missing.")
    return p, here


def multiclass_auc_start(theta: PyTree, *, classes: int, form: str) -> Saddle:
    """The initial point of `multiclass_auc`: theta, and a, b and v of zeros.

    Examples:
        >>> jmm.problems.multiclass_auc_start(jnp.zeros((2, 4)), classes=4, form="macro").v.shape
        (4, 1)
    """
    checks.one_of("form", form, FORMS)
    zeros = jnp.zeros((classes, 1 if form == "macro" else classes),
                      jnp.result_type(*jax.tree.leaves(theta)))
    return Saddle({"theta": theta, "a": zeros, "b": zeros}, zeros)


def auc_constants(shares: Sequence[float] | np.ndarray, *, form: str, feature_bound: float,
                  radius: Saddle) -> tuple[float, float, float]:
    """Computes (M, L, D) of `multiclass_auc` or `multilabel_auc` with linear scores, ||x|| <= r.

    With S = r R_w, U = (r^2 + 1)^(1/2) R_w and the weights c_ij of a class's records,

        M^2 = 4 sum_i (r (U + 1 + R_v) sum_j c_ij)^2 + 4 (U^2 + S^2) sum_ij c_ij^2,
        L   = 2 (r^2 + r + 1) max_i sum_j c_ij,

    each the largest over classes. The operator of every such record is monotone. L holds with the
    public term. Pass them to `jmm.plan` as `bound`, `smooth` and `diameter`. `auc` with the prior
    p has twice the M and L of shares = [1 - p, p] and form = "macro" at most. For k labels c has
    one row, 1 / (k shares): the largest weight that a record may have in each of them at once.

    Args:
      shares: p `[K]`; for "multilabel" `[k]`, labelled min(p, 1 - p).
      form: "macro", "hand_till" or "multilabel".
      feature_bound: r.
      radius: R_w and R_v, as in `multiclass_auc`.

    Examples:
        >>> M, L, D = jmm.problems.auc_constants([0.9, 0.1], form="macro", feature_bound=1.0,
        ...                                      radius=Saddle(1.0, 1.0))
        >>> round(M, 1), round(L, 1), round(D, 2)
        (54.1, 30.0, 3.46)
    """
    checks.number("feature_bound", feature_bound, low=0.0)
    checks.one_of("form", form, (*FORMS, "multilabel"))
    if form == "multilabel":
        counts = 1 / (_checked_shares(shares, None)[0][None, :, None] * len(shares))
    else:
        counts = np.add(*_weights(shares, form))
    r, rows = feature_bound, np.sum(counts, 2)
    score, apart = r * radius.w, math.hypot(r, 1) * radius.w
    squares = (np.sum((r * (apart + 1 + radius.v) * rows) ** 2, 1)
               + (apart**2 + score**2) * np.sum(counts**2, (1, 2)))
    return (2 * math.sqrt(squares.max()), 2 * (r**2 + r + 1) * float(rows.max()),
            2 * math.hypot(radius.w, math.sqrt(counts[0].size) * radius.v))


# --- a part of the ROC curve ---


def partial_auc(scorer: Scorer, *, prior: float, max_fpr: float, min_tpr: float | None = None,
                penalty: float, radius: Saddle, dual: str = "ascent") -> Problem:
    """The saddle problem of the AUC at small false and, if wanted, large true positive rates.

    One-way: positives against the share `max_fpr` of negatives with the largest scores. Two-way:
    also only the share 1 - `min_tpr` of positives with the smallest scores. Data are those of
    `auc`. With the terms of a record in `auc`,

        l_+ = (s - a)^2 - 2 (1 + v) s,    l_- = (s - b)^2 + 2 (1 + v) s,

    l_- rises with s where 1 + v >= b - s, and l_+ falls where 1 + v >= s - a. The negatives
    with the largest scores are then those with the largest l_-, and their mean is a CVaR, with one
    threshold for all of them, as in `dro`:

        f = [y=0]/(1-p) e(l_- - eta_-; 1 / max_fpr) + eta_- + [y=1]/p l_+ - v^2,
        e(u; cap) = max over 0 <= q <= cap of   q u - penalty (q - 1)^2 / 2,

    and two-way [y=1]/p e(l_+ - eta_+; 1 / (1 - min_tpr)) + eta_+ in place of l_+. At the best a, b,
    eta and v, f is the mean of (1 - s_+ + s_-)^2 - 1 over the pairs that are left, up to the
    penalty. The terms eta and -v^2 read no data.

    With linear scores f is convex in w = (theta, a, b, eta). It is concave in v only after
    the minimum over eta: the operator is not monotone, and no theorem of convex-concave games
    applies. `sgda` needs no such property. Start from `partial_auc_start`. For records ||x|| <= r,
    S = r R_w, U = (r^2 + 1)^(1/2) R_w and c = max{1 / (max_fpr (1 - p)), 1 / ((1 - min_tpr) p)} a
    record's operator is no longer than

        M = c (4 (r^2 (U + 1 + R_v)^2 + U^2 + S^2) + 1)^(1/2),

    far above the norms of most records.

    Args:
      scorer: `(theta, x) -> []`.
      prior: p in (0, 1), as in `auc`.
      max_fpr: the largest false positive rate, in (0, 1).
      min_tpr: the smallest true positive rate, in (0, 1); None is one-way.
      penalty: of the squared weights, positive, in units of l; it smooths the selection.
      radius: R_w of the ball of w, and R_v of the interval of v.
      dual: "ascent", or "best_response" for v = b - a (no clip norm for v), as in `auc`.

    Raises:
      ValueError: for numbers out of range, or an unknown dual.

    Examples:
        >>> problem = jmm.problems.partial_auc(
        ...     jmm.problems.linear_scorer, prior=0.1, max_fpr=0.2, penalty=0.1,
        ...     radius=Saddle(10.0, 10.0))
        >>> start = jmm.problems.partial_auc_start(jnp.zeros(2))
        >>> sorted(problem.operator(start, (jnp.ones(2), jnp.zeros(()))).w)
        ['a', 'b', 'eta_minus', 'theta']
    """
    checks.number("prior", prior, low=0.0, high=1.0)
    checks.number("max_fpr", max_fpr, low=0.0, high=1.0)
    if min_tpr is not None:
        checks.number("min_tpr", min_tpr, low=0.0, high=1.0)
    checks.number("penalty", penalty, low=0.0)
    project = _auc.projection(radius, dual)
    thresholds = ("eta_minus",) if min_tpr is None else ("eta_minus", "eta_plus")

    def loss(w: PyTree, v: jax.Array, example: PyTree) -> jax.Array:
        x, y = example
        s = scorer(w["theta"], x)
        y = jnp.asarray(y, s.dtype)
        positive = _auc.square_terms(s, 1.0, 0.0, w["a"], w["b"], v)
        negative = _auc.square_terms(s, 0.0, 1.0, w["a"], w["b"], v)
        worst = _robust.excess(negative - w["eta_minus"], penalty, 1 / max_fpr)
        if min_tpr is not None:
            positive = _robust.excess(positive - w["eta_plus"], penalty, 1 / (1 - min_tpr))
        return y / prior * positive + (1 - y) / (1 - prior) * worst

    def public(z: Saddle) -> Saddle:
        zero = jax.tree.map(jnp.zeros_like, z.w)
        return Saddle(zero | {name: jnp.ones_like(z.w[name]) for name in thresholds}, 2 * z.v)

    def value(z: Saddle, data: PyTree) -> jax.Array:
        return _vi.mean_of(loss)(z, data) + sum(z.w[name] for name in thresholds) - z.v**2

    return Problem(operator=saddle_operator(loss), public=public, project=project, value=value,
                   labels=(0, 1))


def partial_auc_start(theta: PyTree, *, min_tpr: float | None = None) -> Saddle:
    """The initial point of `partial_auc`: theta, and zeros.

    Examples:
        >>> sorted(jmm.problems.partial_auc_start(jnp.zeros(2), min_tpr=0.5).w)
        ['a', 'b', 'eta_minus', 'eta_plus', 'theta']
    """
    start = _auc.auc_start(theta)
    zero = start.v
    w = start.w | {"eta_minus": zero}
    return Saddle(w if min_tpr is None else w | {"eta_plus": zero}, zero)
