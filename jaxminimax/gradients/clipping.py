"""Per-example clipped sums: the primitive under every private algorithm of the library.

    sum_i  m_i * g_p(z; x_i) * min(1, C_p / ||g_p(z; x_i)||),        p = w, v,

with a mask m in {0, 1} and one clip norm C_p a player, or, for a joint clip, with the factor
min(1, (sum_p (||g_p|| / C_p)^2)^(-1/2)) for both. Three strategies give the same number, but for
terms that cancel:

    vmap         all per-example operators at once; [batch, parameters] memory
    microbatch   a scan over contiguous slices of the batch; [microbatch, parameters] memory
    ghost        of a loss: one pass that keeps each gradient of a matrix as its factors, from which
                 norms and sums are made (`gradients.ghost`); no [batch, parameters] memory but
                 for parameters whose use is not understood

and "auto" picks one of them by the shapes and by what the loss does with its parameters. "auto" and
"ghost" hold as many examples at a time as a budget of bytes allows, see `ghost.planning`. By ghost,
the norm of an example counts as at least 1/256 of the sum of its terms' norms (1/8 in a table that
is looked up and multiplied), see `ghost.factors` and `ghost.sums`. Where terms cancel by more, the
example is scaled down further than by its norm, even if that is below the clip norm. As "auto"
picks by the number of examples too, such an example can weigh less in a larger batch.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxminimax.base import checks, tree
from jaxminimax.base.tree import refuse_complex
from jaxminimax.base.types import OwnOperator, PyTree, Saddle, SaddleOperator
from jaxminimax.gradients.ghost import planning
from jaxminimax.gradients.ghost.sums import by_factors
from jaxminimax.gradients.summation import Part, Rounding, Summation, Sums, at_once, by_slices

STRATEGIES = ("vmap", "microbatch", "ghost")


@dataclasses.dataclass(frozen=True)
class ClippedSum:
    """A clipped sum of known sensitivity, as `clipped_sum` makes it.

    It guarantees for every input: one example adds a vector of L2 norm at most `clip.p` to the sum
    of player p (two examples swapped move it by at most twice that, up to the rounding of the sum
    itself, a few units in its last place), and with `joint` a pair of vectors whose norms in units
    of the clip norms have squares that sum to at most 1; an example whose operator is not finite,
    or so long that its square is not (1e19 in float32), or longer than 2^88 clip norms there,
    counts as absent; an empty batch gives zeros. Sums are at least float32 for any parameters.

    Attributes:
      operator: `(z, example) -> Saddle` for one example.
      clip: the clip norm of each player; None for a player without a sum.
      strategy: "vmap", "microbatch", "ghost" or "auto".
      microbatch: the number of examples in a slice of the "microbatch" strategy.
      joint: whether one clip holds for both players together, in units of their clip norms.
      counted: whether `sums` counts the examples within the clip norms.
      memory: the bytes that "auto" and "ghost" may take; None for 2^30.
      shared: whether examples of `sums` are pairs of an example and its share in [0, 1], by which
        its clipped operator is multiplied.
      before_clip: whether the share multiplies the operator before it is clipped, as any number of
        at least 0; one example's clip norm is then the same, and that of its operator the clip
        norm over the share.
      skip_empty: whether slices in which no example counts are left out.

    Examples:
        >>> def loss(w, v, record):
        ...     return jnp.sum(w * record)
        >>> sums = jmm.clipped_sum(jmm.saddle_operator(loss), Saddle(1.0, None))
        >>> long = jnp.array([[30.0, 40.0]])  # a record whose gradient has norm 50
        >>> print(sums(Saddle(jnp.zeros(2), jnp.zeros(())), long).w.round(3))
        [0.6 0.8]
    """

    operator: Callable[[Saddle, PyTree], Saddle]
    clip: Saddle
    strategy: str
    microbatch: int
    joint: bool = False
    counted: bool = False  # whether `sums` counts the examples within the clip norms
    memory: int | None = None
    shared: bool = False
    before_clip: bool = False
    skip_empty: bool = False

    def sensitivity(self, neighbours: str = "replace_one") -> Saddle:
        """Per player, the most that the sum can move between neighbouring data sets (L2).

        Args:
          neighbours: "replace_one" (twice the clip norm) or "add_or_remove_one" (the clip norm).
        """
        checks.one_of("neighbours", neighbours, ("replace_one", "add_or_remove_one"))
        # a record put for another takes one vector of norm C away and adds one
        factor = 2.0 if neighbours == "replace_one" else 1.0
        return jax.tree.map(lambda c: factor * c, self.clip)

    def __call__(self, z: Saddle, examples: PyTree, mask: jax.Array | None = None) -> Saddle:
        """The sum over `examples`, in floating point.

        Args:
          z: the point; leaves of any shape and float dtype.
          examples: leaves `[b, ...]`.
          mask: bool `[b]`, which examples take part; None for all.

        Returns:
          A `Saddle` with the structure of z and at least float32 leaves; None for a player
          without a clip norm.

        Raises:
          ValueError: for examples without one leading axis, or complex numbers in z or in the
            operator's value.
        """
        sums, value = self._added(z, examples, mask, None)
        return Saddle(*(None if clip is None else tree.arranged(x, like) for clip, x, like in zip(
            self.clip, sums.floats, value, strict=True)))

    def sums(self, z: Saddle, examples: PyTree | Part, mask: jax.Array | None = None,
             rounding: Rounding | None = None) -> Sums:
        """The sum over `examples`, and the sum of blocks of them that are rounded to a grid.

        Args:
          z: as in `__call__`.
          examples: as in `__call__`, or a part of longer arrays.
          mask: as in `__call__`.
          rounding: the grid, and which of the two sums are wanted; None: no grid.

        Returns:
          What is not wanted is 0. Many small leaves of a player are one array `[k]`, in which all
          numbers follow each other, see `tree.arranged`.
        """
        return self._added(z, examples, mask, rounding)[0]

    def _added(self, z: Saddle, examples: PyTree | Part, mask: jax.Array | None,
               rounding: Rounding | None) -> tuple[Sums, Saddle]:
        """Returns `sums`, and the shapes of the operator's value for one example."""
        part = examples if isinstance(examples, Part) else None
        if part is None:
            examples = of_all = jax.tree.map(jnp.asarray, examples)
        else:
            of_all = jax.eval_shape(lambda: part.read(0, part.count))
        rows = {jnp.shape(x)[:1] for x in jax.tree.leaves(of_all)}
        if len(rows) != 1 or () in rows:
            raise ValueError(f"examples must share one leading axis, got leading axes {rows}.")
        ((size,),) = rows
        if mask is None:
            mask = jnp.ones(size, bool)
        z = jax.tree.map(jnp.asarray, z)
        how = Summation(self.operator, self.clip, self.joint, self.counted, self.before_clip)
        if size == 0:
            return how.nothing(z, rounding), z
        refuse_complex(z, "z")
        if self.shared:
            of_all = of_all[0]
        value = jax.eval_shape(lambda x: self.operator(z, jax.tree.map(lambda a: a[0], x)), of_all)
        refuse_complex(value, "the operator's value")
        chosen = self._chosen(z, of_all, size)
        merged, like, rounding = (how, z, rounding) if chosen.strategy == "ghost" else (
            how.in_matrices(z, value, chosen.rows, rounding))

        def total(examples: PyTree, mask: jax.Array) -> Sums:
            examples, share = examples if self.shared else (examples, None)
            if chosen.strategy == "ghost":
                assert chosen.plan is not None
                return by_factors(how, chosen.plan, z, examples, mask, share, rounding)
            return at_once(merged, z, examples, mask, share, rounding)

        if chosen.rows == size and chosen.strategy != "microbatch":
            return total(examples if part is None else part.read(0, size), mask), value
        return by_slices(total, merged.nothing(like, rounding), examples, mask, chosen.rows,
                         self.skip_empty), value

    def explain(self, z: Saddle, examples: PyTree, brief: bool = False) -> str:
        """States the strategy, how each parameter's gradient is kept, and how much is held.

        The last line compares the bytes that go through memory for rows with those for sums: a
        smaller batch saves time where the former are more, and a smaller model where the latter.

        Runs nothing.

        Args:
          z: the point, or its shapes and dtypes.
          examples: leaves `[b, ...]`, or their shapes and dtypes.
          brief: whether to put parameters that are treated alike in one line.
        """
        (size,) = {x.shape[0] for x in jax.tree.leaves(examples)}
        chosen = self._chosen(z, examples, size)
        lines = [f"strategy {chosen.strategy}" + ", chosen by auto" * (self.strategy == "auto")]
        if self.skip_empty and chosen.rows < size:
            lines.append(f"of {-(-size // chosen.rows)} slices those without a row that counts are "
                         "left out: the time tells a sample's size")
        if chosen.plan is not None:
            lines.append(chosen.plan.by_way() if brief else str(chosen.plan))
        if chosen.need is not None:
            rows = f"slices of {chosen.rows:,} rows" if chosen.rows < size else "all rows at once"
            lines.append(f"{rows} of {size:,}, below {chosen.need.bytes(chosen.rows):,} bytes of "
                         f"the {self._budget:,} that are allowed")
            share = size * chosen.need.record / chosen.need.moved(size, chosen.rows)
            lines.append(f"of the bytes that a pass moves, {share:.0%} are for the rows, and the "
                         "rest for sums of all parameters")
        return "\n".join(lines)

    def kept_bytes(self, z: Saddle, examples: PyTree) -> int:
        """Bytes of per-example gradients, or of their factors, that are held at one time.

        Args:
          z: as in `explain`.
          examples: as in `explain`.
        """
        (size,) = {x.shape[0] for x in jax.tree.leaves(examples)}
        strategy, plan, rows, _ = self._chosen(z, examples, size)
        if strategy == "ghost" and plan is not None:
            return rows * planning.kept(plan)
        return rows * planning.bytes_of(self._wanted(z))

    @property
    def _budget(self) -> int:
        return 2**30 if self.memory is None else self.memory  # bytes

    def _wanted(self, z: Saddle) -> list[PyTree]:
        return [x for clip, x in zip(self.clip, z, strict=True) if clip is not None]

    def _chosen(self, z: Saddle, examples: PyTree, size: int) -> "_Choice":
        """The strategy, the plan of a loss where one was made, and how many rows are held."""
        if self.strategy == "vmap":
            return _Choice("vmap", None, size, None)
        if self.strategy == "microbatch":
            return _Choice("microbatch", None, min(self.microbatch, size), None)
        one = jax.eval_shape(lambda x: jax.tree.map(lambda a: a[0], x), examples)
        plan, wanted = None, self._wanted(z)

        def rows(need: planning.Need) -> int:
            return need.rows(size, self._budget)

        if type(self.operator) is SaddleOperator:
            plan = planning.plan(self.operator.loss, z, one,
                                 Saddle(*(clip is not None for clip in self.clip)))
            if plan is None and self.strategy == "ghost":
                raise ValueError("strategy 'ghost' traces the loss and runs it afterwards, but a "
                                 "custom derivative rule in it closes over traced values: hand "
                                 "them over as arguments, or use strategy 'vmap'.")

        needs, settled = {}, self.strategy == "ghost"
        if plan is not None and (settled or (plan.gains and size > 1)):
            needs["ghost"] = planning.need_of_plan(plan, wanted, one)
            # no need to compare: all rows fit, or gradients one by one would be slow
            settled |= rows(needs["ghost"]) >= (1 if plan.convolves else size)
        if not settled:
            needs["vmap"] = planning.need_of_gradients(self.operator, z, wanted, one, plan)
        # the fewest bytes that go through memory
        best = min(needs, key=lambda name: needs[name].moved(size, rows(needs[name])))
        held = rows(needs[best])
        if not held:
            needs[best].refuse(self._budget)
        name = "microbatch" if best == "vmap" and held < size else best
        return _Choice(name, plan, held, needs[best])


class _Choice(NamedTuple):
    """The strategy of a clipped sum, and what it holds at a time.

    Attributes:
      strategy: one of `STRATEGIES`.
      plan: of a loss.
      rows: held at a time.
      need: by which they were chosen; None where they were set by the caller.
    """

    strategy: str
    plan: planning.Plan | None
    rows: int
    need: planning.Need | None


@dataclasses.dataclass(frozen=True)
class ClippedOperator:
    """One example's operator, clipped to `bound` in the norm of both players together.

    For solvers that ask for bounded operators. A clipped operator keeps a Lipschitz constant, and
    loses monotonicity. Its sums are configured as those of a `SaddleOperator`.
    """

    operator: Callable[[Saddle, PyTree], Saddle]
    bound: float
    strategy: str = "auto"
    microbatch: int = 32
    memory: int | None = None
    skip_empty: bool = False

    def __call__(self, z: Saddle, example: PyTree) -> Saddle:
        """The clipped operator of one example."""
        total = clipped_sum(self.operator, Saddle(self.bound, self.bound), strategy="vmap",
                            joint=True)
        # a batch of one, [1, ...]
        return total(z, jax.tree.map(lambda x: jnp.asarray(x)[None], example))


def clipped_sum(operator: Callable[[Saddle, PyTree], Saddle], clip: Saddle, *,
                strategy: str | None = None, microbatch: int | None = None,
                memory: int | None = None, joint: bool = False,
                skip_empty: bool | None = None) -> ClippedSum:
    """Makes the clipped sum of `operator`, a callable of known sensitivity; see `ClippedSum`.

    Args:
      operator: `(z, example) -> Saddle` for one example.
      clip: per player, bound on the L2 norm of one example's operator over the player's whole
        pytree; None for a player without a sum.
      strategy: "vmap", "microbatch", "ghost" (needs `saddle_operator(loss)`) or "auto": ghost for
        a loss if that saves memory or time, else vmap, or microbatch if not all examples fit at a
        time. Ghost scales an example further down if its terms cancel by more than 256, so what
        such an example adds can depend on the number of examples, by which "auto" decides. The
        clip norm bounds it in any case. None for the operator's own, see `saddle_operator` and
        `with_strategy`, or "auto".
      microbatch: examples in a slice of the "microbatch" strategy. None for the operator's own, or
        32.
      memory: bytes that the sum may take by strategies "auto" and "ghost", on each device and in
        each run of a sweep: so many examples are held at a time as fit, by the bound of
        `ghost.planning`, and fewer if that is faster. "vmap" and "microbatch" hold all of theirs.
        None for the operator's own, or 2^30.
      joint: one clip for both players together, in units of their clip norms.
      skip_empty: whether slices in which no example of the mask is are left out; the sum is the
        same to the last bit. It saves time where the mask is of a Poisson sample, slices are short
        and a row takes milliseconds. The number of slices then tells how many records are in the
        sample, and so to a clock: the charge of samples holds for nobody who times single releases.
        None for the operator's own, or False.

    Raises:
      ValueError: for an unknown strategy, ghost without a loss, or a joint clip of one player.

    Examples:
        >>> def loss(w, v, record):
        ...     return jnp.sum(w * record)
        >>> sums = jmm.clipped_sum(jmm.saddle_operator(loss), Saddle(1.0, None), strategy="vmap")
        >>> records = jnp.array([[3.0, 4.0], [0.0, 0.5]])  # of norms 5 and 1/2
        >>> total = sums(Saddle(jnp.zeros(2), jnp.zeros(())), records)
        >>> print(np.round(total.w, 3))
        [0.6 1.3]
    """
    standard = isinstance(operator, SaddleOperator | OwnOperator | ClippedOperator)
    own: Any = operator if standard else OwnOperator(operator)  # as another one is computed
    strategy = own.strategy if strategy is None else strategy
    microbatch = own.microbatch if microbatch is None else microbatch
    checks.one_of("strategy", strategy, (*STRATEGIES, "auto"))
    checks.count("microbatch", microbatch)
    if memory is None:
        memory = own.memory
    elif strategy in ("vmap", "microbatch"):
        raise ValueError(f"memory={memory!r} is kept by strategies 'auto' and 'ghost', and "
                         f"{strategy!r} holds all of its examples: leave out one of them.")
    if memory is not None:
        checks.count("memory", memory)
    if strategy == "ghost" and type(operator) is not SaddleOperator:  # a subclass may do more
        raise ValueError("strategy 'ghost' looks inside a loss: give saddle_operator(loss), or use "
                         "'auto', 'vmap' or 'microbatch'.")
    if joint and None in clip:
        raise ValueError(f"joint=True needs a clip norm for both players, got {clip!r}.")
    skip_empty = own.skip_empty if skip_empty is None else skip_empty
    checks.kinds({"skip_empty": (bool, "True or False")}, {"skip_empty": skip_empty})
    return ClippedSum(operator, clip, strategy, microbatch, joint, memory=memory,
                      skip_empty=skip_empty)
