"""Fixed-size samples: reference values, exact enumeration, and the law of the samplers."""

import math
from typing import NamedTuple

import dp_accounting as dpa
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from scipy import stats

import jaxminimax as jmm
from benchmarks.privacy import lower_bounds
from jaxminimax import Saddle
from jaxminimax.accounting import curve, gaussian
from jaxminimax.mechanism import overflow_probability
from jaxminimax.mechanism.costs import Charge, PrivacyLoss
from jaxminimax.mechanism.sampling import SampleKeys, draw

pytestmark = pytest.mark.usefixtures("real_noise")


def fixed(n, m, z, times, *, replacement=False, laplace=None, poisson=False):
    """`z` is noise over the sensitivity of one slot, 2 C."""
    how = (jmm.Poisson(rate=m / n, capacity=n) if poisson
           else jmm.FixedSize(batch=m, replacement=replacement))
    query = jmm.Query(clip=Saddle(1.0, None), noise_multiplier=Saddle(2 * z, None), sampling=how,
                      population=n)
    parts = (jmm.Repeat(query=query, times=times),)
    if laplace:
        parts += (jmm.GroupLosses(bound=1.0, sizes=(n,), noise_multiplier=laplace, times=times),)
    return jmm.Sequence(parts=parts)


class Composed(NamedTuple):
    """Some releases in the accountant's words."""

    cost: Charge

    def epsilon(self, delta):
        return curve.charge_epsilon(self.cost, delta, "replace_one")

    def delta(self, epsilon):
        return curve.charge_delta(self.cost, epsilon, "replace_one")


def composed(n, m, z, replacement, times):
    """Noise over the sensitivity of one slot; samplers taken as exact."""
    loss = PrivacyLoss("replacement" if replacement else "fixed", 2 * z,
                       1 / n if replacement else m / n, n, m)
    return Composed(Charge(losses=((loss, times),)))


@pytest.mark.parametrize(("n", "m", "z", "times", "laplace", "delta", "poisson", "wor", "wr"), [
    (1000, 50, 2, 200, None, 1e-6, 1.54300, 1.97690, 2.01284),
    (1000, 50, 4, 200, None, 1e-6, 0.73039, 0.81753, 0.82284),
    (100, 10, 4, 101, None, 1e-5, 0.93095, 1.04015, 1.05318),
    (50, 5, 2, 40, None, 1e-5, 1.19940, 1.57138, 1.63512),
    (1000, 50, 3.5, 200, 268.83, 1e-6, 0.87325, 0.98735, 0.99455),
    (20, 4, 1.5, 10, 20, 1e-5, 1.77408, 2.63955, 3.18404),
    (100, 10, 3, 50, 100, 1e-5, 0.90976, 1.05634, 1.07664),
    (1000, 50, 3.5, 1, 100, 1e-6, 0.05833, 0.08993, 0.09347),
])
def test_reference_table(n, m, z, times, laplace, delta, poisson, wor, wr):
    for expected, how in ((poisson, {"poisson": True}), (wor, {}), (wr, {"replacement": True})):
        value = jmm.epsilon(fixed(n, m, z, times, laplace=laplace, **how), delta)
        assert value == pytest.approx(expected, abs=2e-4)


def test_unit_values_of_the_profile():
    at = np.array([0, 0.1, 0.5, 1])
    np.testing.assert_allclose(gaussian.Profile(1000, 50, 1.0, True)(at),
                               (1.904374e-2, 5.419587e-3, 3.439372e-4, 4.115834e-5), rtol=1e-6)
    np.testing.assert_allclose(gaussian.Profile(1000, 50, 2.0, True)(at),
                               (9.855864e-3, 2.083165e-4, 1.028084e-8, 5.173547e-12), rtol=1e-6)


def test_a_full_batch_is_the_plain_gaussian():
    assert jmm.epsilon(fixed(100, 100, 4.0, 1), 1e-6) == pytest.approx(
        dpa.get_epsilon_gaussian(4.0, 1e-6))
    assert composed(100, 100, 4.0, False, 1).epsilon(1e-6) == pytest.approx(1.06070, abs=2e-4)


def test_one_record_drawn_three_times_counts_three_times():
    value = jmm.epsilon(fixed(1, 3, 2.0, 1, replacement=True), 1e-5)
    assert value == pytest.approx(dpa.get_epsilon_gaussian(2 / 3, 1e-5), abs=1e-4)
    assert value == pytest.approx(7.0514, abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("n", "m", "z"), [(2, 128, 5.0), (3, 200, 5.0)])
def test_large_multiplicities_are_never_called_private(n, m, z):
    assert jmm.epsilon(fixed(n, m, z, 1, replacement=True), 1e-5) > 170


@pytest.mark.parametrize(("n", "m"), [(10, 3), (1000, 50), (2, 128), (1, 5)])
def test_multiplicities_add_up(n, m):
    k, w, none, left_out = gaussian.multiplicities(n, m, True)
    assert w.sum() + none + left_out == pytest.approx(1.0, abs=1e-12)
    assert (k * w).sum() == pytest.approx(m / n, rel=1e-9)
    assert left_out <= 1e-19


def test_one_draw_is_the_same_with_and_without_replacement():
    at = np.linspace(0, 3, 50)
    np.testing.assert_allclose(gaussian.Profile(50, 1, 1.0, True)(at),
                               gaussian.Profile(50, 1, 1.0, False)(at), rtol=1e-9, atol=1e-20)
    assert jmm.epsilon(fixed(50, 5, 2, 40, replacement=True), 1e-5) > jmm.epsilon(
        fixed(50, 5, 2, 40), 1e-5) * 1.03


def common_threshold(epsilon, n, m, z):
    k, w, none, _ = gaussian.multiplicities(n, m, True)
    log_g = np.log1p(np.expm1(epsilon) / (1 - none))
    return sum(p * gaussian.delta(mu, log_g)
               for p, mu in zip(w, k / z, strict=True))


def test_no_amount_of_noise_makes_the_bound_fall_below_one_hit():
    """Of a record in n, drawn once: rounding counts for more than H itself where noise is great."""
    for z in (1e4, 1e9, 1e13, 1e15, 1e17):
        exact = 1e-3 * math.erf(1 / (z * math.sqrt(8)))
        value = float(gaussian.Profile(1000, 1, z, True)(np.zeros(1))[0])
        assert exact <= value <= exact + 1e-16 + 1e-8 * exact


def test_water_filling_beats_the_common_threshold():
    at = np.linspace(0, 4, 80)
    for n, m, z in ((1000, 50, 1.0), (20, 4, 1.5), (6, 6, 0.8)):
        ours, theirs = gaussian.Profile(n, m, z, True)(at), common_threshold(at, n, m, z)
        assert np.all(ours <= theirs * (1 + 1e-9))
        assert np.any(ours < 0.9 * theirs)


def test_the_glued_profile_is_convex():
    for n, m, z, replacement in ((1000, 50, 1.0, True), (10, 4, 0.7, False), (6, 6, 2.0, True)):
        alpha = np.linspace(math.exp(-3), math.exp(3), 4001)
        bound = gaussian.Profile(n, m, z, replacement)
        h = np.where(alpha >= 1,
                     bound(np.log(np.maximum(alpha, 1))),
                     1 - alpha + alpha * bound(np.log(np.maximum(1 / alpha, 1))))
        assert np.all(np.diff(h, 2) >= -1e-9)
        assert np.all(h >= np.maximum(1 - alpha, 0) - 1e-12)


@pytest.mark.slow
def test_no_explicit_pair_exceeds_the_bound_and_some_attain_it():
    rows = lower_bounds.table(1, [(2, 1), (3, 2), (4, 3)]) + lower_bounds.table(2, [(3, 2)])
    for row in rows:
        assert row["attained_over_claimed"] <= 1 + 1e-9, row
    for sampler in ("poisson", "fixed"):
        best = [r["attained_over_claimed"] for r in rows
                if r["sampler"] == sampler and r["dimension"] == 1]
        assert min(best) > 0.999  # catches a factor of two or a wrong rate, either way
    at_one = [r["attained_over_claimed"] for r in rows if r["sampler"] == "replacement"
              and r["alpha"] == 1.0 and r["dimension"] == 1]
    assert min(at_one) > 1 - 1e-5


def test_composing_one_direction_at_a_time_is_no_bound():
    """An adaptive choice of the other records attains .148165; add or remove alone claim less."""
    attack, n, m, z = 0.148165, 10, 4, 1.0
    assert attack < composed(n, m, z, False, 2).delta(0.3) == pytest.approx(0.154346, abs=2e-5)
    assert composed(n, m, z, False, 2).delta(1.0) == pytest.approx(0.045485, abs=2e-5)
    shortcut = privacy_loss_distribution.from_gaussian_mechanism(
        z, sampling_prob=m / n, value_discretization_interval=1e-4).self_compose(2)
    assert shortcut.get_delta_for_epsilon(0.3) == pytest.approx(0.141984, abs=2e-5)
    assert shortcut.get_delta_for_epsilon(0.3) < attack


def test_two_queries_on_one_minibatch_are_not_two_amplified_releases():
    """True delta(1) of two Gaussians on one subset, q = .1, z = 1: 3.664e-3; product 5.33e-4."""
    both = gaussian.Profile(10, 1, 1 / math.sqrt(2), False)(np.array([1.0]))[0]
    apart = composed(10, 1, 1.0, False, 2)
    assert both == pytest.approx(3.664e-3, rel=1e-3)
    assert apart.delta(1.0) < both / 5
    query = jmm.Query(clip=Saddle(1.0, 1.0), noise_multiplier=Saddle(2.0, 2.0), population=10,
                      sampling=jmm.FixedSize(batch=1))
    epsilon = jmm.epsilon(jmm.Repeat(query=query, times=1), float(both))
    assert epsilon == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize(("n", "m", "z", "replacement"), [
    (5, 6, 1.0, False), (0, 1, 1.0, True), (5, 0, 1.0, False), (5, 2, 0.0, True),
    (5, 2, -1.0, False), (5, 2, math.nan, True), (5, 2, math.inf, False),
])
def test_a_sampler_that_does_not_exist_is_refused(n, m, z, replacement):
    with pytest.raises(ValueError, match=r"exists|must lie"):
        gaussian.Profile(n, m, z, replacement)


# ---- other descriptions -----------------------------------------------------------------------


def test_laplace_needs_no_delta():
    losses = jmm.GroupLosses(bound=2.0, sizes=(100,), noise_multiplier=4.0, times=1)
    assert jmm.epsilon(losses, 1e-9) == pytest.approx(0.25, abs=1e-3)
    index = jmm.GroupLosses(bound=2.0, sizes=(100,), noise_multiplier=4.0, times=1,
                            only_argmax=True)
    assert jmm.epsilon(index, 1e-9) == jmm.epsilon(losses, 1e-9)


@pytest.mark.parametrize(("leaves", "height", "node"), [
    (1000, 10, 13.35961), (1023, 10, 13.35961), (1024, 11, 14.01167), (4096, 13, 15.23230)])
def test_a_tree_charges_two_clip_norms_for_each_node_on_the_path(leaves, height, node):
    tree = jmm.accounting.calibrate_noise(jmm.mechanism.TreeSums(clip=1.0, leaves=leaves), 1.0,
                                          1e-6)
    assert tree.noise_multiplier / 2 == pytest.approx(node, abs=1e-5)
    assert tree.noise_multiplier == pytest.approx(
        2 * math.sqrt(height) * dpa.get_sigma_gaussian(1.0, 1e-6))


def test_a_certified_solution_is_one_gaussian():
    made = jmm.accounting.calibrate_noise(jmm.mechanism.Solution(sensitivity=0.1, slack=0.01,
                                                                 because="L-Lipschitz."),
                                          1.0, 1e-6)
    assert made.noise_multiplier == pytest.approx(4.224679, abs=1e-6)
    with pytest.raises(ValueError, match="because"):
        jmm.epsilon(jmm.mechanism.Solution(sensitivity=0.1, noise_multiplier=1.0, because=""), 1e-5)


def test_disjoint_parts_cost_the_largest_never_the_sum():
    small, large = (jmm.mechanism.TreeSums(clip=1.0, leaves=1, noise_multiplier=z) for z in (8.0,
                                                                                             4.0))
    both = jmm.Parallel(parts=(small, large))
    assert jmm.epsilon(both, 1e-6) == jmm.epsilon(large, 1e-6)
    assert jmm.epsilon(both, 1e-6, spent=1) == jmm.epsilon(small, 1e-6)
    more = jmm.Sequence(parts=(both, small))
    mu = 2 * math.sqrt(1 / 64 + 1 / 16)
    assert jmm.epsilon(more, 1e-6) == pytest.approx(dpa.get_epsilon_gaussian(1 / mu, 1e-6))


def test_the_tightest_part_of_mixed_parallel_parts_decides_at_each_delta():
    laplace = jmm.GroupLosses(bound=1.0, sizes=(10,), noise_multiplier=1.0, times=1)
    gauss = jmm.mechanism.TreeSums(clip=1.0, leaves=1, noise_multiplier=4.0)
    both = jmm.Parallel(parts=(laplace, gauss))
    for delta in (0.2, 1e-9):
        assert jmm.epsilon(both, delta) == max(jmm.epsilon(laplace, delta),
                                               jmm.epsilon(gauss, delta))


@pytest.mark.parametrize("mechanism", [
    jmm.mechanism.TreeSums(clip=1.0, leaves=4, noise_multiplier=1.0),
    jmm.mechanism.Solution(sensitivity=1.0, noise_multiplier=1.0, because="x"),
    jmm.GroupLosses(bound=1.0, sizes=(3,), noise_multiplier=1.0, times=2),
    jmm.GroupLosses(bound=1.0, sizes=(3,), noise_multiplier=1.0, times=2, noise="gaussian"),
    jmm.mechanism.Selection(bound=1.0, sizes=(3,), noise_multiplier=1.0, times=2),
])
def test_descriptions_that_are_replace_one_only_say_so(mechanism):
    with pytest.raises(ValueError, match="replace_one"):
        jmm.epsilon(mechanism, 1e-5, neighbours="add_or_remove_one")
    assert 0 < jmm.epsilon(mechanism, 1e-5) < math.inf


# ---- samplers ---------------------------------------------------------------------------------


def drawn(n, m, replacement, keys=20_000, seed=0):
    query = jmm.Query(clip=Saddle(1.0, None), population=n,
                      sampling=jmm.FixedSize(batch=m, replacement=replacement))
    keys = jax.random.split(jax.random.key(seed), keys)
    sample = jax.jit(jax.vmap(lambda k: draw(SampleKeys(k, k), query, jnp.int32(0))))(keys)
    assert bool(jnp.all(sample.fits))
    return np.asarray(sample.rows)


@pytest.mark.slow
@pytest.mark.parametrize(("n", "m"), [(50, 7), (37, 36), (300, 1), (1000, 64)])
def test_subsets_have_distinct_records_drawn_alike(n, m):
    rows = drawn(n, m, False)
    assert np.all(np.diff(np.sort(rows, 1), axis=1) > 0)
    counts = np.bincount(rows.ravel(), minlength=n)
    expected = len(rows) * m / n
    spread = math.sqrt(expected * (1 - m / n))
    assert np.max(np.abs(counts - expected)) < 5 * spread
    with_first = np.bincount(rows[np.any(rows == 0, 1)].ravel(), minlength=n)[1:]
    pairs = len(rows) * m * (m - 1) / (n * (n - 1))
    assert np.max(np.abs(with_first - pairs)) < 5 * math.sqrt(max(pairs, 1)) + 1


@pytest.mark.slow
def test_every_small_subset_is_equally_likely():
    rows = np.sort(drawn(6, 3, False, keys=40_000), 1)
    _, counts = np.unique(rows @ [36, 6, 1], return_counts=True)
    assert len(counts) == 20
    assert stats.chisquare(counts).pvalue > 1e-4


@pytest.mark.parametrize("n", [6, 1000, 2**29 + 12345])
def test_draws_with_replacement_are_independent_and_uniform(n):
    rows = drawn(n, 5, True)
    assert rows.min() >= 0
    assert rows.max() < n
    cells = np.minimum((rows / n * 6).astype(int), 5)
    assert stats.chisquare(np.bincount(cells.ravel(), minlength=6), f_exp=[
        rows.size * np.mean((np.arange(n) * 6 // n) == c) if n < 2000 else rows.size / 6
        for c in range(6)]).pvalue > 1e-4
    if n == 6:
        hits = (rows == 2).sum(1)
        law = stats.binom(5, 1 / 6).pmf(np.arange(6)) * len(rows)
        seen = np.bincount(hits, minlength=6)
        assert stats.chisquare([*seen[:4], seen[4:].sum()], [*law[:4], law[4:].sum()]).pvalue > 1e-4


def test_the_samplers_own_errors_are_charged_and_tiny():
    for replacement in (False, True):
        query = jmm.Query(clip=Saddle(1.0, None), population=60_000,
                          sampling=jmm.FixedSize(batch=64, replacement=replacement))
        assert 0 < jmm.Repeat(query=query, times=1).cost(1.0).failure < 1e-26
        assert overflow_probability(query) <= 1e-16
