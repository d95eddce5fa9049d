"""Norms and weighted sums of gradients that are kept as factors, never as matrices.

The gradient of example i is sum_t x_it d_it^T. Its squared norm is sum_{t,s} (x_t . x_s)(d_t . d_s)
and the sum over examples is one matrix product. Both read the same x and d, and the sum adds up the
pieces x_it d_it^T of all examples together, so two things must hold for every input:

* no norm may come out too small: squares are taken of numbers over the largest one, factors below
  the smallest normal number, which compilers round to 0 here and not there, count as 0 in the
  sum, and what rounding can hide in sum_{t,s}, (k + o) / 2 + 2 t + 16 rounding errors of the
  squared pieces, is added to it;
* no pieces may be large in the sum and cancel in the norm, where they would drown the other
  examples: the norm counts as at least `CANCELLATION` times the sum of the pieces' norms. An
  example whose pieces cancel by more than that is clipped to less than the clip norm.
"""

import jax
import jax.numpy as jnp

from jaxminimax._tree import at_least_float32, unit

CANCELLATION = 2.0**-8
WIDE = 4096  # numbers an example from which a matrix product beats a fused sum
_ROWS = 4096  # of a matrix product whose partial sums are added one by one
_EXACT = jax.lax.Precision.HIGHEST  # a reduced one in a matrix unit would loosen the bound


def _wide(*x: jax.Array) -> list[jax.Array]:
    dtype = at_least_float32(jnp.result_type(*x))
    return [a.astype(dtype) for a in x]


def _lengths(x: jax.Array) -> jax.Array:
    """Norms along the last axis, without overflow or underflow; NaN or infinite if an entry is."""
    largest = jnp.max(jnp.abs(x), -1)
    scale = unit(largest)
    return jnp.maximum(scale * jnp.sqrt(jnp.sum(jnp.square(x / scale[..., None]), -1)), largest)


def norms(x: jax.Array, d: jax.Array) -> jax.Array:
    """||sum_t x_t d_t^T|| of each example, rounded up, `[b]`; x `[b, t, k]`, d `[b, t, o]`.

    Not finite if an entry is not, or if a product of two lengths overflows.
    """
    x, d = _wide(x, d)
    eps = float(jnp.finfo(x.dtype).eps)
    (_, t, k), o = x.shape, d.shape[-1]
    if t == 1:
        return _lengths(x[:, 0]) * _lengths(d[:, 0]) * (1 + 32 * eps)
    units = [unit(jnp.max(jnp.abs(a), -1)) for a in (x, d)]
    gram = [jnp.einsum("btk,bsk->bts", a, a, precision=_EXACT)
            for a in (x / units[0][..., None], d / units[1][..., None])]
    piece = units[0] * units[1]
    scale = unit(jnp.max(piece, -1))
    piece = piece / scale[:, None]
    square = jnp.sum(gram[0] * gram[1] * piece[:, :, None] * piece[:, None, :], (1, 2))
    ends = [jnp.sqrt(jnp.diagonal(a, axis1=1, axis2=2)) for a in gram]
    pieces = jnp.square(jnp.sum(piece * ends[0] * ends[1], -1))
    square = square + ((k + o) / 2 + 2 * t + 16) * eps * pieces
    return scale * jnp.sqrt(jnp.maximum(square, CANCELLATION**2 * pieces))


def _normal(x: jax.Array) -> jax.Array:
    """`x` without subnormal numbers."""
    return jnp.where(jnp.abs(x) >= jnp.finfo(x.dtype).tiny, x, 0)


def weighted_outer(x: jax.Array, d: jax.Array, weight: jax.Array) -> jax.Array:
    """sum_i weight_i sum_t x_it d_it^T, `[k, o]`; weight 0 silences NaN."""
    x, d = _wide(x, d)
    (_, t, k), o = x.shape, d.shape[-1]
    weight = weight.astype(x.dtype)[:, None, None]
    x, d = (jnp.where(weight > 0, _normal(a), 0) for a in (x, d))
    if o <= k:  # the weight goes to the factor with fewer numbers
        d = _normal(weight * d)
    else:
        x = _normal(weight * x)
    if t * k * o < WIDE:
        return jnp.sum(x[..., None] * d[..., None, :], (0, 1))
    x, d = x.reshape(-1, k), d.reshape(-1, o)
    groups = -(-x.shape[0] // _ROWS)
    if groups > 1:  # one long running sum would round away small terms on a large one
        short = -x.shape[0] % groups
        x, d = (jnp.pad(a, ((0, short), (0, 0))).reshape(groups, -1, a.shape[1]) for a in (x, d))
        return jnp.sum(jnp.einsum("gik,gio->gko", x, d, precision=_EXACT), 0)
    return jnp.einsum("ik,io->ko", x, d, precision=_EXACT)


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
