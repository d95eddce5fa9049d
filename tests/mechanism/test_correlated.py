"""Correlated noise that begins anew: its law, and its charge against every adversary of a menu."""

import dataclasses
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxminimax as jmm
from jaxminimax import Saddle
from jaxminimax.accounting.curve import charge_delta, together
from jaxminimax.mechanism import factorisation
from jaxminimax.mechanism.composed import charges
from jaxminimax.mechanism.correlated import Bands, InTurn, Noise
from jaxminimax.mechanism.costs import Charge, PrivacyLoss, charged
from jaxminimax.mechanism.grid import DITHER_FAILURE, grid_bits

RO, AR = "replace_one", "add_or_remove_one"
LINES = jmm.Problem(lambda z, x: Saddle(x, ()))


def described(times=12, bands=3, parts=6, n=24, z=2.0, exact=True, parameters=20, rate=0.5):
    query = jmm.Query(clip=Saddle(1.0, None), noise_multiplier=Saddle(z, None), population=n,
                      bands=bands, exact=exact, parameters=parameters,
                      sampling=jmm.mechanism.CyclicPoisson(rate=rate, parts=parts))
    return jmm.Repeat(query=query, times=times)


# --- the noise ---


def inverse(times, bands):
    """R, of blocks of so many releases."""
    a = factorisation.coefficients(bands) * 2.0**-17
    r = np.zeros((times, times))
    for t, k in itertools.product(range(times), range(bands)):
        if k <= t % bands:
            r[t, t - k] = a[k]
    return r


@pytest.mark.slow
@pytest.mark.parametrize("exact", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_block_has_the_square_root_and_shares_nothing_with_another(exact):
    """The covariance of 8 releases in blocks of 3, of 6,000 numbers each, is that of R R^T."""
    size, times = 6000, 8
    steps = dataclasses.replace(described(times, exact=exact), query=dataclasses.replace(
        described(exact=exact).query, parameters=size))
    released = jax.jit(lambda t: jmm.release(jax.random.key(5), steps, t, LINES, Saddle(
        jnp.zeros(size), ()), jnp.zeros((24, size))).w)
    sums = np.stack([released(jnp.int32(t)) for t in range(times)])
    noise = sums * jmm.mechanism.batch_size(steps.query) / 2.0
    r, actual = inverse(times, 3), noise @ noise.T / size
    np.testing.assert_allclose(actual, r @ r.T, atol=5 * 1.5 / math.sqrt(size))
    assert np.abs(noise.mean(1)).max() < 5 * 1.2 / math.sqrt(size)


@pytest.mark.parametrize(("times", "bands"), [(7, 3), (8, 4), (5, 1), (2, 4)])
def test_noise_on_prefix_sums_is_that_of_the_matrix(times, bands):
    r = inverse(times, bands)
    rows = np.square(np.tri(times) @ r).sum(1)
    actual = InTurn(bands).mean_prefix(Bands(bands, times, 1))
    assert actual == pytest.approx(math.sqrt(rows.mean()), rel=1e-12)


@pytest.mark.slow
def test_a_release_is_a_function_of_its_key_and_number():
    """So a run that goes on in the middle of a block repeats what it would have released."""
    steps = described()
    one = jax.jit(lambda t: jmm.release(jax.random.key(6), steps, t, LINES, Saddle(
        jnp.zeros(4), ()), jnp.ones((24, 4))).w)
    first = [np.asarray(one(jnp.int32(t))) for t in range(12)]
    for t in (10, 4, 7, 11):
        np.testing.assert_array_equal(one(jnp.int32(t)), first[t])
    assert np.isnan(one(jnp.int32(12))).all()


# --- the charge ---


@pytest.mark.parametrize(("times", "windows"), [(1, 1), (6, 1), (7, 2), (12, 2), (13, 3)])
def test_a_window_that_was_begun_is_charged_at_the_noise_over_the_column(times, windows):
    steps = described(times)
    (cost,) = charges(steps, RO)
    ((loss, count),) = cost.losses
    assert count == windows
    c = np.linalg.inv(np.array([[1, 0, 0], [-0.5, 1, 0], [-0.125, -0.5, 1]]))
    assert loss.z == pytest.approx(2.0 / np.linalg.norm(c[:, 0]), rel=3e-3)
    assert loss.z < 2.0 / np.linalg.norm(c[:, 0])  # rounding is charged
    assert loss.rate == pytest.approx(0.5, rel=1e-9)
    assert loss.rate >= 0.5


def test_a_record_moves_numbers_of_all_releases_of_its_blocks():
    facts = described(times=12).facts()
    assert facts.numbers == 12 * 20
    assert facts.near == 12 * 2


@pytest.mark.parametrize("people", [1, 2, 4, 30])
def test_failures_of_rounding_are_those_of_all_sets_of_records(people):
    """Twice two events of e^-72 in each window, for each set of the records that is not empty."""
    cost = described(times=12, bands=2, parts=2).cost(1.9)
    own = cost.failures(people) - cost._replace(set_failure=0.0).failures(people)
    assert own == pytest.approx(6 * (2**people - 1) * 4 * math.exp(-72), rel=1e-6)
    assert Charge(set_failure=1e-3).failures(people=12) > 1  # then nothing is promised


@pytest.mark.parametrize("parameters", [20, 2**20])
def test_rounding_is_charged_against_the_sum_without_the_record(parameters):
    """Of H^2 + 2 n H + (m + n)^2 with the absent record's H; half of the replaced one's is less."""
    z, p = 2.0, 3
    real = charged(z, jmm.mechanism.costs.CLIP_NORM, parameters, absent=True)
    norm, unit = factorisation.norms(p, p), 2.0 ** grid_bits(z, parameters)
    h = norm.column * unit / real
    n = norm.total * math.sqrt(2 * 72) / 2
    m = math.sqrt(parameters * norm.trace) / 2
    k = math.sqrt(h**2 + 2 * n * h + (m + n) ** 2)
    charge = InTurn(6).cost(Bands(p, 12, parameters), Noise(z, real, z),
                            lambda z: Charge(losses=((PrivacyLoss("poisson", z, 0.5), 2),)))
    ((loss, _),) = charge.losses
    assert loss.z == pytest.approx(real * h / k / norm.column, rel=1e-12)
    halved = factorisation.charged_correlated(z, real, p, p, parameters)
    assert loss.z < halved / norm.column
    assert charge.set_failure == 2 * 2 * DITHER_FAILURE


def test_several_records_are_charged_together_only_if_nothing_comes_between():
    steps, other = described(), jmm.Repeat(query=jmm.Query(
        clip=Saddle(1.0, None), noise_multiplier=Saddle(50.0, None), population=24), times=1)
    assert steps.supports_group_privacy()
    assert jmm.Sequence(parts=(steps,)).supports_group_privacy()
    assert not jmm.Sequence(parts=(steps, other)).supports_group_privacy()
    assert not jmm.Sequence(parts=(other, jmm.Sequence(parts=(steps,)))).supports_group_privacy()
    plain = described(bands=1)  # each release is charged by itself
    assert jmm.Sequence(parts=(plain, other)).supports_group_privacy()
    both = jmm.Sequence(parts=(steps, other))
    assert not together(both, charges(both, RO), 2)
    assert jmm.epsilon(both, 1e-5, people=2) > jmm.epsilon(steps, 1e-5, people=2)


# --- every adversary of a menu, one window of two releases and two records ---


GRID = np.arange(-9.0, 9.0, 0.06)
STEP = GRID[1] - GRID[0]
MENU = (-1.0, 0.0, 1.0)


def normal(mean, z):
    return np.exp(-0.5 * ((GRID - mean) / z) ** 2) / (z * math.sqrt(2 * math.pi))


def attained(c, q, z, epsilon, together, second):
    """The largest hockey-stick divergence of one window, its integrals by sums over a grid.

    Record 1 is read in release 0, and adds d to u_0 and c d to u_1 where it is hit, u = C h. Record
    2 is in the same part, or read in release 1, where it is chosen by looking at u_0.

    Args:
      c: second entry of C's first column.
      q: rate.
      z: deviation.
      epsilon: of the divergence.
      together: whether both are in one part.
      second: what the two records are on the second data set, or may be: `(menu, menu)`.
    """
    a, best = math.exp(epsilon), 0.0
    hits = list(itertools.product((0, 1), (0, 1)))
    coins = [(q if i else 1 - q) * (q if j else 1 - q) for i, j in hits]
    for d1, e1 in itertools.product(MENU, second[0]):
        replies = []
        for d2, e2 in itertools.product(MENU, second[1]):
            joint = []
            for one, two in ((d1, d2), (e1, e2)):
                density = 0.0
                for weight, (i, j) in zip(coins, hits, strict=True):
                    first = i * one + (j * two if together else 0.0)
                    later = c * first if together else c * i * one + j * two
                    density = density + weight * normal(first, z)[:, None] * normal(later, z)
                joint.append(density)
            gain = np.maximum(joint[0] - a * joint[1], 0.0).sum(1) * STEP  # for each u_0
            replies.append(gain)
        # chosen by u_0, or before it if both are read in release 0
        value = (max(g.sum() for g in replies) if together else np.max(replies, 0).sum()) * STEP
        best = max(best, value)
    return best


def claimed(c, q, z, epsilon, relation, people=2):
    loss = PrivacyLoss("poisson", z / math.hypot(1.0, c), q)
    return charge_delta(Charge(losses=((loss, 1),)), epsilon, relation, people)


@pytest.mark.slow
@pytest.mark.parametrize(("c", "q", "z", "epsilon"), [
    (0.5, 0.3, 1.0, 0.5), (0.5, 0.3, 0.7, 2.0), (1.0, 0.6, 1.0, 0.0), (-0.5, 0.2, 0.8, 1.0)])
def test_two_records_of_a_window_are_bounded_by_their_pair(c, q, z, epsilon):
    """In one part the straight line attains it; in two parts it is not reached."""
    bound = claimed(c, q, z, epsilon, RO)
    same = attained(c, q, z, epsilon, True, (MENU, MENU))
    apart = attained(c, q, z, epsilon, False, (MENU, MENU))
    assert 0.995 * bound < same <= bound * (1 + 1e-3)
    assert apart <= same * (1 + 1e-3)
    # the pair of one record, and a column left out, would claim less than an adversary attains
    assert claimed(c, q, z, epsilon, RO, people=1) < same
    assert claimed(0.0, q, z, epsilon, RO) < same


@pytest.mark.parametrize("second", [((0.0,), (0.0,)), ((0.0,), MENU)])
def test_two_absent_records_are_bounded_too(second):
    """Both absent from the second data set, or one of them with the other replaced."""
    relation = AR if second[1] == (0.0,) else RO
    for together_ in (True, False):
        assert attained(0.5, 0.3, 0.8, 1.0, together_, second) <= claimed(
            0.5, 0.3, 0.8, 1.0, relation) * (1 + 1e-3)
