"""Planted bugs of slots: what a sample that cannot hold the record costs, and slices left out."""

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from scipy import stats

import jaxminimax as jmm
from benchmarks.privacy.mutants.detectors import Finding
from jaxminimax import Saddle
from jaxminimax.accounting import curve
from jaxminimax.base import tree
from jaxminimax.gradients import summation
from jaxminimax.mechanism import Poisson
from jaxminimax.mechanism.costs import PrivacyLoss

AIMS: dict[str, tuple[Any, str]] = {
    "charge of Poisson samples": (Poisson, "charge"),
    "releases without the record": (PrivacyLoss, "not_read"),
    "slices with rows": (summation, "has_rows"),
}


# --- the plants ---


def rounded_up(not_read: Any) -> Any:
    """A hundredth more releases are charged as nothing."""
    return lambda self, people: 1.01 * not_read(self, people)


def at_rate_of_drawn(charge: Any) -> Any:
    """As if a record were drawn at rate r in each sample, whatever the others are."""
    def changed(self: Poisson, times: int, z: float, population: int) -> Any:
        cost = charge(self, times, z, population)
        ((loss, count),) = cost.losses
        less = loss._replace(filled=0.0, rate=loss.rate * (1 - self.filled_probability(population)))
        return cost._replace(losses=((less, count),))

    return changed


def where_all_count(_: Any) -> Any:
    """Slices are left out in which some row does not count."""
    return lambda counted: tree.in_any_lane(jnp.all(counted))


# --- what finds them ---


def sizes_shown() -> Finding:
    """True delta over the charged one, of a release in which the others show their number.

    They are far longer than the noise, and all alike: by enumeration of a sample's size.
    """
    n, z, eps, how = 6, 0.7, 0.4, Poisson(rate=0.4, again=0.5)
    most = how._room(n)[1]
    x = np.linspace(-6.0, 6.0, 200_001)
    near, up, down = (stats.norm.pdf(x, mean, z) for mean in (0.0, 1.0, -1.0))
    drawn = (1 - how.rate) * near + how.rate * up, (1 - how.rate) * near + how.rate * down
    one = float(np.trapezoid(np.maximum(drawn[0] - math.exp(eps) * drawn[1], 0), x))
    full = (1 - how.rate) * stats.binom.pmf(most, n - 1, how.rate) / stats.binom.cdf(
        most, n, how.rate)
    return Finding((1 - full) * one / curve.charge_delta(how.charge(1, z, n), eps, "replace_one"),
                   1 + 1e-6)


def left_out() -> Finding:
    """Distance of a sum in slices from that of all rows, over the clip norm."""
    rng = np.random.default_rng(0)
    x, mask = rng.normal(size=(23, 4)), jnp.asarray(rng.random(23) < 0.4)
    operator = jmm.saddle_operator(lambda w, v, row: jnp.sum(w * row))
    z = Saddle(jnp.zeros(4), jnp.zeros(()))
    sums = [jmm.clipped_sum(operator, Saddle(1.0, None), **how)(z, x, mask).w
            for how in (dict(strategy="microbatch", microbatch=2, skip_empty=True),
                        dict(strategy="vmap"))]
    return Finding(float(jnp.linalg.norm(sums[0] - sums[1])), 1e-5)


_TRUE = "true delta over the claimed one"

# name, what it breaks, what is replaced and by what, detector, and what its number is
BUGS: tuple[tuple[str, str, str, Callable[[Any], Any], Callable[[], Finding], str], ...] = (
    ("more releases charged as nothing than hold no record",
     "accountant: slots that others fill", "releases without the record", rounded_up, sizes_shown,
     _TRUE),
    ("samples drawn again charged at the rate of records drawn",
     "accountant: the rate given the others", "charge of Poisson samples", at_rate_of_drawn,
     sizes_shown, _TRUE),
    ("slices left out unless all their rows count", "a sum has all records of the sample",
     "slices with rows", where_all_count, left_out, "distance over the clip norm"),
)
