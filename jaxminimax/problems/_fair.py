"""Fair classification where the group of a record is private: parity, odds, error rates.

Records are (x, y, s): y a class and s a group, both private. A scorer gives logits and so the
probabilities q_j of the classes. The classifier minimises cross entropy + weight * penalty, where
the penalty is 0 if the prediction does not depend on s. For parity q and s are independent. For
odds they are so among the records of each class y: that penalty is the sum over classes y of the
first, each on the records of that class. For error rates q has two numbers, the probabilities of
the wrong and of the right class, so that every group has the same share of errors.

* `fermi`: the chi-square information of q and s (ERMI) by its dual, for any groups and classes,

      ERMI + 1 = sum_{j,s} P(j, s)^2 / (P(j) p_s)
               = max over W of  E sum_j q_j (2 W_{j,s} / sqrt(p_s) - |W_j|^2),

  attained at W_{j,s} = P(j, s) / (P(j) sqrt(p_s)), which lies in [0, 1 / sqrt(p_s)].

* `parity`: squared differences of mean probabilities between groups, of two classes. With

      h_i = E q a_i(s),   a_i(s) = 1 / p_i for s = i, and -1 / (1 - p_i) for another group,

  the amount by which group i is above the others,

      weight |h|^2 / 2 = max over v of  <v, h> - |v|^2 / (2 weight),
      weight |h|_1     = max over |v_i| <= weight of  <v, h>,

  the second being the Lagrangian of the constraint h = 0 with bounded multipliers. Of two groups h
  has one number. A centre c stands in for q by q - c, which changes nothing where the shares p are
  right, since E a_i(s) = 0, and makes records shorter.

Shares p depend on the data, so they are public guesses or released and charged
(`release_shares`). Wrong shares change what the penalty measures and cost no privacy. Player v's
operator does not hold the weight, so a larger weight has no larger sensitivity.

Source: Lowy, Gupta and Razaviyayn, "Stochastic Differentially Private and Fair Learning", ICLR 2023
(the first). Departures: W stays in the box of its maximiser, operators are clipped, and shares are
charged if they come from the data.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxminimax.base import checks
from jaxminimax.base.types import Problem, PyTree, Saddle, saddle_operator
from jaxminimax.problems import _vi

__all__ = ["fermi", "fermi_start", "parity", "parity_start"]

Scorer = Callable[[PyTree, jax.Array], jax.Array]
KINDS = ("parity", "odds", "error_rate")


def conditionals(shares: np.ndarray | jax.Array, kind: str, classes: int) -> tuple[Any, Any]:
    """Computes P(l) `[l]` and P(s | l) `[l, k]`; l is the class for odds, and 0 for parity."""
    checks.one_of("kind", kind, KINDS)
    checks.count("classes", classes, low=2)
    p: Any = shares
    if not isinstance(shares, jax.core.Tracer):  # which was numbers before
        p = np.asarray(shares, np.float64)
        if not np.all(p > 0) or abs(p.sum() - 1) > 1e-6:
            raise ValueError(f"shares must be positive and add up to 1, got {shares!r}.")
    odds = kind == "odds"
    if p.ndim != 1 + odds or p.shape[-1] < 2 or (odds and len(p) != classes):
        layout = f"[{classes}, groups], of every class with every group" if odds else "[groups]"
        raise ValueError(f"shares must be {layout}, of two groups at least, for kind={kind!r}; "
                         f"got shape {p.shape}.")
    p = p if odds else p[None]
    label = p.sum(1)
    return label, p / label[:, None]


def _logits(scorer: Scorer, theta: PyTree, x: jax.Array, classes: int) -> jax.Array:
    """The logits `[m]` of a record; a scorer of two classes may return the log-odds of class 1."""
    t = scorer(theta, x)
    if classes == 2 and t.shape == ():
        return jnp.stack([jnp.zeros_like(t), t])
    if t.shape != (classes,):
        raise ValueError(f"scorer must give {classes} logits of a record"
                         f"{', or one number,' * (classes == 2)} got shape {t.shape}.")
    return t


def _read(scorer: Scorer, w: PyTree, example: PyTree, classes: int) -> tuple[jax.Array, ...]:
    """A record's cross entropy and logits, and its class and group as integers."""
    x, y, s = example
    y, s = jnp.asarray(y, jnp.int32), jnp.asarray(s, jnp.int32)
    logits = _logits(scorer, w, x, classes)
    entropy = jax.nn.logsumexp(logits) - jax.nn.one_hot(y, classes, dtype=logits.dtype) @ logits
    return entropy, logits, y, s


def _outcome(logits: jax.Array, y: jax.Array, kind: str) -> jax.Array:
    """The probabilities q of a record's classes; for error rates, that y is missed and is not."""
    q = jax.nn.softmax(logits)
    if kind != "error_rate":
        return q
    right = jax.nn.one_hot(y, len(q), dtype=q.dtype) @ q
    return jnp.stack([1 - right, right])


def _ball(w: PyTree, radius: float | None) -> PyTree:
    return w if radius is None else optax.projections.projection_l2_ball(w, radius)


def _numbers(weight: float, radius: float | None) -> None:
    checks.number("weight", weight, low=0.0)
    if radius is not None:
        checks.number("radius", radius, low=0.0)


def _places(y: jax.Array, s: jax.Array, shape: tuple[int, ...],
            dtype: jnp.dtype) -> tuple[jax.Array, jax.Array]:
    """One-hot rows of a record's class, if that matters, and of its group; 0 where it has none."""
    labels, groups = shape
    label = jax.nn.one_hot(y if labels > 1 else jnp.zeros_like(y), labels, dtype=dtype)
    return label, jax.nn.one_hot(s, groups, dtype=dtype)


def fermi(scorer: Scorer, *, shares: np.ndarray | jax.Array, weight: float, classes: int = 2,
          kind: str = "parity", radius: float | None = None) -> Problem:
    """Cross entropy + weight * ERMI, the chi-square information between prediction and group.

    Data are (x, y, s): x `[n, ...]`, y `[n]` and s `[n]` integers from 0; a record with another s
    is in no group. v is W `[1, m, k]`, or `[m, m, k]` for odds, first the class y, or `[1, 2, k]`
    for error rates. You choose the clip norm of player w. Player v's operator is no longer than
    2 (sum_s 1 / P(s | l))^(1/2) / P(l), for the l where that is largest (P(l) = 1 but for odds); a
    smaller clip norm has less noise, and mostly shortens records of rare groups.

    Args:
      scorer: `(theta, x) -> [m]` logits of one record; for two classes also `[]`, the log-odds.
      shares: p `[k]`, the shares of the groups; for odds `[m, k]`, of every class and group.
      weight: the factor of the penalty, positive.
      classes: m, the number of classes.
      kind: "parity", "odds" or "error_rate".
      radius: radius of a ball that w is projected to; None for no projection.

    Raises:
      ValueError: for shares that are no positive probabilities or have another shape, numbers out
        of range, or an unknown kind.

    Examples:
        >>> shares = np.array([0.7, 0.3])
        >>> problem = jmm.problems.fermi(jmm.problems.linear_scorer, shares=shares, weight=1.0)
        >>> start = jmm.problems.fermi_start(jnp.zeros(3), shares=shares)
        >>> problem.operator(start, (jnp.ones(3), 1, 0)).v.shape
        (1, 2, 2)
    """
    label, conditional = conditionals(shares, kind, classes)
    _numbers(weight, radius)
    root = conditional**0.5  # [l, k]

    def dual(q: jax.Array, v: jax.Array, y: jax.Array, s: jax.Array) -> jax.Array:
        """(sum_j q_j (2 W_{j,s} / sqrt(p_s) - |W_j|^2) - 1) / P(l), for the record's s and l."""
        place, g = _places(y, s, conditional.shape, q.dtype)
        own = jnp.einsum("l,ljk->jk", place, v)
        inner = 2 * own @ (g / (place @ jnp.asarray(root, q.dtype))) - jnp.sum(own**2, 1)
        return (q @ inner - 1) * jnp.sum(g) / (place @ jnp.asarray(label, q.dtype))

    def loss(w: PyTree, v: jax.Array, example: PyTree) -> jax.Array:
        # gradients: of entropy + weight * dual by w, and of the dual alone by v
        entropy, logits, y, s = _read(scorer, w, example, classes)
        q = _outcome(logits, y, kind)
        still = jax.lax.stop_gradient
        return entropy + weight * dual(q, still(v), y, s) + dual(still(q), v, y, s)

    def penalised(w: PyTree, v: jax.Array, example: PyTree) -> jax.Array:
        entropy, logits, y, s = _read(scorer, w, example, classes)
        return entropy + weight * dual(_outcome(logits, y, kind), v, y, s)

    def best_v(w: PyTree, data: PyTree) -> jax.Array:
        def moments(example: PyTree) -> jax.Array:
            _, logits, y, s = _read(scorer, w, example, classes)
            q = _outcome(logits, y, kind)
            place, g = _places(y, s, conditional.shape, q.dtype)
            return jnp.einsum("l,j,k->ljk", place, q, g)

        joint = jnp.mean(jax.vmap(moments)(data), 0)  # [l, m, k]
        row_sum = jnp.sum(joint, -1, keepdims=True)
        return _boxed(joint / jnp.where(row_sum > 0, row_sum, 1) / root[:, None], root)

    def project(z: Saddle) -> Saddle:
        return Saddle(_ball(z.w, radius), _boxed(z.v, root))

    return Problem(operator=saddle_operator(loss), project=project,
                   value=_vi.mean_of(penalised), best_response=Saddle(None, best_v))


def _boxed(v: jax.Array, root: Any) -> jax.Array:
    """Clips W to the box 0 <= W_{j,s} <= 1 / sqrt(p_s)."""
    return jnp.clip(v, 0, jnp.asarray(1 / root, v.dtype)[:, None])


def fermi_start(theta: PyTree, *, shares: np.ndarray, classes: int = 2,
                kind: str = "parity") -> Saddle:
    """The initial point: theta, and the W of a prediction that does not depend on the group.

    Args:
      theta: the start of the scorer.
      shares: p `[k]`, or `[classes, k]` for `kind="odds"`; positive, with sum 1.
      classes: m, the number of classes.
      kind: "parity", "odds" or "error_rate".

    Examples:
        >>> start = jmm.problems.fermi_start(jnp.zeros(3), shares=np.array([0.7, 0.3]))
        >>> start.v.shape
        (1, 2, 2)
    """
    _, conditional = conditionals(shares, kind, classes)
    dtype = jnp.result_type(*jax.tree.leaves(theta))
    rows = 2 if kind == "error_rate" else classes
    return Saddle(theta, jnp.repeat(jnp.asarray(conditional**0.5, dtype)[:, None], rows, 1))


def parity(scorer: Scorer, *, shares: np.ndarray, weight: float, kind: str = "parity",
           penalty: str = "squared", centre: float = 0.5, reach: float | None = None,
           radius: float | None = None) -> Problem:
    """Cross entropy of two classes + a penalty on differences between the groups' mean scores.

    Data are (x, y, s) as for `fermi`, with y in {0, 1}. The score is q, the probability of class 1,
    or for error rates that of the class that y is not.
    v is `[l, c]` with a number for every group, only one for two groups, and a row for each class
    under odds. Player v's operator is no longer than max{c, 1 - c} |a(s)| / P(l), for the s and l
    where that is largest (P(l) = 1 but for odds).

    Args:
      scorer: `(theta, x) -> []`, the log-odds of class 1.
      shares: p `[k]`, the shares of the groups; for odds `[2, k]`, of every class and group.
      weight: the factor of the penalty, positive.
      kind: "parity", "odds" or "error_rate".
      penalty: "squared", weight / 2 times the differences' squares; "absolute", weight times their
        absolute values, with Lagrange multipliers v.
      centre: c in [0, 1], a public guess of q's mean.
      reach: largest |v|; None for `weight`, beyond which no maximiser lies, and for multipliers. A
        smaller value keeps v's noise small, and bounds the slope of the penalty.
      radius: radius of a ball that w is projected to; None for no projection.

    Raises:
      ValueError: for the errors of `fermi`, or an unknown penalty.

    Examples:
        >>> shares = np.array([0.7, 0.3])
        >>> problem = jmm.problems.parity(jmm.problems.linear_scorer, shares=shares, weight=1.0)
        >>> start = jmm.problems.parity_start(jnp.zeros(3), shares=shares)
        >>> problem.operator(start, (jnp.ones(3), 1, 0)).v.shape
        (1, 1)
    """
    label, conditional = conditionals(shares, kind, 2)
    contrasts = _contrasts(conditional)  # [l, k, c]
    _numbers(weight, radius)
    checks.one_of("penalty", penalty, ("squared", "absolute"))
    checks.number("centre", centre, low=0.0, high=1.0, closed=True)
    if reach is not None:
        checks.number("reach", reach, low=0.0)
        if penalty == "absolute":
            raise ValueError(f"reach={reach!r}: multipliers reach to the weight; leave it out.")
    far = weight if reach is None else reach

    def pull(q: jax.Array, y: jax.Array, s: jax.Array) -> jax.Array:
        """The vector (q - c) a(s) / P(l) in the row of the record's l, and 0 in other rows."""
        place, g = _places(y, s, conditional.shape, q.dtype)
        row = jnp.einsum("l,k,lkc->c", place, g, jnp.asarray(contrasts, q.dtype))
        return (q - centre) * jnp.outer(place / jnp.asarray(label, q.dtype), row)

    def entropy_and_pull(w: PyTree, example: PyTree) -> tuple[jax.Array, jax.Array]:
        entropy, logits, y, s = _read(scorer, w, example, 2)
        q = jax.nn.sigmoid(logits[1] - logits[0])
        if kind == "error_rate":
            q = jnp.where(y == 1, 1 - q, q)
        return entropy, pull(q, y, s)

    def loss(w: PyTree, v: jax.Array, example: PyTree) -> jax.Array:
        entropy, h = entropy_and_pull(w, example)
        return entropy + jnp.sum(v * h)

    def public(z: Saddle) -> Saddle:
        return Saddle(jax.tree.map(jnp.zeros_like, z.w), z.v / weight)

    def project(z: Saddle) -> Saddle:
        return Saddle(_ball(z.w, radius), jnp.clip(z.v, -far, far))

    def value(z: Saddle, data: PyTree) -> jax.Array:
        own = 0.0 if penalty == "absolute" else jnp.sum(z.v**2) / (2 * weight)
        return _vi.mean_of(loss)(z, data) - own

    def best_v(w: PyTree, data: PyTree) -> jax.Array:
        h = jnp.mean(jax.vmap(lambda example: entropy_and_pull(w, example)[1])(data), 0)
        return far * jnp.sign(h) if penalty == "absolute" else jnp.clip(weight * h, -far, far)

    return Problem(operator=saddle_operator(loss), project=project, value=value,
                   public=None if penalty == "absolute" else public,
                   best_response=Saddle(None, best_v))


def _contrasts(conditional: Any) -> Any:
    """The contrasts a_i(s), `[l, k, c]`, indexed by s, then i; for two groups only i = 1."""
    k = conditional.shape[1]
    own = np.eye(k)[None]
    a = own / conditional[:, None] - (1 - own) / (1 - conditional[:, None])
    return a[:, :, 1:] if k == 2 else a


def parity_start(theta: PyTree, *, shares: np.ndarray, kind: str = "parity") -> Saddle:
    """The initial point: theta, and v = 0.

    Args:
      theta: the start of the scorer.
      shares: p `[k]`, or `[2, k]` for `kind="odds"`; positive, with sum 1.
      kind: "parity", "odds" or "error_rate".

    Examples:
        >>> start = jmm.problems.parity_start(jnp.zeros(3), shares=np.array([0.7, 0.3]))
        >>> start.v.shape
        (1, 1)
    """
    shape = _contrasts(conditionals(shares, kind, 2)[1]).shape
    return Saddle(theta, jnp.zeros((shape[0], shape[2]), jnp.result_type(*jax.tree.leaves(theta))))
