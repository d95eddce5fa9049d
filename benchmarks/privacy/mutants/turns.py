"""Planted bugs of samples of parts in turn and of noise that begins anew, and what finds them.

They are those that the proof in `mechanism.correlated` names: the noise goes on, samples are of
all records, parts and blocks get out of step, a window that was begun is free, several records
fail like one.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

import jaxminimax as jmm
from benchmarks.privacy.mutants import charges, detectors, plants
from benchmarks.privacy.mutants.detectors import Finding
from jaxminimax import Saddle
from jaxminimax.mechanism import CyclicPoisson, Poisson, correlated, costs, factorisation
from jaxminimax.mechanism.costs import Charge, PrivacyLoss
from jaxminimax.mechanism.grid import DITHER_FAILURE, grid_bits
from jaxminimax.releases import reading, stream

AIMS: dict[str, tuple[Any, str]] = {
    "sample": (reading, "draw"),
    "correlated noise": (stream, "correlated_noise"),
    "what correlated noise is made of": (stream, "floored_normal"),
    "charge": (costs, "price"),
    "charge of samples": (CyclicPoisson, "charge"),
    "length of columns": (factorisation, "norms"),
    "rounding of correlated noise": (factorisation, "charged_correlated"),
    "failures": (Charge, "failures"),
    "bands": (correlated.InTurn, "check"),
}
PARTS, RATE = 4, 0.5


# --- the plants ---


def goes_on(noise: Any) -> Any:
    """Noise never begins anew, so that C is dense."""
    def changed(*args: Any) -> Any:
        *rest, _ = args
        return noise(*rest, None)

    return changed


def begins_late(noise: Any) -> Any:
    """Blocks end one release after those of the parts, as if a caller counted them."""
    def changed(key: Any, stream: Any, spent: Any, bands: int, *args: Any) -> Any:
        *rest, _ = args
        return noise(key, stream, spent, bands, *rest, bands + 1)

    return changed


def of_all_records(draw: Any) -> Any:
    """Samples of all records at a part's share of the rate."""
    def changed(keys: Any, query: Any, release: Any) -> Any:
        rate = query.sampling.rate / query.sampling.parts
        plain = dataclasses.replace(query, bands=1, sampling=Poisson(
            rate=rate, capacity=query.population))
        sample = draw(keys, plain, release)
        # as many rows as described; few records are drawn
        rows = query.sampling.rows_read(query.population)
        first = jnp.argsort(~sample.valid, stable=True)[:rows]
        return sample._replace(rows=sample.rows[first], valid=sample.valid[first])

    return changed


def by_rounds_of_two(draw: Any) -> Any:
    """The part goes on with every second release."""
    return lambda keys, query, release: draw(keys, query, release // 2)


def begun_windows_free(price: Any) -> Any:
    def changed(leaf: Any, neighbours: str) -> Any:
        parts = leaf.query.sampling.parts
        return price(dataclasses.replace(leaf, times=max(parts, leaf.times // parts * parts)),
                     neighbours)

    return changed


def at_the_rate_of_all(charge: Any) -> Any:
    """The rate of all records is charged, and not that of a part."""
    def changed(self: CyclicPoisson, times: int, z: float, population: int) -> Any:
        return charge(dataclasses.replace(self, rate=self.rate / self.parts), times, z, population)

    return changed


def against_half_of_replaced(charged: Any) -> Any:
    return lambda *args, absent=False, **how: charged(*args, **how)


def like_one_record(_: Any) -> Any:
    """Failures of sets of records are charged once for each record."""
    def changed(self: Charge, people: int = 1) -> float:
        return people * (self.failure + self.set_failure)

    return changed


# --- the detectors ---

BLOCKS = functools.partial(detectors.signal, 7, CyclicPoisson(rate=RATE, parts=PARTS), bands=PARTS)


def described(times: int = 2 * PARTS, bands: int = PARTS, parameters: int = 2) -> jmm.Repeat:
    """One player's releases, of so many numbers."""
    query = jmm.Query(clip=Saddle(1.0, None), noise_multiplier=Saddle(1.0, None), bands=bands,
                      population=40, parameters=parameters,
                      sampling=CyclicPoisson(rate=RATE, parts=PARTS))
    return jmm.Repeat(query=query, times=times)


def one_window() -> Finding:
    """True delta at the claimed epsilon of a record that is read once, over the claimed."""
    column = factorisation.norms(PARTS, PARTS).column
    return charges.of_a_sample(described(PARTS), RATE, column)


def charged_rounding() -> Finding:
    """Charged multiplier over that of the formula, against the sum without the record."""
    z, parameters = 1.0, 2**20
    real = costs.charged(z, costs.CLIP_NORM, parameters, absent=True)
    norm, unit = factorisation.norms(PARTS, PARTS), 2.0 ** grid_bits(z, parameters)
    moved, u = norm.column * unit / real, 72.0
    n = norm.total * math.sqrt(2 * u) / 2
    length = math.sqrt(moved**2 + 2 * n * moved
                       + (math.sqrt(parameters * norm.trace) / 2 + n) ** 2)
    ((loss, _),) = _cost(described(parameters=parameters)).losses
    return Finding(loss.z * norm.column / (real * moved / length), 1 + 1e-12)


def _cost(steps: jmm.Repeat) -> Charge:
    return steps.cost(steps.effective_noise_multiplier(costs.REPLACE_ONE))


def failures_of_sets(people: int = 5, windows: int = 2) -> Finding:
    """What rounding may fail by for several records, by the formula over the charged."""
    cost = Charge(losses=((PrivacyLoss("poisson", 1.0, RATE), windows),),
                  set_failure=_cost(described(windows * PARTS)).set_failure)
    needed = 2 * (2**people - 1) * DITHER_FAILURE * windows
    return Finding(needed / cost.failures(people), 1.0)


def bands_out_of_step() -> Finding:
    """Descriptions whose blocks lie in two windows, and that are charged; none may be."""
    charged = 0
    for bands in (3, 5, 8):
        try:
            jmm.epsilon(described(16, bands), 1e-3)
            charged += 1
        except ValueError:
            pass
    return Finding(float(charged), 0.0)


# name, what it breaks, what is replaced and by what, detector, and what its number is
_SIGNAL, _TRUE = "signal over the charged one", "true delta over the claimed one"
BUGS: tuple[tuple[str, str, str, Callable[[Any], Any], Callable[[], Finding], str], ...] = (
    ("noise of parts in turn a tenth low", "standard deviation",
     "what correlated noise is made of", plants.quieter(0.9), BLOCKS, _SIGNAL),
    ("noise never begins anew", "columns of two reads share no release", "correlated noise",
     goes_on, BLOCKS, _SIGNAL),
    ("noise begins anew a release late", "a block in one window", "correlated noise", begins_late,
     BLOCKS, _SIGNAL),
    ("samples of all records at a part's share of the rate", "one coin a window", "sample",
     of_all_records, BLOCKS, _SIGNAL),
    ("the part goes on with every second release", "one coin a window", "sample",
     by_rounds_of_two, BLOCKS, _SIGNAL),
    ("a window that was begun not charged", "accountant: windows", "charge", begun_windows_free,
     BLOCKS, _SIGNAL),
    ("a record of parts in turn charged for one number", "accountant: length of a column",
     "length of columns", charges.one_column_entry, BLOCKS, _SIGNAL),
    ("the rate of all records charged for a part's", "accountant: rate of a part",
     "charge of samples", at_the_rate_of_all, one_window, _TRUE),
    ("rounding charged for half of a replaced record", "accountant: the sum without the record",
     "rounding of correlated noise", against_half_of_replaced, charged_rounding,
     "charged multiplier over the formula's"),
    ("failures of several records as of one", "accountant: sets of records", "failures",
     like_one_record, failures_of_sets, "needed over the charged failures"),
    ("bands that do not divide the parts", "a block in one window", "bands",
     lambda _: lambda self, of: None, bands_out_of_step, "descriptions that are charged"),
)
