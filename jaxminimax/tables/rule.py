"""Settings from public numbers: `defaults`, the rule for a table that nobody has tuned.

Logistic loss, one player, full batches, heavy-ball steps, the mean of the last half of the points.
Full batches because T releases of parameter mu_t = mu / sqrt(T) have noise 2 C sqrt(T) / (n mu),
and T steps of effective size tau / T add up to tau 2 C / (n mu): T cancels, so that rounds cost
time and no privacy, and their charge is exact. The one number that matters is tau, the time of the
gradient flow that is followed. A direction without curvature gathers noise tau 2 C / (n mu') in it;
the rule sets that to 0.7 a coordinate.

What the numbers rest on is measured, not proved; privacy rests on none of them.
"""

import dataclasses
import functools
import math

import optax

from jaxminimax.accounting import calibrate, calibrate_noise
from jaxminimax.algorithms import sgda
from jaxminimax.algorithms.common.averaging import TAIL
from jaxminimax.base import checks
from jaxminimax.base.types import Saddle
from jaxminimax.mechanism import Mechanism, Query, Repeat, Sequence
from jaxminimax.tables import moments
from jaxminimax.tables.schema import Schema

SHARE = 0.1  # of mu^2, for the release of moments
GATHERED = 0.7  # noise of a flat direction at the end, a coordinate
CLIP = math.sqrt(0.5)  # gradient of an undecided record of full length sqrt(2)
FLOOR = 0.0025  # least variance that a feature is divided by: at most 20 standard units
TOO_NOISY = 0.3  # standard deviation of a released mean from which on features stay as they are
ROUNDS = (100, 1000)
LONGEST = 20.0  # time that a round may stand for: the curvature is at most 1/2
FEW = 100.0  # n mu' / sqrt(d) below which the rule promises nothing
HEAVY_BALL = functools.partial(optax.sgd, momentum=0.9)


@dataclasses.dataclass(frozen=True)
class Defaults:
    """Settings, all from public numbers; `explain` says them in words.

    Attributes:
      hyper: of `sgda`, calibrated.
      moments: the release of means that is charged beside the run.
      standardise: whether features are put on one scale by the released moments.
      deviation: s, standard deviation of a released mean.
      floor: least variance that a feature is divided by.
      time: tau.
      strength: n mu' / sqrt(d), how far the data outweigh the noise.
      alongside: what else is paid from epsilon.
      epsilon: of everything.
      delta: of everything.
    """

    hyper: sgda.Hyper
    moments: Repeat
    standardise: bool
    deviation: float
    floor: float
    time: float
    strength: float
    alongside: tuple[Mechanism, ...]
    epsilon: float
    delta: float

    def mechanism(self) -> Mechanism:
        """All that is released, as one description."""
        return Sequence(parts=(*self.alongside, self.moments, sgda.mechanism(self.hyper)))

    def explain(self) -> str:
        """The settings in words."""
        query, n = self.hyper.query, self.hyper.query.population
        scale = ("features are centred and scaled by released moments"
                 if self.standardise else "the data are too few for moments: features stay as they "
                 "are, and only the share of positives is released")
        weak = ("" if self.strength >= FEW else
                f" The data outweigh the noise by {self.strength:.0f}, below {FEW:.0f}: expect "
                "little of the score, or ask for a larger epsilon.")
        return (f"Logistic loss on {n} records, {self.hyper.iterations} rounds over all of them, "
                f"heavy-ball steps of {self.hyper.step.w:.4g}, gradients clipped to "
                f"{query.clip.w:.4g}, the mean of the last half of the points; {scale}. "
                f"A tenth of the budget pays for that release.{weak}")


def defaults(population: int, schema: Schema, *, epsilon: float, delta: float,
             sizes: tuple[int, ...] = (), alongside: tuple[Mechanism, ...] = ()) -> Defaults:
    """Settings of a private linear scorer, from n, the columns, epsilon and delta alone.

    With groups every record's gradient is weighted by n / (p n_i), so that each of the p groups has
    the same weight in the loss. The clip norm is that of the heaviest record, and the data count as
    p min n_i.

    Args:
      population: n, records: rows, or persons where the schema has an owner.
      schema: of the columns.
      epsilon: of everything that is released, replace-one.
      delta: in (0, 1).
      sizes: n_i, records of every group; public. Empty: no groups.
      alongside: other mechanisms on the same records that are paid from epsilon.

    Raises:
      ValueError: for numbers that are out of range.
    """
    checks.count("population", population, low=2)
    one = Repeat(query=Query(clip=Saddle(1.0, None), population=population), times=1)
    for k, size in enumerate(sizes):
        checks.count(f"sizes[{k}]", size)
    # of one release of everything
    z = calibrate_noise(one, epsilon, delta, alongside=alongside).query.noise_multiplier.w
    heaviest = sum(sizes) / (len(sizes) * min(sizes)) if sizes else 1.0
    heard = population / heaviest
    first = z / math.sqrt(SHARE)
    deviation = moments.length(schema) * first / population
    standardise = deviation <= TOO_NOISY
    beside = moments.mechanism(population, schema if standardise else None, first)
    mu = 2 / z * math.sqrt(1 - SHARE)
    time = GATHERED * heard * mu / (2 * CLIP)
    rounds = min(max(math.ceil(time / LONGEST), ROUNDS[0]), ROUNDS[1])
    time = min(time, LONGEST * rounds)
    hyper = sgda.Hyper(query=Query(clip=Saddle(CLIP * heaviest, None), population=population),
                       step=Saddle(min(0.1 * time / rounds, 2.0), 1.0), iterations=rounds,
                       averaging=TAIL, optimiser=Saddle(HEAVY_BALL, optax.sgd))
    hyper = calibrate(sgda, hyper, epsilon=epsilon, delta=delta, alongside=(*alongside, beside))
    return Defaults(hyper, beside, standardise, deviation,
                    max(2 * deviation, FLOOR), time,
                    heard * mu / math.sqrt(max(schema.width, 1)), alongside, float(epsilon),
                    float(delta))
