"""Sentences of statements that several descriptions share; each says one thing, once."""

from collections.abc import Iterable
from typing import NamedTuple

from jaxminimax.mechanism.costs import Charge

PLACES = ("A record's row does not depend on what any record contains: the data are not sorted, "
          "grouped, deduplicated or filtered by value before they are cut, and their order is the "
          "same in every session of a run.")
PUBLIC_GROUPS = ("Which group a record is in, and so every group's size, is public: neighbouring "
                 "data sets differ in what one record of one group contains.")
EXACT = ("Sums are integers on public grids, noise is made of integers of known law, and they are "
         "added without rounding; what rounding to the grid may move is charged. The last bits of "
         "what is released tell no more than the rest.")
FLOATS = "Noise is made of floating-point numbers; attacks on their last bits are not covered."
CLIPPED = ("Each record's operator is clipped to the stated norms, per player or jointly as "
           "stated, before it is summed.")
FOLLOWED = ("Clip norms follow noisy counts of the records within them, which are charged: each "
            "one is a function of what was released before, and is released itself.")
DIFFERENCES = ("Each record's difference of operators at two released points is divided by the "
               "stated constant times their distance and clipped to norm 1, both players together, "
               "before it is summed; the answer is multiplied by the same public number.")
LOSSES = "Each record's loss is clipped to the stated range before it is averaged."
INDEX = ("The index of a group leaves, and none of the losses; beyond the allowed number it is -1, "
         "which no release takes for a group.")
ONCE = ("Each record's loss is clipped to the stated range, and a record is read once, for its "
        "loss or for its gradient, by its place in its group.")
REGENERATED = ("Correlated noise is made anew from the key and the number of the release; no state "
               "holds noise that a later release draws on.")
CERTIFIED = "A solution without a certificate of the stated residual is not released, but NaN."

_ORDER = (EXACT, CLIPPED, FOLLOWED, DIFFERENCES, LOSSES, INDEX, ONCE, REGENERATED, CERTIFIED)


class Words(NamedTuple):
    """The sentences of statements on a leaf.

    Attributes:
      summary: what is released, one sentence.
      enforced: sentences: what the code does that the charge rests on.
      assumed: sentences: what the charge rests on that the user must see to.
      unit: what the noise multiplier is a multiple of; "" for a clip norm and the like.
      clips: clip norms, by player.
    """

    summary: str
    enforced: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    unit: str = ""
    clips: dict[str, float] = {}  # noqa: RUF012  # nobody changes it


def imperfections(cost: Charge) -> str:
    """How far integer noise is from its law, for statements."""
    return (f"imperfections of the noise generator are counted: {cost.ratio:.2g} of epsilon, and "
            f"{cost.law_error:.2g} (1 + e^epsilon) of delta")


def in_order(lines: Iterable[str]) -> tuple[str, ...]:
    """Sorts sentences, each once: those above in their order, then all others."""
    rank = {sentence: number for number, sentence in enumerate(_ORDER)}
    return tuple(sorted(dict.fromkeys(lines), key=lambda x: rank.get(x, len(rank))))


def groups(sizes: tuple[int, ...]) -> str:
    """How many groups of how many records."""
    least, most = min(sizes), max(sizes)
    several = f"{len(sizes)} group{'s' * (len(sizes) > 1)}"
    return f"{several} of {least}{f' to {most}' * (most > least)} records"
