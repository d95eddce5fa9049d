"""Chooses how the gradient of one parameter is kept: as it is, or as which factors."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax.base.tree import EXACT, at_least_float32
from jaxminimax.gradients.ghost.factors import balanced
from jaxminimax.gradients.ghost.uses import Use, View, entries, is_partial, placed


class Part(NamedTuple):
    """Entries of a parameter that are used together, as G matrices; no two parts share an entry.

    Attributes:
      view: from the parameter to the matrices.
      groups: number of matrices.
      shape: of a matrix.
      uses: all of them see the same entries.
      turned: for each use, whether its x and d change places.
    """

    view: View
    groups: int
    shape: tuple[int, int]
    uses: tuple[Use, ...]
    turned: tuple[bool, ...]

    @property
    def rows(self) -> int:
        """The number of factors that each matrix's gradient is the sum of."""
        return sum([use.rows for use in self.uses])

    @property
    def multiplies(self) -> bool:
        """Returns whether it is used in a product or a convolution, and not looked up only."""
        return {"lookup"} != {use.kind for use in self.uses}

    @property
    def numbers(self) -> int:
        """The size of the factors and their Gram products, for each example."""
        # x_t . x_s and d_t . d_s
        grams = 2 * self.rows**2 if self.rows > 1 else 0
        return self.groups * (self.rows * sum(self.shape) + grams)

    @property
    def is_wide(self) -> bool:
        """Returns whether a matrix has more columns than rows."""
        return self.shape[1] > self.shape[0]

    def over_groups(self, f: Callable[..., Any], axis: int = 0) -> Callable[..., Any]:
        """Applies `f` of arrays `[b, ...]` to several groups, `[b, G, ...]`; one more result axis.

        Groups are different entries of the parameter: nothing is added up across them.
        """
        return f if self.groups == 1 else jax.vmap(f, 1, axis)


class Treatment(NamedTuple):
    """The way to keep the gradient of one parameter.

    Attributes:
      kind: "unused", "rank one", "Gram", "rows", "tied", "matrix", "function" or "vmap".
      shape: of the parameter.
      dtype: of the parameter.
      parts: of the parameter; empty for "vmap" and "function".
      reason: why "vmap".
      through: slots of functions of it, and how their gradients are kept: "matrix" or "unused".
    """

    kind: str
    shape: tuple[int, ...]
    dtype: Any
    parts: tuple[Part, ...] = ()
    reason: str = ""
    through: tuple[tuple[int, "Treatment"], ...] = ()

    @property
    def uses(self) -> tuple[Use, ...]:
        """The uses of all parts, and of functions of it."""
        return (*[use for part in self.parts for use in part.uses],
                *[use for _, t in self.through for use in t.uses])

    @property
    def numbers(self) -> int:
        """The amount that is kept for each example."""
        if self.kind in ("matrix", "function", "vmap"):
            return math.prod(self.shape)
        if self.kind == "rows":
            return self.parts[0].rows * (1 + self.parts[0].shape[1])
        if self.kind == "tied":
            # t rows of products [n] and [o], s lookups [o] with their numbers, and Gram products
            (t, s), (n, o) = self.pieces, self.parts[0].shape
            return t * (n + o) + s * (1 + o) + 2 * (t + s) ** 2
        return sum([part.numbers for part in self.parts])

    @property
    def pieces(self) -> tuple[int, int]:
        """Rows of products, and of lookups."""
        looked = sum([use.rows for use in self.uses if use.kind == "lookup"])
        return sum([use.rows for use in self.uses]) - looked, looked

    @property
    def bytes(self) -> int:
        """The amount that is kept for each example."""
        return self.numbers * at_least_float32(self.dtype).itemsize

    @property
    def full(self) -> bool:
        """Returns whether one part is the whole parameter."""
        return len(self.parts) == 1 and not is_partial(self.parts[0].view)

    def __str__(self) -> str:
        rows = max([part.rows for part in self.parts], default=0)
        groups = max([part.groups for part in self.parts], default=0)
        rows_each = f"{rows} rows" + f" for each of {groups} matrices" * (groups > 1)
        words = {
            "unused": "not used or not differentiated, so its gradient is 0",
            "rank one": "rank one, |x| |d|" + f", for each of {groups} matrices" * (groups > 1),
            "Gram": f"Gram products of {rows_each}",
            "rows": "the row that is looked up" if rows == 1 else f"{rows} rows that are looked up",
            "tied": "Gram products of {} rows and of {} that are looked up".format(*self.pieces),
            "matrix": f"per-example gradient, from {rows_each}",
            "function": "per-example gradient, by way of a function of it",
            "vmap": f"per-example gradient, vmap because {self.reason}",
        }
        return words[self.kind] + f", {len(self.parts)} parts of it" * (len(self.parts) > 1)


class Factors(NamedTuple):
    """A batch of gradients of one parameter as sum_t x_t d_t^T, or as rows of a table.

    Attributes:
      x: of each part `[b, t, k]`, `[b, G, t, k]` for several matrices, or the numbers of the rows
        `[b, t]`; of a tied table both, `[b, t, k]` and `[b, s]`.
      d: of each part `[b, t, o]` or `[b, G, t, o]`; of a tied table `[b, t, o]` and `[b, s, o]`.
    """

    x: tuple[jax.Array, ...]
    d: tuple[jax.Array, ...]

    @property
    def are_rows(self) -> bool:
        """Returns whether they are rows of a table."""
        return self.x[0].ndim == 2

    @property
    def are_tied(self) -> bool:
        """Returns whether they are products and rows of one table."""
        return len(self.x) == 2 and self.x[1].ndim == 2


def _parts(uses: Sequence[Use], shape: tuple[int, ...]) -> tuple[Part, ...] | str:
    """Uses of the same entries together, or why there are no such parts.

    Parts that share an entry are refused: w[0:2] and w[1:3] add to w[1], and its norm is not that
    of two parts next to each other.
    """
    if len({(use.view, use.groups, use.shape) for use in uses}) == 1:
        return (Part(uses[0].view, uses[0].groups, uses[0].shape, tuple(uses),
                     (False,) * len(uses)),)
    owner = np.full(math.prod(shape), -1, np.int32)  # the number of the part of each entry
    parts: list[Part] = []
    entries_of_parts: list[np.ndarray] = []  # the entries of each part
    for use in uses:
        mine = entries(use.view, shape)
        owners = np.unique(owner[mine])
        if not mine.size:
            continue
        # entries that no use saw before are a part of their own
        if len(owners) == 1 and owners[0] < 0:
            owner[mine] = len(parts)
            entries_of_parts.append(mine)
            parts.append(Part(use.view, use.groups, use.shape, (use,), (False,)))
            continue
        first, part = entries_of_parts[owners[-1]], parts[owners[-1]]
        if len(owners) > 1 or mine.size != first.size:
            return "used in parts that overlap"
        equal = np.array_equal(first, mine)
        if not equal and not np.array_equal(first, np.swapaxes(mine, -1, -2)):
            return "used as matrices of different rows"
        parts[owners[-1]] = part._replace(uses=(*part.uses, use), turned=(*part.turned, not equal))
    return tuple(parts)


def treatment_of(uses: list[Use] | str, leaf: Any) -> Treatment:
    """Chooses the treatment of a parameter of these uses, by shapes alone."""
    treated = functools.partial(Treatment, shape=leaf.shape, dtype=leaf.dtype)
    if isinstance(uses, str):
        return treated("vmap", reason=uses)
    size = math.prod(leaf.shape)
    # those that are looked up first
    parts = _parts(sorted(uses, key=lambda use: use.kind != "lookup"), leaf.shape) if (
        uses and size) else ()
    if isinstance(parts, str):
        return treated("vmap", reason=parts)
    if not parts:  # or of slices without a single entry
        return treated("unused")
    looked_up = {use.kind == "lookup" for use in uses}
    if looked_up == {True, False} and len(parts) > 1:
        return treated("vmap", reason="looked up, and multiplied in parts")
    if looked_up == {True}:
        (table,) = parts
        if table.rows < table.shape[0]:
            return treated("rows", parts=parts)
        return treated("vmap", reason=f"{table.rows} lookups of {table.shape[0]} " + (
            "matrices picked by number" if len(leaf.shape) > 2 else "rows"))
    if looked_up == {False} and {part.rows for part in parts} == {1}:
        return treated("rank one", parts=parts)
    rows_treated = treated("tied" if True in looked_up else "Gram", parts=parts)
    # Gram products are worth it if they are fewer than the entries; of tied tables than half
    pays = rows_treated.numbers * len(looked_up) < size
    return rows_treated if pays else rows_treated._replace(kind="matrix")


def _merged(rows: jax.Array, d: jax.Array, count: int) -> jax.Array:
    """The derivatives of one example's lookups, those of equal rows added to the first, `[t, o]`.

    Args:
      rows: t row numbers; from `count` on they are not there and get no derivative.
      d: `[t, o]`.
      count: rows of the table.
    """
    d = d.astype(at_least_float32(d.dtype))
    d = jnp.where((rows < count)[:, None], d, 0)
    if rows.shape[0] == 1:
        return d
    # for each lookup the number of the first one of the same row
    first = jnp.argmax(rows[:, None] == rows[None, :], 1)
    # d_s = sum of d_t over all t whose first lookup of the row is s
    return jnp.einsum("ts,to->so", jax.nn.one_hot(first, rows.shape[0], dtype=d.dtype), d,
                      precision=EXACT)


def gathered(treatment: Treatment,
             factors: Callable[[Use], tuple[jax.Array, jax.Array]]) -> Any:
    """The kept form of one example's gradient: factors, or the gradient itself."""
    looked = [factors(use) for use in treatment.uses if use.kind == "lookup"]
    if looked:
        rows, c = (jnp.concatenate(a) for a in zip(*looked, strict=True))
        # equal rows at once, or their norm would be that of rows that differ
        c = _merged(rows, c, treatment.parts[0].shape[0])
    if treatment.kind == "rows":
        return Factors((rows,), (c,))

    def joined(part: Part) -> tuple[jax.Array, jax.Array]:
        # (x d^T)^T = d x^T of a use that sees the transposed matrix
        pairs = [factors(use)[:: -1 if turn else 1] for use, turn
                 in zip(part.uses, part.turned, strict=True) if use.kind != "lookup"]
        # the rows t of all uses: they add to the same entries
        x, d = (jnp.concatenate(a, -2) if len(a) > 1 else a[0] for a in zip(*pairs, strict=True))
        return x, d

    pairs = [joined(part) for part in treatment.parts if part.multiplies]
    if treatment.kind == "tied":
        x, d = balanced(*pairs[0])
        return Factors((x, rows), (d, c))
    if treatment.kind != "matrix":
        # a single product has nothing to cancel with, and needs no balance
        pairs = [balanced(x, d) if x.shape[-2] > 1 else (x, d) for x, d in pairs]
        return Factors(*map(tuple, zip(*pairs, strict=True)))

    def matrix(x: jax.Array, d: jax.Array) -> jax.Array:
        dtype = at_least_float32(jnp.result_type(x, d))
        # XLA's CPU compiler is fast at products along the last axis only; the barrier keeps them so
        x = jax.lax.optimization_barrier(jnp.swapaxes(x.astype(dtype), -1, -2))
        return jnp.einsum("...kt,...to->...ko", x, d.astype(dtype), precision=EXACT)

    matrices = [matrix(x, d) for x, d in pairs]
    if looked:
        # M + R, with M = 0 for a table that is looked up only
        first = matrices[0] if matrices else jnp.zeros(treatment.parts[0].shape, c.dtype)
        matrices[:1] = [first.at[rows].add(c.astype(first.dtype), mode="drop")]
    return placed([(part.view, a) for part, a in zip(treatment.parts, matrices, strict=True)],
                  treatment.shape)
