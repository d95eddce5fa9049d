"""Which slot of the batch a record of a Poisson or fixed-size sample is read into: any, at random.

What is computed for a record may depend on its slot in the last bits, and sums are made of blocks
of slots; in order of their row numbers, one record would decide in which slots all later ones are.
As it is, the slots of the others have the same law whether a record takes part, does not, or is
replaced, so for a comparison they may be taken to be the same slots.
"""

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax.base.random_bits import word_pairs
from jaxminimax.base.tree import in_any_lane, in_float64, materialise

# P[the rest of a sample leaves no room in the pass of a record's shard], per release, on any mesh
CROWDED = 1e-27
_COUNTED = 160  # slots that are ordered by counting, as quick as a sort's first steps


def tied(count: int) -> float:
    """P[two of that many numbers of 128 bits are equal]: coins that no record has a part in.

    Otherwise the order that they give is uniform, and independent of everything else.
    """
    return count**2 * 2.0**-129


def places(key: jax.Array, count: int) -> jax.Array:
    """A uniformly random permutation, int32 `[count]`: the order of as many numbers of 128 bits.

    The first bits decide, unless two numbers have the same.
    """
    # not for each comparison, nor number by number in a program of 64 bits
    first, second = materialise(lambda: word_pairs(key, (count,)))

    def rare() -> jax.Array:
        third, fourth = word_pairs(key, (count,), part=1, rolled=True)
        order = jax.lax.sort((first, second, third, fourth, jnp.arange(count, dtype=jnp.int32)),
                             num_keys=4)[-1]
        # counting tells each number's place, sorting which number is at a place: one of both for
        # all, for in a vmap the ties of one lane send the others here too
        return order if count > _COUNTED else jnp.argsort(order).astype(jnp.int32)

    @in_float64
    def sort(first: jax.Array, second: jax.Array) -> tuple[jax.Array, jax.Array]:
        # one array is sorted several times as fast as several: numbers carry their places
        low = (1 << (count - 1).bit_length()) - 1
        both = (first.astype(jnp.uint64) << 32) | (second & np.uint32(~low & 0xFFFFFFFF))
        both = jnp.sort(both | jnp.arange(count, dtype=jnp.uint64))
        same = (both[1:] >> low.bit_length()) == (both[:-1] >> low.bit_length())
        return (both & low).astype(jnp.int32), jnp.any(same)

    if count <= _COUNTED:
        order = materialise(lambda: jnp.sum(first[:, None] < first[None, :], 0, dtype=jnp.int32))
        ties = jnp.sum(order) < count * (count - 1) // 2
    else:
        order, ties = sort(first, second)
    return jax.lax.cond(in_any_lane(ties), rare, lambda: order)
