"""How the gradient of one parameter is kept: as it is, or as factors, and which."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax.base.tree import EXACT, at_least_float32
from jaxminimax.gradients.ghost._factors import balanced, norms
from jaxminimax.gradients.ghost._lookups import merged
from jaxminimax.gradients.ghost._parameter_uses import Use, matrix_of, unseen


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


def treatment_of(found: list[Use] | str, leaf: jax.Array) -> Treatment:
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


def gathered(treatment: Treatment, pairs: list[tuple[jax.Array, jax.Array]]) -> Any:
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
