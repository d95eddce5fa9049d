"""Features on one scale, by released moments; in NumPy, as scoring needs no more."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import numpy as np

from jaxminimax.tables.storage import blocks


class Moments(NamedTuple):
    """The released means of a table's features and labels; public.

    Attributes:
      mean: of every feature, `[d]`.
      second: of every feature's square, `[d]`.
      prior: share of positive labels; of K classes their shares, `[K]`; of a number in [-1, 1] its
        mean and that of its square.
    """

    mean: np.ndarray
    second: np.ndarray
    prior: float | np.ndarray

    def to_json(self) -> dict[str, Any]:
        """Returns plain Python values."""
        return {"mean": self.mean.tolist(), "second": self.second.tolist(),
                "prior": np.asarray(self.prior).tolist()}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        """Reads the moments that `to_json` wrote as `record`."""
        prior = record["prior"]
        return cls(np.array(record["mean"]), np.array(record["second"]),
                   np.array(prior) if isinstance(prior, list) else prior)


def spread(by: Moments, floor: float | None) -> tuple[np.ndarray, np.ndarray]:
    """Returns what is taken off each feature and what it is divided by, both `[d]`.

    With d features the second has a factor sqrt(d), so that rows have a length near 1. Without a
    `floor` it is that factor alone, and nothing is taken off.
    """
    width = math.sqrt(len(by.mean))
    if floor is None:
        return np.zeros(len(by.mean)), np.full(len(by.mean), width)
    return by.mean, width * np.sqrt(np.maximum(by.second - by.mean**2, 0.0) + floor)


def scaled(x: np.ndarray, by: Moments, floor: float | None,
           out: np.ndarray | None = None) -> np.ndarray:
    """Scales features, cuts rows to length 1 and adds a constant 1: rows are at most sqrt(2) long.

    A fixed function of the row and of released numbers.

    Args:
      x: `[..., d]`.
      by: the released numbers.
      floor: least variance that a feature is divided by; None: features are not scaled.
      out: where the result goes, `[..., d + 1]` float32, and `x` may lie; None: new memory.
    """
    result = np.empty((*x.shape[:-1], x.shape[-1] + 1), np.float32) if out is None else out
    result[..., -1] = 1
    for part in blocks(len(x)):  # float64 of all rows at once would be several copies
        block = np.asarray(x[part], np.float64)
        if floor is not None:
            block = (block - by.mean) / np.sqrt(np.maximum(by.second - by.mean**2, 0.0) + floor)
        block = block / np.sqrt(x.shape[-1])
        length = np.sqrt(np.sum(block * block, -1, keepdims=True))
        result[part, ..., :-1] = block / np.maximum(length, 1.0)
    return result
