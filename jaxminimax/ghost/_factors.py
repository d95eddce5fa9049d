"""Norms and weighted sums of gradients that are kept as factors, never as matrices.

The gradient of example i is sum_t x_it d_it^T. Its squared norm is sum_{t,s} (x_t . x_s)(d_t . d_s)
and the sum over examples is one matrix product. Both read the same x and d, and the sum adds up the
pieces x_it d_it^T of all examples together, so two things must hold for every input:

* no norm may come out too small: squares are taken of numbers over the sum of their absolute
  values, what rounding can hide (the length of a sum in rounding errors, for sum_{t,s} of the
  squared pieces) is added, and factors below the smallest normal number, which are 0 here and not
  there, are 0 in the sum;
* no pieces may be large in the sum and cancel in the norm, where they would drown the other
  examples: the norm counts as at least `CANCELLATION` times the sum of the pieces' norms. An
  example whose pieces cancel by more than that is clipped to less than the clip norm.

Row sums are products with a vector of ones, and sums over the batch are products as well: compilers
run them many times faster than reductions. Both go over blocks of rows, which bounds what is held
beside x and d, and how long a running sum is.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxminimax._tree import at_least_float32, unit

CANCELLATION = 2.0**-8
WIDE = 4096  # numbers an example from which a matrix product beats a fused sum
_FEW = 64  # the same for factors
_ROWS = 1024  # in a block
_LONG = 2**13  # a sum along a row from which one running sum is too coarse
_EXACT = jax.lax.Precision.HIGHEST  # a reduced one in a matrix unit would loosen the bound


def _wide(*x: jax.Array) -> list[jax.Array]:
    dtype = at_least_float32(jnp.result_type(*x))
    return [a.astype(dtype) for a in x]


def _blocks(count: int) -> int:
    return -(-count // _ROWS)


def _block(k: jax.Array, *x: jax.Array) -> list[jax.Array]:
    """Rows of block k; the last block begins early, so that it is whole."""
    first = jnp.minimum(k * _ROWS, x[0].shape[0] - _ROWS)
    return [jax.lax.dynamic_slice_in_dim(a, first, _ROWS) for a in x]


def _by_rows(f: Callable[..., jax.Array], *x: jax.Array) -> jax.Array:
    """`f(*x)` `[b]` of leaves `[b, ...]`, a block at a time."""
    count = x[0].shape[0]
    if count <= _ROWS:
        return f(*x)

    def step(k: jax.Array, out: jax.Array) -> jax.Array:
        first = jnp.minimum(k * _ROWS, count - _ROWS)
        return jax.lax.dynamic_update_slice_in_dim(out, f(*_block(k, *x)), first, 0)

    return jax.lax.fori_loop(0, _blocks(count), step, jnp.zeros(count, x[0].dtype))


def _row_sums(x: jax.Array) -> jax.Array:
    """Sums along the last axis of numbers >= 0."""
    if x.shape[-1] > _LONG:
        return jnp.sum(x, -1)
    # as a constant, ones would turn the product into a reduction again
    ones = jax.lax.optimization_barrier(jnp.ones(x.shape[-1], x.dtype))
    return jnp.matmul(x, ones, precision=_EXACT)


def _slack(numbers: int, eps: float) -> float:
    """How much relatively a sum of squares of so many numbers may have lost."""
    return (min(numbers, _LONG) / 2 + 64) * eps


def _lengths(x: jax.Array) -> jax.Array:
    """Norms along the last axis, rounded up, free of overflow and underflow.

    NaN or infinite if an entry is.
    """
    if x.shape[-1] == 1:
        return jnp.abs(x[..., 0])
    scale = unit(_row_sums(jnp.abs(x)))
    squares = _row_sums(jnp.square(x / scale[..., None]))
    return scale * jnp.sqrt(squares * (1 + _slack(x.shape[-1], float(jnp.finfo(x.dtype).eps))))


def norms(x: jax.Array, d: jax.Array) -> jax.Array:
    """||sum_t x_t d_t^T|| of each example, rounded up, `[b]`; x `[b, t, k]`, d `[b, t, o]`.

    Not finite if an entry is not, or if a product of two lengths overflows.
    """
    x, d = _wide(x, d)
    if x.shape[1] == 1:
        return _by_rows(_lengths, x[:, 0]) * _by_rows(_lengths, d[:, 0])
    return _by_rows(_gram_norms, x, d)


def _gram_norms(x: jax.Array, d: jax.Array) -> jax.Array:
    eps = float(jnp.finfo(x.dtype).eps)
    units = [unit(_row_sums(jnp.abs(a))) for a in (x, d)]
    gram = [jnp.einsum("btk,bsk->bts", a, a, precision=_EXACT)
            for a in (x / units[0][..., None], d / units[1][..., None])]
    piece = units[0] * units[1]
    scale = unit(jnp.max(piece, -1))
    piece = piece / scale[:, None]
    square = jnp.sum(gram[0] * gram[1] * piece[:, :, None] * piece[:, None, :], (1, 2))
    ends = [jnp.sqrt(jnp.diagonal(a, axis1=1, axis2=2)) for a in gram]
    pieces = jnp.square(jnp.sum(piece * ends[0] * ends[1], -1))
    hidden = (x.shape[2] + d.shape[2]) / 2 + 2 * x.shape[1] + 64
    return scale * jnp.sqrt(jnp.maximum(square + hidden * eps * pieces, CANCELLATION**2 * pieces))


def _normal(x: jax.Array) -> jax.Array:
    """`x` without subnormal numbers, infinities and NaN (of examples that are absent)."""
    limits = jnp.finfo(x.dtype)
    return jnp.where((jnp.abs(x) >= limits.tiny) & (jnp.abs(x) <= limits.max), x, 0)


def weighted_outer(x: jax.Array, d: jax.Array, weight: jax.Array) -> jax.Array:
    """sum_i weight_i sum_t x_it d_it^T, `[k, o]`; weight 0 silences NaN."""
    x, d = _wide(x, d)
    weight, count = weight.astype(x.dtype), x.shape[0]
    if count <= _ROWS:
        return _weighted_block(x, d, weight)

    def step(k: jax.Array) -> jax.Array:
        new = jnp.minimum(k * _ROWS, count - _ROWS) + jnp.arange(_ROWS) >= k * _ROWS
        *factors, scale = _block(k, x, d, weight)
        return _weighted_block(*factors, jnp.where(new, scale, 0))

    return jnp.sum(jax.lax.map(step, jnp.arange(_blocks(count))), 0)


def _weighted_block(x: jax.Array, d: jax.Array, weight: jax.Array) -> jax.Array:
    (_, t, k), o = x.shape, d.shape[-1]
    weight, x, d = weight[:, None, None], _normal(x), _normal(d)
    if o <= k:  # the weight goes to the factor with fewer numbers
        d = _normal(weight * d)
    else:
        x = _normal(weight * x)
    if t * k * o <= _FEW:
        return jnp.sum(x[..., None] * d[..., None, :], (0, 1))
    return jnp.einsum("ik,io->ko", x.reshape(-1, k), d.reshape(-1, o), precision=_EXACT)


def merged(rows: jax.Array, d: jax.Array, count: int) -> jax.Array:
    """The derivatives of one example's lookups, those of equal rows added to the first, `[t, o]`.

    Args:
      rows: t row numbers; from `count` on they are not there and get no derivative.
      d: `[t, o]`.
      count: rows of the table.
    """
    (d,) = _wide(d)
    d = jnp.where((rows < count)[:, None], d, 0)
    if rows.shape[0] == 1:
        return d
    first = jnp.argmax(rows[:, None] == rows[None, :], 1)
    return jnp.einsum("ts,to->so", jax.nn.one_hot(first, rows.shape[0], dtype=d.dtype), d,
                      precision=_EXACT)


def weighted_rows(rows: jax.Array, d: jax.Array, weight: jax.Array, count: int) -> jax.Array:
    """sum_i weight_i sum_t e_{row_it} d_it^T, `[count, o]`; rows `[b, t]`, d `[b, t, o]`.

    Rows are added one by one, so in two parts: multiples of a unit so coarse that their sum is
    exact, and the remainders. Else small terms would be lost on a large sum as one record decides.
    """
    weight = weight.astype(d.dtype)[:, None, None]
    d = jnp.where(weight > 0, weight * d, 0).reshape(-1, d.shape[-1])
    most = 2 * d.shape[0] * jnp.max(jnp.abs(d), initial=0)
    coarse = jnp.where(jnp.isfinite(most), (d + most) - most, 0)
    zeros = jnp.zeros((count, d.shape[-1]), d.dtype)
    rows = rows.reshape(-1)
    return (zeros.at[rows].add(coarse, mode="drop") +
            zeros.at[rows].add(d - coarse, mode="drop"))
