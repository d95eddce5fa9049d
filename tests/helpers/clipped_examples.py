"""Examples that are their own operators, their clipped sums, and the definition of these."""

import functools
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxminimax import Saddle, clipped_sum, saddle_operator
from jaxminimax.gradients import clipping

STRATEGIES = clipping.STRATEGIES
strategies = pytest.mark.parametrize("strategy", STRATEGIES)
SIZE, MICROBATCH = 7, 3  # the last slice is not a whole one
DICTS = Saddle({"a": (3,), "b": ()}, {"c": {"d": (2, 2)}, "e": (1,)})


def linear(w, v, x):
    """<w, x.w> - <v, x.v>, whose saddle operator is the example itself."""
    def dot(a, b):
        return sum(jnp.sum(p * q) for p, q in zip(*map(jax.tree.leaves, (a, b)), strict=True))

    return dot(w, x.w) - dot(v, x.v)


ITSELF = saddle_operator(linear)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _sum(strategy, microbatch, x, mask, clip):
    z = jax.tree.map(lambda a: jnp.zeros(a.shape[1:], a.dtype), x)
    return clipped_sum(ITSELF, clip, strategy=strategy, microbatch=microbatch)(z, x, mask)


def summed(strategy, x, clip, mask=None, microbatch=MICROBATCH):
    """The clipped sum of examples that are their own operators, jitted; clip norms are traced."""
    size = jax.tree.leaves(x)[0].shape[0]
    mask = np.ones(size, bool) if mask is None else mask
    return jax.tree.map(np.asarray, _sum(strategy, microbatch, x, mask, clip))


def is_shape(x):
    return isinstance(x, tuple) and all(isinstance(s, int) for s in x)


def draw(rng, shapes=DICTS, size=SIZE, dtype=np.float64):
    """Examples of very different norms: a `Saddle` of `[size, ...]` leaves."""
    scale = 10 ** rng.uniform(-2, 2, size)
    return jax.tree.map(
        lambda s: np.asarray(rng.normal(size=(size, *s)) * per_row(scale, len(s)), dtype),
        shapes, is_leaf=is_shape)


def per_row(x, ndim):
    return np.reshape(x, (-1, *[1] * ndim))


def rows(tree, size):
    """`[size, numbers]` in float64."""
    flat = [np.asarray(x, np.float64).reshape(size, -1 if np.size(x) else 0)
            for x in jax.tree.leaves(tree)]
    return np.concatenate(flat, 1)


def flat(total):
    return [None if x is None else rows(x, 1)[0] for x in total]


def reference(g, clip, mask):
    """The definition, for players as matrices `[b, numbers]`; None without a clip norm."""
    present = np.array(mask, bool)
    for x, c in zip(g, clip, strict=True):
        if c is not None:
            present &= np.all(np.isfinite(x), 1)
    out = []
    for x, c in zip(g, clip, strict=True):
        x = np.where(present[:, None], x, 0.0)
        norm = np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-300)
        out.append(None if c is None else np.sum(x * np.minimum(1.0, c / norm), 0))
    return out


def assert_equal_sums(actual, expected, rtol):
    for x, y in zip(actual, expected, strict=True):
        assert (x is None) == (y is None)
        if y is not None:
            np.testing.assert_allclose(x, y, rtol=0, atol=rtol * (1 + np.abs(y).max(initial=0)))



def square_norm(tree):
    """Sum of squares as an exact fraction."""
    numbers = rows(tree, 1)[0]
    return sum(Fraction(float(a)) ** 2 for a in numbers)


def excess(total, clip):
    """Largest of the players' (norm / clip norm)^2 - 1, exact: the bound holds if it is <= 0."""
    return float(max(square_norm(x) / Fraction(c) ** 2 - 1
                     for x, c in zip(total, clip, strict=True)))
