"""A run in a ledger, from its reservation to its end; and what a ledger has left."""

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from jaxminimax.mechanism import Description
from jaxminimax.mechanism.costs import concrete

if TYPE_CHECKING:
    from jaxminimax.accounting._ledger import Ledger


class Remaining(NamedTuple):
    """What a ledger has left.

    Attributes:
      share: part of what it was opened with; of a plan, of its runs.
      epsilon: with `delta`, of a further statement that certainly fits.
      delta: see `epsilon`.
      planned: names of the runs of a plan that were not begun.
    """

    share: float
    epsilon: float
    delta: float
    planned: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Entry:
    """A reservation; also a context, which closes it unless it ends by an exception.

    Attributes:
      ledger: that it is in.
      name: of the run.
      mechanism: its description.
      fresh: whether this reservation was made now, not found in the file.
    """

    ledger: "Ledger"
    name: str
    mechanism: Description
    fresh: bool = False

    def close(self, state: Any = None) -> None:
        """The run has ended.

        With filter="renyi", releases that were not made by then are given back.

        Args:
          state: the last state of the run, which tells the releases that were made; None if all of
            them were, or may have been.

        Raises:
          ValueError: if it was closed before, with another number of releases.
        """
        spent = None if state is None else int(concrete(state.spent))
        self.ledger._close(self, spent)

    def cancel(self) -> None:
        """Takes the reservation back: nothing was released, and nothing will be.

        Raises:
          ValueError: for one that was found in the file, or is closed: it may have released.
        """
        self.ledger._cancel(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        if kind is None and self.ledger._find(self.name)["closed"] is None:
            self.close()
