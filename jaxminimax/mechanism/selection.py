"""The index of the group whose noisy mean loss is largest, and nothing else of the losses."""

import jax

from jaxminimax import noise
from jaxminimax.base.types import pytree_dataclass
from jaxminimax.mechanism import costs, sentences
from jaxminimax.mechanism.costs import SCORE, Charge, concrete
from jaxminimax.mechanism.group_losses import LossesOfGroups


@pytree_dataclass
class Selection(LossesOfGroups):
    """`times` releases of argmax_i (mean_i + b G_i), G_i Gumbel numbers: the exponential mechanism.

    The index has the law softmax(mean / b), whose privacy does not depend on the number of groups.
    One scale, b = noise_multiplier B / min(sizes), is for all groups. A replaced record of group i
    moves mean_i alone, by at most B / n_i, and so the smallest group decides what it costs: t = 1 /
    noise_multiplier, and less in the others, whose noise is louder than they need. Where sizes
    differ by much, `GroupLosses(only_argmax=True)` has noise for each group's own size.

    (Scales that follow each group's size, b_i = B noise_multiplier / n_i, would not be private in
    this sense: given the best of the other scores, the bit "is it i" is 1 with probability
    1 - e^-l or 1 - e^(-l e^t), and the loss of a 0, l (e^t - 1), has no bound where the others have
    hardly any noise. So there is no such option. The noisy losses stay inside: the winner's would
    be another mechanism.)

    No minibatch may be read, as of `GroupLosses`.

    Attributes:
      bound: B, losses lie in [0, B].
      sizes: n_1, ..., n_p, records of each group; public, as is which group a record is in.
      noise_multiplier: b over B / min(sizes) [dimensionless].
      times: number of releases. Algorithms set it to their own number of rounds.

    Examples:
        >>> one = jmm.mechanism.Selection(bound=1.0, sizes=(500, 200), noise_multiplier=20.0,
        ...                               times=10)
        >>> jmm.epsilon(one, 1e-6) < 1
        True
    """

    bound: float | jax.Array
    sizes: tuple[int, ...] = jax.tree.static()
    noise_multiplier: float | jax.Array | None = None
    times: int = jax.tree.static(default=1)

    draws = "selection"
    unit = "Gumbel scale / (B / n of the smallest group)"
    only_argmax = True  # as of `GroupLosses`

    def check(self) -> None:
        """The groups, the bound and the noise."""
        self.check_losses()
        check_indices(self.sizes)

    def together(self) -> bool:
        """Yes: k records move scores by k moves in all, wherever they are.

        The loss of an index is how far its score moved, less one number for all: it stays in an
        interval as long as the largest move up and down together, at most k t. Masses pushed to the
        ends of the interval, the mean of e^-loss kept, only raise the mean of what is convex in
        e^-loss, as the curves are; and then it is one of the bits that are charged, at k t.
        """
        return True

    def charged(self, neighbours: str) -> float:
        """A score is rounded to an integer."""
        return costs.charged(self.multiplier(), SCORE)

    def cost(self, z: float) -> Charge:
        """Of one score that moves."""
        return costs.selection(self.times, z)

    def realised(self) -> Charge:
        """An index of nearly the softmax's law, see `noise.chosen`."""
        return Charge(law_error=self.times * noise.choice_tail(len(self.sizes)),
                      ratio=2 * self.times * noise.CHOICE_RATIO)

    def realisation(self, neighbours: str) -> str:
        """How the index is drawn, and what that costs."""
        z, counted, cost = self.multiplier(), self.charged(neighbours), self.realised()
        if z == 0:
            return "No noise is added."
        return ("An index of the law of the largest score, drawn from integers; rounding of scores "
                f"is charged, a multiplier of {z:.6g} as {counted:.6g} "
                f"({100 * (counted / z - 1):.2g} %); {sentences.imperfections(cost)}.")

    def in_words(self) -> str:
        """How many, of which groups, and what one scale for unequal groups means."""
        said = (f"{self.times} release(s) of the index of the largest of the groups' mean losses "
                f"in [0, {concrete(self.bound):g}] with Gumbel noise, "
                f"{sentences.groups(self.sizes)}.")
        if max(self.sizes) > 2 * min(self.sizes):
            said += (" The noise is of one scale, which the smallest group decides: "
                     "GroupLosses(only_argmax=True) has noise for each group's own size.")
        return said

    def guarantees(self) -> tuple[str, ...]:
        """That losses are clipped, and what comes beyond the allowed number."""
        return (sentences.LOSSES, sentences.INDEX)

    def is_exact(self) -> bool:
        """Scores are integers, and the index is drawn from integers."""
        return True


def check_indices(sizes: tuple[int, ...]) -> None:
    """Refuses more groups than an index is drawn of.

    Raises:
      ValueError: naming their number.
    """
    if len(sizes) > noise.MOST_INDICES:
        raise ValueError(f"sizes must have at most {noise.MOST_INDICES} groups, got {len(sizes)}.")
