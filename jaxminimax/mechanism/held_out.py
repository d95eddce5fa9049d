"""One number computed from records held out: a bound on a gap or on a primal risk of a point."""

from typing import Any

import jax

from jaxminimax.base import checks, types
from jaxminimax.mechanism import description, grid
from jaxminimax.mechanism.costs import SENSITIVITY, concrete
from jaxminimax.mechanism.sentences import Words

__all__ = ["HeldOutBound"]

SLACK = 1e-3  # what arithmetic may move, over Delta


@types.pytree_dataclass
class HeldOutBound(description.Leaf):
    """`times` releases of the largest mean of linear functions over h held-out records.

        c(z) = max over u in W of  (1/h) sum_i ( a_i + <g_i, z - u> ),

    g_i the operator of record i at a released point z, clipped to norm L with both players
    together, and a_i its loss at z, clipped to an interval of length B, or 0. A replaced record
    moves (a_i, g_i) alone. For every fixed u the mean then moves by at most

        Delta = (B + 2 L R) / h,      R >= ||z - u|| for all u in W,

    and so does the maximum, whatever records contain. R follows from z, which was released before,
    and the noise is `noise_multiplier` times (1 + 2 SLACK) Delta. So each release is a Gaussian
    mechanism with a multiplier that does not depend on z: releases at points that were chosen by
    looking at earlier ones compose as `times` such mechanisms. k records move it by k Delta at
    most, since each of them moves (a, g) of its own.

    SLACK pays for float64 arithmetic, (1 + 2 SLACK) Delta being what the noise is over. With public
    terms r, sums of h vectors of d numbers, the minimiser and one inner product are off by a part

        lost = h max(h + d, 2^10) 2^-52 (1 + ||r|| / L) (1 + ||z|| / R)

    of Delta at most, however they are added up. The release refuses where that is above SLACK.

    Attributes:
      bound: L, the clip norm of one record's operator [gradient units].
      loss_range: (low, high) of one record's loss, B = high - low; None for a gap.
      population: h, the number of records held out; public.
      noise_multiplier: standard deviation of the noise over (1 + 2 SLACK) Delta.
      times: number of releases, each at a point of its own.

    Examples:
        >>> query = jmm.mechanism.HeldOutBound(bound=1.0, population=500, noise_multiplier=5.0)
        >>> round(jmm.epsilon(query, 1e-6), 2)
        0.83
    """

    bound: float | jax.Array
    loss_range: tuple[float, float] | None = jax.tree.static(default=None)
    population: int = jax.tree.static()
    noise_multiplier: float | jax.Array | None = None
    times: int = jax.tree.static(default=1)

    kind = description.Kind.HELD_OUT

    def check(self) -> None:
        """The numbers."""
        grid.check_times("times (the number of releases)", self.times)
        checks.count("population", self.population)
        checks.number("bound", self.bound, low=1e-12, high=1e12, closed=True)
        grid.check_multiplier("noise_multiplier", self.noise_multiplier)
        if self.loss_range is not None:
            low, high = self.loss_range
            checks.number("loss_range[0]", low, low=-1e12, high=1e12)
            checks.number("loss_range[1]", high, low=low, high=1e12)

    def supports_group_privacy(self) -> bool:
        """Yes: k records move a release by k times what one does."""
        return True

    def facts(self) -> description.Facts:
        """A record moves the one number of every release."""
        return description.Facts(SENSITIVITY, self.times, self.times, numbers=self.times,
                                 near=self.times, repeats=True, records=self.population,
                                 noise=self.noise_multiplier, parameters=1, slack=SLACK)

    def words(self) -> Words:
        """States what is bounded, on how many records, and the constants of its sensitivity."""
        loss = ("a gap" if self.loss_range is None else
                "a primal risk, losses in [{:g}, {:g}]".format(*self.loss_range))
        return Words(
            f"{self.times} release(s) of a bound on {loss}, from {self.population} records held "
            f"out, operators of norm at most {concrete(self.bound):g}, with Gaussian noise.",
            ("Every held-out record's operator is clipped to the stated norm, players together, "
             "and its loss to the stated range, before they are averaged.",), (
                "The problem's linear minimiser finds a minimum over the feasible set, which lies "
                "within the stated distance of the point; neither it nor public terms read the "
                "data.",),
            unit="Gaussian deviation / ((B + 2 L R) / h)")


def length(query: HeldOutBound, radius: Any) -> Any:
    """(1 + 2 SLACK) Delta, Delta = (B + 2 L R) / h, what replacing a record may move."""
    low, high = query.loss_range or (0.0, 0.0)
    return (1 + 2 * SLACK) * (high - low + 2 * query.bound * radius) / query.population
