"""The papers' formulas and what they are worth: reference values found independently.

Multipliers of the references are noise over replace-one sensitivity where said so; ours are noise
over clip norm, twice that.
"""

import json
import math

import dp_accounting as dpa
import numpy as np
import pytest
from scipy import special

import jaxminimax as jmm
from benchmarks.privacy import formulas, papers_noise
from benchmarks.privacy.papers_noise import gaussian, ideal_epsilon, pair, repeat
from jaxminimax import Saddle
from jaxminimax.accounting import composition, curve, tilt
from jaxminimax.accounting import gaussian as gaussians


def fixed(z, n, batch, times, *, replacement=False):
    """One player; z is noise over the replace-one sensitivity of one slot."""
    how = jmm.FixedSize(batch=batch, replacement=replacement)
    return repeat(Saddle(2 * z, None), n, how, times)


def poisson(z, n, batch, times):
    """One player; z is noise over clip norm."""
    return repeat(Saddle(z, None), n, jmm.Poisson(rate=batch / n), times)


def calibrated(mechanism, epsilon, delta):
    return jmm.accounting.calibrate_noise(mechanism, epsilon, delta).query.noise_multiplier.w


def at_grid(grid, mechanism, delta):
    """Epsilon on a reference's own grid, so that its digits can be compared."""
    (cost,) = papers_noise.charges(mechanism)
    (releases,) = curve._directions(cost, "replace_one", 1)
    guess = composition._Guess(releases, delta)
    t, epsilon = guess.aim(delta)
    parts = [tilt.uniform(pair, top, times, grid)
             for (pair, times), top in zip(releases, guess.tops, strict=True)]
    made = tilt.Composed(parts, guess.parts, grid, t, epsilon, math.log(delta))
    return composition._root(made, lambda _: delta, epsilon)


def near(value, reference, rel=1e-3):
    """Calibration ends at most 2e-4 on the private side; grids differ."""
    return value == pytest.approx(reference, rel=rel)


# ---- nseg, nispp -----------------------------------------------------------------------------


@pytest.mark.parametrize(("epsilon", "delta", "exact", "paper", "achieved"), [
    (0.5, 1e-5, 7.031827, 9.597052, 2.1e-8),
    (1, 1e-5, 3.730632, 4.798526, 5.3e-8),
    (2, 1e-5, 1.993812, 2.399263, 1.7e-7),
    (4, 1e-5, 1.081162, 1.199631, 8.8e-7),
    (7, 1e-5, 0.670758, 0.685504, 5.8e-6),
    (8, 1e-5, 0.600229, 0.599816, 1.02e-5),
    (10, 1e-5, 0.499889, 0.479853, 2.9e-5),
    (1, 1e-6, 4.224679, 5.256522, 4.1e-9),
    (7, 1e-3, 0.531380, 0.530989, 1.01e-3),
])
def test_proposition_3(epsilon, delta, exact, paper, achieved):
    z = formulas.gaussian_proposition_3(1.0, epsilon, delta)
    assert z == pytest.approx(paper, abs=6e-7)
    # two significant digits, three where it fails narrowly
    near, far = 0.5 / z - epsilon * z, -0.5 / z - epsilon * z
    true = special.ndtr(near) - math.exp(epsilon) * special.ndtr(far)
    assert true == pytest.approx(achieved, rel=0.03)
    one = jmm.accounting.calibrate_noise(jmm.mechanism.Solution(sensitivity=1.0, because="test"),
                                         epsilon, delta)
    assert one.noise_multiplier == pytest.approx(exact, abs=6e-7)
    assert (gaussian(z, delta) > epsilon) == (achieved > delta)


@pytest.mark.parametrize(("delta", "largest"), [
    (0.5, 3.53), (1e-2, 6.25), (1e-3, 6.978), (1e-4, 7.526), (1e-5, 7.968), (1e-6, 8.339),
    (1e-8, 8.943), (1e-10, 9.426),
])
def test_the_largest_epsilon_for_which_proposition_3_holds(delta, largest):
    for epsilon, holds in ((0.9985 * largest, True), (1.0015 * largest, False)):
        z = formulas.gaussian_proposition_3(1.0, epsilon, delta)
        assert (gaussian(z, delta) <= epsilon) == holds


@pytest.mark.nightly
@pytest.mark.parametrize(("epsilon", "paper", "lower", "upper", "half", "grid"), [
    (0.25, 19.194, 0.240, 0.2497, None, 5e-6),
    (0.4, 11.996, 0.405, 0.422, None, 5e-6),
    (0.5, 9.597, 0.519, 0.544, 0.373, 5e-6),
    (1, 4.7985, 1.124, 1.218, 0.833, 1e-5),
    (2, 2.3993, 2.547, 2.927, 1.984, 2e-5),
    (4, 1.1996, 6.84, 8.47, 5.64, 2e-5),
    (8, 0.5998, 32.7, 40.6, 26.3, 5e-5),
])
def test_proposition_7_pays_for_half_of_its_releases(epsilon, paper, lower, upper, half, grid):
    z = formulas.nseg_proposition_7(1.0, epsilon, 1e-5) / 2
    assert z == pytest.approx(paper, rel=1e-4)
    attained = pair(30, 1, z, 1800, 1e-5, grid=grid)
    proved = ideal_epsilon(fixed(z, 30, 1, 1800), 1e-5)
    assert attained == pytest.approx(lower, rel=3e-3)
    assert proved == pytest.approx(upper, rel=1.2e-3)
    assert attained < proved
    assert (attained > epsilon) == (epsilon >= 0.4)
    if half:
        assert ideal_epsilon(fixed(z, 30, 1, 900), 1e-5) == pytest.approx(half, rel=2e-3)


# With 1000 records the reference's grid is 1e-5, a tenth of the accountant's.
@pytest.mark.slow
@pytest.mark.parametrize(("n", "delta", "epsilon", "upper", "z"), [
    (30, 1e-5, 0.5, 0.5437, 10.3324), (30, 1e-5, 1, 1.2178, 5.6638), (30, 1e-5, 2, 2.9265, 3.2083),
    (30, 1e-5, 4, 8.4650, 1.9186), (30, 1e-5, 8, 40.60, 1.2385), (30, 1e-6, 1, 1.2475, 6.3629),
    (100, 1e-5, 0.5, 0.5443, 10.3424), (100, 1e-5, 1, 1.2207, 5.6730),
    (100, 1e-5, 2, 2.9439, 3.2181), (100, 1e-5, 4, 8.6494, 1.9299), (100, 1e-5, 8, 48.09, 1.2524),
    (100, 1e-6, 1, 1.2500, 6.3717), (1000, 1e-5, 0.5, 0.5449, 10.3521),
    (1000, 1e-5, 1, 1.2221, 5.6778), (1000, 1e-5, 2, 2.9520, 3.2226),
    (1000, 1e-5, 4, 8.7548, 1.9352),
])
def test_sampled_extragradient(n, delta, epsilon, upper, z):
    paper = formulas.nseg_proposition_7(1.0, epsilon, delta) / 2
    for noise, reference in ((paper, upper), (z, epsilon)):
        mechanism = fixed(noise, n, 1, 2 * n * n)
        true = at_grid(1e-5, mechanism, delta) if n == 1000 and epsilon < 4 else ideal_epsilon(
            mechanism, delta)
        assert true == pytest.approx(reference, rel=2e-3 if epsilon == 4 else 8e-4)


@pytest.mark.parametrize(("n", "batch", "times", "z", "without", "replacement", "rate"), [
    (100, 1, 20_000, 5.0, 1.161939, 1.161939, 1.060985),
    (100, 10, 101, 4.0, 1.040149, 1.140807, 0.930950),
    (900, 30, 901, 4.0, 1.037355, 1.057852, 0.926713),
    (50, 5, 40, 2.0, 1.571380, 2.751255, 1.199395),
])
def test_points_of_every_sampler(n, batch, times, z, without, replacement, rate):
    assert at_grid(5e-5, fixed(z, n, batch, times), 1e-5) == pytest.approx(without, rel=2e-5)
    assert at_grid(5e-5, poisson(2 * z, n, batch, times), 1e-5) == pytest.approx(rate, rel=2e-4)
    # the reference shares one threshold among the multiplicities; with one they agree
    tight = at_grid(5e-5, fixed(z, n, batch, times, replacement=True), 1e-5)
    assert tight <= replacement * (1 + 2e-5)
    assert (tight > 0.999 * replacement) == (batch == 1)


@pytest.mark.nightly
@pytest.mark.parametrize(("n", "batch", "times", "epsilon", "delta", "z"), [
    (30, 1, 1800, 1, 1e-5, 5.6638),
    (30, 1, 1800, 4, 1e-5, 1.9186),
    (100, 1, 20_000, 0.5, 1e-5, 10.3424),
    (100, 1, 20_000, 1, 1e-5, 5.6730),
    (100, 10, 101, 1, 1e-5, 4.1318),
    (100, 10, 101, 8, 1e-5, 0.9897),
    (900, 30, 901, 1, 1e-5, 4.1225),
    (900, 30, 901, 1, 1e-6, 4.6177),
])
def test_calibrated_fixed_size_noise(n, batch, times, epsilon, delta, z):
    assert near(calibrated(fixed(1.0, n, batch, times), epsilon, delta) / 2, z)


def test_vectors_of_the_proximal_and_extragradient_methods():
    exact = jmm.accounting.calibrate_noise(jmm.mechanism.Solution(sensitivity=1.0, because="test"),
                                           1.0, 1e-5)
    z = exact.noise_multiplier
    assert formulas.nseg_proposition_5(1.0, 11, 1.0, 1e-5) == pytest.approx(0.872459, abs=1e-6)
    assert 2 / 11 * z == pytest.approx(0.678297, abs=1e-6)
    modulus = 10.729830
    right = formulas.nispp_proposition_10(1.0, modulus, 10, 1.0, 1e-5)
    assert right == pytest.approx(0.178885, abs=1e-6)
    wrong = formulas.nispp_corollary_2(1.0, modulus, 10, 1.0, 1e-5)
    assert wrong == pytest.approx(1.852983, abs=1e-6)
    assert 0.01882602 * z == pytest.approx(0.07023295, abs=1e-8)
    assert formulas.nispp_theorem_7(1.0, 30.0, 30, 1.0, 1e-5) == pytest.approx(0.0301606, abs=1e-7)
    assert formulas.nispp_proposition_9(1.0, 30.0, 30) == pytest.approx(0.00444444, abs=1e-8)
    assert formulas.nseg_proposition_7(1.0, 1.0, 1e-5) == pytest.approx(9.597052, abs=1e-6)
    # several passes: noise 0.00916620 on a sensitivity of 0.00222346
    z = 0.00916620 / 0.00222346
    assert ideal_epsilon(fixed(z, 900, 30, 901), 1e-5) == pytest.approx(1.0, rel=4e-4)


@pytest.mark.nightly
def test_sampled_extragradient_needs_more_noise_than_proposition_7():
    needed = calibrated(fixed(1.0, 100, 1, 20_000), 1.0, 1e-5)
    assert near(needed, 11.346)
    assert formulas.nseg_proposition_7(1.0, 1.0, 1e-5) < 0.85 * needed
    assert near(calibrated(poisson(1.0, 100, 1, 20_000), 1.0, 1e-5), 10.552)


@pytest.mark.parametrize(("releases", "z"), [(20, 16.6839), (200, 52.7591), (2000, 166.8389)])
def test_full_batch_extragradient_composes_exactly(releases, z):
    mechanism = repeat(Saddle(1.0, None), 1000, jmm.Full(), releases)
    assert calibrated(mechanism, 1.0, 1e-5) / 2 == pytest.approx(z, abs=6e-5)


def test_a_pass_over_disjoint_batches_is_one_release():
    z = 11 * formulas.nseg_proposition_5(1.0, 11, 1.0, 1e-5)
    once = repeat(Saddle(z, None), 1000, jmm.Disjoint(batch=11), 90)
    assert jmm.epsilon(once, 1e-5) == pytest.approx(gaussian(z / 2, 1e-5))


# ---- dpsgda, dpgda ---------------------------------------------------------------------------


# At delta = 1e-10 the references are contour integrals. At epsilon = 0.1 the reference has 0.026
# and 0.035, a coarse grid's: 0.02194 and 0.03190 are a grid of 2e-6's and nearly the Gaussian
# limit's.
@pytest.mark.parametrize(("n", "times", "epsilon", "delta", "m", "z", "one", "both"), [
    (39992, 39992, 1, 1e-10, 100, 19.19, 0.2925, 0.4187),
    (39992, 9373, 1, 1e-6, 206.5, 14.87, 0.260, 0.377),
    (39992, 9373, 0.1, 1e-6, 65.3, 47.02, 0.02194, 0.03190),
    (1000, 1000, 1, 1e-6, 15.8, 14.87, 0.260, 0.376),
    (60000, 14062, 5, 1e-6, 566, 6.65, 1.46, 2.13),
    (60000, 14062, 10, 1e-6, 800, 4.70, 3.13, 4.62),
])
def test_remark_1(n, times, epsilon, delta, m, z, one, both):
    batch = formulas.dpsgda_remark_1_batch(n, times, epsilon)
    assert batch == pytest.approx(m, rel=4e-3)
    ours = formulas.dpsgda_remark_1(1.0, n, times, epsilon, delta) * batch
    assert ours == pytest.approx(z, abs=6e-3)
    assert ours == pytest.approx(4 * math.sqrt(-math.log(delta) / epsilon))
    for combined, reference in ((ours, one), (ours / math.sqrt(2), both)):
        true = ideal_epsilon(poisson(combined, n, batch, times), delta)
        assert 0.997 * reference <= true <= 1.025 * reference


@pytest.mark.parametrize(("epsilon", "m", "reference"), [(1, 206, 0.412), (1, 1000, 0.412)])
def test_remark_1_with_replacement_as_printed(epsilon, m, reference):
    # the reference shares one threshold among the multiplicities; the accountant is tighter
    n, times, batch = (1000, 1000, 16) if m == 1000 else (39992, 9373, m)
    z = formulas.dpsgda_remark_1(1.0, n, times, epsilon, 1e-6) * batch / math.sqrt(2)
    true = ideal_epsilon(fixed(z / 2, n, batch, times, replacement=True), 1e-6)
    assert reference - 5e-3 < true <= reference


@pytest.mark.parametrize(("epsilon", "reference"), [(5, 6.34), (10, 98.8)])
def test_remark_1_fails_with_the_batch_of_the_experiments(epsilon, reference):
    z = formulas.dpsgda_remark_1(1.0, 60000, 14062, epsilon, 1e-6) * 64 / math.sqrt(2)
    true = ideal_epsilon(poisson(z, 60000, 64, 14062), 1e-6)
    assert true == pytest.approx(reference, rel=2e-3)
    assert true > epsilon


@pytest.mark.parametrize(("epsilon", "one", "four", "both"), [
    (1, 3.590, 0.790, 0.545), (8, 46.7, 7.941, 5.313), (20, 187.3, 24.68, 15.83),
    (40, 607, 64.3, 39.34), (80, 2141, 187.3, 108.2),
])
def test_a_literal_reading_of_full_batch_descent_ascent(epsilon, one, four, both):
    for constant, reference in ((1, one), (4, four), (4 * math.sqrt(2), both)):
        z = 1000 * formulas.dpgda_theorem_1(1.0, 1000, 100, epsilon, 1e-6, constant)
        run = repeat(Saddle(z, z), 1000, jmm.Full(), 100)
        assert jmm.epsilon(run, 1e-6) == pytest.approx(reference, rel=1.5e-3)


# ---- recursive -------------------------------------------------------------------------------


@pytest.mark.parametrize(("delta", "ratios"), [
    (1e-5, (30.749566, 13.285525, 7.031827, 3.730632, 1.993812, 1.390593, 1.081162, 0.600229)),
    (1e-6, (36.304690, 15.409814, 8.057618, 4.224679, 2.230476, 1.543861, 1.193519, 0.652935)),
    (1e-8, (45.937360, 19.125376, 9.863534, 5.100309, 2.652927, 1.818643, 1.395583, 0.748394)),
])
def test_noise_over_sensitivity_of_a_solution(delta, ratios):
    for epsilon, ratio in zip((0.1, 0.25, 0.5, 1, 2, 3, 4, 8), ratios, strict=True):
        one = jmm.accounting.calibrate_noise(jmm.mechanism.Solution(sensitivity=0.3, slack=0.01,
                                                                    because="test"),
                                             epsilon, delta)
        assert one.noise_multiplier == pytest.approx(ratio, abs=6e-7)


@pytest.mark.parametrize(("epsilon", "paper", "ours", "delivered", "local", "local_epsilon"), [
    (0.5, 60.94, 8.22, 0.126, 3.72, 1.15), (1, 30.47, 4.31, 0.264, 1.86, 2.44),
    (2, 15.24, 2.28, 0.551, 0.93, 5.31), (4, 7.62, 1.22, 1.158, 0.46, 12.0),
])
def test_output_perturbation_and_the_one_pass_formula(epsilon, paper, ours, delivered, local,
                                                      local_epsilon):
    noise = formulas.recursive_theorem_12(1.0, 0.5, 1, 1, epsilon, 1e-6)
    assert noise == pytest.approx(paper, abs=6e-3)
    one = jmm.mechanism.Solution(sensitivity=1.0, slack=0.01, because="test")
    z = jmm.accounting.calibrate_noise(one, epsilon, 1e-6).noise_multiplier
    assert 1.02 * z == pytest.approx(ours, abs=6e-3)
    assert gaussian(noise / 2, 5e-7) == pytest.approx(delivered, abs=6e-4)
    ratio = formulas.recursive_local(1.0, epsilon, 1e-6) / 2
    assert ratio == pytest.approx(local, abs=6e-3)
    once = repeat(Saddle(2 * ratio, None), 1000, jmm.Disjoint(batch=1), 1000)
    assert jmm.epsilon(once, 1e-6) == pytest.approx(local_epsilon, rel=3e-3)


@pytest.mark.parametrize(("epsilon", "delta", "delivered"), [
    (160, 1e-5, 115), (300, 1e-5, 324), (300, 1e-6, 289), (400, 1e-6, 472)])
def test_theorem_12_fails_for_huge_epsilon_only(epsilon, delta, delivered):
    noise = formulas.recursive_theorem_12(1.0, 0.5, 1, 1, epsilon, delta)
    assert gaussian(noise / 2, delta / 2) == pytest.approx(delivered, abs=0.5)


def test_the_one_pass_formula_at_epsilon_1():
    ratio = formulas.recursive_local(1.0, 1.0, 1e-5) / 2
    assert ratio == pytest.approx(1.70, abs=5e-3)
    assert gaussian(ratio, 1e-5) == pytest.approx(2.40, abs=5e-3)
    assert gaussian(ratio, 1.7e-2) == pytest.approx(1.0, abs=0.01)


# Noise on the mean operator at C = 1, and the c_0 it implies. The reference's bound with
# replacement shares one threshold among the multiplicities; ours needs less, most where a record
# is drawn several times.
@pytest.mark.parametrize(("n", "epsilon", "times", "batch", "delta", "noise", "implied"), [
    (1000, 1, 125, 45, 1e-5, (.08342, .08343, .10167, .11386), (4.84, 4.84, 7.18, 9.01)),
    (10_000, 1, 1250, 142, 1e-6, (.02987, .02993, .03557, .03614), (5.17, 5.19, 7.33, 7.56)),
    (10_000, 0.5, 1250, 100, 1e-6, (.05698, .05736, .06535, .06575), (4.70, 4.76, 6.18, 6.26)),
    (10_000, 4, 1250, 283, 1e-6, (.00844, .00844, .01124, .01297), (6.60, 6.61, 11.7, 15.6)),
])
def test_noisy_descent_ascent_by_sampler(n, epsilon, times, batch, delta, noise, implied):
    for sigma, constant in zip(noise, implied, strict=True):
        ours = formulas.recursive_theorem_21(1.0, n, times, epsilon, delta, constant)
        assert ours == pytest.approx(sigma, rel=1.5e-3)
    full, rate, without, replacement = noise
    digits = 6e-6 / noise[0] * 1.5  # of the table, in epsilon
    assert ideal_epsilon(repeat(Saddle(full * n, None), n, jmm.Full(), times),
                         delta) == pytest.approx(epsilon, rel=digits)
    for mechanism in (poisson(rate * batch, n, batch, times),
                      fixed(without * batch / 2, n, batch, times)):
        assert at_grid(1e-3, mechanism, delta) == pytest.approx(epsilon, rel=digits)
    tight = ideal_epsilon(fixed(replacement * batch / 2, n, batch, times, replacement=True), delta)
    assert 0.8 * epsilon < tight < 0.99 * epsilon


@pytest.mark.parametrize(("times", "epsilon", "delta", "z"), [
    (125, 1, 1e-5, 83.419), (1250, 1, 1e-6, 298.730)])
def test_full_batches_in_units_of_the_clip_norm(times, epsilon, delta, z):
    mechanism = repeat(Saddle(1.0, None), 1000, jmm.Full(), times)
    assert calibrated(mechanism, epsilon, delta) == pytest.approx(z, abs=6e-4)


@pytest.mark.parametrize(("grid", "z"), [(1e-2, 5.344), (1e-3, 4.2508), (1e-4, 4.2429)])
def test_the_price_of_a_grid(grid, z):
    mechanism = poisson(z, 10_000, 142, 1250)
    assert at_grid(grid, mechanism, 1e-6) == pytest.approx(1.0, rel=4e-4)


def test_noise_over_clip_norm_read_as_noise_over_sensitivity_is_refuted():
    """The library's Renyi accountant reports 1.297 where a pair attains 1.366 (c_0 = 4)."""
    z = 45 * formulas.recursive_theorem_21(1.0, 1000, 125, 1.0, 1e-5, 4.0)
    one = dpa.SampledWithoutReplacementDpEvent(1000, 45, dpa.GaussianDpEvent(z))
    accountant = dpa.rdp.RdpAccountant(
        neighboring_relation=dpa.NeighboringRelation.REPLACE_ONE).compose(one, 125)
    reported = accountant.get_epsilon(1e-5)
    attained = pair(1000, 45, z / 2, 125, 1e-5)
    assert reported == pytest.approx(1.297, abs=6e-4)
    assert attained == pytest.approx(1.366, abs=1e-3)
    assert reported < attained < ideal_epsilon(fixed(z / 2, 1000, 45, 125), 1e-5)


# The reference's own table has 5.4486, 3.0583 and 7.1698 with replacement, from a threshold common
# to all multiplicities; the minimum over thresholds, which the accountant takes, is less.
@pytest.mark.nightly
@pytest.mark.parametrize(("n", "batch", "times", "epsilon", "delta", "rate", "without", "tight",
                          "loose"), [
    (256, 16, 64, 1, 1e-5, 3.7321, 4.5805, 4.6464, 5.4486),
    (256, 16, 64, 4, 1e-5, 1.1510, 1.9810, 2.1604, 3.0583),
    (1000, 50, 200, 1, 1e-6, 5.9748, 6.7744, 6.8185, 7.1698),
])
def test_calibrated_multipliers_of_the_samplers(n, batch, times, epsilon, delta, rate, without,
                                                tight, loose):
    # references at a grid of 1e-3, which is up to 1.5e-3 more
    assert near(calibrated(poisson(1.0, n, batch, times), epsilon, delta), rate, rel=1.5e-3)
    assert near(calibrated(fixed(1.0, n, batch, times), epsilon, delta), without, rel=1.5e-3)
    for z, most in ((tight, 1.0), (loose, 0.95)):
        true = ideal_epsilon(fixed(z / 2, n, batch, times, replacement=True), delta)
        assert true <= most * epsilon * 1.0001
    assert ideal_epsilon(fixed(tight / 2, n, batch, times, replacement=True),
                         delta) > 0.996 * epsilon


def test_multipliers_of_a_long_run_by_sampler():
    assert at_grid(1e-3, poisson(2.2627, 4000, 64, 1000), 1e-6) == pytest.approx(2, rel=5e-5)
    assert at_grid(1e-3, fixed(3.0711 / 2, 4000, 64, 1000), 1e-6) == pytest.approx(2, rel=1e-4)
    # 3.6523 is from the common threshold
    loose = ideal_epsilon(fixed(3.6523 / 2, 4000, 64, 1000, replacement=True), 1e-6)
    assert 1.5 < loose < 1.6


# The statement is 1.13 and 6.2 (n' = 1000), .96 and 4.8 (n' = 10000), of the common threshold: true
# and loose, .941 and 2.874, .946 and 2.535 with the minimum over thresholds.
@pytest.mark.parametrize(("constant", "stated", "tight"), [(8.0, 0.96, 0.946), (2.0, 4.8, 2.535)])
def test_constants_of_descent_ascent_with_many_records(constant, stated, tight):
    z = 142 * formulas.recursive_theorem_21(1.0, 10_000, 1250, 1.0, 1e-6, constant)
    true = ideal_epsilon(fixed(z / 2, 10_000, 142, 1250, replacement=True), 1e-6)
    assert true == pytest.approx(tight, abs=1e-3)
    assert true < stated


@pytest.mark.nightly
def test_noisy_descent_ascent_has_no_universal_constant():
    for constant, loose in ((8.0, 1.13), (2.0, 6.2)):
        z = 45 * formulas.recursive_theorem_21(1.0, 1000, 125, 1.0, 1e-5, constant)
        attained = pair(1000, 45, z / 2, 125, 1e-5, replacement=True)
        true = ideal_epsilon(fixed(z / 2, 1000, 45, 125, replacement=True), 1e-5)
        assert attained < true < loose
        assert (attained > 1) == (constant == 2)


# ---- worst_group -----------------------------------------------------------------------------


@pytest.mark.parametrize(("t", "stated", "exact", "paper", "ours"), [
    (1, 3.131e-2, 4.764e-3, 2.686e-1, 2.05e-2), (2, 2.096e-2, 2.736e-3, 1.899e-1, 1.18e-2),
    (5, 6.756e-3, 6.654e-4, 6.714e-2, 2.87e-3), (10, 1.142e-3, 9.806e-5, 1.187e-2, 4.23e-4),
])
def test_phased_minimisation(t, stated, exact, paper, ours):
    step, n, size = 3.808356e-3, 1024, 102
    modulus, entropy = 2**t / (step * size), 1 / (step * n)
    assert 3 / size * (1 / modulus + 1 / math.sqrt(modulus * entropy)) == pytest.approx(
        stated, rel=5e-4)
    a, b = 2 / (size * math.sqrt(modulus)), 1 / (2 * size * math.sqrt(entropy))
    moved = (a + math.hypot(a, b)) / (2 * math.sqrt(modulus))
    assert moved == pytest.approx(exact, rel=5e-4)
    assert formulas.phased_erm_theorem_2(1.0, n, step, t, 1.0, 1e-6) == pytest.approx(paper,
                                                                                      rel=5e-4)
    one = jmm.mechanism.Solution(sensitivity=moved, slack=0.01, because="test")
    one = jmm.accounting.calibrate_noise(one, 1.0, 1e-6)
    assert one.noise_multiplier == pytest.approx(4.224679, abs=1e-6)
    assert one.noise_multiplier * 1.02 * moved == pytest.approx(ours, rel=3e-3)


@pytest.mark.parametrize(("leaves", "node"), [(1000, 13.35961), (1023, 13.35961),
                                              (1024, 14.01167), (4096, 15.23230)])
def test_noise_of_a_node(leaves, node):
    tree = jmm.accounting.calibrate_noise(jmm.mechanism.TreeSums(clip=1.0, leaves=leaves), 1.0,
                                          1e-6)
    assert tree.noise_multiplier / 2 == pytest.approx(node, abs=1e-5)


def test_noise_of_the_groups_losses_as_printed():
    noise = formulas.mgr_theorem_9(1.0, 1000, 200, 1.0, 1e-6, 1.0)
    assert noise == pytest.approx(0.22981, abs=6e-6)
    # a grid of 1e-4: at the reference's 1e-3 the first was 0.126
    for constant, scale, spent in ((8.0, 0.42052, 0.1230), (1.0, 0.05257, 1.135)):
        ours = formulas.worst_group_laplace(1.0, 1000, 200, 1.0, 1e-6, constant)
        assert ours == pytest.approx(scale, abs=6e-6)
        losses = jmm.GroupLosses(bound=1.0, sizes=(1000,), noise_multiplier=1000 * ours,
                                 times=200)
        assert jmm.epsilon(losses, 1e-6) == pytest.approx(spent, rel=2e-3)


@pytest.mark.nightly
@pytest.mark.parametrize(("share", "laplace", "replacement", "without", "rate", "full", "rel"), [
    (0.2, 266.98, 3.48477, 3.46290, 6.132, 61.30, 5e-4),
    (0.5, 113.16, 3.9298, 3.9086, 7.031, 70.29, 3e-3),
])
def test_gradients_and_losses_share_a_budget(share, laplace, replacement, without, rate, full, rel):
    losses = jmm.GroupLosses(bound=1.0, sizes=(1000,), times=200, noise="laplace")
    losses = jmm.accounting.calibrate_noise(losses, share, 1e-6)
    assert losses.noise_multiplier == pytest.approx(laplace, rel=2e-2 if share > 0.2 else 5e-4)

    def beside(mechanism):
        made = jmm.accounting.calibrate_noise(mechanism, 1.0, 1e-6, alongside=(losses,))
        return made.query.noise_multiplier.w

    assert near(beside(fixed(1.0, 1000, 50, 200)) / 2, without, rel)
    if share == 0.2:
        assert near(beside(fixed(1.0, 1000, 50, 200, replacement=True)) / 2, replacement, rel)
        assert near(beside(poisson(1.0, 1000, 50, 200)), rate, rel=2e-3)
    assert near(beside(repeat(Saddle(1.0, None), 1000, jmm.Full(), 200)) / 2, full, rel=2e-3)


def with_losses(mechanism, scale, times):
    losses = jmm.GroupLosses(bound=1.0, sizes=(1000,), noise_multiplier=scale, times=times)
    return losses if mechanism is None else jmm.Sequence(parts=(losses, mechanism))


@pytest.mark.parametrize(("share", "laplace", "replacement", "without", "rate", "full"), [
    (0.1, 514.12, 3.4295, 3.4076, 6.017, 60.16),
    (0.2, 268.83, 3.4858, 3.4639, 6.132, 61.30),
    (0.3, 183.26, 3.5804, 3.5587, 6.323, 63.22),
    (0.5, 113.16, 3.9298, 3.9086, 7.031, 70.29),
])
def test_shares_of_the_groups_losses_to_the_digits_given(share, laplace, replacement, without,
                                                         rate, full):
    def spent(mechanism):
        return at_grid(1e-3, with_losses(mechanism, laplace, 200), 1e-6)

    assert spent(None) == pytest.approx(share, rel=1e-4)
    assert spent(fixed(replacement, 1000, 50, 200, replacement=True)) == pytest.approx(1, rel=1e-4)
    assert spent(fixed(without, 1000, 50, 200)) == pytest.approx(1, rel=1e-4)
    assert spent(poisson(rate, 1000, 50, 200)) == pytest.approx(1, rel=4e-4)
    whole = repeat(Saddle(2 * full, None), 1000, jmm.Full(), 200)
    assert spent(whole) == pytest.approx(1, rel=2e-4)


@pytest.mark.parametrize(("times", "laplace", "replacement", "without"), [
    (200, 266.98, 3.48477, 3.46290),
    (199, 266.06, 3.47738, None),
    (17, 72.99, 1.60037, 1.51351),  # active groups; the grid hardly matters
])
def test_gradients_beside_losses_on_the_accountants_grid(times, laplace, replacement, without):
    assert at_grid(1e-4, with_losses(None, laplace, times), 1e-6) == pytest.approx(0.2, rel=5e-5)
    for z, how in ((replacement, True), (without, False)):
        if z:
            mechanism = with_losses(fixed(z, 1000, 50, times, replacement=how), laplace, times)
            assert at_grid(1e-4, mechanism, 1e-6) == pytest.approx(1, rel=3e-5)


def test_gradients_alone():
    alone = fixed(3.4093, 1000, 50, 200, replacement=True)
    assert at_grid(1e-3, alone, 1e-6) == pytest.approx(1, rel=1e-4)


# The reference's grid of 1e-3 rounds up: its attained .477 for 7239 releases of 13 records exceeds
# what the same profile proves on a grid of 1e-4, .4728, so that column is no lower bound there.
@pytest.mark.nightly
@pytest.mark.parametrize(("noise", "times", "batch", "proved"), [
    (0.4517, 724, 2, 9.39), (0.4517, 724, 5, 0.810), (0.4517, 724, 10, 0.595),
    (0.4517, 724, 40, 0.505), (1.5068, 7239, 1, 1.213), (1.5068, 7239, 2, 0.647),
    (1.5068, 7239, 5, 0.528), (1.5068, 7239, 13, 0.493), (0.2298, 200, 1, 165.6),
    (0.2298, 200, 5, 6.16), (0.2298, 200, 20, 0.62), (0.2298, 200, 50, 0.54),
    (0.2298, 200, 200, 0.51),
])
def test_theorem_9_by_batch(noise, times, batch, proved):
    mechanism = fixed(noise * batch / 2, 1000, batch, times, replacement=True)
    assert at_grid(1e-3, mechanism, 1e-6) == pytest.approx(proved, rel=1e-2)
    true = ideal_epsilon(mechanism, 1e-6)
    assert true <= proved * 1.001
    assert (true > 1) == (proved > 1)


@pytest.mark.nightly
def test_a_minibatch_of_one_attains_46_where_1_is_claimed():
    noise = formulas.mgr_theorem_9(1.0, 1000, 724, 1.0, 1e-6, 1.0)
    assert noise == pytest.approx(0.4517, abs=6e-5)
    attained = pair(1000, 1, noise / 2, 724, 1e-6, replacement=True, grid=1e-4)
    proved = ideal_epsilon(fixed(noise / 2, 1000, 1, 724, replacement=True), 1e-6)
    assert attained == pytest.approx(46.2, rel=3e-3)
    assert proved == pytest.approx(46.7, rel=2e-3)


def test_the_argmax_baselines_noise():
    # 17 steps of the reference; T of the paper at M = 1 is 16.8
    noise = formulas.ags_theorem_13(1.0, 1000, 5, 17, 1.0, 1e-6, 1.0)
    assert noise == pytest.approx(math.sqrt(17 * math.log(5e9) * math.log(1e6)) / 1000)
    losses = jmm.GroupLosses(bound=1.0, sizes=(1000,), times=17, only_argmax=True,
                             noise="laplace")
    assert jmm.accounting.calibrate_noise(losses, 0.2,
                                          1e-6).noise_multiplier == pytest.approx(72.99, rel=5e-3)


@pytest.mark.nightly
@pytest.mark.parametrize(("z", "times", "replacement", "lower", "without"), [
    (1, 1, 2.28887, 2.28887, 1.46466), (1, 200, 7.205, 6.630, 6.146),
    (2, 1, 0.28436, 0.28436, 0.25241), (2, 200, 2.0130, 1.8210, 1.9770),
    (4, 200, 0.8232, 0.7737, 0.8179),
])
def test_quality_of_the_fixed_size_bounds(z, times, replacement, lower, without):
    bound = ideal_epsilon(fixed(z, 1000, 50, times, replacement=True), 1e-6)
    assert bound == pytest.approx(replacement, rel=5e-4)
    assert ideal_epsilon(fixed(z, 1000, 50, times), 1e-6) == pytest.approx(without, rel=5e-4)
    attained = pair(1000, 50, z, times, 1e-6, replacement=True)
    assert attained == pytest.approx(lower, rel=2e-3)
    assert attained <= bound


def test_values_of_the_profile():
    for z, values in ((1, (1.904374e-2, 5.419587e-3, 3.439372e-4, 4.115834e-5)),
                      (2, (9.855864e-3, 2.083165e-4, 1.028084e-8, 5.173547e-12))):
        ours = gaussians.Profile(1000, 50, z, True)(np.array([0, 0.1, 0.5, 1]))
        np.testing.assert_allclose(ours, values, rtol=3e-7)


# ---- formulas refuse, benchmark runs -----------------------------------------------------------

pytestmark = pytest.mark.usefixtures("real_noise")
EVERY = [
    (formulas.dpsgda_theorem_1, (1.0, 100, 10, 1.0, 1e-5, 2.0)),
    (formulas.dpsgda_remark_1, (1.0, 100, 10, 1.0, 1e-5)),
    (formulas.dpsgda_remark_1_batch, (100, 10, 1.0)),
    (formulas.dpgda_theorem_1, (1.0, 100, 10, 1.0, 1e-5, 4.0)),
    (formulas.gaussian_proposition_3, (1.0, 1.0, 1e-5)),
    (formulas.nseg_proposition_5, (1.0, 10, 1.0, 1e-5)),
    (formulas.nseg_proposition_7, (1.0, 1.0, 1e-5)),
    (formulas.nispp_proposition_9, (1.0, 2.0, 10)),
    (formulas.nispp_proposition_10, (1.0, 2.0, 10, 1.0, 1e-5)),
    (formulas.nispp_corollary_2, (1.0, 2.0, 10, 1.0, 1e-5)),
    (formulas.nispp_theorem_7, (1.0, 2.0, 10, 1.0, 1e-5)),
    (formulas.recursive_theorem_12, (1.0, 2.0, 100, 1, 1.0, 1e-5)),
    (formulas.recursive_theorem_21, (1.0, 100, 10, 1.0, 1e-5, 2.0)),
    (formulas.recursive_local, (1.0, 1.0, 1e-5)),
    (formulas.phased_erm_theorem_2, (1.0, 100, 0.1, 1, 1.0, 1e-5)),
    (formulas.worst_group_laplace, (1.0, 100, 10, 1.0, 1e-5, 2.0)),
    (formulas.mgr_theorem_9, (1.0, 100, 10, 1.0, 1e-5, 2.0)),
    (formulas.ags_theorem_13, (1.0, 100, 5, 10, 1.0, 1e-5, 2.0)),
]


@pytest.mark.parametrize(("formula", "numbers"), EVERY)
@pytest.mark.parametrize("bad", [0, -1.0, math.nan, math.inf, "1", None, True, np.ones(2)])
def test_a_formula_refuses_bad_numbers(formula, numbers, bad):
    assert type(formula(*numbers)) is float
    for i in range(len(numbers)):
        with pytest.raises(ValueError, match=r"must|needs one plain number"):
            formula(*numbers[:i], bad, *numbers[i + 1:])


def test_every_formula_is_tried_and_none_is_used():
    named = {f for f in vars(formulas).values() if callable(f) and f.__module__ == formulas.__name__
             and not f.__name__.startswith("_")}
    assert named == {f for f, _ in EVERY}
    assert not hasattr(jmm, "papers")


@pytest.mark.nightly
def test_the_benchmark_prints_and_writes_its_rows(capsys, tmp_path):
    path = tmp_path / "formulas.json"
    assert papers_noise.main(["--quick", "--json", str(path)]) == 0
    assert "Proposition 7" in capsys.readouterr().out
    written = json.loads(path.read_text())
    assert set(written) == {"environment", "arguments", "rows", "statements"}
    for row in written["rows"]:
        assert set(row) == {"paper", "formula", "setting", "epsilon_claimed", "delta",
                            "epsilon_true", "epsilon_lower", "noise_over_needed"}
        true, claimed = row["epsilon_true"], row["epsilon_claimed"]
        assert row["epsilon_lower"] is None or row["epsilon_lower"] <= true * (1 + 1e-9)
        if not row["formula"].startswith(("Theorem 12", "Theorem 7", "Corollary", "Theorem 2")):
            assert (row["noise_over_needed"] < 1) == (true > claimed)
