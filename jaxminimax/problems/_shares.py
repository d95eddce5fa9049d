"""Shares of groups among the records: checked, or released and charged."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax.base import checks
from jaxminimax.base.types import Problem, Saddle
from jaxminimax.mechanism import Repeat
from jaxminimax.releases.sums import release

KINDS = ("parity", "odds")
_LEAST = 1e-3  # of a released share


def shares_given(shares: np.ndarray, kind: str, classes: int) -> tuple[Any, Any]:
    """P(l) `[l]` and P(s | l) `[l, k]`: l is the class of equalised odds, and 0 for parity."""
    checks.one_of("kind", kind, KINDS)
    checks.count("classes", classes, low=2)
    p: Any = shares
    if not isinstance(shares, jax.core.Tracer):  # which was numbers before
        p = np.asarray(shares, np.float64)
        if not np.all(p > 0) or abs(p.sum() - 1) > 1e-6:
            raise ValueError(f"shares must be positive and add up to 1, got {shares!r}.")
    odds = kind == "odds"
    if p.ndim != 1 + odds or p.shape[-1] < 2 or (odds and len(p) != classes):
        wanted = f"[{classes}, groups], of every class with every group" if odds else "[groups]"
        raise ValueError(f"shares must be {wanted}, of two groups at least, for kind={kind!r}; "
                         f"got shape {p.shape}.")
    p = p if odds else p[None]
    label = p.sum(1)
    return label, p / label[:, None]


def release_shares(key: jax.Array, mechanism: Repeat, cells: jax.Array | np.ndarray,
                   count: int, weight: jax.Array | np.ndarray | None = None) -> jax.Array:
    """Private shares of records in each of `count` cells, positive and with sum 1.

    One release of the mean of a one-hot row minus 1 / count, whose norm is (1 - 1 / count)^(1/2),
    the clip norm: no smaller ball holds the rows. Replacing a record moves the mean by
    sqrt(2) / n, and twice the clip norm, at least as much, is charged. Beside a run, with
    `calibrate(..., alongside=(mechanism,))`, and the same in `statement`.

        mechanism = Repeat(query=Query(clip=Saddle((1 - 1 / 2)**0.5, None), population=n,
                                       noise_multiplier=Saddle(100.0, None)), times=1)

    Args:
      key: a key of its own, not the run's.
      mechanism: one release with that clip norm and clip.v None.
      cells: numbers from 0 to count - 1, `[n]`: groups s, or y * k + s for odds; a record with
        another number is in none.
      count: how many there are; public.
      weight: of a person's rows, `[n, rows]` with a sum of 1 at most, where cells is `[n, rows]`.

    Raises:
      ValueError: for fewer than two cells, or another clip norm, which would bias the shares.

    Examples:
        >>> cells = np.arange(1000) % 4 // 3  # a quarter is in the second cell
        >>> ask = jmm.Repeat(query=jmm.Query(clip=Saddle(0.5**0.5, None), population=1000,
        ...                                  noise_multiplier=Saddle(20.0, None)), times=1)
        >>> key = jax.random.key(0)  # of real data jmm.noise.secret_key()
        >>> shares = jmm.problems.release_shares(key, ask, cells, 2)
        >>> bool(0.15 < shares[1] < 0.35)
        True
    """
    checks.count("count", count, low=2)
    clip: Any = getattr(mechanism.query, "clip", None)
    one = isinstance(clip, Saddle) and clip.w is not None and clip.v is None
    if not one or not (isinstance(clip.w, jax.core.Tracer)  # which was a number before
                       or abs(clip.w - math.sqrt(1 - 1 / count)) <= 1e-6):
        raise ValueError(f"clip must be Saddle((1 - 1 / {count})**0.5, None), got {clip!r}.")

    def shifted(z, record):
        cell, weight = record
        one = jax.nn.one_hot(cell, count, dtype=z.w.dtype)
        return Saddle(jnp.asarray(weight, z.w.dtype) @ one - 1 / count, None)

    cells = jnp.asarray(cells, jnp.int32)
    if weight is None:
        cells, weight = cells[:, None], jnp.ones((len(cells), 1))
    key = jax.random.fold_in(key, 0x7368)  # apart from a run that was given the same key
    answer = release(key, mechanism, jnp.int32(0), Problem(shifted), Saddle(jnp.zeros(count), ()),
                     (cells, weight))
    found = jnp.clip(answer.w + 1 / count, _LEAST, 1.0)
    return found / jnp.sum(found)
