"""Finds parameters that no record moves, and parts of a record that move none.

Such a parameter is clipped and gets noise like the others, and learns nothing. Three looks find
them: at what a traced gradient is computed from, at names, and at gradients of synthetic records.
None reads a record, and none refuses.

*Structure.* A gradient that is not computed from the record is the same for all records. Operations
with a loop or a branch inside count as computing each result from each operand. So what is named
is true, and something may stay unnamed.

*Names.* Running statistics that are trained like parameters are moved by records, and only their
names tell: those of `batch_stats` and the like, and a mean and a variance beside each other.

*Numbers.* Batch normalisation subtracts from a record the mean of its batch. Of one record, that is
the record, and the layer before it has a gradient of rounding errors. The gradients are taken at
z + 0.1 N(0, I). At z itself, a factor that starts at zero would hide the one that it multiplies, as
in x (W + A B) with B = 0, and in an embedding that starts at zero.
"""

import math
import re
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax.base import programs
from jaxminimax.base.types import PyTree, Saddle

_RECORDS = 32  # synthetic ones
_AWAY = 0.1  # standard deviation of the numbers' point around z
_SMALL = 1e-6  # of a player's largest derivative, below which those by a leaf are rounding errors
_NAMES = 5  # of leaves in a sentence
_STATISTICS = re.compile("batch_?stat|running_|moving_|num_batches|counter", re.IGNORECASE)
_MOMENT = re.compile(r"\b(mean|var)\b(?=\W*(value\W*)?$)")  # at the end of a leaf's path
_NONE: frozenset[int] = frozenset()


class UnmovedWarning(UserWarning):
    """Something that a run cannot learn, or a part of the records that it does not use."""


def notes(program: Any, value: Saddle, z: Saddle, record: PyTree, clip: Saddle) -> list[str]:
    """Says what structure and names tell; for every run.

    Args:
      program: the traced operator, of a point and a record.
      value: shapes of its value.
      z: the point.
      record: shapes of a record.
      clip: per player, None if its gradient is not released.
    """
    paths = _paths(z)
    beside = [_MOMENT.sub(lambda x: {"mean": "var", "var": "mean"}[x[0]], path) for path in paths]
    read = _read(program, record)
    unread = [f"record{path}" for k, path in enumerate(_paths(record))
              if k not in _NONE.union(*read)]
    return [
        *_said(z, clip, [bool(_STATISTICS.search(path)) or (path != other and other in paths)
                         for path, other in zip(paths, beside, strict=True)],
               "{} looks like running statistics or a counter, which gradients should not train: "
               "close over it, and normalise as in evaluation."),
        *_said(value, clip, [not x for x in read],
               "No record moves {}: the gradient is computed from no record, so that it gets noise "
               "alone. Close over what is not trained."),
        *([f"No gradient is computed from {', '.join(unread)}: leave that out of the data, if the "
           "loss is right."] if unread else [])]


def by_numbers(program: Any, value: Saddle, z: Saddle, record: PyTree, clip: Saddle) -> list[str]:
    """Says which other leaves have no gradient by synthetic records; arguments as of `notes`."""
    keys = iter(jax.random.split(jax.random.key(0), len(jax.tree.leaves((z, record)))))

    def draw(x: Any, *shape: int) -> jax.Array:
        if jnp.issubdtype(x.dtype, jnp.inexact):
            return jax.random.normal(next(keys), (*shape, *x.shape), x.dtype)
        return jax.random.randint(next(keys), (*shape, *x.shape), 0, 2).astype(x.dtype)

    def largest(z: Saddle, record: PyTree) -> list[jax.Array]:
        every = jax.core.eval_jaxpr(program.jaxpr, program.consts, *jax.tree.leaves((z, record)))
        return [jnp.max(jnp.abs(x), initial=0.0) for x in every]

    near = jax.tree.map(lambda x: (x + _AWAY * draw(x)).astype(x.dtype), z)
    records = jax.tree.map(lambda x: draw(x, _RECORDS), record)
    found = jax.jit(lambda z, x: jax.lax.map(lambda one: largest(z, one), x))(near, records)
    players = jax.tree.unflatten(jax.tree.structure(value), [float(np.max(x)) for x in found])
    # NaN, where the operator is not defined on such records, is neither large nor small
    small = [x <= _SMALL * np.nanmax([0.0, *jax.tree.leaves(player)])
             for player in players for x in jax.tree.leaves(player)]
    return _said(value, clip, [x and bool(y) for x, y in zip(small, _read(program, record),
                                                            strict=True)],
                 "No synthetic record moves {}: the gradient is 0, so that it gets noise alone. "
                 "Batch normalisation of one record subtracts the record from itself: use "
                 "LayerNorm or GroupNorm there. Close over what is not used.")


def by_optimiser(optimiser: Any, z: Saddle, clip: Saddle) -> list[str]:
    """Says which leaves of z never move by their gradients, now or later, as by `set_to_zero`.

    Args:
      optimiser: a factory `step -> optax.GradientTransformation` of each player, or of w alone;
        anything else is not looked at.
      z: the point.
      clip: per player, None if its gradient is not released.
    """
    frozen: list[bool] = []
    both = optimiser if isinstance(optimiser, Saddle) else (optimiser, None)
    for make, x in zip(both, z, strict=True):
        count = len(jax.tree.leaves(x))
        own, results = [frozenset({k}) for k in range(count)], []
        if callable(make):
            change = make(jnp.float32(1.0))
            program = jax.make_jaxpr(change.update)(x, jax.eval_shape(change.init, x), x)
            results, before = [_NONE] * (len(program.in_avals) - count), []
            while results != before:  # until no gradient reaches more of the state
                before = results
                results = _sources(program, [*own, *before[count:], *[_NONE] * count])
        frozen += [k not in result for k, result in enumerate((results or own)[:count])]
    return _said(z, clip, frozen, "The optimiser never moves {}, which is clipped and gets noise "
                                  "with the rest: close over it.")


def _read(program: Any, record: PyTree) -> list[frozenset[int]]:
    """The leaves of the record, by number, that each leaf of the value is computed from."""
    wide, count = len(jax.tree.leaves(record)), len(program.in_avals)
    return _sources(program, [*[_NONE] * (count - wide), *(frozenset({k}) for k in range(wide))])


def _sources(program: Any, inputs: Sequence[frozenset[int]]) -> list[frozenset[int]]:
    """The numbers that each result of a traced program may be computed from, by its inputs'."""
    program = getattr(program, "jaxpr", program)
    of = dict(zip(program.invars, inputs, strict=True))

    def read(x: Any) -> frozenset[int]:
        return _NONE if hasattr(x, "val") else of.get(x, _NONE)

    for equation in program.eqns:
        operands, inner = [read(x) for x in equation.invars], programs.called(equation)
        results = (_sources(inner, operands) if inner is not None else
                   [_NONE.union(*operands)] * len(equation.outvars))
        of.update(zip(equation.outvars, results, strict=True))
    return [read(x) for x in program.outvars]


def _paths(tree: PyTree) -> list[str]:
    return [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]


def _said(z: Saddle, clip: Saddle, which: Sequence[bool], text: str) -> list[str]:
    """Names leaves of released players in a text, with their share; no text if none is one."""
    leaves = [(path, math.prod(x.shape), is_one) for path, x, is_one in zip(
        _paths(z), jax.tree.leaves(z), which, strict=True)
        if getattr(clip, path[1]) is not None]  # of .w and .v
    some = [(f"z{path}", size) for path, size, is_one in leaves if is_one and size]
    named = ", ".join(path for path, _ in some[:_NAMES])
    named += f" and {len(some) - _NAMES} more" * (len(some) > _NAMES)
    share = f"({sum(size for _, size in some):,} of {sum(x[1] for x in leaves):,} numbers)"
    return [text.format(f"{named} {share}")] * bool(some)
