"""Persons as records: at most k rows of each, clipped together.

A row is the unit of privacy of a table only if every person has one row. Otherwise the record is a
person:

    g(z; person) = (1/m) sum_{t <= m} g(z; row_t),    m <= k rows of the person that are read,

clipped as one vector. Replacing a person with any number of rows moves a clipped sum by at most
twice the clip norm. Charging k rows one by one would cost about k times the epsilon.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax.base import arguments, checks, types
from jaxminimax.base.identity import People, persons
from jaxminimax.base.types import GroupProblem, Problem, PyTree, Saddle

__all__ = ["by_person", "per_person"]


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
    checks.count("most", most)
    persons_of, number = persons(owners)
    count = len(persons_of)
    if people is not None:
        listed, order = persons(people, "people")
        if len(listed) != len(order) or not set(persons_of) <= set(listed):
            raise ValueError("people must name every owner once.")
        at = dict(zip(listed, np.argsort(order).tolist(), strict=True))
        number, count = np.array([at[name] for name in persons_of])[number], len(listed)
    rows = np.arange(number.size)
    place = _places(number, rows)
    if key is not None:
        arguments.key(key)
        # by words that are functions of the person's number and the row's place among the
        # person's own, so that which rows are read depends on nobody else
        words = np.asarray(_words(key, number, place))
        drawn = np.lexsort((place, words[:, 1], words[:, 0], number))
        kept = np.zeros(number.size, bool)
        kept[drawn] = _places(number[drawn], rows) < most
        number, rows = number[kept], rows[kept]
        place = _places(number, np.arange(number.size))
    index = np.full((count, most), -1)
    kept = place < most
    index[number[kept], place[kept]] = rows[kept]
    return index


@jax.jit
def _words(key: jax.Array, person: jax.Array, place: jax.Array) -> jax.Array:
    """Draws two random words for each row, `[rows, 2]`, by its person and its place there."""
    return jax.vmap(lambda i, j: jax.random.bits(
        jax.random.fold_in(jax.random.fold_in(key, i), j), (2,)))(person, place)


def _places(number: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The place of each row among its person's rows, 0, 1, ...; rows are in increasing order."""
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
    their number n, are public. The rows of a person, and their number, are private. Use it with
    `problems.per_person`, and with `problems.by_group` for groups of persons.

    Args:
      data: leaves `[rows, ...]`.
      owners: the owner of each row, integers or text, `[rows]`; none may be missing, and floats
        are taken only where each is an integer below 2^53.
      most: k, the most rows of a person that are read.
      key: draws which rows of a person with more are read, uniformly; not the run's key. None for
        the first ones, in the order of the table.
      people: every person, in a public order, those without rows too; None for all owners.

    Returns:
      `People`, as NumPy arrays. Places without a row hold the person's first row again, or zeros
      for a person without rows. They are masked.

    Raises:
      ValueError: for data and owners of different lengths, owners that are missing or of another
        kind, with the number of the row, or an owner who is not among `people`.
      TypeError: for data that are no arrays.

    Examples:
        >>> rows = np.arange(10.0).reshape(5, 2)
        >>> people = jmm.problems.by_person(rows, owners=["b", "a", "b", "b", "c"], most=2)
        >>> people.present.tolist()
        [[True, False], [True, True], [True, False]]
        >>> people.rows[1].tolist()
        [[0.0, 1.0], [4.0, 5.0]]
    """
    arguments.records(data)
    index = rows_of_people(owners, most, key=key, people=people)
    lengths = {np.shape(x)[:1] for x in jax.tree.leaves(data)}
    if lengths != {(len(owners),)}:
        raise ValueError(f"data have leading axes {lengths}, but there are {len(owners)} owners.")
    present = index >= 0
    own = np.where(present, index, index[:, :1])

    def leaf(x: Any) -> np.ndarray:
        x = np.asarray(x)[own]
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
    def over(values: PyTree, present: jax.Array) -> PyTree:
        count = 1 if total else jnp.maximum(jnp.sum(present), 1)

        def leaf(x: jax.Array) -> jax.Array:
            mask = present.reshape(-1, *[1] * (x.ndim - 1))
            return jnp.sum(jnp.where(mask, x, 0), 0) / jnp.asarray(count, x.dtype)

        return jax.tree.map(leaf, values)

    def each(person: People, key: tuple[jax.Array, ...]) -> list[jax.Array]:
        """Draws a key for each row of the person."""
        return [jax.random.split(k, person.most) for k in key]

    if isinstance(problem, GroupProblem):
        if total:
            raise ValueError("total=True would multiply the constants of a GroupProblem by the "
                             "number of rows: leave it out.")
        of_row = problem.loss

        def group_loss(w: PyTree, person: People, *key: jax.Array) -> jax.Array:
            of_rows: Any = jax.vmap(lambda row, *key: of_row(w, row, *key))
            return over(of_rows(person.rows, *each(person, key)), person.present)

        return problem._replace(loss=group_loss, operator=types.SaddleOperator(
            lambda w, _, person, *key: group_loss(w, person, *key)))
    operator: Any = problem.operator
    if type(operator) is types.SaddleOperator:
        loss = operator.loss

        def person_loss(w: PyTree, v: PyTree, person: People, *key: jax.Array) -> jax.Array:
            of_rows: Any = jax.vmap(lambda row, *key: loss(w, v, row, *key))
            return over(of_rows(person.rows, *each(person, key)), person.present)

        result: Any = dataclasses.replace(operator, loss=person_loss)
    else:
        def person_operator(z: Saddle, person: People, *key: jax.Array) -> Saddle:
            of_rows: Any = jax.vmap(lambda row, *key: operator(z, row, *key))
            return over(of_rows(person.rows, *each(person, key)), person.present)

        result = types.with_strategy(person_operator, getattr(operator, "strategy", "auto"),
                               getattr(operator, "microbatch", 32),
                               getattr(operator, "memory", None))
    return problem._replace(operator=result, value=None, best_response=Saddle(None, None),
                            saddle_point=None, furthest=None)
