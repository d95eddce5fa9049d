"""Rows of a table as records of persons, on one scale."""

from typing import Any, NamedTuple

import numpy as np

from jaxminimax.problems._people import rows_of_people
from jaxminimax.tables.moments import Moments


class Records(NamedTuple):
    """A table as records, each a person with rows of weight 1 in all.

    Attributes:
      x: features in [-1, 1], `[n, rows, d]`.
      y: labels in {0, 1}, `[n, rows]`.
      weight: `[n, rows]`, 0 where a person has no further row.
    """

    x: np.ndarray
    y: np.ndarray
    weight: np.ndarray


def by_person(rows: int, owners: Any | None, most: int) -> np.ndarray:
    """Numbers of the rows of each person, `[n, most]`, -1 where there is none: the first ones.

    Args:
      rows: how many there are.
      owners: whose each one is, `[rows]`; None: every row is a person's only one.
      most: rows of a person that are read.

    Raises:
      ValueError: for owners of another number, and as `problems.by_person`.
    """
    if owners is None:
        return np.arange(rows)[:, None]
    if len(owners) != rows:
        raise ValueError(f"owners must be one for each of {rows} rows, got {len(owners)}.")
    return rows_of_people(owners, most)


def records(x: np.ndarray, y: np.ndarray, owners: Any | None = None, most: int = 1) -> Records:
    """Rows as records of persons.

    Args:
      x: `[rows, d]`.
      y: `[rows]`.
      owners: whose each row is; None: every row is a person's only one.
      most: rows of a person that are read.
    """
    index = by_person(len(x), owners, most)
    there = index >= 0
    weight = there / np.maximum(np.sum(there, 1, keepdims=True), 1)
    # where there is no row, no other person's may stand, not even with weight 0
    return Records(np.where(there[:, :, None], x[index], 0), np.where(there, y[index], 0),
                   weight.astype(np.float32))


def group_of_persons(group: np.ndarray, index: np.ndarray) -> np.ndarray:
    """The group of every person, `[n]`.

    Args:
      group: of every row, `[rows]`; public.
      index: numbers of the rows of each person, see `by_person`.

    Raises:
      ValueError: for a person with rows of several groups: groups are public, so that tells
        nothing.
    """
    own = np.where(index >= 0, np.asarray(group)[index], -1)
    first = own[:, 0]
    if np.any((own != first[:, None]) & (index >= 0)):
        raise ValueError("a person has rows of several groups: groups must be of persons, the same "
                         "in all rows of one (with by_label, the label too).")
    return first


def scaled(x: np.ndarray, by: Moments, floor: float | None) -> np.ndarray:
    """Features on one scale, rows no longer than 1, and a constant 1: rows no longer than sqrt(2).

    A fixed function of the row and of released numbers.
    """
    x = np.asarray(x, np.float64)
    if floor is not None:
        x = (x - by.mean) / np.sqrt(np.maximum(by.second - by.mean**2, 0.0) + floor)
    x = x / np.sqrt(x.shape[-1])
    x = x / np.maximum(np.sqrt(np.sum(x * x, -1, keepdims=True)), 1.0)
    return np.concatenate([x, np.ones((*x.shape[:-1], 1))], -1).astype(np.float32)
