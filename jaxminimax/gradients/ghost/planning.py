"""The plan of a loss: how each parameter's gradient is kept, found and added up.

And the number of examples that a clipped sum holds at a time, by a budget of bytes. By shapes
alone, before anything is compiled, a pass over m examples is taken to need

    m (2 kept + live) + 6 sums  bytes:

`kept` the gradients of an example or their factors, which are written down and copied once more
where they are weighted; `live` what a pass computes on its way, the results of all equations of the
loss, twice for the way back; `sums` the numbers of the sum, which there are of a slice, of the
total, of what its additions lost and of the integers of a release. Compilers fuse equations and
use bytes again, so a program mostly takes a fraction of it.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxminimax.base import programs
from jaxminimax.base.tree import materialise_rows
from jaxminimax.base.types import PyTree, Saddle, SaddleOperator
from jaxminimax.gradients import summation
from jaxminimax.gradients.ghost.search import Place, derived, pulled_back, search
from jaxminimax.gradients.ghost.trace import Flat, Path, flatten, moved, run, tap
from jaxminimax.gradients.ghost.treatment import Factors, Treatment, gathered, treatment_of
from jaxminimax.gradients.ghost.uses import Use
from jaxminimax.mechanism.grid import BLOCK

_ROWS = 8  # that slices are a multiple of


class Plan(NamedTuple):
    """A plan for the per-example gradients of a loss.

    Attributes:
      traced: the loss of one example.
      flat: the same as steps.
      treatments: of each leaf of w and then of v; None for those that are not wanted.
      names: of the leaves.
      leaves: numbers of leaves of w and v.
    """

    traced: Any
    flat: Flat
    treatments: tuple[Treatment | None, ...]
    names: tuple[str, ...]
    leaves: Saddle

    @property
    def gains(self) -> bool:
        """True if a large gradient is kept as less than a matrix, or a convolution is unrolled."""
        return self.convolves or any(t.uses and t.kind not in ("matrix", "function")
                                     for t in self._large)

    @property
    def convolves(self) -> bool:
        """Returns whether a large convolution is unrolled: its gradients one by one are slow."""
        return any(use.kind == "convolution" for t in self._large for use in t.uses)

    @property
    def _large(self) -> list[Treatment]:
        # of fewer numbers, a plain gradient is as fast
        return [t for t in self.treatments if t is not None and math.prod(t.shape) >= 16]

    def example_gradients(self, z: Saddle, example: PyTree) -> list[Any]:
        """The gradient of each leaf of w and v by the loss of one example, as it is kept."""
        parameters = jax.tree.leaves(z)
        treated = {k: t for k, t in enumerate(self.treatments) if t is not None}
        direct = {k: parameters[k] for k, t in treated.items() if t.kind == "vmap"}
        watched: dict[Path, set[int]] = {}
        for treatment in treated.values():
            for use in treatment.uses:
                for step, operand in use.operands:
                    watched.setdefault(step, set()).add(operand)

        def loss(taps: dict[Any, Any], direct: dict[int, Any]) -> tuple[jax.Array, Any]:
            w_and_v = [direct.get(k, x) for k, x in enumerate(parameters)]
            (value,), met = run(self.flat, [*w_and_v, *jax.tree.leaves(example)], taps, watched)
            return value, met

        # zeros: the derivative by a tap is that by the step's result, at the same point
        taps = {use.step: tap(self.flat, use.step) for t in treated.values() for use in t.uses}
        (d, g), met = jax.grad(loss, (0, 1), has_aux=True)(taps, direct)

        def factors(use: Use) -> tuple[jax.Array, jax.Array]:
            return use.factors([met[place] for place in use.operands], d[use.step])

        # by way of W = h(P): the derivative by W, pulled back to P
        functions = {k: t for k, t in treated.items() if t.kind == "function"}
        g |= pulled_back(self.flat, functions, parameters, factors) if functions else {}

        def kept_gradient(k: int) -> Any:
            t = treated.get(k)
            if t is None or t.kind == "unused":
                return None
            return g[k] if k in g else gathered(t, factors)

        return [kept_gradient(k) for k in range(len(parameters))]

    def _factors(self, example: PyTree) -> dict[tuple[int, int], jax.Array]:
        """Factors x of rank one, by leaf and part, that are numbers of the example as they are."""
        values = moved(self.flat, jax.tree.leaves(example))
        factors = {}
        for k, t in enumerate(self.treatments):
            for j, part in enumerate(() if t is None or t.kind != "rank one" else t.parts):
                (use,) = part.uses
                if use.folded:
                    continue
                (step, operand), *scalars = use.operands
                slot = self.flat.steps[step[0]].operands[operand] if len(step) == 1 else None
                if slot in values:
                    # x is the same whatever d and the scalars are
                    zeros = tap(self.flat, use.step)
                    factors[k, j] = use.factors([values[slot], *(
                        jnp.zeros(()) for _ in scalars)], zeros)[0]
        return factors

    def gradients(self, z: Saddle, examples: PyTree, mask: jax.Array) -> Saddle:
        """Lists, for each player, the per-example gradients of the loss by each leaf.

        One pass: `Factors`, or arrays `[b, ...]`; None for a leaf that is not used or not wanted.
        All that was computed is held; what was only read need not be copied.
        """
        factors = jax.vmap(self._factors)(examples)

        def filled(x: Any, k: int, factor_of: Callable[[jax.Array, tuple[int, int]], Any]) -> Any:
            if not isinstance(x, Factors):
                return x
            return x._replace(x=tuple(factor_of(a, (k, j)) for j, a in enumerate(x.x)))

        def computed() -> list[Any]:
            leaves = summation.each(self.example_gradients, z, examples)
            return [filled(x, k, lambda a, place: None if place in factors else a)
                    for k, x in enumerate(leaves)]

        leaves = [filled(x, k, lambda a, place: factors.get(place, a))
                 for k, x in enumerate(materialise_rows(computed))]
        return self.by_player(leaves)

    def by_player(self, leaves: Sequence[Any]) -> Saddle:
        """Splits values into those of the leaves of w and those of v."""
        return Saddle(leaves[: self.leaves.w], leaves[self.leaves.w:])

    def by_way(self) -> str:
        """The table in a line for each way in which gradients are kept, the largest part first."""
        ways: dict[str, list[tuple[int, str]]] = {}
        for name, t in zip(self.names, self.treatments, strict=True):
            if t is not None:
                ways.setdefault(str(t), []).append((t.numbers, name))
        return "\n".join(
            f"{sum(n for n, _ in leaves):,} numbers a row for {leaves[0][1]}"
            + f" and {len(leaves) - 1} more" * (len(leaves) > 1) + f": {treatment}"
            for treatment, leaves in sorted(ways.items(), key=lambda x: -sum(n for n, _ in x[1])))

    def __str__(self) -> str:
        rows = [(name, str(list(t.shape)), f"{t.numbers:,}", f"{t.bytes:,}", str(t))
                for name, t in zip(self.names, self.treatments, strict=True) if t is not None]
        rows.insert(0, ("parameter", "shape", "numbers kept an example", "bytes", "how"))
        widths = [max(len(row[i]) for row in rows) for i in range(4)]
        return "\n".join("  ".join([*(cell.ljust(n) for cell, n in zip(row, widths, strict=False)),
                                    row[-1]]) for row in rows)


def plan(loss: Callable[[PyTree, PyTree, PyTree], jax.Array], z: Saddle, example: PyTree,
         wanted: Saddle) -> Plan | None:
    """Traces the loss of one example and decides how each parameter is treated, by shapes alone.

    Args:
      loss: `(w, v, example) -> []`.
      z: the point; arrays.
      example: one example, or its shapes and dtypes.
      wanted: per player, whether its gradient is wanted.

    Returns:
      None for a loss that can be traced once only: a derivative rule of its own closes over values
      of the trace.
    """
    traced = jax.make_jaxpr(loss)(z.w, z.v, example)
    flat = flatten(traced)
    sizes = Saddle(*(len(jax.tree.leaves(x)) for x in z))
    named: Sequence[Any] = jax.tree_util.tree_flatten_with_path(z)[0]
    players = [wanted.w] * sizes.w + [wanted.v] * sizes.v
    uses = search(flat, {flat.inputs[k]: [Place(k)] for k, want in enumerate(players) if want},
                  set(flat.inputs[: len(players)]))
    chosen = {k: treatment_of(uses[k], named[k][1]) for k in uses}
    chosen |= derived(flat, {k: named[k][1] for k, t in chosen.items() if t.kind == "vmap"},
                      len(players))
    treatments = tuple(chosen.get(k) for k in range(len(named)))
    names = tuple(jax.tree_util.keystr(path).lstrip(".") for path, _ in named)
    result = Plan(traced, flat, treatments, names, sizes)
    if any([x.primitive.name.startswith("custom") for x in programs.equations(traced)]):
        # a custom rule that closes over values of the first trace fails in a second one
        try:
            retraced = jax.make_jaxpr(result.example_gradients)(z, example)
        except jax.errors.UnexpectedTracerError:
            return None
        constant_ids = {id(x) for x in traced.consts}
        if any(isinstance(x, jax.core.Tracer) and id(x) not in constant_ids
               for x in retraced.consts):
            return None
    return result


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
        # on a CPU larger slices than these gain no speed once the gradients leave the cache; other
        # devices start every kernel anew for each slice
        # 512 KiB of rows and gradients stay in the cache of one core; a slice of less than eight
        # times the bytes of the sums is slower
        slices = max(_ROWS, max(2**19, 8 * self.sums) // max(self.record, 1))
        # factors of 32 MiB are in no cache any longer; of whole gradients, slices of blocks are as
        # fast, and hold less
        cached = 2**23 if self.full and slices >= BLOCK else 2**25
        if jax.default_backend() == "cpu" and size * self.record > cached:
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


def even(size: int, most_rows: int) -> int:
    """Rows of slices of equal length, at most `most`.

    A multiple of 8 if there are so many, and of the rows of a block of a sum on a grid if there are
    so many: what is left of a block is added up by itself, in every slice.
    """
    if most_rows >= size:
        return size
    unit = BLOCK if most_rows >= BLOCK else _ROWS
    most_rows -= most_rows % unit if most_rows > unit else 0
    rows = -(-size // -(-size // most_rows))
    return min(most_rows, -(-rows // unit) * unit)


def need_of_gradients(operator: Any, z: Saddle, wanted: PyTree, one: PyTree,
                 plan: Plan | None = None) -> Need:
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


def need_of_plan(plan: Plan, wanted: PyTree, one: PyTree) -> Need:
    """Budgets for the parts that a plan keeps of each example; see `need_of_gradients`."""
    # rows that are multiplied to matrices, such as the pixels that a convolution reads
    as_matrices = [t for t in plan.treatments if t is not None and t.kind in ("matrix", "function")]
    extra = sum([use.rows * sum(use.shape) * _wide(t.dtype) for t in as_matrices for use in t.uses])
    # and matrices of functions of a parameter
    extra += sum([2 * function.numbers * _wide(function.dtype)
                  for t in as_matrices for _, function in t.through])
    return Need(2 * (kept(plan) + results(plan.traced)) + extra + bytes_of(one),
                6 * bytes_of(wanted))


def kept(plan: Plan) -> int:
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
