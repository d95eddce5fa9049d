"""Per-example gradients of a loss without their matrices, from one forward and backward pass.

The loss of one example is traced and searched for the places where a parameter meets something in a
product, a convolution or an embedding (`_uses`). A zero is added to what comes out there, and the
derivative by that zero, together with what the parameter met, says all about its gradient
(`_factors`). One pass over the batch gives both for all parameters of both players; norms and
clipped sums are made of them. Parameters whose use is not understood, and those whose matrix is no
larger than its factors, get their per-example gradient.

Source: Goodfellow, "Efficient per-example gradient computations", arXiv:1510.01799, for the norms
of rank one; Li, Tramer, Liang and Hashimoto, "Large language models can be strong differentially
private learners", ICLR 2022, for those with shared positions; Bu, Wang, Zha and Karypis,
"Differentially private optimization on large model at small cost", ICML 2023, for the single pass.
Departures: the structure is read off the traced loss instead of from layers, two players share the
pass, rounding is bounded (`_factors`), and parameters may be used several times.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax import integer_sums
from jaxminimax._held import held
from jaxminimax._tree import EXACT, at_least_float32
from jaxminimax._types import Saddle, Tree
from jaxminimax.ghost._factors import (
    balanced,
    merged,
    norms,
    outer,
    outer_blocks,
    rows_on_grid,
    silenced,
    weighted_outer,
    weighted_rows,
)
from jaxminimax.ghost._flat import Flat, flatten, moved, run
from jaxminimax.ghost._uses import Use, find, matrix_of, unseen
from jaxminimax.integer_sums import Leaf, Words
from jaxminimax.mechanism import BLOCK

_LARGE = 16  # numbers of a parameter below which its plain gradient is as fast

__all__ = ["Factors", "Plan", "plan"]


class Treatment(NamedTuple):
    """How the gradient of one parameter is kept.

    Attributes:
      kind: "unused", "rank one", "Gram", "rows", "matrix" or "vmap".
      uses: of the parameter; empty for "vmap".
      turned: for each use, whether its x and d change places.
      reason: why "vmap".
      shape: of the parameter.
      dtype: of the parameter.
    """

    kind: str
    uses: tuple[Use, ...]
    turned: tuple[bool, ...]
    reason: str
    shape: tuple[int, ...]
    dtype: Any

    @property
    def numbers(self) -> int:
        """What is kept for each example."""
        size = math.prod(self.shape)
        if self.kind in ("matrix", "vmap"):
            return size
        rows = sum(use.rows for use in self.uses)
        grams = 2 * rows**2 if self.kind == "Gram" else 0
        return sum(use.rows * sum(use.shape) for use in self.uses
                   ) + grams if self.kind != "rows" else rows * (1 + self.uses[0].shape[1])

    def __str__(self) -> str:
        rows = sum(use.rows for use in self.uses)
        words = {
            "unused": "not used, so its gradient is 0",
            "rank one": "rank one, |x| |d|",
            "Gram": f"Gram products of {rows} rows",
            "rows": f"the {rows} row{'s' * (rows > 1)} that are looked up",
            "matrix": f"per-example gradient, from {rows} rows",
            "vmap": f"per-example gradient, vmap because {self.reason}",
        }
        return words[self.kind]


class Factors(NamedTuple):
    """A batch of gradients of one parameter as sum_t x_t d_t^T, or as rows of a table.

    Attributes:
      x: `[b, t, k]`, or the numbers of the rows `[b, t]`.
      d: `[b, t, o]`.
    """

    x: jax.Array
    d: jax.Array

    def stand_in(self) -> jax.Array:
        """Numbers `[b, ...]` with the norms of the gradients."""
        return self.d if self.x.ndim == 2 else norms(self.x, self.d)


class Silenced(NamedTuple):
    """`Factors` of weighted gradients that are finite, the one with fewer numbers last."""

    x: jax.Array
    d: jax.Array


def is_kept(x: Any) -> bool:
    """Whether `x` is a gradient that is kept as factors."""
    return isinstance(x, Factors | Silenced)


def _treatment(found: list[Use] | str, leaf: jax.Array) -> Treatment:
    shape, dtype = leaf.shape, leaf.dtype

    def fall_back(reason: str) -> Treatment:
        return Treatment("vmap", (), (), reason, shape, dtype)

    if isinstance(found, str):
        return fall_back(found)
    if not found or not math.prod(shape):
        return Treatment("unused", (), (), "", shape, dtype)
    uses, kinds = tuple(found), {use.kind == "lookup" for use in found}
    if len(kinds) > 1:
        return fall_back("both looked up and multiplied")
    rows = sum(use.rows for use in uses)
    turned = (False,) * len(uses)
    if kinds == {True}:
        if rows >= uses[0].shape[0]:
            return fall_back(f"{rows} lookups of {uses[0].shape[0]} rows")
        return Treatment("rows", uses, turned, "", shape, dtype)
    if len({(use.view, use.shape) for use in uses}) > 1:
        first, *others = (matrix_of(use, shape) for use in uses)
        same = [np.array_equal(first, one) for one in others]
        if not all(a or np.array_equal(first, b.T) for a, b in zip(same, others, strict=True)):
            return fall_back("used as matrices of different rows")
        turned = (False, *(not a for a in same))
    k, o = uses[0].shape
    kind = "rank one" if rows == 1 else "Gram" if rows * (k + o + 2 * rows) < k * o else "matrix"
    return Treatment(kind, uses, turned, "", shape, dtype)


def _gathered(treatment: Treatment, pairs: list[tuple[jax.Array, jax.Array]]) -> Any:
    """What is kept of one example's gradient: factors, or the gradient itself."""
    if treatment.kind == "rows":
        rows = jnp.concatenate([x for x, _ in pairs])
        d = jnp.concatenate([d for _, d in pairs])
        return Factors(rows, merged(rows, d, treatment.uses[0].shape[0]))
    pairs = [(d, x) if turn else (x, d)
             for (x, d), turn in zip(pairs, treatment.turned, strict=True)]
    x, d = (jnp.concatenate(a) if len(a) > 1 else a[0] for a in zip(*pairs, strict=True))
    if treatment.kind == "rank one":
        return Factors(x, d)
    if treatment.kind == "Gram":
        return Factors(*balanced(x, d))
    dtype = at_least_float32(jnp.result_type(x, d))
    # XLA's CPU compiler is fast at products along the last axis only; the barrier keeps them so
    x = jax.lax.optimization_barrier(x.astype(dtype).T)
    g = jnp.einsum("kt,to->ko", x, d.astype(dtype), precision=EXACT)
    return unseen(treatment.uses[0].view, g)


class Plan(NamedTuple):
    """How to get the per-example gradients of a loss.

    Attributes:
      flat: the loss as steps.
      treatments: of each leaf of w and then of v; None for those that are not wanted.
      names: of the leaves.
      leaves: numbers of leaves of w and v.
    """

    flat: Flat
    treatments: tuple[Treatment | None, ...]
    names: tuple[str, ...]
    leaves: Saddle

    @property
    def gains(self) -> bool:
        """Whether a large gradient is kept as less than a matrix, or a convolution is unrolled."""
        large = [t for t in self.treatments if t is not None and math.prod(t.shape) >= _LARGE]
        return any(use.kind == "convolution" or t.kind != "matrix" for t in large for use in t.uses)

    def of_one(self, z: Saddle, example: Tree) -> list[Any]:
        """The gradient of each leaf of w and v by the loss of one example, as it is kept."""
        parameters = jax.tree.leaves(z)
        known = {k: t for k, t in enumerate(self.treatments) if t is not None}
        direct = {k: parameters[k] for k, t in known.items() if t.kind == "vmap"}
        watched: dict[int, set[int]] = {}
        for treatment in known.values():
            for use in treatment.uses:
                watched.setdefault(use.step, set()).add(use.operand)

        def loss(taps: dict, direct: dict) -> tuple[jax.Array, dict]:
            w_and_v = [direct.get(k, x) for k, x in enumerate(parameters)]
            return run(self.flat, [*w_and_v, *jax.tree.leaves(example)], taps, watched)

        outputs = {k: self.flat.steps[k].out for k in watched}
        taps = {k: jnp.zeros(out.shape, out.dtype) for k, out in outputs.items()}
        (d, g), met = jax.grad(loss, (0, 1), has_aux=True)(taps, direct)

        def kept(k: int) -> Any:
            t = known.get(k)
            if t is None or t.kind == "unused":
                return None
            return g[k] if t.kind == "vmap" else _gathered(
                t, [use.factors(met[use.step, use.operand], d[use.step]) for use in t.uses])

        return [kept(k) for k in range(len(parameters))]

    def _given(self, example: Tree) -> dict[int, jax.Array]:
        """The factors x of rank one, by leaf, that are numbers of the example as they stand."""
        values = moved(self.flat, jax.tree.leaves(example))
        found = {}
        for k, t in enumerate(self.treatments):
            if t is not None and t.kind == "rank one":
                (use,) = t.uses
                slot, out = (self.flat.steps[use.step].operands[use.operand],
                             self.flat.steps[use.step].out)
                if slot in values:
                    found[k] = use.factors(values[slot], jnp.zeros(out.shape, out.dtype))[0]
        return found

    def gradients(self, z: Saddle, examples: Tree, mask: jax.Array) -> Saddle:
        """Per player, a list with the per-example gradients of each leaf by the loss.

        One pass: `Factors`, or arrays `[b, ...]`; None for a leaf that is not used or not wanted.
        All that was computed is held; what was only read need not be copied.
        """
        given = jax.vmap(self._given)(examples)

        def computed() -> list[Any]:
            every = jax.vmap(self.of_one, (None, 0))(z, examples)
            return [x._replace(x=None) if k in given else x for k, x in enumerate(every)]

        every = [x._replace(x=given[k]) if k in given else x
                 for k, x in enumerate(held(computed, mask))]
        return Saddle(every[: self.leaves.w], every[self.leaves.w:])

    def silenced(self, leaf: int, factors: Factors, weight: jax.Array,
                 stand_in: jax.Array) -> Silenced:
        """Factors of weight_i g_i, finite, the one with fewer numbers last; not for rows."""
        x, d = factors
        turned = self._turned(leaf)  # the weight goes to the factor with fewer numbers
        return Silenced(*silenced(*((d, x) if turned else (x, d)), weight, stand_in))

    def _turned(self, leaf: int) -> bool:
        treatment = self.treatments[leaf]
        assert treatment is not None
        return treatment.uses[0].shape[1] > treatment.uses[0].shape[0]

    def _shaped(self, leaf: int, found: Tree) -> Tree:
        """From the shape of `silenced` factors' product to the leaf's."""
        treatment = self.treatments[leaf]
        assert treatment is not None
        found = jax.tree.map(jnp.transpose, found) if self._turned(leaf) else found
        return jax.tree.map(lambda a: unseen(treatment.uses[0].view, a), found)

    def both(self, leaf: int, factors: Silenced, grid: Leaf) -> tuple[jax.Array, Words]:
        """The sum of `silenced` factors, one piece a record and one block, and that on a grid."""
        total = outer(*factors)
        return self._shaped(leaf, total), self._shaped(leaf, grid.block(total))

    def on_grid(self, leaf: int, factors: Silenced, grid: Leaf) -> Words:
        """The sum of `silenced` factors on a grid; the dither's numbers are those of the matrix."""
        def block(total: jax.Array, scale: jax.Array, dither: jax.Array) -> Words:
            return Leaf(scale, dither, grid.wide).block(total)

        return self._shaped(leaf, outer_blocks(*factors, block, (grid.scale, grid.dither),
                                               integer_sums.plus, BLOCK))

    def rows_on_grid(self, leaf: int, factors: Factors, weight: jax.Array, grid: Leaf) -> Words:
        """`total` of a leaf that is looked up, on a grid."""
        treatment = self.treatments[leaf]
        assert treatment is not None
        view, (count, o) = treatment.uses[0].view, treatment.uses[0].shape

        def rounded(x: jax.Array, rows: jax.Array) -> jax.Array:
            return integer_sums.rounded(x, grid.scale, grid.dither.reshape(count, o).at[rows].get(
                mode="clip"))

        found = rows_on_grid(*factors, weight, rounded, grid.of, integer_sums.plus, count)
        return jax.tree.map(lambda a: unseen(view, a), found)

    def silenced_total(self, leaf: int, factors: Silenced) -> jax.Array:
        """The sum of `silenced` factors."""
        return self._shaped(leaf, outer(*factors))

    def total(self, leaf: int, factors: Factors, weight: jax.Array,
              stand_in: jax.Array, clip: jax.typing.ArrayLike) -> jax.Array:
        """sum_i weight_i g_i of a leaf that is kept as factors, in its shape."""
        treatment = self.treatments[leaf]
        assert treatment is not None
        view, shape = treatment.uses[0].view, treatment.uses[0].shape
        if treatment.kind == "rows":
            return unseen(view, weighted_rows(*factors, weight, shape[0], clip))
        return unseen(view, weighted_outer(*factors, weight, stand_in))

    def __str__(self) -> str:
        rows = [(name, str(list(t.shape)), f"{t.numbers:,}", str(t))
                for name, t in zip(self.names, self.treatments, strict=True) if t is not None]
        rows.insert(0, ("parameter", "shape", "numbers kept an example", "how"))
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        return "\n".join("  ".join([*(cell.ljust(n) for cell, n in zip(row, widths, strict=False)),
                                    row[3]]) for row in rows)


def plan(loss: Callable[[Tree, Tree, Tree], jax.Array], z: Saddle, example: Tree,
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
    found = find(flat, {k for k, want in enumerate(players) if want})
    treatments = tuple(_treatment(found[k], leaf) if players[k] else None
                       for k, (_, leaf) in enumerate(named))
    names = tuple(jax.tree_util.keystr(path).lstrip(".") for path, _ in named)
    made = Plan(flat, treatments, names, sizes)
    if any(step.name.startswith("custom") for step in flat.steps):
        try:
            again = jax.make_jaxpr(made.of_one)(z, example)
        except jax.errors.UnexpectedTracerError:
            return None
        known = {id(x) for x in traced.consts}
        if any(isinstance(x, jax.core.Tracer) and id(x) not in known for x in again.consts):
            return None
    return made
