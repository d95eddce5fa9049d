"""Operators of many records at once, where no record reaches another one's numbers.

`jax.vmap` makes one grouped convolution of the records' gradients by a kernel, one group a record,
and compilers make grouped convolutions of others, in which what belongs to another group is
multiplied by 0. A record that is NaN or infinite, or becomes so at the end of the range of floats
as such a program rounds it, is then NaN in every other record's gradient (seen on CPUs).

So a program whose convolutions have more groups for several records than for one is not used:
records are done one after another there, each by a program that reads nothing else. Convolutions
by a kernel that is the same for all have no more groups, and so are the factors of ghost clipping
("auto" takes it) computed at once. Runs that are mapped over, as in a sweep, have kernels of their
own: they are done one after another as well, or a record of one would reach those of others.

Of JAX's special functions, that of the incomplete beta integral is a loop over all numbers at once,
which goes on for all until the last one has converged: so the others' last digits, or more, tell of
that one. Records that it is computed of are done one after another too.
"""

from collections.abc import Callable
from typing import Any

import jax

from jaxminimax.base import programs
from jaxminimax.base.types import PyTree

_JOINT = ("regularized_incomplete_beta",)  # loops that end for all numbers together


def each(of_one: Callable[[Any, PyTree], PyTree], z: Any, examples: PyTree) -> PyTree:
    """`of_one(z, example)` of every example, leaves `[b, ...]`.

    Args:
      of_one: a function of one example.
      z: shared.
      examples: leaves `[b, ...]`.
    """
    met = jax.make_jaxpr(jax.vmap(of_one, (None, 0)))(z, examples)
    groups, joint = _groups(met), any(
        equation.primitive.name in _JOINT for equation in programs.equations(met))
    if not groups and not joint:
        return jax.vmap(of_one, (None, 0))(z, examples)
    one = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), examples)
    alone, told = jax.make_jaxpr(of_one, return_shape=True)(z, one)

    # a rule of vmap sees arguments alone: what a run closes over, as another may, becomes one
    def of(held: list[jax.Array], z: Any, example: PyTree) -> PyTree:
        return jax.tree.unflatten(jax.tree.structure(told), jax.core.eval_jaxpr(
            alone.jaxpr, held, *jax.tree.leaves((z, example))))

    def together(held: list[jax.Array], z: Any, examples: PyTree) -> PyTree:
        return jax.vmap(of, (None, None, 0))(held, z, examples)

    def in_turn(held: list[jax.Array], z: Any, examples: PyTree) -> PyTree:
        return jax.lax.map(lambda x: of(held, z, x), examples)

    apart = groups == _groups(alone) and not joint
    return jax.custom_batching.sequential_vmap(together if apart else in_turn)(
        list(alone.consts), z, examples)


def each_of_groups(of_one: Callable[[Any, PyTree], PyTree], z: Any, data: PyTree) -> PyTree:
    """`each` of records in groups, leaves `[p, n, ...]`."""
    p, n = jax.tree.leaves(data)[0].shape[:2]
    rows = jax.tree.map(lambda x: x.reshape(p * n, *x.shape[2:]), data)
    return jax.tree.map(lambda x: x.reshape(p, n, *x.shape[1:]), each(of_one, z, rows))


def _groups(program: Any) -> list[tuple[int, int]]:
    """Of each convolution, into how many groups its features and its batch are cut."""
    return [(equation.params["feature_group_count"], equation.params["batch_group_count"])
            for equation in programs.equations(program)
            if equation.primitive.name == "conv_general_dilated"]
