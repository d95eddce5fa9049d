"""Finds parameters that no record moves, and parts of a record that move none.

Such a parameter is clipped and gets noise like the others, and learns nothing. Three looks find
them: at what a traced gradient is computed from, at names, and at gradients of synthetic records.
None reads a record, and none refuses.

*Structure.* A gradient that is not computed from the record is the same for all records. Operations
with a loop or a branch inside count as computing each result from each operand. So what is named
is true, and something may stay unnamed. It takes under a millisecond of a model with ten leaves, so
that every run makes it.

*Names.* Running statistics that are trained like parameters are moved by records, and only their
names tell: those of `batch_stats` and the like, and a mean and a variance next to each other.

*Numbers.* Batch normalisation subtracts from a record the mean of its batch. Of one record, that is
the record, and the layer before it has a gradient of rounding errors. The gradients are taken at
z + 0.1 N(0, I). At z itself, a factor that starts at zero would hide the one that it multiplies, as
in x (W + A B) with B = 0, and in an embedding that starts at zero.
"""

import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax.base import checks, programs, tree
from jaxminimax.base.types import PyTree, Saddle

_NONE: frozenset[int] = frozenset()


class UnmovedWarning(UserWarning):
    """Something that a run cannot learn, or a part of the records that it does not use."""


def notes(program: Any, value: Saddle, z: Saddle, record: PyTree, clip: Saddle,
          numbers: bool = False) -> list[str]:
    """Says what structure and names tell, and what numbers do.

    Args:
      program: the traced operator, of a point and a record.
      value: shapes of its value.
      z: the point.
      record: shapes of a record.
      clip: per player, None if its gradient is not released.
      numbers: whether gradients of synthetic records are computed.
    """
    # by number, the leaves of the record that each leaf of the value is computed from
    names, paths = tree.paths("record", record), tree.paths("z", z)
    read = _sources(program.jaxpr, [*[_NONE] * (len(program.in_avals) - len(names)),
                                    *(frozenset({k}) for k in range(len(names)))])
    unread = [name for k, name in enumerate(names) if k not in _NONE.union(*read)]
    statistics = re.compile("batch_?stat|running_|moving_|num_batches|counter", re.IGNORECASE)
    moment = re.compile(r"\b(mean|var)\b(?=\W*(value\W*)?$)")  # at the end of a leaf's path
    partners = [moment.sub(lambda x: {"mean": "var", "var": "mean"}[x[0]], path) for path in paths]
    small = _small(program, value, z, record) if numbers else [False] * len(read)
    # made by the operator itself, or closed over: it is no input that changes
    fixed = [x for x in programs.equations(program) if x.primitive.name == "random_seed" and all(
        hasattr(seed, "val") for seed in x.invars)] or [
            x for x in programs.constants(program) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key)]
    return [
        *["The operator draws from a key that it closes over, the same mask or shift for every "
          "record in all rounds: use Problem(random=True), whose operator gets a key of its own "
          "for each."] * bool(fixed),
        *_named(z, clip, [bool(statistics.search(path)) or (path != partner and partner in paths)
                         for path, partner in zip(paths, partners, strict=True)],
                "{} looks like running statistics or a counter: close over it, and use the "
                "statistics as evaluation mode does."),
        *_named(value, clip, [not x for x in read],
                "No record moves {}, which gets noise alone: close over what is not trained."),
        *_named(value, clip, [x and bool(y) for x, y in zip(small, read, strict=True)],
                "No synthetic record moves {}, which gets noise alone. Batch normalisation of one "
                "record subtracts the record from itself: use LayerNorm or GroupNorm. Close over "
                "what is not used."),
        *[f"No gradient is computed from {', '.join(unread)}: leave that out of the data, if the "
          "loss is right."] * bool(unread)]


def by_optimiser(optimiser: Any, z: Saddle, clip: Saddle) -> list[str]:
    """Says which leaves of z never move by their gradients, now or later, as by `set_to_zero`.

    Args:
      optimiser: a factory `step -> optax.GradientTransformation` of each player, or of w alone;
        anything else is not looked at.
      z: the point.
      clip: per player, None if its gradient is not released.
    """
    frozen: list[bool] = []
    optimisers = optimiser if isinstance(optimiser, Saddle) else (optimiser, None)
    for name, make, x in zip(Saddle._fields, optimisers, z, strict=True):
        count = len(jax.tree.leaves(x))
        inputs, results = [frozenset({k}) for k in range(count)], list[frozenset[int]]()
        if callable(make):
            change = make(jnp.float32(1.0))
            program = jax.make_jaxpr(functools.partial(
                checks.without_value, f"optimiser.{name}", change.update))(
                    x, jax.eval_shape(change.init, x), x)
            results, previous = [_NONE] * (len(program.in_avals) - count), list[frozenset[int]]()
            while results != previous:  # until no gradient reaches more of the state
                previous = results
                results = _sources(program.jaxpr, [*inputs, *previous[count:], *[_NONE] * count])
        frozen += [k not in result for k, result in enumerate((results or inputs)[:count])]
    return _named(z, clip, frozen, "The optimiser never moves {}, which is clipped and gets noise "
                                   "with the rest: close over it.")


def _small(program: Any, value: Saddle, z: Saddle, record: PyTree) -> list[bool]:
    """Which leaves of the value are rounding errors for synthetic records; as of `notes`."""
    rng = np.random.default_rng(0)

    def draw(x: Any, *lead: int) -> Any:
        shape = (*lead, *x.shape)
        return (rng.normal(size=shape) if jnp.issubdtype(x.dtype, jnp.inexact) else
                rng.integers(0, 2, shape)).astype(x.dtype)

    @jax.jit
    def largest(z: Saddle, records: PyTree) -> list[jax.Array]:
        return jax.lax.map(lambda example: [
            jnp.max(jnp.abs(x), initial=0.0) for x in jax.core.eval_jaxpr(
                program.jaxpr, program.consts, *jax.tree.leaves((z, example)))], records)

    nearby = jax.tree.map(lambda x: x + np.asarray(0.1 * draw(x), x.dtype), z)
    sizes = largest(nearby, jax.tree.map(lambda x: draw(x, 32), record))
    players = jax.tree.unflatten(jax.tree.structure(value), [float(np.max(x)) for x in sizes])
    # derivatives below 1e-6 of the player's largest are rounding errors
    # NaN, where the operator is not defined on such records, is neither large nor small
    return [x <= 1e-6 * np.nanmax([0.0, *jax.tree.leaves(player)])
            for player in players for x in jax.tree.leaves(player)]


def _sources(program: Any, inputs: list[frozenset[int]]) -> list[frozenset[int]]:
    """The numbers that each result of a jaxpr may be computed from, by those of its inputs."""
    read_from = dict(zip(program.invars, inputs, strict=True))

    def read(x: Any) -> frozenset[int]:
        return _NONE if hasattr(x, "val") else read_from.get(x, _NONE)

    for equation in program.eqns:
        operands, inner = [read(x) for x in equation.invars], programs.called(equation)
        results = (_sources(getattr(inner, "jaxpr", inner), operands) if inner is not None else
                   [_NONE.union(*operands)] * len(equation.outvars))
        read_from.update(zip(equation.outvars, results, strict=True))
        # a Ref may be written to
        read_from |= {x: _NONE.union(*operands) for x in equation.invars
                      if hasattr(x.aval, "inner_aval")}
    return [read(x) for x in program.outvars]


def _named(z: Saddle, clip: Saddle, flags: list[bool], text: str) -> list[str]:
    """Names leaves of released players in a text, with their share; no text if none is one."""
    leaves = [(path, x.size, is_one) for path, x, is_one in zip(
        tree.paths("z", z), jax.tree.leaves(z), flags, strict=True)
        if getattr(clip, path[2]) is not None]  # z.w or z.v
    flagged = [(path, size) for path, size, is_one in leaves if is_one and size]
    limit = 5  # names in a sentence
    shown = ", ".join(path for path, _ in flagged[:limit])
    shown += f" and {len(flagged) - limit} more" * (len(flagged) > limit)
    share = f"({sum(size for _, size in flagged):,} of {sum(x[1] for x in leaves):,} numbers)"
    return [text.format(f"{shown} {share}")] * bool(flagged)
