"""Sentences of statements that several descriptions share."""

from collections.abc import Iterable
from typing import NamedTuple

from jaxminimax.mechanism.costs import Charge

PLACES = ("A record's row does not depend on what any record contains. The data are not sorted, "
          "grouped, deduplicated or filtered by value before they are cut, and their order is the "
          "same in every session of a run.")
PUBLIC_GROUPS = ("The group of every record is public, and so is the size of every group. "
                 "Neighbouring data sets differ in what records contain, and not in their groups.")
EXACT = ("Sums are integers on public grids, the noise consists of integers of known law, and "
         "both are added without rounding. The accountant counts what rounding to the grid may "
         "move. The last bits of a release reveal no more than the rest.")
FLOATS = ("The noise consists of floating-point numbers. This statement does not cover attacks on "
          "their last bits.")
CLIPPED = ("The operator of each record is clipped to the stated norms, per player or jointly as "
           "stated, before it is summed.")
FOLLOWED = ("The clip norms follow noisy counts of the records within them, which the accountant "
            "counts. Each clip norm is a function of earlier releases, and is released itself.")
LOSSES = "The loss of each record is clipped to the stated range before it is averaged."
INDEX = ("The index of a group is released, and no loss. Beyond the allowed number of releases the "
         "index is -1, which no release takes for a group.")
ONCE = ("The loss of each record is clipped to the stated range. A record is read once, for its "
        "loss or for its gradient, by its place in its group.")
REGENERATED = ("Correlated noise is computed again from the key and the number of the release. No "
               "state holds noise that a later release uses.")
CERTIFIED = ("A solution without a certificate of the stated residual is not released; NaN takes "
             "its place.")


class Words(NamedTuple):
    """The sentences of a leaf in statements.

    Attributes:
      summary: what is released, one sentence.
      enforced: sentences on what the code enforces so that the privacy cost is right.
      assumed: sentences on what the user must see to so that it is right; one for the operator
        begins with "Operator: ".
      unit: what the noise multiplier is a multiple of; "" for a clip norm and the like.
      clips: clip norms, by player.
    """

    summary: str
    enforced: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    unit: str = ""
    clips: dict[str, float] = {}  # noqa: RUF012  # nobody changes it


def imperfections(cost: Charge) -> str:
    """States how far integer noise is from its law."""
    return (f"imperfections of the noise generator are counted: {cost.ratio:.2g} of epsilon, and "
            f"{cost.law_error:.2g} (1 + e^epsilon) of delta")


def in_order(lines: Iterable[str]) -> tuple[str, ...]:
    """Returns the sentences without repetition: those above in their order, then all others."""
    order = (EXACT, CLIPPED, FOLLOWED, LOSSES, INDEX, ONCE, REGENERATED, CERTIFIED)
    rank = {sentence: number for number, sentence in enumerate(order)}
    return tuple(sorted(dict.fromkeys(lines), key=lambda x: rank.get(x, len(rank))))


def groups(sizes: tuple[int, ...]) -> str:
    """States how many groups there are, and of how many records."""
    smallest, largest = min(sizes), max(sizes)
    several = f"{len(sizes)} group{'s' * (len(sizes) > 1)}"
    return f"{several} of {smallest}{f' to {largest}' * (largest > smallest)} records"
