"""What every driver returns."""

from typing import Any, NamedTuple

from jaxminimax.accounting import Statement
from jaxminimax.base.types import PyTree


class _Ended(NamedTuple):
    state: Any
    observations: PyTree = ()


class Run(_Ended):
    """A run that has ended, or several of them with leading axes; unpacks as a pair.

    Attributes:
      state: the last state; its `z` is the point, its `spent` counts the releases.
      observations: what `observe` kept of every round, with a leading axis of rounds; () if nothing
        was asked for. `fit` keeps nothing: its `callback` sees the states.
      statement: what `fit` says of the run's privacy; None from `run` and `sweep`, which know no
        delta: `jaxminimax.statement(algorithm, hyper, run.state, delta=...)`. It is no part of the
        tree: what `jax.tree.map` makes of a run has none.

    Examples:
        >>> done = jmm.types.Run(state="the last state", observations=())
        >>> state, seen = done  # as `run` and `sweep` return it
        >>> state
        'the last state'
    """

    statement: Statement | None = None

    @classmethod
    def stated(cls, state: Any, statement: Statement) -> "Run":
        """A run with its statement."""
        run = cls(state)
        run.statement = statement
        return run
