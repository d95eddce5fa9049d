"""The plan of a loss: how each parameter's gradient is kept, found and added up."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxminimax.base.materialise import materialise_rows
from jaxminimax.base.types import PyTree, Saddle
from jaxminimax.gradients import integer_sums
from jaxminimax.gradients.ghost._factors import (
    outer,
    outer_blocks,
    silenced,
    weighted_outer,
)
from jaxminimax.gradients.ghost._flat import Flat, flatten, moved, run
from jaxminimax.gradients.ghost._lookups import rows_on_grid, weighted_rows
from jaxminimax.gradients.ghost._parameter_uses import find, unseen
from jaxminimax.gradients.ghost._treatment import (
    Factors,
    Silenced,
    Treatment,
    gathered,
    treatment_of,
)
from jaxminimax.gradients.integer_sums import Leaf, Words
from jaxminimax.mechanism import BLOCK

_LARGE = 16  # numbers of a parameter below which its plain gradient is as fast


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

    def of_one(self, z: Saddle, example: PyTree) -> list[Any]:
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
            return g[k] if t.kind == "vmap" else gathered(
                t, [use.factors(met[use.step, use.operand], d[use.step]) for use in t.uses])

        return [kept(k) for k in range(len(parameters))]

    def _given(self, example: PyTree) -> dict[int, jax.Array]:
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

    def gradients(self, z: Saddle, examples: PyTree, mask: jax.Array) -> Saddle:
        """Per player, a list with the per-example gradients of each leaf by the loss.

        One pass: `Factors`, or arrays `[b, ...]`; None for a leaf that is not used or not wanted.
        All that was computed is held; what was only read need not be copied.
        """
        given = jax.vmap(self._given)(examples)

        def computed() -> list[Any]:
            every = jax.vmap(self.of_one, (None, 0))(z, examples)
            return [x._replace(x=None) if k in given else x for k, x in enumerate(every)]

        every = [x._replace(x=given[k]) if k in given else x
                 for k, x in enumerate(materialise_rows(computed, mask))]
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

    def _shaped(self, leaf: int, found: PyTree) -> PyTree:
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
    found = find(flat, {k for k, want in enumerate(players) if want})
    treatments = tuple(treatment_of(found[k], leaf) if players[k] else None
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
