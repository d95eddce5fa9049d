"""Problems of one model for several groups: the layout of records, losses, and exact solutions.

    min over w in W of max over groups i of L_i(w),    L_i(w) the mean of loss(w, z) over group i.

Source: Zhou and Bassily, "Differentially private worst-group risk minimization", arXiv:2402.19437.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax.base import checks
from jaxminimax.base.types import GroupProblem, PyTree, SaddleOperator
from jaxminimax.problems import _vi

__all__ = ["GLM_LOSSES", "by_group", "group_glm", "group_means", "worst_group"]

GLM_LOSSES = ("logistic", "hinge", "squared", "sigmoid")


def by_group(data: PyTree, labels: np.ndarray) -> tuple[PyTree, tuple[int, ...]]:
    """Arranges records in the layout that algorithms for groups read.

    Leaves become `[p, n_max, ...]`: group i's records are its first n_i rows, in their order, and
    the rows after them are zeros that no algorithm counts as records. The group of each record,
    and so every n_i, is public: neighbouring data sets differ in the content of one record.

    Args:
      data: leaves `[n, ...]`.
      labels: the group of each record, integers from 0 to p - 1, `[n]`.

    Returns:
      The records by group, as NumPy arrays, and the sizes (n_1, ..., n_p).

    Raises:
      ValueError: for labels that are no integers or of another length, or a group without records.

    Examples:
        >>> rows, group = np.arange(5.0), np.array([0, 1, 0, 0, 1])
        >>> data, sizes = jmm.problems.by_group(rows, group)
        >>> data.tolist(), sizes
        ([[0.0, 2.0, 3.0], [1.0, 4.0, 0.0]], (3, 2))
    """
    labels = np.asarray(labels)
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or not labels.size or labels.min() < 0:
        raise ValueError("labels must be a vector of group numbers 0, 1, ..., got shape "
                         f"{labels.shape} and dtype {labels.dtype}.")
    rows = {np.shape(x)[:1] for x in jax.tree.leaves(data)}
    if rows != {labels.shape}:
        raise ValueError(f"data has leading axes {rows}, but there are {labels.size} labels.")
    counts = np.bincount(labels)
    if not counts.all():
        raise ValueError(f"Group {int(np.argmin(counts))} of 0 ... {counts.size - 1} has no "
                         "record: number the groups without gaps.")
    order = np.argsort(labels, kind="stable")
    first = np.cumsum(counts) - counts
    place = np.arange(labels.size) - np.repeat(first, counts)

    def leaf(x: PyTree) -> np.ndarray:
        x = np.asarray(x)
        out = np.zeros((counts.size, counts.max(), *x.shape[1:]), x.dtype)
        out[labels[order], place] = x[order]
        return out

    return jax.tree.map(leaf, data), tuple(map(int, counts))


def worst_group(loss: Callable[..., jax.Array], domain: _vi.Set, *, lipschitz: float, bound: float,
                smooth: float | None = None, convex: bool = False,
                random: bool = False) -> GroupProblem:
    """The worst-group risk of a loss of your own, for the algorithms on groups.

    Args:
      loss: `(w, record) -> []`, at least 0, for one record; w any pytree. With `random`
        `(w, record, key) -> []`.
      domain: W, the feasible set of w.
      lipschitz: L, the Lipschitz constant of the loss in w on W, for every record.
      bound: B; the loss lies in [0, B] on W, for every record.
      smooth: beta, the Lipschitz constant of its gradient; None if it may not be smooth.
      convex: whether the loss is convex in w on W, for every record.
      random: whether the loss draws random numbers, see `GroupProblem`; the constants must then
        hold for every key.

    Raises:
      ValueError: for constants that are not positive.
      TypeError: for a loss that cannot be called with a key, if it draws.

    Examples:
        >>> def distance(w, record):
        ...     return jnp.abs(w - record)
        >>> problem = jmm.problems.worst_group(distance, jmm.problems.ball(1.0), lipschitz=1.0,
        ...                                    bound=2.0, convex=True)
        >>> problem.lipschitz, problem.bound
        (1.0, 2.0)
    """
    checks.positive(lipschitz=lipschitz, bound=bound,
                    smooth=1.0 if smooth is None else smooth)
    if random:
        checks.takes("loss", loss, "w", "record", "key")
    operator = SaddleOperator(lambda w, _, record, *key: loss(w, record, *key))
    return GroupProblem(loss, operator, domain.project, domain.diameter, float(lipschitz),
                        float(bound), None if smooth is None else float(smooth), convex, random)


def group_glm(loss: str, *, feature_bound: float, radius: float, label_bound: float = 1.0,
              steepness: float = 1.0) -> GroupProblem:
    """The worst-group risk of a linear scorer t = <x, w>, ||w|| <= R.

    Data are pairs (x, y). For every record x `[d]` is projected to ||x|| <= r (0 if not
    finite, or longer than 1e19 r in float32) and y is clipped to [-Y, Y] (0 if NaN) inside the
    loss, so the constants hold for records of any content. A bias is a constant feature. With
    s(t) = 1 / (1 + e^-t) and y in {-1, 1} to classify,

        loss       l(t, y)                  L                B                      beta
        logistic   ln(1 + e^(-y t))         Y r s(Y r R)     ln(1 + e^(Y r R))      (Y r)^2 / 4
        hinge      max(0, 1 - y t)          Y r              1 + Y r R              none
        squared    (t - y)^2 / 2            r (r R + Y)      (r R + Y)^2 / 2        r^2
        sigmoid    s(-k y t)                k Y r / 4        s(k Y r R)             (k Y r)^2 / 10

    All but the sigmoid are convex; the sigmoid is a smooth stand-in for the share of errors.

    Args:
      loss: "logistic", "hinge", "squared" or "sigmoid".
      feature_bound: r, the largest norm of x.
      radius: R, the largest norm of w.
      label_bound: Y, the largest magnitude of y.
      steepness: k, the steepness of the sigmoid.

    Raises:
      ValueError: for another loss, or numbers that are not positive.

    Examples:
        >>> problem = jmm.problems.group_glm("logistic", feature_bound=2.0, radius=1.0)
        >>> round(problem.lipschitz, 3), problem.diameter, problem.convex
        (1.762, 2.0, True)
    """
    checks.one_of("loss", loss, GLM_LOSSES)
    for name, value in dict(feature_bound=feature_bound, radius=radius, label_bound=label_bound,
                            steepness=steepness).items():
        checks.number(name, value, low=0.0, high=1e6)
    slope = label_bound * feature_bound  # of the margin y t
    most = slope * radius  # of its absolute value
    span = feature_bound * radius + label_bound
    curve: Callable[..., Any]
    constants: tuple[float, float, float | None]
    match loss:
        case "logistic":
            curve, constants = (lambda t, y: jax.nn.softplus(-y * t)), (
                slope / (1 + math.exp(-most)), most + math.log1p(math.exp(-most)), slope**2 / 4)
        case "hinge":
            curve, constants = (lambda t, y: jax.nn.relu(1 - y * t)), (slope, 1 + most, None)
        case "squared":
            curve, constants = (lambda t, y: (t - y) ** 2 / 2), (
                feature_bound * span, span**2 / 2, feature_bound**2)
        case _:
            curve, constants = (lambda t, y: jax.nn.sigmoid(-steepness * y * t)), (
                steepness * slope / 4, 1 / (1 + math.exp(-steepness * most)),
                (steepness * slope) ** 2 / 10)

    def of_record(w: jax.Array, record: PyTree) -> jax.Array:
        x, y = record
        t = _vi.product_with(w, _vi.shaped("x", x, w.shape).astype(w.dtype), feature_bound)
        y = _vi.shaped("y", y, ()).astype(w.dtype)
        return curve(t, _vi.interval(y, -label_bound, label_bound))

    lipschitz, bound, smooth = constants
    return worst_group(of_record, _vi.ball(radius), lipschitz=lipschitz, bound=bound, smooth=smooth,
                       convex=loss != "sigmoid")


def group_means(*, radius: float, record_bound: float) -> GroupProblem:
    """The problem of a point w, ||w|| <= R, near every group: loss(w, z) = ||w - z||^2 / 2.

    Records z `[d]` are projected to ||z|| <= r. L = R + r, B = (R + r)^2 / 2, beta = 1.

    Args:
      radius: R, positive.
      record_bound: r, positive.

    Examples:
        >>> problem = jmm.problems.group_means(radius=1.0, record_bound=1.0)
        >>> problem.lipschitz, problem.bound, problem.smooth
        (2.0, 2.0, 1.0)
    """
    checks.positive(radius=radius, record_bound=record_bound)

    def loss(w: jax.Array, z: jax.Array) -> jax.Array:
        z = _vi.sanitise(_vi.shaped("z", z, w.shape).astype(w.dtype), record_bound)
        return jnp.sum(jnp.square(w - z)) / 2

    reach = radius + record_bound
    return worst_group(loss, _vi.ball(radius), lipschitz=reach, bound=reach**2 / 2, smooth=1.0,
                       convex=True)
