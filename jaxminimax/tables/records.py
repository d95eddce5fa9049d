"""Rows of a table as records of persons, on one scale."""

from typing import Any, NamedTuple

import numpy as np

from jaxminimax.tables.columns import as_words
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
    """
    if owners is None:
        return np.arange(rows)[:, None]
    owner = np.unique(as_words(owners).astype(str), return_inverse=True)[1]
    order = np.argsort(owner, kind="stable")
    start = np.flatnonzero(np.diff(owner[order], prepend=-1))
    place = np.arange(rows) - np.repeat(start, np.diff(start, append=rows))
    index = np.full((len(start), most), -1)
    kept = place < most
    index[owner[order][kept], place[kept]] = order[kept]
    return index


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


def balanced(groups: np.ndarray, sizes: tuple[int, ...]) -> np.ndarray:
    """Weight n / (p n_i) for a row of group i, and 0 for one that is in none."""
    weights = np.array([*(sum(sizes) / (len(sizes) * n) for n in sizes), 0.0])
    return weights[groups]


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
