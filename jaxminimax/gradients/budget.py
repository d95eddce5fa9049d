"""The number of examples that a clipped sum holds at a time, by a budget of bytes.

By shapes alone, before anything is compiled, a pass over m examples is taken to need

    m (2 kept + live) + 6 sums  bytes:

`kept` the gradients of an example or their factors, which are written down and copied once more
where they are weighted; `live` what a pass computes on its way, the results of all equations of the
loss, twice for the way back; `sums` the numbers of the sum, which there are of a slice, of the
total, of what its additions lost and of the integers of a release. Compilers fuse equations and
use bytes again, so a program mostly takes a fraction of it.
"""

import math
from typing import Any, NamedTuple

import jax

from jaxminimax.base import programs
from jaxminimax.base.types import PyTree, Saddle, SaddleOperator
from jaxminimax.gradients.ghost import planning
from jaxminimax.mechanism.grid import BLOCK

BUDGET = 2**30  # bytes, by default
_ROWS = 8  # that slices are a multiple of
_LARGE = 2**25  # bytes of a pass over factors that are no longer in a cache
_HELD = 2**23  # bytes of one over whole gradients; slices of blocks are as fast, and hold less
_SLICE = 2**19  # bytes of a slice that are: rows and gradients stay in the cache of one core
_PASSES = 8  # times the bytes of the sums that a slice works on at least, or it is slower


class Need(NamedTuple):
    """The memory that a clipped sum needs.

    Attributes:
      record: bytes for each example that is held.
      sums: bytes however many are held.
      full: whether they are whole gradients, and no factors.
    """

    record: int
    sums: int
    full: bool = False

    def bytes(self, rows: int) -> int:
        """The bytes of a pass over so many examples."""
        return rows * self.record + self.sums

    def rows(self, size: int, budget: int) -> int:
        """Returns how many of `size` examples fit at a time; 0 if not one does."""
        # rows record + sums <= budget
        fits = (budget - self.sums) // max(self.record, 1)
        # larger slices than these gain no speed once the gradients leave the cache
        slices = max(_ROWS, max(_SLICE, _PASSES * self.sums) // max(self.record, 1))
        if size * self.record > (_HELD if self.full and slices >= BLOCK else _LARGE):
            fits = min(fits, slices)
        return even(size, fits) if fits > 0 else 0

    def refuse(self, budget: int) -> None:
        """Raises an error that names the gradients that do not fit.

        Raises:
          ValueError: always.
        """
        raise ValueError(
            f"A clipped sum of these shapes needs about {self.bytes(1):,} bytes with one example "
            f"at a time, and may take {budget:,}: allow more with memory=..., of saddle_operator "
            "or with_strategy, or make the model or a record smaller.")

    def moved(self, size: int, rows: int) -> float:
        """Bytes that go through memory: of every example, and of the sums in every slice."""
        return math.inf if not rows else size * self.record + -(-size // rows) * self.sums


def even(size: int, most: int) -> int:
    """Rows of slices of equal length, at most `most`.

    A multiple of 8 if there are so many, and of the rows of a block of a sum on a grid if there are
    so many: what is left of a block is added up by itself, in every slice.
    """
    if most >= size:
        return size
    unit = BLOCK if most >= BLOCK else _ROWS
    most -= most % unit if most > unit else 0
    rows = -(-size // -(-size // most))
    return min(most, -(-rows // unit) * unit)


def of_gradients(operator: Any, z: Saddle, wanted: PyTree, one: PyTree,
                 plan: planning.Plan | None = None) -> Need:
    """Budgets for the gradients of all wanted parameters of each example.

    Args:
      operator: `(z, example) -> g`.
      z: the point, or its shapes and dtypes.
      wanted: the leaves of z whose gradients are wanted.
      one: an example, or its shapes and dtypes.
      plan: of the operator's loss, if it was traced for one.
    """
    if plan is not None or type(operator) is SaddleOperator:
        # once for the loss, once more for the way back
        live = 2 * results(plan.traced if plan else jax.make_jaxpr(operator.loss)(z.w, z.v, one))
    else:
        live = results(jax.make_jaxpr(operator)(z, one))
    # m (2 kept + live) + 6 sums
    return Need(2 * bytes_of(wanted) + live + bytes_of(one), 6 * bytes_of(wanted), full=True)


def of_plan(plan: planning.Plan, wanted: PyTree, one: PyTree) -> Need:
    """Budgets for the parts that a plan keeps of each example; see `of_gradients`."""
    # rows that are multiplied to matrices, such as the pixels that a convolution reads
    as_matrices = [t for t in plan.treatments if t is not None and t.kind in ("matrix", "function")]
    extra = sum([use.rows * sum(use.shape) * _wide(t.dtype) for t in as_matrices for use in t.uses])
    # and matrices of functions of a parameter
    extra += sum([2 * of.numbers * _wide(of.dtype) for t in as_matrices for _, of in t.through])
    return Need(2 * (kept(plan) + results(plan.traced)) + extra + bytes_of(one),
                6 * bytes_of(wanted))


def kept(plan: planning.Plan) -> int:
    """Bytes of the gradients of an example as a plan keeps them."""
    return sum([t.numbers * _wide(t.dtype) for t in plan.treatments if t is not None])


def results(program: Any) -> int:
    """Bytes of the results of all equations of a traced program, those in loops every time."""
    steps = programs.walk(program)
    inside = [hasattr(x, "eqns") for x, _ in steps[1:]]  # whether a program follows in an equation
    total = 0
    for (x, times), has_program in zip(steps, [*inside, False], strict=True):
        # an equation with a program in it is counted by the equations of that
        if hasattr(x, "primitive") and x.outvars and not has_program:
            out = x.outvars[0].aval
            total += times * math.prod(getattr(out, "shape", ())) * getattr(
                getattr(out, "dtype", None), "itemsize", 8)
    return total


def _wide(dtype: Any) -> int:
    return max(4, getattr(dtype, "itemsize", 8))


def bytes_of(tree: PyTree) -> int:
    """The bytes of gradients, which are at least float32, or of records."""
    return sum([math.prod(x.shape) * _wide(x.dtype) for x in jax.tree.leaves(tree)])
