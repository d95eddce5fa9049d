"""Planted bugs of players with many small leaves, whose numbers are made one array."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxminimax as jmm
from benchmarks.privacy.mutants.detectors import Finding
from jaxminimax import Saddle
from jaxminimax.base import tree
from jaxminimax.gradients import summation
from jaxminimax.releases import noisy_sums

AIMS: dict[str, tuple[Any, str]] = {
    "dither of leaves": (noisy_sums, "dither"),
    "order of leaves": (tree, "in_one"),
    "norm of leaves": (summation, "norms"),
}
_LEAVES, _SIZE = 10, 3


# --- the plants ---


def numbered_by_leaf(dither: Any) -> Any:
    """The numbers of the rounding begin anew in each leaf."""
    return lambda key, like: jax.tree.map(lambda x: dither(key, x), like)


def exchanged(in_one: Any) -> Any:
    """The first two leaves change places on the way into the array."""
    def changed(x: Any) -> Any:
        first, second, *others = jax.tree.leaves(x)
        return in_one([second, first, *others])

    return changed


def without_the_last(norms: Any) -> Any:
    """Numbers of the last leaf are not in the norm."""
    return lambda g: norms(jax.tree.map(lambda x: x[:, :-_SIZE] if x.ndim > 1 else x, g))


# --- what finds them ---


def _operator(z: Saddle, row: Any) -> Saddle:
    return Saddle(list(row), jnp.zeros(()))


def _sum(rows: np.ndarray, clip: float) -> np.ndarray:
    """The clipped sum of rows `[n, leaves, size]`, as such a matrix."""
    z = Saddle([jnp.zeros(_SIZE, jnp.float32)] * _LEAVES, jnp.zeros(()))
    return np.asarray(jmm.clipped_sum(_operator, Saddle(clip, None), strategy="vmap")(
        z, jnp.asarray(rows, jnp.float32)).w)


def rounded_alike() -> Finding:
    """Part of the pairs of leaves, of one number each, that a release rounds by the same U."""
    like = Saddle([jnp.zeros(_SIZE, jnp.float32)] * _LEAVES, None)
    drawn = np.stack(noisy_sums.dither(  # type: ignore[attr-defined]
        jax.random.key(5), like).w)
    alike = drawn[:, None] == drawn[None]
    return Finding(float(alike[np.triu_indices(_LEAVES, 1)].mean()), 0.1)


def misplaced() -> Finding:
    """Distance of a sum of rows within the clip norm from that of its leaves."""
    rows = np.random.default_rng(0).normal(size=(5, _LEAVES, _SIZE))
    return Finding(float(np.abs(_sum(rows, 100.0) - rows.sum(0)).max()), 1e-4)


def longest() -> Finding:
    """Length of one row's sum over its clip norm, long in one leaf after another."""
    rows = 50.0 * np.eye(_LEAVES)[:, None, :, None] * np.ones(_SIZE)
    return Finding(max(float(np.linalg.norm(_sum(row, 1.0))) for row in rows), 1.0)


# name, what it breaks, what is replaced and by what, detector, and what its number is
BUGS: tuple[tuple[str, str, str, Callable[[Any], Any], Callable[[], Finding], str], ...] = (
    ("rounding numbers that begin anew in each leaf", "independence of rounding",
     "dither of leaves", numbered_by_leaf, rounded_alike, "pairs of leaves rounded alike"),
    ("two of many leaves exchanged", "a sum is that of its leaves", "order of leaves", exchanged,
     misplaced, "distance of the sum"),
    ("norm of many leaves without the last one", "sensitivity: the norm over all leaves",
     "norm of leaves", without_the_last, longest, "length over the clip norm"),
)
