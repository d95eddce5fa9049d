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
"""

from collections.abc import Callable
from typing import Any

import jax

from jaxminimax.base import programs
from jaxminimax.base.types import PyTree


def each(of_one: Callable[[Any, PyTree], PyTree], z: Any, examples: PyTree) -> PyTree:
    """`of_one(z, example)` of every example, leaves `[b, ...]`.

    Args:
      of_one: a function of one example.
      z: shared.
      examples: leaves `[b, ...]`.
    """
    def together(z: Any, examples: PyTree) -> PyTree:
        return jax.vmap(of_one, (None, 0))(z, examples)

    def in_turn(z: Any, examples: PyTree) -> PyTree:
        return jax.lax.map(lambda x: of_one(z, x), examples)

    groups = _groups(jax.make_jaxpr(together)(z, examples))
    if not groups:
        return together(z, examples)
    one = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), examples)
    apart = groups == _groups(jax.make_jaxpr(of_one)(z, one))
    return jax.custom_batching.sequential_vmap(together if apart else in_turn)(z, examples)


def _groups(program: Any) -> list[tuple[int, int]]:
    """Of each convolution, into how many groups its features and its batch are cut."""
    return [(equation.params["feature_group_count"], equation.params["batch_group_count"])
            for equation in programs.equations(program)
            if equation.primitive.name == "conv_general_dilated"]
