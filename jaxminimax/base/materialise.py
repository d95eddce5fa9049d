"""Numbers that are computed once, for whoever reads them."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from jaxminimax.base.tree import in_any_lane
from jaxminimax.base.types import PyTree

if TYPE_CHECKING:
    from jax.extend.core import Jaxpr


def materialise(f: Callable[[], PyTree], wanted: jax.typing.ArrayLike = True) -> PyTree:
    """`f()`, or zeros if not `wanted`, in buffers of their own.

    The results of a branch are written down: whoever reads them does not compute them anew, number
    by number, at places that defeat vectors. In all lanes of a vmap if in one.
    """
    told = jax.lax.optimization_barrier(jnp.asarray(wanted))  # a constant would do away with it
    return jax.lax.cond(in_any_lane(told), f, lambda: jax.tree.map(
        lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(f)))


def materialise_rows(f: Callable[[], PyTree], mask: jax.Array) -> PyTree:
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
    traced, told = jax.make_jaxpr(f, return_shape=True)()
    leaves, treedef = jax.tree.flatten(told)
    roots = _roots(traced.jaxpr)
    first: dict[Any, tuple[int, tuple[int, ...]]] = {}
    for i, (root, shape) in enumerate(roots):
        first.setdefault(root, (i, shape))

    def some() -> list[jax.Array]:
        every = jax.tree.leaves(f())
        return [every[i].reshape(shape) for i, shape in first.values()]

    found = materialise(some, mask)
    values = dict(zip(first, found, strict=True))
    return jax.tree.unflatten(treedef, [
        values[root].reshape(like.shape) for (root, _), like in zip(roots, leaves, strict=True)])


def _roots(jaxpr: "Jaxpr") -> list[tuple[Any, tuple[int, ...]]]:
    """For each result, what it is a reshaping of, and the shape of that.

    A branch copies each of its results, and axes of length 1 may make it copy them again; a layer's
    bias has the derivative of its product.
    """
    from jax.extend.core import Var

    def shape(x: Any) -> tuple[int, ...]:
        return x.aval.shape

    made = {eqn.outvars[0]: eqn.invars[0] for eqn in jaxpr.eqns
            if eqn.primitive.name in ("reshape", "squeeze", "expand_dims", "broadcast_in_dim")
            # a reshape in another order permutes, too
            and (eqn.primitive.name != "reshape" or eqn.params["dimensions"] is None)
            and math.prod(shape(eqn.outvars[0])) == math.prod(shape(eqn.invars[0]))}
    roots = []
    for i, x in enumerate(jaxpr.outvars):
        while isinstance(x, Var) and x in made:
            x = made[x]
        roots.append((x if isinstance(x, Var) else i, shape(x)))
    return roots
