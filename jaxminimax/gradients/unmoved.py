"""Finds parameters that no record moves, and parts of a record that move none.

Such a parameter is clipped and gets noise like the others, and learns nothing. Three looks find
them: at what a traced gradient is computed from, at gradients of synthetic records, and at names.
None reads a record.

*Structure.* A gradient that is not computed from the record is the same for all records. Operations
with a loop or a branch inside count as computing each result from each operand. So what is named
is true, and something may stay unnamed.

*Numbers.* Batch normalisation subtracts from a record the mean of its batch. Of one record, that is
the record, and the layer before it has a gradient of rounding errors. The gradients are taken at
z + 0.1 N(0, I). At z itself, a factor that starts at zero would hide the one that it multiplies, as
in x (W + A B) with B = 0, and in an embedding that starts at zero.

*Names.* Running statistics that are trained like parameters are moved by records, and only their
names tell.
"""

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax.base.types import PyTree, Saddle

_CALLS = ("jit", "pjit", "remat2", "checkpoint", "closed_call", "custom_jvp_call")
_RECORDS = 32  # synthetic ones
_AWAY = 0.1  # standard deviation of the numbers' point around z
_SMALL = 1e-6  # of a player's largest derivative, below which those by a leaf are rounding errors
_NAMES = 5  # of leaves in a sentence
_STATISTICS = re.compile("batch_?stat|running_|moving_|num_batches|counter", re.IGNORECASE)


def sources(program: Any, inputs: Sequence[frozenset[int]]) -> list[frozenset[int]]:
    """The numbers that each result of a traced program may be computed from.

    Args:
      program: a jaxpr, closed or not.
      inputs: for each of its inputs, the numbers that it stands for.
    """
    program = getattr(program, "jaxpr", program)
    of = dict(zip(program.invars, inputs, strict=True))

    def read(x: Any) -> frozenset[int]:
        return frozenset() if hasattr(x, "val") else of.get(x, frozenset())

    for equation in program.eqns:
        operands = [read(x) for x in equation.invars]
        if equation.primitive.name in _CALLS:
            inner = equation.params.get("jaxpr", equation.params.get("call_jaxpr"))
            results = sources(inner, operands)
        else:
            results = [frozenset[int]().union(*operands)] * len(equation.outvars)
        of.update(zip(equation.outvars, results, strict=True))
    return [read(x) for x in program.outvars]


Traced = tuple[Any, Saddle]  # program and value of an operator, of a point and a record


def _read(traced: Traced, record: PyTree) -> list[frozenset[int]]:
    """The leaves of the record that each leaf of the operator's value is computed from."""
    wide, count = len(jax.tree.leaves(record)), len(traced[0].in_avals)
    return sources(traced[0], [frozenset({k}) if k >= 0 else frozenset[int]()
                               for k in range(wide - count, wide)])


def by_structure(traced: Traced, record: PyTree, clip: Saddle) -> list[str]:
    """Says which leaves of z have a gradient that is computed from no record.

    Args:
      traced: the operator of a record, as `jax.make_jaxpr` with `return_shape` traces it.
      record: shapes of a record.
      clip: per player, None if its gradient is not released.
    """
    still = _said(traced[1], clip, [not x for x in _read(traced, record)])
    return [f"No record moves {still}: the gradient is computed from no record, so that it gets "
            "noise alone. Close over what is not trained."] * bool(still)


def by_features(traced: Traced, record: PyTree) -> list[str]:
    """Says which leaves of a record no gradient is computed from; arguments of `by_structure`."""
    read = frozenset[int]().union(*_read(traced, record))
    unread = [f"record{jax.tree_util.keystr(path)}" for k, (path, _) in enumerate(
        jax.tree_util.tree_leaves_with_path(record)) if k not in read]
    return [f"No gradient is computed from {', '.join(unread)}: leave that out of the data, if the "
            "loss is right."] * bool(unread)


def by_numbers(operator: Callable[[Saddle, PyTree], Saddle], traced: Traced, z: Saddle,
               record: PyTree, clip: Saddle) -> list[str]:
    """Says which further leaves of z have no gradient by synthetic records but rounding errors.

    Args:
      operator: of a record.
      traced: as in `by_structure`.
      z: a point.
      record: shapes of a record.
      clip: per player, None if its gradient is not released.
    """
    keys = iter(jax.random.split(jax.random.key(0), len(jax.tree.leaves((z, record)))))

    def draw(x: Any, *shape: int) -> jax.Array:
        if jnp.issubdtype(x.dtype, jnp.inexact):
            return jax.random.normal(next(keys), (*shape, *x.shape), x.dtype)
        return jax.random.randint(next(keys), (*shape, *x.shape), 0, 2).astype(x.dtype)

    near = jax.tree.map(lambda x: (x + _AWAY * draw(x)).astype(x.dtype), z)
    records = jax.tree.map(lambda x: draw(x, _RECORDS), record)
    each = jax.jit(lambda z, records: jax.lax.map(lambda one: jax.tree.map(
        lambda x: jnp.max(jnp.abs(x), initial=0.0), operator(z, one)), records))(near, records)
    small = []
    for player in each:
        # NaN, where the operator is not defined on such records, is neither large nor small
        largest = [float(np.max(x)) for x in jax.tree.leaves(player)]
        small += [x <= _SMALL * np.nanmax([*largest, 0.0]) for x in largest]
    new = [one and bool(read) for one, read in zip(small, _read(traced, record), strict=True)]
    still = _said(traced[1], clip, new)
    return [f"No synthetic record moves {still}: the gradient is 0, so that it gets noise alone. "
            "Batch normalisation of one record subtracts the record from itself: use LayerNorm or "
            "GroupNorm there. Close over what is not used."] * bool(still)


def by_optimiser(optimiser: Saddle, z: Saddle, clip: Saddle) -> list[str]:
    """Says which leaves of z never move by their gradients, now or later, as by `set_to_zero`.

    Args:
      optimiser: per player a factory `step -> optax.GradientTransformation`, or something else.
      z: a point.
      clip: per player, None if its gradient is not released.
    """
    frozen: list[bool] = []
    for make, x in zip(optimiser, z, strict=True):
        count = len(jax.tree.leaves(x))
        if not callable(make):
            frozen += [False] * count
            continue
        change = make(jnp.float32(1.0))
        program = jax.make_jaxpr(change.update)(x, change.init(x), x)
        own = [frozenset({k}) for k in range(count)]
        state = [frozenset[int]()] * (len(program.in_avals) - 2 * count)
        while True:  # until no gradient reaches more of the state
            results = sources(program, [*own, *state, *[frozenset[int]()] * count])
            if results[count:] == state:
                break
            state = results[count:]
        frozen += [k not in result for k, result in enumerate(results[:count])]
    still = _said(z, clip, frozen)
    return [f"The optimiser never moves {still}, which is clipped and gets noise with the rest: "
            "close over it."] * bool(still)


def by_names(z: Saddle, clip: Saddle) -> list[str]:
    """Says which leaves of z have names, or variables, of running statistics: a guess."""
    marked = tuple(jax.tree_util.keystr(path) for path, x in jax.tree_util.tree_leaves_with_path(
        z, is_leaf=_is_statistic) if _is_statistic(x))
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(z)]
    alike = []
    for path in paths:
        beside = {re.sub(rf"\b{a}\b", b, path) for a, b in (("mean", "var"), ("var", "mean"))}
        alike.append(bool(_STATISTICS.search(path)) or path.startswith(marked)
                     or not beside.isdisjoint({*paths} - {path}))
    still = _said(z, clip, alike)
    return [f"{still} looks like running statistics or a counter, which gradients should not train:"
            " close over it, and normalise as in evaluation."] * bool(still)


def notes(operator: Callable[[Saddle, PyTree], Saddle], traced: Traced, z: Saddle, record: PyTree,
          clip: Saddle, optimiser: Any) -> list[str]:
    """Makes all looks, for `check`.

    Args:
      operator: of a record.
      traced: as in `by_structure`.
      z: a point.
      record: shapes of a record.
      clip: per player, None if its gradient is not released.
      optimiser: as in `by_optimiser`, or of w alone.
    """
    both = optimiser if isinstance(optimiser, Saddle) else Saddle(optimiser, None)
    return [*by_names(z, clip), *by_structure(traced, record, clip), *by_features(traced, record),
            *by_numbers(operator, traced, z, record, clip), *by_optimiser(both, z, clip)]


def _is_statistic(x: Any) -> bool:
    return bool(_STATISTICS.search(type(x).__name__))


def _said(g: Saddle, clip: Saddle, which: Sequence[bool]) -> str:
    """Names leaves of released players, and their share of the numbers; nothing if none is one."""
    leaves = [(f"z{jax.tree_util.keystr(path)}", math.prod(x.shape), is_one)
              for (path, x), is_one in zip(jax.tree_util.tree_leaves_with_path(g), which,
                                           strict=True)
              if getattr(clip, path[0].name) is not None]
    some = [(name, size) for name, size, is_one in leaves if is_one and size]
    names = [name for name, _ in some[:_NAMES]]
    if len(some) > _NAMES:
        names.append(f"{len(some) - _NAMES} more")
    share = f" ({sum(size for _, size in some):,} of {sum(x[1] for x in leaves):,} numbers)"
    return ", ".join(names) + share if names else ""
