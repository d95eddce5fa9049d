"""Records in public groups, and persons as records: their layout, and problems of them.

**Groups.** min over w in W of max over groups i of L_i(w), the mean of loss(w, z) over group i, as
in Zhou and Bassily, "Differentially private worst-group risk minimization", arXiv:2402.19437.

**Persons.** A row is the unit of privacy of a table only if every person has one row. Otherwise the
record is a person:

    g(z; person) = (1/m) sum_{t <= m} g(z; row_t),    m <= k rows of the person that are read,

clipped as one vector. Replacing a person with any number of rows moves a clipped sum by at most
twice the clip norm. Charging k rows one by one would cost about k times the epsilon.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax.base import arguments, checks, row_names, types
from jaxminimax.base.identity import MOST_ROWS, People, persons
from jaxminimax.base.types import GroupProblem, Problem, PyTree, Saddle
from jaxminimax.problems import _vi

__all__ = ["by_group", "by_person", "group_glm", "group_means", "per_person",
           "worst_group"]

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
      ValueError: for labels that are no integers or of another length, a group without records, or
        indexes of pandas that differ.

    Examples:
        >>> rows, group = np.arange(5.0), np.array([0, 1, 0, 0, 1])
        >>> data, sizes = jmm.problems.by_group(rows, group)
        >>> data.tolist(), sizes
        ([[0.0, 2.0, 3.0], [1.0, 4.0, 0.0]], (3, 2))
    """
    row_names.check({**{f"leaf {k} of data": x for k, x in enumerate(jax.tree.leaves(data))},
                     "labels": labels})
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
    place = _places(labels)

    def leaf(x: PyTree) -> np.ndarray:
        x = np.asarray(x)
        out = np.zeros((counts.size, counts.max(), *x.shape[1:]), x.dtype)
        out[labels, place] = x
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
    checks.positive(lipschitz=lipschitz, bound=bound, smooth=1.0 if smooth is None else smooth)
    if random:
        checks.takes("loss", loss, "w", "record", "key")
    operator = types.SaddleOperator(lambda w, _, record, *key: loss(w, record, *key))
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
    change = slope * radius  # of its absolute value
    span = feature_bound * radius + label_bound
    curve: Callable[..., Any]
    constants: tuple[float, float, float | None]
    match loss:
        case "logistic":
            curve, constants = (lambda t, y: jax.nn.softplus(-y * t)), (
                slope / (1 + math.exp(-change)), change + math.log1p(math.exp(-change)),
                slope**2 / 4)
        case "hinge":
            curve, constants = (lambda t, y: jax.nn.relu(1 - y * t)), (slope, 1 + change, None)
        case "squared":
            curve, constants = (lambda t, y: (t - y) ** 2 / 2), (
                feature_bound * span, span**2 / 2, feature_bound**2)
        case _:
            curve, constants = (lambda t, y: jax.nn.sigmoid(-steepness * y * t)), (
                steepness * slope / 4, 1 / (1 + math.exp(-steepness * change)),
                (steepness * slope) ** 2 / 10)

    def record_loss(w: jax.Array, record: PyTree) -> jax.Array:
        x, y = record
        t = _vi.product_with(w, _vi.shaped("x", x, w.shape).astype(w.dtype), feature_bound)
        y = _vi.shaped("y", y, ()).astype(w.dtype)
        return curve(t, _vi.interval(y, -label_bound, label_bound))

    lipschitz, bound, smooth = constants
    return worst_group(record_loss, _vi.ball(radius), lipschitz=lipschitz, bound=bound,
                       smooth=smooth, convex=loss != "sigmoid")


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


# --- persons ---


def rows_of_people(owners: Any, most: int, *, key: jax.Array | None = None,
                   people: Any = None) -> np.ndarray:
    """The numbers of the rows that are read of each person, `[persons, most]`, and -1 for none.

    Args:
      owners: the owner of each row, `[rows]`.
      most: k, the most rows of a person that are read.
      key: draws which rows of a person with more are read; None for the first ones.
      people: every person, in a public order; None for all owners.

    Raises:
      ValueError: for missing owners or owners of another kind, with the number of the row, or for
        an owner who is not among `people`.
    """
    checks.count("most", most, high=MOST_ROWS)
    names, number = persons(owners)
    count = len(names)
    if people is not None:
        listed, order = persons(people, "people")
        if len(listed) != len(order) or not set(names) <= set(listed):
            raise ValueError("people must name every owner once.")
        position_of = dict(zip(listed, np.argsort(order).tolist(), strict=True))
        number, count = np.array([position_of[name] for name in names])[number], len(listed)
    rows = np.arange(number.size)
    if key is not None:
        arguments.key(key)
        # by words that are functions of the person's number and the row's place among the
        # person's own, so that which rows are read depends on nobody else
        place = _places(number)
        words = np.asarray(_words(key, number, place))
        drawn = np.lexsort((place, words[:, 1], words[:, 0], number))
        rows = np.sort(drawn[_places(number[drawn]) < most])
    place = _places(number[rows])
    rows, place = rows[place < most], place[place < most]
    index = np.full((count, most), -1)
    index[number[rows], place] = rows
    return index


@jax.jit
def _words(key: jax.Array, person: jax.Array, place: jax.Array) -> jax.Array:
    """Draws two random words for each row, `[rows, 2]`, by its person and its place there."""
    return jax.vmap(lambda i, j: jax.random.bits(
        jax.random.fold_in(jax.random.fold_in(key, i), j), (2,)))(person, place)


def _places(number: np.ndarray) -> np.ndarray:
    """The place of each row among those of the same number, 0, 1, ..., in their order."""
    order = np.argsort(number, kind="stable")
    start = np.flatnonzero(np.diff(number[order], prepend=-1))
    place = np.empty(number.size, np.int64)
    place[order] = np.arange(number.size) - np.repeat(start, np.diff(start, append=number.size))
    return place


def by_person(data: PyTree, owners: Any, most: int, *, key: jax.Array | None = None,
              people: Any = None) -> People:
    """Arranges rows as records of persons, at most `most` rows each; other rows are never read.

    Person i of the result is the i-th of `people`, or of the owners in order: integers by value,
    then text. Owners are compared exactly: integers of any size by their digits, text by its
    characters, bytes, UUIDs. 1 and "1" are one person, "1" and "1.0" are two. The persons, and so
    their number n, are public. The rows of a person, and their number, are private.

    Args:
      data: leaves `[rows, ...]`.
      owners: the owner of each row, integers or text, `[rows]`; none may be missing, and floats
        are taken only where each is an integer below 2^53.
      most: k, the most rows of a person that are read.
      key: draws which rows of a person with more are read, uniformly; not the run's key. None for
        the first ones, in the order of the table.
      people: every person, in a public order, those without rows too; None for all owners.

    Returns:
      `People`, as NumPy arrays, for `per_person` and `by_group`. Places without a row are masked:
      they hold the person's first row again, or zeros for a person without rows.

    Raises:
      ValueError: for data and owners of different lengths, owners that are missing or of another
        kind, with the number of the row, or an owner who is not among `people`.
      TypeError: for data that are no arrays.

    Examples:
        >>> rows = np.arange(10.0).reshape(5, 2)
        >>> people = jmm.problems.by_person(rows, owners=["b", "a", "b", "b", "c"], most=2)
        >>> people.present.tolist()
        [[True, False], [True, True], [True, False]]
    """
    arguments.records(data)
    index = rows_of_people(owners, most, key=key, people=people)
    lengths = {np.shape(x)[:1] for x in jax.tree.leaves(data)}
    if lengths != {(len(owners),)}:
        raise ValueError(f"data have leading axes {lengths}, but there are {len(owners)} owners.")
    present = index >= 0
    filled = np.where(present, index, index[:, :1])

    def leaf(x: Any) -> np.ndarray:
        x = np.asarray(x)[filled]
        x[~present[:, 0]] = 0
        return x

    return People(jax.tree.map(leaf, data), present)


def per_person(problem: Problem | GroupProblem, *, total: bool = False) -> Any:
    """The problem of `People`: a person's operator is the mean of that of the rows that are read.

    Clipped sums are computed as the problem says; the ghost strategy takes a person's rows as it
    takes positions of a sequence. The functions of whole data sets (`value`, `best_response`,
    `saddle_point`, `furthest`) are left out, because they are for rows.

    Args:
      problem: a problem whose records are rows.
      total: whether a person's operator is the sum over the rows, so that persons with more rows
        count for more; not for a `GroupProblem`, whose constants are those of a mean.

    Raises:
      TypeError: for an object that is no problem.
      ValueError: for the total of a `GroupProblem`.

    Examples:
        >>> rows = jmm.Problem(operator=jmm.saddle_operator(lambda w, v, x: w * v * x))
        >>> problem = jmm.problems.per_person(rows)
        >>> people = jmm.problems.by_person(np.array([1.0, 3.0, 5.0]), owners=[7, 7, 8], most=2)
        >>> first = jax.tree.map(lambda x: x[0], people)
        >>> float(problem.operator(Saddle(1.0, 1.0), first).w)  # the mean of 1 and 3
        2.0
    """
    arguments.problem(problem)
    return _per_person(problem, total)


@functools.lru_cache(maxsize=64)  # one object a problem: programs are kept by identity
def _per_person(problem: Any, total: bool) -> Any:
    def over(of_row: Any, person: People, key: tuple[jax.Array, ...]) -> PyTree:
        """Returns the mean of `of_row` over a person's rows, with a key for each if it draws."""
        values = jax.vmap(of_row)(person.rows, *(jax.random.split(k, person.most) for k in key))
        count = 1 if total else jnp.maximum(jnp.sum(person.present), 1)

        def leaf(x: jax.Array) -> jax.Array:
            mask = person.present.reshape(-1, *[1] * (x.ndim - 1))
            return jnp.sum(jnp.where(mask, x, 0), 0) / jnp.asarray(count, x.dtype)

        return jax.tree.map(leaf, values)

    if isinstance(problem, GroupProblem):
        if total:
            raise ValueError("total=True would multiply the constants of a GroupProblem by the "
                             "number of rows: leave it out.")

        def group_loss(w: PyTree, person: People, *key: jax.Array) -> jax.Array:
            return over(functools.partial(problem.loss, w), person, key)

        return problem._replace(loss=group_loss, operator=types.SaddleOperator(
            lambda w, _, person, *key: group_loss(w, person, *key)))
    operator: Any = problem.operator
    if type(operator) is types.SaddleOperator:
        def person_loss(w: PyTree, v: PyTree, person: People, *key: jax.Array) -> jax.Array:
            return over(functools.partial(operator.loss, w, v), person, key)

        result: Any = dataclasses.replace(operator, loss=person_loss)
    else:
        def person_operator(z: Saddle, person: People, *key: jax.Array) -> Saddle:
            return over(functools.partial(operator, z), person, key)

        result = types.with_strategy(person_operator, getattr(operator, "strategy", "auto"),
                                     getattr(operator, "microbatch", 32),
                                     getattr(operator, "memory", None),
                                     getattr(operator, "skip_empty", False))
    return problem._replace(operator=result, value=None, best_response=Saddle(None, None),
                            saddle_point=None, furthest=None)
