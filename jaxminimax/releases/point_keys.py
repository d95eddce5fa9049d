"""Keys that follow the point of a release, so that no noise ever serves two points.

Release number t of a stream draws sample, noise and operators from the run's key and t. Where a
caller's loop counts the numbers, one number could come up at two points. Here the key is

    K(z) = f(f(K, H_1(z)), H_0(z)),    f = `jax.random.fold_in`,

of a key K that serves nothing else, with a keyed hash H of the bits of all parameters and clip
norms. All uses of the release follow K(z), the sample too: two points that share a Poisson sample
would cost more than is charged.

**Claim.** Let two different points of the same shapes have equal H with probability c at most, over
the key of H, and let F be a random function. In any adaptive sequence of queries (t, z), with P
pairs of equal t and other z, answers drawn by F(H(z), t) are within total variation P c of answers
that are drawn anew for each distinct query, and repeated for one that was asked before. *Proof.* As
long as no pair collides, distinct queries are distinct arguments of F, so that the answers are
fresh, and independent of the key of H. That key may then be drawn after the last query: each pair
collides with probability c at most. QED. So N distinct queries are N described releases, and
repeated ones are postprocessing. In a loop that counts rightly, P = 0 and nothing is added.

**The hash.** Leaves are cut into rows of 256 words of 32 bits, the last row padded with zeros, and
numbered over all leaves. A row, of 16-bit halves x_k, has for i = 1, ..., 4 the 16 bits

    h_i = (b_i + sum_k a_ik x_k mod 2^32) >> 16,    a, b uniform words of the key of H,

and with E_1, E_2 Threefry under two more keys, words summed mod 2^32,

    H = sum over rows r of E_1(r, h_1 2^16 + h_2) + E_2(r, h_3 2^16 + h_4).

*A row.* Let x, y differ at k by d = 2^s odd, s < 16, and fix all a but a_ik. Then the sums g(x) and
D = g(x) - g(y) are independent, g(x) uniform by b, and D uniform on a coset of the multiples of
2^s. Given D = e with |e| < 2^16, the upper halves agree with probability 1 - |e| / 2^16. These
triangles add up to 2^(16 - s) over a coset, of 2^(32 - s) numbers: P[h_i(x) = h_i(y)] = 2^-16. The
four are independent, so that two rows that differ agree in all with probability 2^-64.
*The sum.* If they do not, one half differs at row r. For E a random permutation of two words and R
rows, the sum takes a given value there with probability 1 / (2^64 - 2 R) at most. So c < 2^-62.

Source: the family is that of Dietzfelbinger, "Universal hashing and k-wise independent random
variables via integer arithmetic without primes", STACS 1996. A sum of integers is the same on any
mesh. -0 and 0 are two points, which costs nothing.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax.base import tree
from jaxminimax.base.random_bits import fold_in_on_host, random_words, threefry, threefry_key
from jaxminimax.base.types import PyTree

_ROW = 256  # words


def root_key(key: jax.Array, mark: bytes) -> tuple[jax.Array, jax.Array]:
    """Returns the key K of all points of a run, and the key of its hash.

    Args:
      key: root key of the run.
      mark: 8 bytes of all else that a release depends on: another mark has other noise.
    """
    root = fold_in_on_host(key, 2**31 - 2)  # no release, pass or mark has this number
    for word in np.frombuffer(mark, "<u4"):
        root = fold_in_on_host(root, int(word))
    return fold_in_on_host(root, 1), fold_in_on_host(root, 0)


def key_at(root: jax.Array, digest: jax.Array) -> jax.Array:
    """The key K(z) of a point, of its digest."""
    return jax.random.fold_in(jax.random.fold_in(root, digest[1]), digest[0])


def digest(words: jax.Array, point: PyTree) -> jax.Array:
    """The hash H of a point, uint32 `[2]`.

    Args:
      words: data of the key of the hash, uint32 `[2]`.
      point: arrays of any dtype but complex ones.

    Raises:
      ValueError: for complex numbers.
    """
    tree.refuse_complex(point, "params")
    halves = 4  # 16-bit hashes of a row
    # drawn once, and not again in every loop that reads it
    count = halves * (2 * _ROW + 1) + 4  # words of a, b and the keys of E_1 and E_2
    drawn = tree.materialise(lambda: random_words(threefry_key(words), (count,)))
    factors = drawn[:2 * halves * _ROW].reshape(halves, 2, 1, _ROW)
    *offsets, a, b, c, d = drawn[2 * halves * _ROW:]
    total, first = jnp.zeros(2, jnp.uint32), 0
    for x in jax.tree.leaves(point):
        rows = _rows(jnp.asarray(x))
        low, high = rows & np.uint32(2**16 - 1), rows >> 16
        # h_i = (b_i + sum_k a_ik x_k mod 2^32) >> 16, [rows]
        sums = _sums([low * f[0] + high * f[1] for f in factors], 1)
        h = [(total_i + offset) >> 16 for total_i, offset in zip(sums, offsets, strict=True)]
        place = jax.lax.iota(jnp.uint32, len(rows)) + np.uint32(first)
        for key, high, low in ((jnp.stack([a, b]), h[0], h[1]), (jnp.stack([c, d]), h[2], h[3])):
            # E(r, 2^16 one + other), two words, summed over rows
            total = total + jnp.stack(_sums(threefry(key, place, (high << 16) | low), 0))
        first += len(rows)
    return total


def _sums(arrays: Sequence[jax.Array], axis: int) -> Sequence[jax.Array]:
    """Sums of several arrays mod 2^32, in one pass over what they are computed from."""
    def add(a: Sequence[jax.Array], b: Sequence[jax.Array]) -> list[jax.Array]:
        return [x + y for x, y in zip(a, b, strict=True)]

    return jax.lax.reduce(list(arrays), [jnp.uint32(0)] * len(arrays), add, (axis,))


def _rows(x: jax.Array) -> jax.Array:
    """The bits of an array, uint32 `[rows, 256]`; 16-bit numbers are widened, 64-bit ones two."""
    size = x.dtype.itemsize
    if x.dtype == bool:
        x = x.astype(jnp.uint8)
    narrow = {1: jnp.uint8, 2: jnp.uint16}.get(size, jnp.uint32)
    bits = jax.lax.bitcast_convert_type(x, narrow).astype(jnp.uint32).reshape(-1)
    return jnp.pad(bits, (0, -bits.size % _ROW)).reshape(-1, _ROW)
