"""Numbers that are computed once, for whoever reads them."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxminimax._types import Tree


@jax.custom_batching.custom_vmap
def _nobody(mask: jax.Array) -> jax.Array:
    # the barrier keeps a constant mask from being folded away, and the branch with it
    return ~jnp.any(jax.lax.optimization_barrier(mask))


@_nobody.def_vmap
def _(_: int, __: list[bool], mask: jax.Array) -> tuple[jax.Array, bool]:
    return _nobody(mask), False  # of all lanes: a batched branch would be no branch any more


def held(f: Callable[[], Tree], mask: jax.Array) -> Tree:
    """`f()`, or zeros if the mask has no True, in buffers of their own.

    Compilers repeat cheap arithmetic inside each of its readers, and may round it differently in
    each: a product that is contracted with a sum in one place and not in the other cancels in one
    and not in the other. A norm and the sum that it is to bound must see the same numbers. Barriers
    do not see to that (XLA's CPU compiler drops them before it fuses); the results
    of a branch are written down.

    Args:
      f: computes a pytree of arrays.
      mask: bool, which rows of the results count.
    """
    shape = jax.eval_shape(f)
    return jax.lax.cond(_nobody(mask), lambda: jax.tree.map(
        lambda a: jnp.zeros(a.shape, a.dtype), shape), f)
