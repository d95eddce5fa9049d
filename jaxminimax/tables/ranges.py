"""Ranges of numeric columns that nobody declared, released and charged.

One release of all columns' histograms over fixed cells: eight to a decade from 10^-2 to 10^6 on
either side of 0, one around 0, one beyond either end, one for what is missing. A record sits in one
cell of each of c columns, a vector of norm sqrt(c), which is its clip norm. A range is from the 1st
to the 99th percentile of the cells whose noisy share stands out: above what noise alone reaches
in any cell of any column once in a hundred runs, as one empty cell far out would stretch the range
by decades. If no cell does, it is the fullest one and its neighbours. Everything after the release
is post-processing.
"""

import dataclasses
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import scipy

from jaxminimax.accounting import calibrate_noise
from jaxminimax.base.types import Problem, Saddle
from jaxminimax.mechanism import Query, Repeat
from jaxminimax.releases.sums import release
from jaxminimax.tables.columns import Charged, Number
from jaxminimax.tables.schema import Schema

SHARE = 0.1  # of mu^2
_DECADES, _EACH = (-2, 6), 8
_ENDS = 10.0 ** (np.arange(_EACH * _DECADES[0], _EACH * _DECADES[1] + 1) / _EACH)
EDGES = np.concatenate([-_ENDS[::-1], _ENDS])  # of the cells, ascending
CELLS = len(EDGES) + 2  # beyond either end, and what is missing
_FALSE = 0.01  # chance that an empty cell of any column counts
_TAIL = 0.01  # share of the values that are left outside at either end
_LARGEST = 10**9  # numbers that the release holds at once
_release = jax.jit(release, static_argnames="problem")  # compiled once for tables of one shape


def _shares(z: Saddle, record: tuple[jax.Array, jax.Array]) -> Saddle:
    cell, weight = record
    return Saddle(jnp.einsum("r,rck->ck", weight, jax.nn.one_hot(cell, CELLS)), None)


_SHARES = Problem(_shares)


def mechanism(population: int, columns: int, noise_multiplier: float) -> Repeat:
    """One release of the shares of records in every cell of every column."""
    return Repeat(query=Query(clip=Saddle(math.sqrt(columns), None), population=population,
                              noise_multiplier=Saddle(noise_multiplier, None)), times=1)


def paid(population: int, schema: Schema, epsilon: float, delta: float) -> tuple[Repeat, ...]:
    """The release that the charged columns of a schema need: none, or one with its noise.

    Args:
      population: n, records.
      schema: of the table.
      epsilon: of everything that is to be released; the histograms take a tenth of mu^2.
      delta: in (0, 1).

    Raises:
      ValueError: for numbers out of range, or more cells than fit into memory.
    """
    if not schema.charged:
        return ()
    size = population * len(schema.charged) * CELLS
    if size > _LARGEST:
        raise ValueError(f"charged ranges of {len(schema.charged)} columns of {population} records "
                         f"need histograms of {size:.2g} numbers, above {_LARGEST:.2g}: declare "
                         "ranges of some columns, or leave some out.")
    one = Repeat(query=Query(clip=Saddle(1.0, None), population=population), times=1)
    z = calibrate_noise(one, epsilon, delta).query.noise_multiplier.w
    return (mechanism(population, len(schema.charged), z / math.sqrt(SHARE)),)


def least(described: Repeat) -> float:
    """The share of records from which on a cell counts; c is the square of the clip norm."""
    query = described.query
    sure = -scipy.special.ndtri(_FALSE / (CELLS * max(1.0, query.clip.w**2)))
    return float(sure * query.clip.w * query.noise_multiplier.w / query.population)


def within(schema: Schema, found: Sequence[Number]) -> Schema:
    """The schema with released ranges in place of its charged columns, in their order."""
    left = iter(found)
    columns = {name: kind.within((one := next(left)).low, one.high)
               if isinstance(kind, Charged) else kind for name, kind in schema.columns.items()}
    return dataclasses.replace(schema, columns=columns)


def cells(values: np.ndarray) -> np.ndarray:
    """Number of each value's cell, int32 in the shape of `values`; NaN has the last one."""
    found = np.searchsorted(EDGES, values, side="right")
    return np.where(np.isnan(values), CELLS - 1, found).astype(np.int32)


def released(key: jax.Array, described: Repeat, values: np.ndarray,
             weight: np.ndarray) -> tuple[Number, ...]:
    """A range for each column.

    Args:
      key: a key of its own.
      described: by `mechanism`.
      values: `[n, rows, columns]`, NaN where they are missing.
      weight: of a person's rows, `[n, rows]`; they add up to 1, or to 0 where there are none.
    """
    columns = values.shape[-1]
    start = Saddle(jnp.zeros((columns, CELLS)), ())
    answer = _release(key, described, jnp.int32(0), _SHARES, start,
                     (cells(values), np.asarray(weight, np.float32)))
    return tuple(_range(row, least(described))
                 for row in np.asarray(answer.w, np.float64)[:, :-1])


def _range(shares: np.ndarray, least: float) -> Number:
    """From noisy shares of a column's cells to its range."""
    ends = np.concatenate([[EDGES[0]], EDGES, [EDGES[-1]]])  # cell k is [ends[k], ends[k + 1])
    kept = np.where(shares > least, shares, 0.0)
    if not kept.any():
        middle = int(np.argmax(shares))
        low, high = max(middle - 1, 0), min(middle + 1, len(shares) - 1)
    else:
        below = np.cumsum(kept) / kept.sum()
        low = int(np.searchsorted(below, _TAIL))
        high = int(np.searchsorted(below, 1 - _TAIL))
    if ends[high + 1] <= ends[low]:  # all values beyond one end
        low, high = max(low - 1, 0), min(high + 1, len(shares) - 1)
    return Number(float(ends[low]), float(ends[high + 1]))
