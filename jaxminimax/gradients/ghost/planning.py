"""The plan of a loss: how each parameter's gradient is kept, found and added up."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxminimax.base import programs
from jaxminimax.base.tree import materialise_rows
from jaxminimax.base.types import PyTree, Saddle
from jaxminimax.gradients import summation
from jaxminimax.gradients.ghost.search import Place, derived, pulled_back, search
from jaxminimax.gradients.ghost.trace import Flat, Path, flatten, moved, run, tap
from jaxminimax.gradients.ghost.treatment import Factors, Treatment, gathered, treatment_of
from jaxminimax.gradients.ghost.uses import Use

_LARGE = 16  # numbers of a parameter below which its plain gradient is as fast


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
        large = [t for t in self.treatments if t is not None and math.prod(t.shape) >= _LARGE]
        return self.convolves or any(
            t.kind not in ("matrix", "function") for t in large for use in t.uses)

    @property
    def convolves(self) -> bool:
        """Returns whether a large convolution is unrolled: its gradients one by one are slow."""
        return any(use.kind == "convolution" for t in self.treatments
                   if t is not None and math.prod(t.shape) >= _LARGE for use in t.uses)

    def of_one(self, z: Saddle, example: PyTree) -> list[Any]:
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
            return use.factors([met[at] for at in use.operands], d[use.step])

        # by way of W = h(P): the derivative by W, pulled back to P
        functions = {k: t for k, t in treated.items() if t.kind == "function"}
        g |= pulled_back(self.flat, functions, parameters, factors) if functions else {}

        def kept(k: int) -> Any:
            t = treated.get(k)
            if t is None or t.kind == "unused":
                return None
            return g[k] if k in g else gathered(t, factors)

        return [kept(k) for k in range(len(parameters))]

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

        def filled(x: Any, k: int, of: Callable[[jax.Array, tuple[int, int]], Any]) -> Any:
            return x._replace(x=tuple(of(a, (k, j)) for j, a in enumerate(x.x))) if isinstance(
                x, Factors) else x

        def computed() -> list[Any]:
            every = summation.each(self.of_one, z, examples)
            return [filled(x, k, lambda a, at: None if at in factors else a)
                    for k, x in enumerate(every)]

        every = [filled(x, k, lambda a, at: factors.get(at, a))
                 for k, x in enumerate(materialise_rows(computed))]
        return self.by_player(every)

    def by_player(self, leaves: Sequence[Any]) -> Saddle:
        """Splits values into those of the leaves of w and those of v."""
        return Saddle(leaves[: self.leaves.w], leaves[self.leaves.w:])

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
            again = jax.make_jaxpr(result.of_one)(z, example)
        except jax.errors.UnexpectedTracerError:
            return None
        constants = {id(x) for x in traced.consts}
        if any(isinstance(x, jax.core.Tracer) and id(x) not in constants for x in again.consts):
            return None
    return result
