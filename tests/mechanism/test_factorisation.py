"""Correlated noise: what it is made of, what it costs, and that nobody keeps it."""

import dataclasses
import math

import dp_accounting as dpa
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import toeplitz

import jaxminimax as jmm
from jaxminimax import Problem, Saddle, ftrl, group_oco, problems
from jaxminimax.base.random_bits import random_words
from jaxminimax.mechanism import CorrelatedSums, TreeSums, sentences
from jaxminimax.mechanism import factorisation as described
from jaxminimax.mechanism.composed import charges as described_charges
from jaxminimax.mechanism.description import Kind
from jaxminimax.mechanism.factorisation import FRACTION, TOGETHER, coefficients, norms, sums_for
from jaxminimax.mechanism.grid import grid_bits
from jaxminimax.noise import floored_normal
from jaxminimax.releases import noisy_sums, release_keys, stream
from jaxminimax.releases.stream import release_leaf
from tests.helpers.words import one_line

LINES = Problem(operator=lambda z, x: Saddle(x, ()), project=lambda z: z)
KEY = jax.random.key(5)


def inverse(leaves, bands):
    """R."""
    a = coefficients(bands)[:leaves] / 2.0**FRACTION
    return toeplitz(np.pad(a, (0, leaves - len(a))), np.zeros(leaves))


def increments(releases, bands, size, z=1.5, exact=True, key=KEY):
    """The noise of that many releases, `[releases, size]`, and its unit."""
    like = Saddle(jnp.zeros(size, jnp.float32), ())
    scale = noisy_sums.scales(Saddle(2.0, 2.0), Saddle(z, z), size)
    made = jax.jit(lambda t: stream.correlated_noise(
        key, Kind.INNOVATION, t, bands, like, scale, exact).w)
    return np.stack([made(jnp.int32(t)) for t in range(releases)]), float(scale.w.step)


# --- the factorisation ---


@pytest.mark.parametrize(("leaves", "largest", "rms"), [(1024, 3.273, 3.110), (9373, 3.977, 3.815)])
def test_the_square_root_has_the_deviations_of_its_closed_form(leaves, largest, rms):
    """||c||^2 is the sum of binom(2k, k)^2 / 16^k, and so is the variance of the last sum."""
    known = norms(leaves, leaves)
    k = np.arange(1, leaves)
    c = np.concatenate([[1.0], np.cumprod((2 * k - 1) / (2 * k))])
    assert known.column == pytest.approx(np.linalg.norm(c), rel=1e-5)
    assert known.column * known.prefix == pytest.approx(largest, abs=6e-4)
    assert known.column * known.mean_prefix == pytest.approx(rms, abs=6e-4)


@pytest.mark.parametrize(("leaves", "bands", "rms"), [
    (100, 32, 2.32), (1000, 128, 3.13), (10_000, 128, 6.42)])
def test_bands_have_the_deviations_that_were_computed_for_the_series(leaves, bands, rms):
    known = norms(leaves, bands)
    assert known.column * known.mean_prefix == pytest.approx(rms, abs=6e-3)


@pytest.mark.parametrize(("leaves", "bands", "apart"), [(1, 1, None), (8, 3, None), (12, 5, 4),
                                                        (13, 13, 5), (9, 1, 2)])
def test_norms_are_those_of_the_inverse_matrix_rounded_up(leaves, bands, apart):
    c = np.linalg.inv(inverse(leaves, bands))
    assert np.all(c >= -1e-15)
    columns = [np.linalg.norm(c[:, start::apart or leaves].sum(1))
               for start in range(apart or leaves)]
    b = np.tril(np.ones((leaves, leaves))) @ inverse(leaves, bands)
    known = norms(leaves, bands, apart)
    expected = (max(columns), np.sum(c**2), c[:, 0].sum(), np.sqrt(np.max(np.sum(b**2, 1))),
                np.sqrt(np.mean(np.sum(b**2, 1))))
    np.testing.assert_allclose(known, expected, rtol=1e-12)
    assert known.column >= max(columns) * (1 - 1e-15)
    assert known.total >= np.linalg.norm(c, 2) * (1 - 1e-12)


def test_coefficients_are_integers_whose_sums_are_the_nearest_to_the_series():
    a = coefficients(2000)
    k = np.arange(1, 2000)
    sums = np.concatenate([[1.0], np.cumprod((2 * k - 1) / (2 * k))])
    assert np.max(abs(np.cumsum(a) - 2.0**FRACTION * sums)) <= 0.5
    assert a[0] == 2**FRACTION
    assert np.all(a[1:] <= 0)
    assert -np.sum(a[1:].astype(np.int64)) < 2**FRACTION


# --- the noise ---


@pytest.mark.slow
@pytest.mark.parametrize("exact", [True, False])
def test_increments_have_the_covariance_of_the_factorisation(exact):
    releases, bands, size = 8, 3, 40_000
    noise, unit = increments(releases, bands, size, exact=exact)
    noise = noise * (unit if exact else 1.0) / 3.0
    r = inverse(releases, bands)
    expected = r @ r.T
    error = 5 * np.sqrt((expected**2 + np.outer(*[np.diag(expected)] * 2)) / size)
    actual = noise @ noise.T / size
    assert np.all(abs(actual - expected) < error)
    assert np.all(abs(noise.mean(1)) < 5 * np.sqrt(np.diag(expected) / size))
    assert np.all(abs(np.diag(actual) / 4 - np.diag(expected)) > np.diag(error))  # half of it
    full = inverse(releases, releases)
    assert np.any(abs(actual - full @ full.T) > error)  # other bands would be seen


@pytest.mark.parametrize("bands", [5, pytest.param(40, marks=pytest.mark.slow)])
def test_integers_are_what_the_argument_says(bands):
    """In integers of 64 bits, from the innovations' own draws; several blocks."""
    size, z, releases = 6, 1.5, 70
    noise, _ = increments(releases, bands, size, z)
    rows, a = min(TOGETHER, bands), coefficients(bands).astype(np.int64)
    def keys(j):
        return release_keys.Keys(KEY, Kind.INNOVATION, j)

    draw = jax.jit(lambda j: floored_normal(keys(j).noise, rows * size, grid_bits(z, size)))
    zeta = np.concatenate([np.asarray(draw(jnp.uint32(j))).reshape(rows, size)
                           for j in range(-(-releases // rows))]).astype(np.int64)
    for t in (0, 1, 3, 31, 32, 33, 64, 69):
        lags = np.arange(1, min(bands, t + 1))
        dither = random_words(keys(t).sample, (size,))
        sums = (np.asarray(dither) >> (32 - FRACTION)).astype(np.int64) + (a[lags].sum() >> 1)
        sums = sums + (a[lags, None] * zeta[t - lags]).sum(0)
        np.testing.assert_array_equal(noise[t], zeta[t] + (sums >> FRACTION))


def test_no_integer_of_the_sum_overflows():
    """Fifteen deviations of the finest noise, the same sign in every band: the worst there is."""
    most = 15 * 2**22
    upper, lower = most >> 13, 2**13 - 1
    both = -coefficients(described.MOST_BANDS)[1:].astype(np.int64).sum()
    assert both < 2**FRACTION
    assert both * (upper + 1) + 2**18 < 2**31
    assert both * lower + 2**FRACTION < 2**31


def shifts(data, moved, bands, dithers, zeta):
    """By how much the innovations of neighbours differ, for equal releases; integers."""
    a = coefficients(bands).astype(np.int64)
    other, rounds = np.zeros_like(zeta), len(zeta)

    def mixed(x, t):
        lags = np.arange(1, min(bands, t + 1))
        return (dithers[t] + (a[lags, None] * x[t - lags]).sum(0)) >> FRACTION

    for t in range(rounds):
        released = data[t] + zeta[t] + mixed(zeta, t)
        other[t] = released - moved[t] - mixed(other, t)
    return other - zeta


@pytest.mark.parametrize("where", [(0,), (7,), (0, 10, 20, 30)])
def test_what_a_record_moves_is_within_what_is_charged(where):
    """In integers, rounding included, against the charge's own length of the shifts."""
    rng = np.random.default_rng(3)
    releases, bands, size, z = 40, 12, 300, 2.0
    unit = 2.0 ** grid_bits(z, size)
    zeta = np.floor(unit * rng.normal(size=(releases, size))).astype(np.int64)
    dithers = rng.integers(0, 2**FRACTION, (releases, size))
    data = rng.integers(-2**17, 2**17, (releases, size))
    apart = None if len(where) == 1 else 10
    line = rng.normal(size=size)
    real = 2 * unit / np.linalg.norm(np.round(line * 2 * unit / z / np.linalg.norm(line)))
    charged = described.charged_correlated(z, real, releases, bands, size, apart=apart)
    moved = data.copy()
    for t in where:
        moved[t] -= np.round(line * 2 * unit / z / np.linalg.norm(line)).astype(np.int64)
    actual = np.linalg.norm(shifts(data, moved, bands, dithers, zeta))
    limit = 2 * unit * norms(releases, bands, apart).column / charged
    assert actual <= limit
    if where[0] == 0:  # and the charge is not loose; a later record moves less
        assert actual > 0.995 * limit


def test_an_adaptive_game_is_one_gaussian_of_the_charged_parameter():
    """Eight leaves; the adversary chooses the next leaf's direction by what it saw."""
    leaves, bands, z, runs = 8, 4, 1.1, 60_000
    rng = np.random.default_rng(0)
    r = inverse(leaves, bands)
    c = np.linalg.inv(r)
    zeta = z * rng.normal(size=(runs, leaves, 2))
    noise = np.einsum("ts,rsd->rtd", r, zeta)
    ratio, released, own = np.zeros(runs), np.zeros((runs, 2)), None
    for t in range(leaves):
        angle = np.arctan2(released[:, 1], released[:, 0])[:, None]
        g = np.concatenate([np.cos(3 * angle), np.sin(3 * angle)], 1)  # one record a leaf
        if own is None:
            own = g
        released = g + noise[:, t]
        shift = 2 * c[t, 0] * own  # leaf 0's record is replaced by its opposite
        ratio += (np.sum(shift * zeta[:, t], 1) + np.sum(shift**2, 1) / 2) / z**2
    mu = 2 * norms(leaves, bands).column / z
    assert ratio.mean() == pytest.approx(mu**2 / 2, abs=5 * mu / math.sqrt(runs))
    assert ratio.var() == pytest.approx(mu**2, rel=5 * math.sqrt(2 / runs))
    known = jmm.mechanism.CorrelatedSums(clip=3.0, noise_multiplier=z, leaves=leaves, bands=bands)
    assert jmm.epsilon(known, 1e-6) == pytest.approx(dpa.get_epsilon_gaussian(1 / mu, 1e-6),
                                                     rel=3e-3)
    assert jmm.epsilon(known, 1e-6) > dpa.get_epsilon_gaussian(1 / mu, 1e-6)
    # all shifts together by linear algebra, whatever the leaf
    precision = np.linalg.inv(z**2 * r @ r.T)
    assert max(4 * precision[s, s] for s in range(leaves)) == pytest.approx(mu**2, rel=1e-9)


# --- what it costs, and what is said ---


def test_a_shorter_run_costs_as_much_and_others_are_refused():
    known = CorrelatedSums(clip=1.0, noise_multiplier=4.0, leaves=50, bands=8)
    assert jmm.epsilon(known, 1e-6, spent=1) == jmm.epsilon(known, 1e-6) > 0
    assert jmm.epsilon(known, 1e-6, spent=0) == 0
    for change, match in (({"bands": 0}, "bands"), ({"bands": 2**17}, "bands must be at most"),
                          ({"leaves": 2**21}, "use TreeSums"), ({"leaves": 0}, "leaves"),
                          ({"parameters": 2**27}, "parameters must be below"),
                          ({"clip": 0.0}, "clip"), ({"noise_multiplier": -1.0}, "multiplier")):
        with pytest.raises(ValueError, match=match):
            jmm.epsilon(dataclasses.replace(known, **change), 1e-6)
    with pytest.raises(ValueError, match="neighbours='replace_one'"):
        jmm.epsilon(known, 1e-6, neighbours="add_or_remove_one")


def test_k_records_of_a_person_move_k_times_as_far():
    known = CorrelatedSums(clip=1.0, noise_multiplier=12.0, leaves=50, bands=8)
    thrice = dataclasses.replace(known, noise_multiplier=4.0)
    passes = jmm.Repeat(query=dataclasses.replace(PASSES, noise_multiplier=Saddle(6.0, 9.0)),
                        times=9)
    fewer = jmm.Repeat(query=PASSES, times=9)
    for made, near in ((known, thrice), (passes, fewer)):
        assert jmm.epsilon(made, 1e-6, people=3) == pytest.approx(jmm.epsilon(near, 1e-6),
                                                                  rel=2e-3)


def test_the_statement_says_what_it_is():
    known = CorrelatedSums(clip=1.0, noise_multiplier=4.0, leaves=50, bands=8)
    stated = one_line(jmm.statement(ftrl, ftrl.example(known, 50), delta=1e-6))
    for words in (known.summary(), *known.enforced(), *known.assumed(), "8 band(s)"):
        assert stated.count(words) == 1
    floats = dataclasses.replace(known, exact=False)
    assert "floating-point" in one_line(jmm.statement(ftrl, ftrl.example(floats, 50), delta=1e-6))


@pytest.mark.parametrize("leaves", [1, 2, 7, 100, 1024, 9373, 300_000])
def test_the_planned_sums_are_never_noisier_than_a_tree(leaves):
    made, tree = sums_for(1.0, leaves, 10), TreeSums(clip=1.0, leaves=leaves)
    assert made.leaves == leaves
    assert made.moves() * made.spread() <= tree.moves() * tree.spread()
    assert isinstance(made, CorrelatedSums) == (1 < leaves < 200_000)
    few = sums_for(1.0, leaves, 2**18)
    assert isinstance(few, TreeSums) or few.bands <= 4


def test_plans_take_them():
    numbers = dict(epsilon=1.0, delta=1e-6)
    made = jmm.plan(ftrl, **numbers, population=1000, dim=5, bound=1.0, diameter=2.0)
    tree = jmm.accounting.calibrate_noise(TreeSums(clip=1.0, leaves=1000), **numbers)
    query = made.hyper.query
    assert isinstance(query, CorrelatedSums)
    assert jmm.epsilon(query, 1e-6) <= 1.0
    assert made.guarantee < ftrl.regret_bound(tree, dim=5, diameter=2.0)
    problem = problems.group_means(radius=1.0, record_bound=1.0)
    made = jmm.plan(group_oco, **numbers, problem=problem, sizes=(500, 500), dim=3)
    assert isinstance(made.hyper.query.parts[0], CorrelatedSums)
    assert jmm.epsilon(group_oco.mechanism(made.hyper), 1e-6) <= 1.0


# --- runs ---


def hyper(leaves=40, bands=16, z=2.0):
    return ftrl.Hyper(query=CorrelatedSums(clip=1.0, noise_multiplier=z, leaves=leaves,
                                           bands=bands), step=0.1)


@pytest.mark.slow
def test_resumed_runs_have_the_same_bits(tmp_path):
    """Stopped in the middle: what later noise is made of is drawn anew, not read from a state."""
    rows = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    start = Saddle(jnp.zeros(3), ())
    how = dict(delta=1e-6, every=10, progress=False)

    class Stopped(Exception):
        pass

    def stop(state):
        if int(state.spent) == 20:
            raise Stopped

    full = jmm.fit(KEY, start, rows, hyper(), ftrl, LINES, **how)
    with pytest.raises(Stopped):
        jmm.fit(KEY, start, rows, hyper(), ftrl, LINES, **how, checkpoint=tmp_path / "a",
                callback=stop)
    resumed = jmm.fit(KEY, start, rows, hyper(), ftrl, LINES, **how, checkpoint=tmp_path / "a")
    jax.tree.map(np.testing.assert_array_equal, resumed.state, full.state)


def test_a_state_has_nothing_of_its_own_for_correlated_noise():
    start = Saddle(jnp.zeros(3), ())
    tree = dataclasses.replace(hyper(), query=TreeSums(clip=1.0, noise_multiplier=2.0, leaves=40))
    assert jax.tree.map(jnp.shape, ftrl.init(start, hyper())) == jax.tree.map(
        jnp.shape, ftrl.init(start, tree))


def test_leaves_beyond_the_last_are_nan_and_an_empty_one_holds_noise():
    query = hyper(3, 2).query
    start, rows = Saddle(jnp.zeros(2), ()), jnp.ones((2, 2))
    leaf = jax.jit(lambda q, t, row: release_leaf(KEY, q, t, LINES, start, rows, (row,)).w)
    assert np.all(np.isnan(leaf(query, jnp.int32(3), jnp.int32(0))))
    assert np.all(np.isnan(leaf(query, jnp.int32(-1), jnp.int32(0))))
    assert np.all(np.isfinite(leaf(query, jnp.int32(2), jnp.int32(5))))
    quiet = dataclasses.replace(query, noise_multiplier=0.0)
    np.testing.assert_allclose(leaf(quiet, jnp.int32(1), jnp.int32(0)), 0.5**0.5, rtol=1e-6)


# --- disjoint passes ---

PASSES = jmm.Query(clip=Saddle(1.0, 2.0), noise_multiplier=Saddle(2.0, 3.0), population=24,
                   sampling=jmm.Disjoint(batch=5), bands=3)
SUMS = Problem(operator=lambda z, x: Saddle(x, 2 * x))


@pytest.mark.parametrize(("times", "joint"), [(3, False), (4, False), (9, False), (9, True)])
def test_passes_are_charged_by_the_columns_that_a_record_is_in(times, joint):
    """Four batches a pass; the last rows are never read."""
    c = np.linalg.inv(inverse(times, 3))
    length = max(np.linalg.norm(c[:, start::4].sum(1)) for start in range(min(4, times)))
    z = 2.0 if joint else (2.0**-2 + 3.0**-2) ** -0.5
    query = dataclasses.replace(PASSES, joint=joint)
    actual = jmm.epsilon(jmm.Repeat(query=query, times=times), 1e-6)
    exact = dpa.get_epsilon_gaussian(z / (2 * length), 1e-6)
    assert exact < actual < 1.02 * exact
    independent = dataclasses.replace(query, bands=1)
    plain = jmm.epsilon(jmm.Repeat(query=independent, times=times), 1e-6)
    assert plain == pytest.approx(dpa.get_epsilon_gaussian(z / (2 * math.ceil(times / 4)**0.5),
                                                           1e-6), rel=0.01)


@pytest.mark.parametrize("times", [1, 9, 100])
def test_passes_that_are_stopped_by_looking_fail_at_none_of_their_lengths(times):
    """Two events of e^-72 for the noise of every prefix, and two for every sum that is rounded."""
    (cost,) = described_charges(jmm.Repeat(query=PASSES, times=times), "replace_one")
    assert 4 * times * math.exp(-72) <= cost.failure < 1e-26


@pytest.mark.slow
@pytest.mark.parametrize("exact", [True, False])
def test_leaves_and_sums_of_one_run_share_no_noise(exact):
    """Or the difference of the two would have none."""
    size, empty = 400, jnp.zeros((4, 400))
    sums = jmm.Query(clip=Saddle(1.0, None), noise_multiplier=Saddle(2.0, None), population=4,
                     sampling=jmm.Disjoint(batch=1), bands=3, exact=exact)
    leaves = CorrelatedSums(clip=1.0, noise_multiplier=2.0, leaves=4, bands=3, exact=exact)
    start = Saddle(jnp.zeros(size), ())

    @jax.jit
    def both(t):
        one = jmm.release(KEY, jmm.Repeat(query=sums, times=4), t, LINES, start, empty)
        return one.w, release_leaf(KEY, leaves, t, LINES, start, empty, (t,)).w

    for t in (0, 3):
        one, other = both(jnp.int32(t))
        assert abs(np.corrcoef(one, other)[0, 1]) < 5 / math.sqrt(size)


def test_calibrated_passes_meet_the_target_with_less_noise_in_the_sum():
    n, batch, passes = 2000, 20, 4
    times = passes * n // batch
    bands = jmm.mechanism.planned_bands(times, n // batch)
    query = jmm.Query(clip=Saddle(1.0, None), population=n, sampling=jmm.Disjoint(batch=batch))
    made, plain = (jmm.accounting.calibrate_noise(jmm.Repeat(query=dataclasses.replace(query,
                                                                                       bands=p),
                                                             times=times), 1.0,
                                                             1e-6) for p in (bands, 1))
    assert 1 - 1e-9 < jmm.epsilon(made, 1e-6) <= 1
    noise = [m.multiplier() * norms(times, m.query.bands, n // batch).mean_prefix
             for m in (made, plain)]
    assert noise[0] < 0.5 * noise[1]


@pytest.mark.parametrize(("change", "match"), [
    ({"sampling": jmm.Poisson(rate=0.2)}, "needs Disjoint batches"),
    ({"sampling": jmm.Full()}, "needs Disjoint batches"),
    ({"sampling": jmm.FixedSize(batch=5)}, "needs Disjoint batches"),
    ({"bands": 0}, "bands"), ({"bands": 2**17}, "bands must be at most")])
def test_samples_that_nobody_knows_beforehand_have_no_correlated_noise(change, match):
    query = dataclasses.replace(PASSES, **change)
    own = jmm.sgda.Hyper(query=query, iterations=3, step=Saddle(0.1, 0.1))
    start = Saddle(jnp.zeros(2), jnp.zeros(2))
    for refused in (lambda: jmm.epsilon(jmm.Repeat(query=query, times=3), 1e-6),
                    lambda: jmm.run(KEY, start, jnp.zeros((24, 2)), own, jmm.sgda, SUMS)):
        with pytest.raises(ValueError, match=match):
            refused()


def test_parts_of_the_data_have_no_correlated_noise():
    with pytest.raises(ValueError, match="2 part"):
        jmm.epsilon(jmm.Repeat(query=PASSES, times=3, parts=2), 1e-6)


def test_the_statement_of_passes_says_so():
    own = jmm.sgda.Hyper(query=PASSES, iterations=9, step=Saddle(0.1, 0.1))
    stated = one_line(jmm.statement(jmm.sgda, own, delta=1e-6))
    assert stated.count("correlated noise by 3 bands") == 1
    assert stated.count(sentences.REGENERATED) == 1
    plain = dataclasses.replace(own, query=dataclasses.replace(PASSES, bands=1))
    assert "correlated" not in one_line(jmm.statement(jmm.sgda, plain, delta=1e-6))


@pytest.mark.slow
def test_a_pass_has_the_same_bits_on_the_host_and_its_noise_is_the_correlated_one():
    rows = np.random.default_rng(0).normal(size=(24, 2)).astype(np.float32)
    own = jmm.sgda.Hyper(query=PASSES, iterations=9, step=Saddle(0.1, 0.1))
    start = Saddle(jnp.zeros(2), jnp.zeros(2))
    how = dict(delta=1e-6, every=4, progress=False)
    device = jmm.fit(KEY, start, jnp.asarray(rows), own, jmm.sgda, SUMS, **how)
    host = jmm.fit(KEY, start, jmm.placement.HostData(rows), own, jmm.sgda, SUMS, **how)
    jax.tree.map(np.testing.assert_array_equal, host.state, device.state)
    release = jax.jit(lambda t, z: jmm.release(KEY, jmm.Repeat(
        query=dataclasses.replace(PASSES, noise_multiplier=z), times=9), t, SUMS, start,
        jnp.asarray(rows)))
    scale = noisy_sums.scales(PASSES.clip, PASSES.noise_multiplier, PASSES.parameters)
    for t in range(4):
        noisy, quiet = (release(jnp.int32(t), z) for z in (PASSES.noise_multiplier,
                                                          Saddle(0.0, 0.0)))
        noise = stream.correlated_noise(KEY, Kind.MEAN_INNOVATION, jnp.int32(t), 3, start,
                                        scale, True)
        for a, b, x, s in zip(noisy, quiet, noise, scale, strict=True):
            np.testing.assert_allclose(5 * (a - b), x * s.step, atol=1e-3)
