"""Robust learning: the worst mixture of sources, the worst reweighting, the worst features.

An adversary chooses how much each record counts, in one of two ways, or what it holds
(`adversarial`):

* one weight a source, v in the simplex: `worst_mixture`, a saddle problem. (`worst_group` has the
  same aim where the group of a record is public, for algorithms that read one group at a time; here
  the group is a private part of the record.)
* one weight a record, q in R^n near 1/n. A private algorithm cannot release q, because each of its
  n numbers is about one record. By duality the inner maximum is a minimum over one or two numbers,
  with one term a record: `reweighted`, in which w = (theta, eta, scale) and v is empty.

Source: Yang et al., arXiv:2201.09046, Appendix A (the first). Rockafellar and Uryasev,
"Optimization of conditional value-at-risk", 2000, and Duchi and Namkoong, "Learning models with
uniform performance via distributionally robust optimization", 2021 (the second). Levy et al.,
"Large-scale methods for distributionally robust optimization", NeurIPS 2020 (`dro`). Agarwal,
Dudik and Wu, "Fair regression: quantitative definitions and reduction-based algorithms", ICML 2019
(`bounded_group_loss`). Madry et al., "Towards deep learning models resistant to adversarial
attacks", ICLR 2018 (`gradient_attack`).
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxminimax.base import checks
from jaxminimax.base.types import GroupProblem, Problem, PyTree, Saddle, saddle_operator
from jaxminimax.problems._vi import Bounded, mean_of

__all__ = ["adversarial", "bounded_group_loss", "dro", "gradient_attack", "reweighted",
           "reweighted_risk", "reweighted_start", "squared_loss", "worst_mixture"]

DIVERGENCES = ("cvar", "chi_square")
Loss = Callable[[PyTree, PyTree], jax.Array]


def squared_loss(theta: jax.Array, record: tuple[jax.Array, jax.Array]) -> jax.Array:
    """The squared loss (<theta, x> - y)^2 / 2 of one record (x, y), `[]`.

    Examples:
        >>> float(jmm.problems.squared_loss(jnp.ones(2), (jnp.array([1.0, 2.0]), jnp.ones(()))))
        2.0
    """
    x, y = record
    return (x @ theta - y) ** 2 / 2


def worst_mixture(loss: Loss, *, shares: np.ndarray, radius: float) -> Problem:
    """The problem of the worst of m sources, where each record holds the number of its source.

        min over ||w|| <= R, max over v in the simplex, of
        E f,    f(w, v; (g, z)) = v_g loss(w; z) / pi_g.

    Data are pairs (g, z), g `[n]` integers from 0. Both players read data: w's gradient is
    v_g / pi_g times that of the loss, and v's is the one number loss / pi_g, so that v's clip norm
    is a bound on the loss over the source's share.

    Args:
      loss: `(w, z) -> []`.
      shares: pi `[m]`, the sources' shares among the records: public constants, or a private
        release that is charged too. Counts of the data are neither. A wrong share counts its
        source's loss too much or too little.
      radius: R, of the ball that w is projected to.

    Raises:
      ValueError: for shares that are no positive probabilities, or a radius out of range.

    Examples:
        >>> shares = np.array([0.8, 0.2])
        >>> problem = jmm.problems.worst_mixture(jmm.problems.squared_loss, shares=shares,
        ...                                      radius=1.0)
        >>> z = Saddle(jnp.zeros(2), jnp.full(2, 0.5))
        >>> g = problem.operator(z, (1, (jnp.ones(2), jnp.ones(()))))
        >>> print(g.v.round(3))  # a rare source counts more
        [-0.  -2.5]
    """
    pi = _shares(shares)
    checks.number("radius", radius, low=0.0)

    def weighted(w: PyTree, v: jax.Array, record: PyTree) -> jax.Array:
        g, z = record
        return (v / jnp.asarray(pi, v.dtype))[g] * loss(w, z)

    value = mean_of(weighted)

    def best_v(w: PyTree, data: PyTree) -> jax.Array:
        start = jnp.zeros(len(pi), jnp.result_type(*jax.tree.leaves(w)))
        g = jax.grad(lambda v: value(Saddle(w, v), data))(start)
        return jax.nn.one_hot(jnp.argmax(g), len(pi), dtype=start.dtype)

    return Problem(
        operator=saddle_operator(weighted), value=value, best_response=Saddle(None, best_v),
        project=lambda z: Saddle(optax.projections.projection_l2_ball(z.w, radius),
                                 optax.projections.projection_simplex(z.v)))


def _shares(shares: np.ndarray) -> np.ndarray:
    pi = np.asarray(shares, np.float64)
    if pi.ndim != 1 or not np.all(pi > 0) or abs(pi.sum() - 1) > 1e-6:
        raise ValueError(f"shares must be positive and add up to 1, got {shares!r}.")
    return pi


def bounded_group_loss(loss: Loss, *, shares: np.ndarray, level: float, weight: float,
                       radius: float) -> Problem:
    """The problem of a small mean loss under a bound on every group's mean loss; groups private.

        min over ||w|| <= R, max over 0 <= v_g <= weight, of
        E loss(w; z) + sum_g v_g (E[loss(w; z) | g] - level),

    the Lagrangian of the constraints E[loss | g] <= level with bounded multipliers, which is
    E loss + weight sum_g (E[loss | g] - level)_+ at the best v. Data are pairs (g, z) as of
    `worst_mixture`; a record with another g is in no group, and counts in E loss alone. v's
    operator is the one number loss / pi_g, and v starts from zeros `[m]`. The level reads no data.
    (`worst_group` minimises the largest of the groups' losses, for public groups.)

    Args:
      loss: `(w, z) -> []`, such as `squared_loss`.
      shares: pi `[m]`, the groups' shares among the records, as of `worst_mixture`.
      level: the largest mean loss that a group should have, positive.
      weight: the largest multiplier, positive; a larger one comes nearer to the bound.
      radius: R, of the ball that w is projected to.

    Raises:
      ValueError: for shares that are no positive probabilities, or numbers out of range.

    Examples:
        >>> problem = jmm.problems.bounded_group_loss(
        ...     jmm.problems.squared_loss, shares=np.array([0.8, 0.2]), level=0.5, weight=4.0,
        ...     radius=1.0)
        >>> z = Saddle(jnp.zeros(2), jnp.zeros(2))
        >>> problem.operator(z, (1, (jnp.ones(2), jnp.ones(())))).v.tolist()
        [-0.0, -2.5]
    """
    pi = _shares(shares)
    checks.positive(level=level, weight=weight, radius=radius)

    def weighted(w: PyTree, v: jax.Array, record: PyTree) -> jax.Array:
        g, z = record
        group_one_hot = jax.nn.one_hot(g, len(pi), dtype=v.dtype)  # 0 where it has no group
        return (1 + group_one_hot @ (v / jnp.asarray(pi, v.dtype))) * loss(w, z)

    def value(z: Saddle, data: PyTree) -> jax.Array:
        return mean_of(weighted)(z, data) - level * jnp.sum(z.v)

    def best_v(w: PyTree, data: PyTree) -> jax.Array:
        start = jnp.zeros(len(pi), jnp.result_type(*jax.tree.leaves(w)))
        over = jax.grad(lambda v: value(Saddle(w, v), data))(start)
        return jnp.where(over > 0, weight, jnp.zeros_like(over))

    return Problem(
        operator=saddle_operator(weighted), value=value, best_response=Saddle(None, best_v),
        public=lambda z: Saddle(jax.tree.map(jnp.zeros_like, z.w), jnp.full_like(z.v, level)),
        project=lambda z: Saddle(optax.projections.projection_l2_ball(z.w, radius),
                                 jnp.clip(z.v, 0, weight)))


def adversarial(loss: Loss | GroupProblem, attack: Callable[[PyTree, PyTree], PyTree]) -> Any:
    """The problem of a loss whose records an attack has moved, each by itself.

        min over w of   E loss(w; attack(w, z)),

    where no derivative comes back from the attack: the weights that it sees are constants, and so
    is what it returns. By Danskin's theorem the result is the gradient of max over z' of loss(w;
    z') where the attack attains the maximum. An attack reads one record and the point, so a
    record's gradient is clipped as before, and the charge does not change. v is ().

    Args:
      loss: `(w, record) -> []`, or a `GroupProblem` with constants. These hold for records of any
        content, so for attacked ones too: `lipschitz` and `bound` stay. `smooth` becomes None, as
        the largest of smooth losses need not be smooth. `convex` becomes False, so that no
        certified solution rests on it: the largest of convex losses is convex, but an attack by
        gradients misses it where a hinge is flat, a residual is 0, or features are cut. Where a
        problem cuts features to a length, make room there for the attack.
      attack: `(w, record) -> record`, such as `gradient_attack`.

    Returns:
      A `Problem`; a `GroupProblem` for a `GroupProblem`.

    Raises:
      TypeError: for a loss or an attack that cannot be called so.
      ValueError: for a `GroupProblem` whose loss draws.

    Examples:
        >>> def loss(w, record):
        ...     return jax.nn.softplus(-record[1] * (record[0] @ w))
        >>> attack = jmm.problems.gradient_attack(loss, radius=0.5, norm="l2")
        >>> problem = jmm.problems.adversarial(loss, attack)
        >>> g = problem.operator(Saddle(jnp.array([1.0, 0.0]), ()), (jnp.zeros(2), 1.0))
        >>> round(float(g.w[0]), 3)  # of the record moved to (-0.5, 0)
        0.311
    """
    if isinstance(loss, GroupProblem) and loss.random:
        raise ValueError("loss must not draw random numbers: attacks of losses that draw are not "
                         "defined, take random=False.")
    base = loss.loss if isinstance(loss, GroupProblem) else loss
    checks.takes("loss", base, "w", "record")
    checks.takes("attack", attack, "w", "record")

    def attacked(w: PyTree, _: PyTree, record: PyTree) -> jax.Array:
        still = jax.lax.stop_gradient
        return base(w, still(attack(still(w), record)))

    if isinstance(loss, GroupProblem):
        return loss._replace(loss=lambda w, record: attacked(w, (), record), smooth=None,
                             operator=saddle_operator(attacked), convex=False)
    return Problem(operator=saddle_operator(attacked), value=mean_of(attacked))


def gradient_attack(loss: Loss | GroupProblem, *, radius: float, norm: str = "linf",
                    steps: int = 1) -> Callable[[PyTree, PyTree], PyTree]:
    """An attack on features by projected steps up the loss, for `adversarial`.

    Records are tuples (x, ...). The shift of x starts at 0 and moves by min{1, 2.5 / steps} radius
    along the gradient's signs ("linf"), or along its direction ("l2"), inside the ball of that
    norm. One step is the worst shift of a linear score with a loss that falls in its
    margin; where the gradient is 0, as on the flat part of a hinge, nothing moves.

    Args:
      loss: `(w, record) -> []`, or a `GroupProblem`.
      radius: of the ball, positive [feature units].
      norm: "linf" or "l2".
      steps: the number of steps.

    Raises:
      ValueError: for numbers out of range, or another norm; when called, for features that are no
        floating-point numbers.

    Examples:
        >>> attack = jmm.problems.gradient_attack(jmm.problems.squared_loss, radius=0.1)
        >>> x, y = attack(jnp.array([1.0, -2.0]), (jnp.zeros(2), jnp.ones(())))
        >>> print(x)
        [-0.1  0.1]
    """
    checks.number("radius", radius, low=0.0)
    checks.one_of("norm", norm, ("l2", "linf"))
    checks.count("steps", steps)
    base = loss.loss if isinstance(loss, GroupProblem) else loss
    size = radius * min(1.0, 2.5 / steps)

    def attack(w: PyTree, record: PyTree) -> PyTree:
        x, *others = record
        if not jnp.issubdtype(jnp.result_type(x), jnp.floating):
            raise ValueError("an attack moves features x that are floating-point numbers, got "
                             f"{jnp.result_type(x)}: convert them, x.astype('float32').")

        def climb(_: PyTree, shift: jax.Array) -> jax.Array:
            g = jax.grad(lambda shift: base(w, (x + shift, *others)))(shift)
            if norm == "linf":
                return jnp.clip(shift + size * jnp.sign(g), -radius, radius)
            length = jnp.linalg.norm(g.ravel())
            moved = shift + size * g / jnp.where(length > 0, length, 1)
            return optax.projections.projection_l2_ball(moved, radius)

        return (x + jax.lax.fori_loop(0, steps, climb, jnp.zeros_like(x)), *others)

    return attack


def reweighted(loss: Loss, *, divergence: str, level: float, radius: float, bound: float,
               floor: float = 0.01) -> Problem:
    """The problem of the worst reweighting of the records, with the weights removed by duality.

      "cvar"        weights at most 1 / (level n): the mean over the worst share `level` of records,
                    = min over eta of   eta + E (loss - eta)_+ / level.
      "chi_square"  E (n q - 1)^2 <= level:
                    = min over eta and s > 0 of
                      eta + c s / 2 + c E (loss - eta)_+^2 / (2 s),      c = (1 + level)^(1/2).

    Convex in w = {"theta", "eta"[, "scale"]} together where the loss is convex. The terms eta and
    c s / 2 read no data and stay outside clip and noise. Release w's operator only,
    `Query(clip=Saddle(c, None))`: v is (). Start from `reweighted_start`.

    Args:
      loss: `(theta, record) -> []`, not negative.
      divergence: "cvar" or "chi_square".
      level: the share in (0, 1), or the squared divergence, positive.
      radius: radius of the ball that theta is projected to.
      bound: largest |eta| and s, from the range of losses. The best eta of a CVaR is a quantile of
        the losses; that of a small chi-square divergence may be negative.
      floor: smallest s, which bounds the curvature.

    Raises:
      ValueError: for numbers out of range or another divergence.

    Examples:
        >>> problem = jmm.problems.reweighted(jmm.problems.squared_loss, divergence="cvar",
        ...                                   level=0.1, radius=3.0, bound=10.0)
        >>> start = jmm.problems.reweighted_start(jnp.zeros(2), "cvar")
        >>> g = problem.operator(start, (jnp.ones(2), jnp.ones(())))
        >>> sorted(g.w)
        ['eta', 'theta']
    """
    checks.one_of("divergence", divergence, DIVERGENCES)
    cvar = divergence == "cvar"
    checks.number("level", level, low=0.0, high=1.0 if cvar else math.inf)
    checks.positive(radius=radius, floor=floor)
    checks.number("bound", bound, low=floor)
    c = math.sqrt(1 + level)

    def excess(w: PyTree, _: PyTree, record: PyTree) -> jax.Array:
        over = jax.nn.relu(loss(w["theta"], record) - w["eta"])
        return over / level if cvar else c * over**2 / (2 * w["scale"])

    def public(z: Saddle) -> Saddle:
        zero = jax.tree.map(jnp.zeros_like, z.w)
        g = {**zero, "eta": jnp.ones_like(z.w["eta"])}
        return Saddle(g if cvar else {**g, "scale": jnp.full_like(z.w["scale"], c / 2)}, ())

    def project(z: Saddle) -> Saddle:
        w = {**z.w, "theta": optax.projections.projection_l2_ball(z.w["theta"], radius),
             "eta": jnp.clip(z.w["eta"], -bound, bound)}
        return Saddle(w if cvar else {**w, "scale": jnp.clip(w["scale"], floor, bound)}, z.v)

    def value(z: Saddle, data: PyTree) -> jax.Array:
        return mean_of(excess)(z, data) + z.w["eta"] + (0.0 if cvar else c / 2 * z.w["scale"])

    return Problem(operator=saddle_operator(excess), public=public, project=project, value=value)


def excess(u: jax.Array, penalty: float, cap: float) -> jax.Array:
    """Computes max over 0 <= q <= cap of q u - penalty (q - 1)^2 / 2, whose derivative is q."""
    q = jnp.clip(1 + u / penalty, 0, cap)
    return q * u - penalty / 2 * (q - 1) ** 2


def dro(base: GroupProblem, *, penalty: float, cap: float = math.inf) -> Bounded:
    """The saddle problem of penalised weights of the records: a smooth CVaR, or chi-square.

        min over theta, max over q in Q, of   E q loss(theta) - penalty E (q - 1)^2 / 2,
        Q = {0 <= q <= cap, E q = 1},

    with one weight q a record. cap = inf is the chi-square penalty. cap = 1 / alpha is the CVaR of
    the worst share alpha, less at most penalty (cap - 1) / 2. The multiplier eta in [0, B] of
    E q = 1 is the only number that joins records:

        min over theta and eta of   eta + E max over 0 <= q <= cap of
                                        q (loss - eta) - penalty (q - 1)^2 / 2,

    where a record's q is clip(1 + (loss - eta) / penalty, 0, cap), at most
    Q = min{cap, 1 + B / penalty}. So q stays inside the record's own term and is never released.
    The record's operator is (q grad loss, -q) for w = {"theta", "eta"}; v is (). Replacing a record
    moves the clipped sum by at most twice the clip norm, as for any operator; `bound` clips
    nothing. The term eta reads no data. Start from `reweighted_start(theta, "cvar")`.

        M = Q (L^2 + 1)^(1/2),   smooth = Q beta + (L^2 + 1) / penalty,   D^2 = D_theta^2 + B^2.

    Args:
      base: `worst_group` or `group_glm`: a convex and smooth loss with its constants L, B and beta,
        and the set of theta. Groups play no part. Data are records `[n, ...]`.
      penalty: of the squared weights, positive. A small one is nearer to a CVaR, and steeper.
      cap: the largest weight of a record, above 1.

    Returns:
      A `Bounded`, for `jmm.plan` of `sgda`, `extragradient`, `optimistic` and `proximal`.

    Raises:
      ValueError: for a loss that is not convex and smooth, or draws; for numbers out of range.

    Examples:
        >>> base = jmm.problems.group_glm("logistic", feature_bound=1.0, radius=2.0)
        >>> tail = jmm.problems.dro(base, penalty=0.5, cap=10.0)
        >>> round(tail.bound, 2), round(tail.smooth, 2), round(tail.diameter, 2)
        (7.0, 4.87, 4.53)
    """
    if not base.convex or base.smooth is None or base.random:
        raise ValueError("base must be convex, smooth and not random, got "
                         f"convex={base.convex}, smooth={base.smooth}, random={base.random}: take "
                         "another loss, or `reweighted`.")
    checks.number("penalty", penalty, low=0.0)
    checks.number("cap", cap, low=1.0, infinite=True)
    ratio = min(cap, 1 + base.bound / penalty)

    def record_loss(w: PyTree, _: PyTree, record: PyTree) -> jax.Array:
        return excess(base.loss(w["theta"], record) - w["eta"], penalty, cap)

    def public(z: Saddle) -> Saddle:
        return Saddle({"theta": jax.tree.map(jnp.zeros_like, z.w["theta"]),
                       "eta": jnp.ones_like(z.w["eta"])}, ())

    def project(z: Saddle) -> Saddle:
        return Saddle({"theta": base.project(z.w["theta"]),
                       "eta": jnp.clip(z.w["eta"], 0, base.bound)}, ())

    problem = Problem(operator=saddle_operator(record_loss), public=public, project=project,
                      value=lambda z, data: mean_of(record_loss)(z, data) + z.w["eta"])
    slopes = base.lipschitz**2 + 1
    return Bounded(problem, ratio * math.sqrt(slopes), ratio * base.smooth + slopes / penalty,
                   math.hypot(base.diameter, base.bound))


def reweighted_start(theta: PyTree, divergence: str, *, eta: float = 0.0) -> Saddle:
    """The initial point of `reweighted`: theta, eta, and s = 1 for "chi_square"; v is ().

    Args:
      theta: initial parameters of the model.
      divergence: "cvar" or "chi_square".
      eta: the initial eta.

    Examples:
        >>> start = jmm.problems.reweighted_start(jnp.zeros(2), "chi_square")
        >>> sorted(start.w)
        ['eta', 'scale', 'theta']
    """
    checks.one_of("divergence", divergence, DIVERGENCES)
    unit = jnp.ones((), jnp.result_type(*jax.tree.leaves(theta)))
    w = {"theta": theta, "eta": eta * unit}
    return Saddle(w if divergence == "cvar" else {**w, "scale": unit}, ())


def reweighted_risk(losses: jax.Array, *, divergence: str, level: float) -> jax.Array:
    """Reads the data; not private. The worst reweighted mean of records' losses `[n]`, exactly.

    CVaR from the sorted losses; the chi-square risk by bisection for eta.

    Args:
      losses: the loss of each record, `[n]`.
      divergence: "cvar" or "chi_square".
      level: the share in (0, 1) of CVaR, or the squared divergence, positive.

    Examples:
        >>> losses = jnp.arange(10.0)
        >>> float(jmm.problems.reweighted_risk(losses, divergence="cvar", level=0.2))  # of 8 and 9
        8.5
    """
    checks.one_of("divergence", divergence, DIVERGENCES)
    n = len(losses)
    if divergence == "cvar":
        worst = jnp.sort(losses)[::-1]
        # of the worst k = level n records, the last in part
        counted = jnp.clip(level * n - jnp.arange(n), 0.0, 1.0).astype(losses.dtype)
        return jnp.sum(worst * counted) / (level * n)
    c = math.sqrt(1 + level)

    def slope(eta: jax.Array) -> jax.Array:  # of eta + c (E over^2)^(1/2), which is convex
        over = jax.nn.relu(losses - eta)
        return 1 - c * jnp.mean(over) / jnp.sqrt(jnp.mean(over**2) + 1e-300)

    def halve(_: PyTree, span: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = span
        middle = (low + high) / 2
        right = slope(middle) < 0
        return jnp.where(right, middle, low), jnp.where(right, high, middle)

    top = jnp.max(losses)
    reach = (top - jnp.min(losses)) * (1 + 1 / math.sqrt(level)) + 1e-12
    eta, _ = jax.lax.fori_loop(0, 100, halve, (top - reach, top))
    return eta + c * jnp.sqrt(jnp.mean(jax.nn.relu(losses - eta) ** 2))
