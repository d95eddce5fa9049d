"""Norms and weighted sums of gradients that are kept as factors, never as matrices.

The gradient of example i is sum_t x_it d_it^T. Its squared norm is sum_{t,s} (x_t . x_s)(d_t . d_s)
and the sum over examples is one matrix product. Both read the same x and d, and the sum adds up the
pieces x_it d_it^T of all examples together, so two things must hold for every input:

* no norm may come out too small: squares are taken of numbers over the sum of their absolute
  values, what rounding can hide in sum_{t,s} is added, and so is what subnormal numbers, 0 here
  and not there, could contribute;
* no pieces may be large in the sum and cancel in the norm, where they would drown the other
  examples: the norm counts as at least 2^-8 times the sum of the pieces' norms. An
  example whose pieces cancel by more than that is clipped to less than the clip norm.

Sums over the batch go over blocks of rows, which bounds how long a running sum is.

Of a parameter that is G matrices (stacked layers, heads, features of a convolution in groups) or
cut into parts, g = (g_1, ..., g_G) in different entries, and the vector of the G norms stands in
for g: ||g||^2 = sum_q ||g_q||^2. Each norm is made as above, with its own allowances, so it is at
least that of what its matrix contributes; pieces of different matrices never add to one entry, so
none can drown another's sum. A record whose g_q are counted as N_q and weighted by w <= C / ||N||
contributes at most w (sum_q N_q^2)^(1/2) <= C. The steps of a loop that share a matrix do add to
the same entries: they are rows of one matrix, and the floor runs over all of them. A scalar factor
of a parameter is multiplied into d before anything is held, so norm and sum see the same numbers.
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxminimax.base import tree
from jaxminimax.base.tree import EXACT, at_least_float32, squared, sum_rows, unit
from jaxminimax.base.types import PyTree

_ROWS = 1024  # in a block


def wide(*x: jax.Array) -> list[jax.Array]:
    """Converts arrays to their common type, at least float32."""
    dtype = at_least_float32(jnp.result_type(*x))
    return [a.astype(dtype) for a in x]


def _lengths(x: jax.Array) -> jax.Array:
    """Norms along the last axis, rounded up.

    NaN or infinite if an entry is, or if its square is.
    """
    if x.shape[-1] == 1:
        return jnp.abs(x[..., 0])
    # the root rounds once, the tree of squares at most a few times
    return jnp.sqrt(squared(x)) * (1 + 8 * float(jnp.finfo(x.dtype).eps))


def _subnormal(x: jax.Array) -> float:
    """The most that subnormal numbers contribute to a norm along the last axis."""
    return math.sqrt(x.shape[-1]) * float(jnp.finfo(x.dtype).tiny)


def balanced(x: jax.Array, d: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The same products x_t d_t^T with rows x_t of length 1; x `[..., t, k]`, d `[..., t, o]`.

    A tiny d_t that meets a huge x_t would vanish in the sum once it is weighted, and what it was to
    cancel would stay.
    """
    x, d = wide(x, d)
    # x_t d_t^T = (x_t / |x_t|) (|x_t| d_t)^T
    size = unit(_lengths(x))[..., None]
    d = size * d
    return x / size, jnp.where(jnp.abs(d) < jnp.finfo(d.dtype).tiny, 0, d)


def norms(x: jax.Array, d: jax.Array) -> jax.Array:
    """Norms ||sum_t x_t d_t^T|| of examples, rounded up, `[b]`; x `[b, t, k]`, d `[b, t, o]`.

    Not finite if an entry is not, or if a product of two lengths overflows.
    """
    x, d = wide(x, d)
    if x.shape[1] > 1:
        return _gram_norms(x, d)
    # rank one: ||x d^T|| = |x| |d|, either longer by what could have vanished
    return (_lengths(x[:, 0]) + _subnormal(x)) * (_lengths(d[:, 0]) + _subnormal(d))


def _gram(x: jax.Array) -> jax.Array:
    # x_t . x_s, [b, t, t]
    return jnp.einsum("btk,bsk->bts", x, x, precision=EXACT)


def _gram_norms(x: jax.Array, d: jax.Array) -> jax.Array:
    lengths = _lengths(x)
    # what cancels by more is clipped to less than the clip norm
    return _piece_norms(_gram(x / unit(lengths)[..., None]), lengths, x, d, 2.0**-8)


def union_norms(x: jax.Array, rows: jax.Array, d: jax.Array, smallest: float) -> jax.Array:
    """Norms ||sum_t x_t d_t^T + sum_s e_(r_s) d_(t + s)^T|| of examples, rounded up, `[b]`.

    Args:
      x: `[b, t, k]`.
      rows: the numbers r, `[b, s]`; those of an example differ, or their d is 0.
      d: `[b, t + s, o]`, in the type of x.
      smallest: part of the pieces' norms that the norm counts as at least.
    """
    size, s = _lengths(x), rows.shape[1]
    a = x / unit(size)[..., None]
    looked = jnp.take_along_axis(a, jnp.clip(rows, 0, x.shape[-1] - 1)[:, None], 2)  # [b, t, s]
    # e_r . e_r' of rows that differ
    identity = jnp.broadcast_to(jnp.eye(s, dtype=x.dtype), (*rows.shape, s))
    # [[x_t . x_t', (x_t)_r'], [(x_t')_r, 1 if r = r']]
    gram = jnp.concatenate([jnp.concatenate([_gram(a), looked], 2),
                            jnp.concatenate([jnp.swapaxes(looked, 1, 2), identity], 2)], 1)
    lengths = jnp.concatenate([size, jnp.ones(rows.shape, x.dtype)], 1)
    return _piece_norms(gram, lengths, x, d, smallest)


def _piece_norms(gram_x: jax.Array, size: jax.Array, x: jax.Array, d: jax.Array,
                 smallest: float) -> jax.Array:
    """Computes `norms` from the Gram products of x over `unit(size)`, sizes `[b, t]`."""
    lengths = size, _lengths(d)
    # all is computed in units of the lengths, so that no product overflows
    units = [unit(a) for a in lengths]
    gram = [gram_x, _gram(d / units[1][..., None])]
    # length of x_t d_t^T, and of the longest one
    piece = units[0] * units[1]
    scale = unit(jnp.max(piece, -1))
    piece = piece / scale[:, None]
    # sum_{t,s} (x_t . x_s)(d_t . d_s), over scale^2
    # one axis at a time: a single running sum of t^2 terms could lose more than is allowed for
    square = jnp.sum(jnp.sum(gram[0] * gram[1] * piece[:, :, None] * piece[:, None, :], 2), 1)
    # products of k and of o numbers, sums of t and of t, in whatever order
    hidden = (x.shape[2] + d.shape[2]) / 2 + 2 * d.shape[1] + 64
    pieces = jnp.square(jnp.sum(piece, -1))
    # what rounding hides, and the floor: least times the sum of the pieces' lengths
    square = jnp.maximum(square + hidden * float(jnp.finfo(x.dtype).eps) * pieces,
                         smallest**2 * pieces)
    # |x| |d| moves by |x| e_d + |d| e_x + e_x e_d for entries that vanish
    lost = lengths[0] * _subnormal(d) + (lengths[1] + _subnormal(d)) * _subnormal(x)
    return scale * jnp.sqrt(square) + jnp.sum(lost, -1)


def _normal(x: jax.Array) -> jax.Array:
    """Sets subnormal numbers, infinities and NaN (of examples that are absent) to 0."""
    limits = jnp.finfo(x.dtype)
    return jnp.where((jnp.abs(x) >= limits.tiny) & (jnp.abs(x) <= limits.max), x, 0)


def weighted_outer(x: jax.Array, d: jax.Array, weight: jax.Array, norm: jax.Array) -> jax.Array:
    """Adds up weight_i sum_t x_it d_it^T, `[k, o]`; examples whose norm is not finite weigh 0."""
    x, d = wide(x, d)
    if d.shape[-1] > x.shape[-1]:  # the weight goes to the factor with fewer numbers
        # sum_t x_t d_t^T is the transpose of sum_t d_t x_t^T
        return weighted_outer(d, x, weight, norm).T
    # weight_i d_it
    d = _normal(weight.astype(d.dtype)[:, None, None] * _normal(d))
    if x.shape[0] > 4 * _ROWS:
        return _in_blocks(x, d)
    # 0 * NaN is NaN; only then does the larger factor cost a pass of its own
    return jax.lax.cond(tree.in_any_lane(~jnp.isfinite(norm)), _in_blocks, _product, x, d)


def _in_blocks(x: jax.Array, d: jax.Array) -> jax.Array:
    """Computes `_product` for factors x that need not be finite where d is 0."""
    count = x.shape[0]
    rows = min(count, _ROWS)

    def step(k: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        total, lost = carry
        first = jnp.minimum(k * rows, count - rows)  # the last block begins early, to be whole
        x_k, d_k = (jax.lax.dynamic_slice_in_dim(a, first, rows) for a in (x, d))
        fresh = (first + jnp.arange(rows) >= k * rows)[:, None, None]
        return tree.add_compensated(total, lost, _product(_normal(x_k), jnp.where(fresh, d_k, 0)))

    zeros = jnp.zeros((x.shape[2], d.shape[2]), x.dtype)
    # the sum, plus what its additions lost
    return sum(jax.lax.fori_loop(0, -(-count // rows), step, (zeros, zeros)))


def _product(x: jax.Array, d: jax.Array) -> jax.Array:
    k, o = x.shape[-1], d.shape[-1]
    if o == 1:
        return sum_rows(d.reshape(-1), x.reshape(-1, k))[:, None]
    # [b t, k] and [b t, o]
    return jnp.einsum("ik,io->ko", x.reshape(-1, k), d.reshape(-1, o), precision=EXACT)


def weighted(x: jax.Array, d: jax.Array, weight: jax.Array,
             finite: bool) -> tuple[jax.Array, jax.Array]:
    """Factors of weight_i sum_t x_it d_it^T, finite.

    Args:
      x: `[b, t, k]`.
      d: `[b, t, o]`.
      weight: `[b]`; 0 for examples whose norm is not finite.
      finite: whether the norms of all examples are; else their other numbers are replaced by 0.
    """
    x, d = wide(x, d) if finite else map(_finite, wide(x, d))
    return x, weight.astype(d.dtype)[:, None, None] * d


def outer(x: jax.Array, d: jax.Array) -> jax.Array:
    """Computes sum_i sum_t x_it d_it^T, `[k, o]`, of factors that are finite."""
    return (_in_blocks if x.shape[0] > 4 * _ROWS else _product)(x, d)


def outer_blocks(x: jax.Array, d: jax.Array, rounded: Callable[..., PyTree],
                 numbers: tuple[jax.Array, ...], plus: Callable[[PyTree, PyTree], PyTree],
                 rows: int, *looked: jax.Array) -> PyTree:
    """Computes sum_j rounded(sum_{i in block j} sum_t x_it d_it^T), blocks of at most `rows` rows.

    Products of several pieces a record are float64: the pieces may be 2^8 times as long as their
    sum, and so may be what float32 would lose of them.

    Args:
      x: `[b, t, k]`, finite.
      d: `[b, t, o]`, finite.
      rounded: from a block's sum `[k, o]`, and `numbers`, to what is added up.
      numbers: arrays; with `looked`, the first is how many units of the grid are 1.
      plus: adds two of those.
      rows: of a block.
      looked: row numbers `[b, s]` and what is added to these rows of the sum, `[b, s, o]`, if any.
    """
    count, (t, k), o = x.shape[0], x.shape[1:], d.shape[2]
    blocks = -(-count // rows)
    rows = -(-count // blocks)

    def exact(x: jax.Array, d: jax.Array, looked: tuple[jax.Array, ...],
              numbers: tuple[jax.Array, ...]) -> PyTree:
        total = jnp.einsum("ik,io->ko", x.reshape(-1, k).astype(jnp.float64),
                           d.reshape(-1, o).astype(jnp.float64), precision=EXACT)
        if looked:
            # multiples of 2^-20 units are added exactly, in whatever order a device takes them
            (looked_up, c), finer = looked, numbers[0].astype(jnp.float64) * 2.0**20
            c = jnp.round(c.reshape(-1, o).astype(jnp.float64) * finer)
            total += jnp.zeros_like(total).at[looked_up.reshape(-1)].add(c, mode="drop") / finer
        return rounded(total, *numbers)

    def block(x: jax.Array, d: jax.Array, *looked: jax.Array) -> PyTree:
        if t == 1 and not looked:
            return rounded(_product(x, d), *numbers)
        return tree.in_float64(exact)(x, d, looked, numbers)

    def sums_from(first: jax.Array, fresh: jax.Array | None = None) -> PyTree:
        x_j, d_j, *looked_j = (jax.lax.dynamic_slice_in_dim(a, first, rows)
                               for a in (x, d, *looked))
        if fresh is not None:
            # rows that the block before counted add 0
            d_j, *others_j = (jnp.where(fresh[:, None, None], a, 0) for a in (d_j, *looked_j[1:]))
            looked_j[1:] = others_j
        return block(x_j, d_j, *looked_j)

    if blocks <= 4:  # their products are written out
        parts = [block(*(a[j * rows: (j + 1) * rows] for a in (x, d, *looked)))
                 for j in range(blocks)]
        return functools.reduce(plus, parts)

    def step(j: jax.Array, total: PyTree) -> PyTree:
        first = jnp.minimum(j * rows, count - rows)  # the last block begins early, to be whole
        return plus(total, sums_from(first, first + jnp.arange(rows) >= j * rows))

    return jax.lax.fori_loop(1, blocks, step, sums_from(jnp.int32(0)))


def _finite(x: jax.Array) -> jax.Array:
    return jnp.where(jnp.isfinite(x), x, 0)
