"""One release of means and second moments, by which features are put on one scale.

psi of a row: x_j and x_j^2 - 1/2 for a number in [-1, 1]; x_j - 1/2 for what is 0 or 1; the places
of a category; y - 1/2 for the label. For a number

    x^2 + (x^2 - 1/2)^2 = x^4 + 1/4 <= 5/4,

so |psi|^2 <= c^2 = 5/4 numbers + 1/4 flags + categories + 1/4, the clip never binds, and the mean
of psi over persons moves by at most 2 c / n when one of them is replaced. (Of a person with several
rows it is their mean, which is no longer.)
"""

import functools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax.base.types import Problem, Saddle
from jaxminimax.mechanism import Query, Repeat
from jaxminimax.releases.sums import release
from jaxminimax.tables.columns import Category
from jaxminimax.tables.schema import Schema

_LABEL = 0.25  # (y - 1/2)^2
_release = jax.jit(release, static_argnames="problem")  # compiled once for tables of one shape


class Moments(NamedTuple):
    """Released means; public.

    Attributes:
      mean: of every feature, `[d]`.
      second: of every feature's square, `[d]`.
      prior: share of positive labels.
    """

    mean: np.ndarray
    second: np.ndarray
    prior: float

    def to_json(self) -> dict[str, Any]:
        """Plain Python values."""
        return {"mean": self.mean.tolist(), "second": self.second.tolist(), "prior": self.prior}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        """What `to_json` made `record` of."""
        return cls(np.array(record["mean"]), np.array(record["second"]), record["prior"])


def length(schema: Schema | None) -> float:
    """c, the longest psi of a row; of the label alone without a schema."""
    columns = () if schema is None else schema.columns.values()
    return math.sqrt(sum(column.length for column in columns) + _LABEL)


def mechanism(population: int, schema: Schema | None, noise_multiplier: float) -> Repeat:
    """One release of the mean of psi over all persons."""
    return Repeat(query=Query(clip=Saddle(length(schema), None), population=population,
                              noise_multiplier=Saddle(noise_multiplier, None)), times=1)


def _layout(schema: Schema) -> tuple[np.ndarray, np.ndarray]:
    """What is subtracted of each feature in psi, and whether its square is another number."""
    shift = np.concatenate([
        np.full(c.width, 0.0) if isinstance(c, Category) else np.where(c.squares, 0.0, 0.5)
        for c in schema.columns.values()])
    return shift, np.concatenate([c.squares for c in schema.columns.values()])


def released(key: jax.Array, described: Repeat, x: np.ndarray, y: np.ndarray, weight: np.ndarray,
             schema: Schema | None) -> Moments:
    """The release.

    Args:
      key: a key of its own, not the run's.
      described: by `mechanism`.
      x: features in [-1, 1], `[n, rows, d]`.
      y: labels in {0, 1}, `[n, rows]`.
      weight: of a person's rows, `[n, rows]`; they add up to 1, or to 0 where there are none.
      schema: of the features; None: the prior alone, features stay as they are.
    """
    width = x.shape[-1]
    shift, squared = (np.zeros(0), np.zeros(0, bool)) if schema is None else _layout(schema)
    places = np.flatnonzero(squared)
    problem = _psi(None if schema is None else tuple(shift.tolist()), tuple(places.tolist()))
    start = Saddle(jnp.zeros(1 + (width + len(places) if schema is not None else 0)), ())
    answer = np.asarray(_release(key, described, jnp.int32(0), problem, start,
                                (x, y, weight)).w, np.float64)
    prior = float(np.clip(answer[0] + 0.5, 0.02, 0.98))
    if schema is None:
        return Moments(np.zeros(width), np.ones(width), prior)
    mean = answer[1: 1 + width] + shift
    second = mean.copy()  # of 0 and 1
    second[places] = answer[1 + width:] + 0.5
    return Moments(mean, second, prior)


@functools.lru_cache(maxsize=32)  # one function for equal columns, so that it is compiled once
def _psi(shift: tuple[float, ...] | None, places: tuple[int, ...]) -> Problem:
    """Psi as an operator: of the label alone, or with the features less `shift` and squares."""

    def psi(z: Saddle, record: tuple[jax.Array, jax.Array, jax.Array]) -> Saddle:
        x, y, weight = record
        parts = [y[:, None] - 0.5]
        if shift is not None:
            parts += [x - jnp.asarray([shift], x.dtype), x[:, np.array(places, int)] ** 2 - 0.5]
        return Saddle(weight @ jnp.concatenate(parts, 1), None)

    return Problem(psi)
