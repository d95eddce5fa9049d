"""Arithmetic of 64 bits, whatever the caller has set."""

from collections.abc import Callable

import jax

from jaxminimax.base.types import PyTree


def in_float64(function: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """`function`, traced with 64-bit types switched on, whatever the caller's setting.

    It gets arrays of any dtype and must return none that is wider than 32 bits. Mapped over, it is
    traced anew inside the switch: batching what was traced would round the types it finds.
    """
    @jax.custom_batching.custom_vmap
    def wide(*args: PyTree) -> PyTree:
        with jax.enable_x64(True):
            return function(*args)

    def rule(_: int, batched: list, *args: PyTree) -> tuple[PyTree, PyTree]:
        axes = jax.tree.map(lambda b: 0 if b else None, tuple(batched))
        out = in_float64(jax.vmap(function, axes))(*args)
        return out, jax.tree.map(lambda _: True, out)

    wide.def_vmap(rule)
    return wide
