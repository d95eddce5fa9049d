"""The laws that privacy rests on, each for all kinds of releases, in about fifteen CPU-seconds.

Noise size: `test_noise_has_the_described_deviation`. Clip norms, joint ones and bounds of losses:
`test_one_record_moves_a_release_by_what_is_charged`. The budget: the last of the detectors, and
`test_a_release_is_answered_as_often_as_described_and_then_no_more` of `test_opening`.
The sampling rate: `test_samples_have_the_described_rate_and_are_independent`. What is charged,
rounding to the grid included: `test_the_accountant_charges_the_gaussian_that_runs`. Several records
of one person: `test_noise_for_several_records_is_calibrated_to_all_of_them`. Clipping by factors of
a gradient and of narrow types: the detectors.

Other tests hold these laws more sharply and in more cases, most of them in the slow lane.
"""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

import jaxminimax as jmm
from benchmarks.privacy.mutants import detectors, subtle
from jaxminimax import Saddle
from jaxminimax.mechanism.factorisation import coefficients
from jaxminimax.mechanism.resolvent import noise_unit
from jaxminimax.mechanism.solutions import solution_length
from jaxminimax.releases import reading
from jaxminimax.releases.sums import release
from jaxminimax.tables.labels import Amount, Several
from jaxminimax.tables.scorer import Moments
from tests.releases.test_opening import RELEASES, ROWS, SIZES, Case, N, W

KEYS = jax.random.split(jax.random.key(1), 4000)
SIGMAS = 4.5
BOTH = jmm.Problem(lambda z, x: x)
CLIP, NOISE = Saddle(0.5, 2.0), Saddle(1.5, 0.8)
# two records whose gradients are nearly opposite, of a loss that is half the square of w x
RECORDS = jnp.array([[1.0, -0.999], [-0.999, 1.0]])
LOSSES = jnp.array([[1e3, 1e3], [0.0, 0.0]])  # and two whose losses are far apart


def sum_of_both(joint, noise):
    query = jmm.Query(clip=CLIP, noise_multiplier=noise, population=N, joint=joint)
    return Case(lambda key, m, k, x: jnp.concatenate(
        release(key, m, k, BOTH, Saddle(W, W), Saddle(x, -x))),
        jmm.Repeat(query=query, times=3), 3, ROWS, "")


def gradient_of(kind, label):
    """Gradients of a table's label at a model of zeros, where they are linear in the features."""
    query = jmm.Query(clip=Saddle(kind.clip, None), noise_multiplier=Saddle(1.0, None),
                      population=N)
    rest = jnp.broadcast_to(jnp.asarray(label, jnp.float32), (N, 1, *np.shape(label)))
    start = kind.start(1, Moments(np.zeros(1), np.ones(1), kind.prior(np.zeros(kind.numbers))))
    return Case(lambda key, m, k, x: release(
        key, m, k, kind.problem, Saddle(jnp.zeros_like(start), ()),
        (x[:, None], rest, jnp.ones((N, 1)))).w, jmm.Repeat(query=query, times=3), 3, ROWS, "")


class Law(NamedTuple):
    """A release and what it is described to be.

    Attributes:
      case: the release, as in `test_opening`.
      unit: noise multiplier 1.0 of each number, or of all.
      spread: deviation of the noise in these units.
      moves: most that a record moves it by, in these units.
      pair: two records that move it by as much, if they are far from 0.
      place: of the record.
      spent: of the release whose noise is measured.
      keys: for how many releases.
    """

    case: Case
    unit: Any
    spread: float = 1.0
    moves: float = 2.0
    pair: jax.Array = 1e6 * RECORDS
    place: tuple = (0,)
    spent: int = 0
    keys: int = 2000


def laws():
    point = RELEASES["proximal point"].mechanism.query
    phase = RELEASES["solution"].mechanism
    groups = 1 / np.array(SIZES)
    correlated = jmm.mechanism.CorrelatedSums(clip=1.0, noise_multiplier=1.0, leaves=3, bands=3)
    both = np.repeat(np.array(CLIP) / N, 2)
    losses = dict(pair=LOSSES, keys=4000)
    each = dict(moves=math.sqrt(len(SIZES)), place=(slice(None), 0))  # one record of each group
    several, amount = Several(3), Amount(0.0, 1.0)
    return {
        "gradient of three logits": Law(gradient_of(several, [0, 1, 0]), several.clip / N),
        "gradient of Huber's loss": Law(gradient_of(amount, 9.0), amount.clip / N),
        "sum": Law(RELEASES["sum"], 1 / N),
        "sum of a part": Law(RELEASES["sum of a part"], 2 / N, spent=3),
        # of two records of eight; noise begins anew with every second release
        "sum of parts in turn": Law(RELEASES["sum of parts in turn"], 4 / N, np.linalg.norm(
            coefficients(2) * 2.0**-17), spent=3),
        "sum of parts in turn, anew": Law(RELEASES["sum of parts in turn"], 4 / N, spent=2),
        "sums of both players": Law(sum_of_both(False, NOISE),
                                    np.repeat(np.array(NOISE), 2) * both),
        "joint clip": Law(sum_of_both(True, Saddle(1.5, 1.5)), 1.5 * both),
        "proximal point": Law(RELEASES["proximal point"], noise_unit(point), pair=RECORDS),
        "gradient of a group": Law(RELEASES["group gradient"], groups[1], place=(1, 0)),
        "gradient of all groups": Law(RELEASES["all groups' gradient"], 0.9 * groups[0],
                                      place=(0, 0)),
        "losses": Law(RELEASES["group losses"], groups, 2**0.5, **each, **losses),
        "losses, Gaussian": Law(RELEASES["Gaussian losses"], groups, **each, **losses),
        "solution": Law(RELEASES["solution"], solution_length(phase, phase.reg_w), moves=1.0,
                        pair=RECORDS, place=(0, 0)),
        "bound from records held out": Law(
            RELEASES["bound from records held out"], (1 + 2e-3) * 2 * 2.0 / N, moves=1.0,
            pair=RECORDS),
        "node of a tree": Law(RELEASES["leaf"], 1.0, spent=2),
        "correlated sums": Law(RELEASES["leaf"]._replace(mechanism=correlated), 1.0, np.linalg.norm(
            coefficients(3) * 2.0**-17), spent=2),
        "loss of a record": Law(RELEASES["loss"], 1.0, 2**0.5, moves=1.0, place=(0, 0), **losses),
    }


LAWS = laws()
every_law = pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)


def with_noise(mechanism, factor):
    """A description with so many times its noise; a factor of 0 turns the noise off."""
    if isinstance(mechanism, jmm.Repeat):
        return dataclasses.replace(mechanism, query=with_noise(mechanism.query, factor))
    return dataclasses.replace(mechanism, noise_multiplier=jax.tree.map(
        lambda z: factor * z, mechanism.noise_multiplier))


@functools.cache
def program(opened):
    return jax.jit(jax.vmap(opened, (0, None, None, None)))


def released(law, spent=0, factor=1.0, data=None):
    """Releases with all keys over the unit of their noise, a row each."""
    actual = program(law.case.opened)(
        KEYS[:law.keys], with_noise(law.case.mechanism, factor), jnp.int32(spent),
        law.case.data if data is None else data)
    return np.asarray(actual).reshape(law.keys, -1) / law.unit


@every_law
def test_noise_has_the_described_deviation(law):
    """In units of a clip norm, or what stands in its place, the noise multiplier.

    The squares of Laplace numbers have a relative deviation of sqrt(5), of normal ones sqrt(2).
    """
    noise = (released(law, law.spent) - released(law, law.spent, factor=0.0)) / law.spread
    for unit in np.unique(law.unit):  # players and groups by themselves
        own = noise[:, np.broadcast_to(law.unit, noise.shape[1:]) == unit]
        assert abs(own.std() - 1) < SIGMAS / 2 * math.sqrt((5 if law.spread == 2**0.5 else 2)
                                                           / own.size)


@every_law
def test_one_record_moves_a_release_by_what_is_charged(law):
    """With equal keys, whose noise is equal."""
    limit = law.moves / law.case.mechanism.effective_noise_multiplier("replace_one")
    one, other = (released(law, data=law.case.data.at[law.place].set(x)) for x in law.pair)
    moved = np.linalg.norm(one - other, axis=1)
    assert moved.max() <= limit
    if law.pair is not RECORDS:
        assert moved.min() > 0.997 * limit


def test_samples_have_the_described_rate_and_are_independent():
    """Of every record, of all of them together; no two of 8,000 releases have the same sample."""
    n, rate, count = 50, 0.25, 8000
    query = jmm.Query(clip=CLIP, sampling=jmm.Poisson(rate=rate), population=n)
    made = jmm.Repeat(query=query, times=count)

    @jax.jit
    @jax.vmap
    def members(spent):
        sample = reading.sample_of_release(KEYS[0], made, spent)
        return jnp.zeros(n, bool).at[sample.rows].max(sample.valid)

    inside = np.asarray(members(jnp.arange(count)))
    spread = math.sqrt(rate * (1 - rate) / count)
    assert np.abs(inside.mean(0) - rate).max() < SIGMAS * spread
    # samples that do not fit their slots are drawn again, at most one in a thousand
    assert -rate / 1000 < inside.mean() - rate + SIGMAS * spread / math.sqrt(n)
    assert inside.mean() - rate < SIGMAS * spread / math.sqrt(n)
    assert len(np.unique(inside, axis=0)) == count


@pytest.mark.parametrize("times", [1, 7])
def test_the_accountant_charges_the_gaussian_that_runs(times):
    """Of z' in 50 digits, rounding to the grid included: epsilon is that of its exact profile."""
    query = jmm.Query(clip=Saddle(1.0, None), noise_multiplier=Saddle(5.0, None), population=10)
    delta = 1e-6
    epsilon = jmm.epsilon(jmm.Repeat(query=query, times=times), delta)
    charged = subtle.charge_in_50_digits(5.0, 5.0, query.parameters, absent=False)
    mu = 2 * mpmath.sqrt(times) / mpmath.mpf(str(charged))
    exact = mpmath.findroot(lambda e: mpmath.ncdf(mu / 2 - e / mu) - mpmath.e**e * mpmath.ncdf(
        -mu / 2 - e / mu) - delta, epsilon)
    assert exact <= epsilon <= exact * (1 + 1e-6)


@pytest.mark.parametrize("rate", [1.0, 0.1])
def test_noise_for_several_records_is_calibrated_to_all_of_them(rate):
    """Epsilon of so many records meets the target; of one record it would be met with less."""
    query = jmm.Query(clip=Saddle(1.0, None), population=100, sampling=jmm.Poisson(rate=rate))
    hyper = jmm.sgda.Hyper(query=query, iterations=5, step=Saddle(1.0, 1.0))
    one, three = (jmm.calibrate(jmm.sgda, hyper, 1.0, 1e-5, people=k) for k in (1, 3))
    z = [x.query.noise_multiplier.w for x in (one, three)]
    assert z[1] > 2 * z[0]
    if rate == 1:  # the distance of three records is three times that of one
        assert z[1] == pytest.approx(3 * z[0], rel=1e-2)
    for hyper, people in ((one, 1), (three, 3)):
        actual = jmm.epsilon(jmm.sgda.mechanism(hyper), 1e-5, people=people)
        assert 0.999 < actual <= 1.0


@pytest.mark.parametrize("detector", [
    subtle.dilated, subtle.one_float16_record, subtle.quietest_part, detectors.budget],
    ids=lambda detector: detector.__name__)
def test_no_detector_of_planted_bugs_fires(detector):
    assert not detector().fires
