"""Checks that the operator of a record reads that record only, by its traced program.

Sensitivities rest on it: clipping bounds what a record adds by its own operator, not what it does
to the operators of others. Found are mistakes, such as statistics of a batch or a loss that
contrasts a record with the others. What a program cannot show stays assumed, and statements say so:
numbers that were computed from the data beforehand, such as a mean, look like any others.

A record leaves by its clipped operator alone, so a program that tells the host what it computes, by
a print or a callback without a result, is refused too.
"""

import inspect
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax.base import checks, programs, tree
from jaxminimax.base.types import PyTree
from jaxminimax.placement import host_data, sharding

_TELLING = 16  # an axis as long as the data means something from this length on


def check(function: Callable[[PyTree, PyTree], PyTree], point: PyTree, data: PyTree, axes: int = 1,
          sizes: tuple[int, ...] = (), drawn: bool = False) -> tuple[Any, PyTree, PyTree]:
    """Refuses an operator or a loss that sees more of the data than the record it is given.

    One trace on the shapes of one record, with the programs inside its operations: those of control
    flow, and those that are handed to an operation as a parameter. Refused are

    * prints, callbacks and other calls of the host, whatever they are handed, since a record may
      also decide whether they happen. A call without side effects that gets one record at a time is
      let through: its result is clipped like any number; what else that code does with the record,
      no program shows;
    * functions with a batching rule of their own (`custom_vmap`), keys of a device's own generator,
      and collectives over named axes: under the vmap over records they see all;
    * arrays that the function closes over and that are one of the data's, or have a leading axis as
      long as the data. Lengths below 16 are not compared, nor those of an axis of the point or of a
      record: matrices that act on these are the likelier explanation.

    Args:
      function: `(point, record) -> anything`.
      point: where it is evaluated.
      data: leaves `[n, ...]`, on a mesh or sent ahead; `[p, n_max, ...]` with two axes.
      axes: leading axes that number the records.
      sizes: of the groups, where their rows are padded.
      drawn: whether the function draws, so that a record has the words of a key with it.

    Returns:
      The traced program, and shapes and dtypes of the function's value and of a record. What the
      function itself raises on a record gets a note with the record's shapes.

    Raises:
      ValueError: naming what reads other records and the way out; for arithmetic that is not sound.
    """
    checks.exact_arithmetic()
    rows, lead = _records(data, axes)
    # shapes without the axes that number the records
    record = jax.tree.map(lambda x: jax.ShapeDtypeStruct(
        np.shape(x)[lead:], jnp.result_type(x)), rows)

    def value_on_record(point: PyTree, record: PyTree) -> PyTree:
        return function(point, (record, jnp.zeros(2, jnp.uint32)) if drawn else record)

    try:
        # traced on shapes, so that no record is read
        traced, value = jax.make_jaxpr(value_on_record, return_shape=True)(point, record)
    except NameError as error:
        if "axis name" not in str(error):
            raise
        raise ValueError("The operator uses a collective over an axis that it does not make itself "
                         f"({error}): it would read other records. Write it for one record, "
                         "without axis names.") from error
    except Exception as error:
        error.add_note(f"This was raised on one record of shapes {jax.tree.map(np.shape, record)}, "
                       f"at a point of shapes {jax.tree.map(np.shape, point)}. A loss is of one "
                       "record: of a batch, take out its vmap and mean, or give the model x[None].")
        raise
    _check_equations(programs.equations(traced))
    # an axis as long as one of the point or of a record proves nothing
    record_lengths = {length for x in jax.tree.leaves((point, record)) for length in np.shape(x)}
    telling = {n for n in (sum(sizes), *_lengths(data, rows, axes)) if n >= _TELLING}
    lengths = telling - record_lengths
    for x in programs.constants(traced):
        _check_closed_over(x, rows, lengths, axes, sizes)
    return traced, value, record


def check_constants(program: Any, data: PyTree, name: str = "The operator") -> None:
    """Refuses a traced program that closes over one of the data's own arrays.

    For programs that are kept: `check` saw the data of the call that traced them, or their shapes.

    Args:
      program: a traced release, or a run of them; or another function that may not read rows.
      data: leaves whose numbers are known, or on a mesh.
      name: what closes over it, for the message.

    Raises:
      ValueError: naming the array's shape and the way out.
    """
    rows, _ = _records(data, 1)
    for x in programs.constants(program):
        _check_closed_over(x, rows, set(), 1, name=name)


def _records(data: PyTree, axes: int) -> tuple[PyTree, int]:
    """The rows, and how many of their leading axes number them."""
    if isinstance(data, host_data.HostData):  # readers have no numbers here
        return [x for x in jax.tree.leaves(data.rows) if isinstance(x, np.ndarray)], axes
    if isinstance(data, host_data.Window):
        return data.rows, 2  # [k, c, ...] of releases and slots
    return (data.rows if isinstance(data, sharding.Sharded) else data), axes


def _lengths(data: PyTree, rows: PyTree, axes: int) -> set[int]:
    """Lengths of an array with one number, or more, for each record."""
    lengths = {data.population} if isinstance(data, host_data.Window | sharding.Sharded) else set()
    if not isinstance(data, host_data.Window):
        for x in jax.tree.leaves(rows):
            shape = np.shape(x)[:axes]
            # the rows of a group, and those of all groups together
            lengths |= {shape[-1], math.prod(shape)}
    return lengths


def _check_equations(equations: list[Any]) -> None:
    """One pass over a traced program, since every round of a run is checked when it is traced."""
    for equation in equations:
        name, params = equation.primitive.name, equation.params
        # the library's own rule looks at a mask and no more
        if name == "custom_vmap_call" and inspect.unwrap(
                params.get("rule"), stop=lambda x: x is tree.any_lane_rule) is not (
                    tree.any_lane_rule):
            raise ValueError("The operator calls a function with a batching rule of its own "
                             "(custom_vmap), which is handed all records of a batch at once: write "
                             "it for one record, without custom_vmap or sequential_vmap.")
        if programs.calls_host(equation) and (params.get("has_side_effect") or not str(
                params.get("vmap_method")).startswith("sequential")):
            raise ValueError(f"The operator calls the host ({name}, {programs.line(equation)}): "
                             "prints and callbacks see records without noise. Leave them out, or "
                             "compute a number by jax.pure_callback, vmap_method='sequential'.")
        if name in ("rng_bit_generator", "rng_uniform") or any(
                "rbg" in str(getattr(x.aval, "dtype", ""))
                for x in (*equation.invars, *equation.outvars)):
            raise ValueError("The operator draws from a key of a device's own generator (rbg), "
                             "which draws for all records of a batch at once, from the first one's "
                             "key: use impl='threefry2x32', or a problem with random=True.")
        # axes of a vmap or a mesh; those of the record's own arrays are numbers
        named = [x for x in jax.tree.leaves((params.get("axes"), params.get("axis_name")))
                 if not isinstance(x, int | np.integer)]
        if named:
            raise ValueError(f"The operator uses the collective {name} over {named}, so it reads "
                             "what other records or runs compute: write it for one record, without "
                             "axis names.")


def _check_closed_over(x: Any, rows: PyTree, lengths: set[int], axes: int,
                       sizes: tuple[int, ...] = (), name: str = "The operator") -> None:
    shape = np.shape(x)
    if not shape:
        return
    leaves = jax.tree.leaves(rows)
    # the data's array itself, or one with the same numbers
    is_data = any(x is leaf or _equal(x, leaf, axes, sizes) for leaf in leaves)
    # an entry for each group and row, [p, n_max, ...]
    grouped = axes > 1 and math.prod(shape[:axes]) >= _TELLING and any(
        shape[:axes] == np.shape(leaf)[:axes] for leaf in leaves)
    if is_data or grouped or shape[0] in lengths:
        text = ("one of the data's own arrays" if is_data else
                "which has as many rows as the data have records")
        raise ValueError(
            f"{name} closes over an array of shape {shape}, {text}: what it reads of other "
            "records is not clipped, and not charged. Make it a part of the record, or release it "
            "first. An array that is public, and has this length by chance, can be given another "
            "leading axis: close over array[None] and read [0] of that inside.")


def _equal(x: Any, leaf: Any, axes: int, sizes: tuple[int, ...]) -> bool:
    """Returns whether the numbers of two arrays are known here and equal.

    Rows of groups, `[p, n_max, ...]`, may also follow each other in `x`, with padding or without.
    """
    # short arrays may agree by chance; traced and remote ones have no numbers here
    if np.size(x) < _TELLING or any(
            isinstance(a, jax.core.Tracer) or not getattr(a, "is_fully_addressable", True)
            for a in (x, leaf)):
        return False
    shape, lead = np.shape(leaf), np.shape(leaf)[:axes]
    if np.shape(x) == shape:
        return np.array_equal(np.asarray(x), np.asarray(leaf))
    if len(lead) < 2 or np.shape(x)[1:] != shape[2:] or len(x) not in (sum(sizes), math.prod(lead)):
        return False
    rows = np.asarray(leaf).reshape(-1, *shape[2:])
    if np.array_equal(x, rows) or not sizes:
        return np.array_equal(x, rows)
    is_record = np.arange(lead[1]) < np.asarray(sizes)[:, None]
    return np.array_equal(x, rows[is_record.reshape(-1)])
