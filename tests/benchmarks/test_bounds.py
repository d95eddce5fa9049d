"""Bounds hold where they can be computed otherwise, and are met where they are tight."""

import dataclasses
import math
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxminimax as jmm
from benchmarks.papers import bounds
from benchmarks.rates import stability
from jaxminimax import Saddle

RNG = np.random.default_rng(0)


def in_ball(x, radius=1.0):
    return x * min(1.0, radius / max(np.linalg.norm(x), 1e-300))


# --- stability, by coupled runs ---


def descent(data, rounds, coupling, offset, noise):
    """Descent-ascent on the quadratic game of modulus 1, data `[n, 2, d]`; the average."""
    z, total, mean = np.zeros_like(data[0]), np.zeros_like(data[0]), data.mean(0)
    turn = coupling * np.array([[0.0, 1.0], [-1.0, 0.0]])
    for t in range(1, rounds + 1):
        total += z
        z = z - (z - mean + turn @ z + noise[t - 1]) / (t + offset)
        z = np.stack([in_ball(x, 2.0) for x in z])
    return total / rounds


@pytest.mark.parametrize("coupling", [0.0, 0.5, 3.0])
def test_coupled_runs_of_descent_ascent_keep_both_bounds(coupling):
    """G = ((3 + 2 c)^2 + (3 + 2 c)^2)^(1/2) on balls of radius 2, records of norm 1 at most."""
    n, rounds, size = 20, 60, math.hypot(3 + 2 * coupling, 3 + 2 * coupling)
    smooth, actual = math.hypot(1.0, coupling), []
    offset = max(0.0, (smooth**2 / 2) - 1)
    for _ in range(20):
        data = np.array([[in_ball(x) for x in row] for row in RNG.normal(size=(n, 2, 3))])
        other = data.copy()
        other[0] = -data[0]
        noise = 0.3 * RNG.normal(size=(rounds, 2, 3))
        actual.append(np.linalg.norm(descent(data, rounds, coupling, offset, noise)
                                     - descent(other, rounds, coupling, offset, noise)))
    known = dict(population=n, modulus=1.0, bound=size, rounds=rounds, offset=offset)
    tight, loose = bounds.gda_stability(smooth=smooth, **known), bounds.gda_stability(**known)
    assert 0 < max(actual) <= tight <= loose
    if coupling == 0:
        assert max(actual) > 0.1 * tight
    more = bounds.gda_stability(smooth=smooth, **known | {"population": 10 * n})
    assert more == pytest.approx(tight / 10)


def extragradient(data, step, rounds):
    """Full batches on f = x v + <records, .>, on the unit disc; the average of points ahead."""
    mean, turn = data.mean(0), np.array([[0.0, 1.0], [-1.0, 0.0]])
    z, total = np.zeros(2), np.zeros(2)
    for _ in range(rounds):
        ahead = in_ball(z - step * (turn @ z + mean))
        z = in_ball(z - step * (turn @ ahead + mean))
        total += ahead
    return total / rounds


def test_coupled_runs_of_extragradient_keep_the_bound():
    n, rounds = 20, 40
    for step in (0.02, 0.2):
        bound = bounds.extragradient_stability(population=n, dim=2, bound=2.0, smooth=1.0,
                                               diameter=2.0, step=step, rounds=rounds,
                                               deviation=0.0)
        for _ in range(10):
            data = np.array([in_ball(x) for x in RNG.normal(size=(n, 2))])
            other = np.concatenate([-data[:1], data[1:]])
            apart = np.linalg.norm(extragradient(data, step, rounds)
                                   - extragradient(other, step, rounds))
            assert 0 < apart <= bound


def test_one_extragradient_round_expands_by_no_more_than_the_lemma():
    turn, shares = np.array([[0.2, 1.0], [-1.0, 0.2]]), []
    smooth = float(np.linalg.norm(turn, 2))
    for step in (0.1, 0.5, 0.9):
        for _ in range(200):
            u, v = (in_ball(x) for x in RNG.normal(size=(2, 2)))
            q = RNG.normal(size=2)
            w, z = (in_ball(x - step * (turn @ x + q)) for x in (u, v))
            after = [in_ball(x - step * (turn @ y + q)) for x, y in ((u, w), (v, z))]
            shares.append(np.linalg.norm(after[0] - after[1]) / bounds.extragradient_expansion(
                distance=float(np.linalg.norm(u - v)), step=step, smooth=smooth, diameter=2.0))
    assert 0.3 < max(shares) <= 1


@pytest.mark.parametrize("modulus", [0.0, 0.5])
def test_proximal_points_of_linear_operators_attain_their_bound(modulus):
    """F_i(u) = mu_0 u +- M, full batches, exact solutions: every round moves as far as it can."""
    n, prox, rounds, size = 10, 2.0, 7, 3.0
    z, total = np.zeros(2), np.zeros(2)
    for _ in range(rounds):
        z = (prox * z - size * np.array([1.0, (n - 2) / n])) / (prox + modulus)
        total += z
    apart = abs(total[0] - total[1]) / rounds
    bound = bounds.proximal_stability(population=n, bound=size, prox=prox, rounds=rounds, batch=n,
                                      slack=0.0, modulus=modulus)
    assert apart == pytest.approx(bound, rel=1e-12)
    loose = bounds.proximal_stability(population=n, bound=size, prox=prox, rounds=rounds, batch=n,
                                      slack=0.1, modulus=modulus)
    assert loose == pytest.approx(1.1 * bound)


@pytest.mark.parametrize("modulus", [1e-18, 1e-14, 1e-10, 1e-6])
def test_a_hardly_strong_operator_is_as_stable_as_a_monotone_one(modulus):
    known = dict(population=10, bound=1.0, prox=1.0, rounds=20, batch=10)
    full = bounds.proximal_stability(**known)
    assert bounds.proximal_stability(**known, modulus=modulus) == pytest.approx(full, rel=1e-4)


def test_steps_that_a_bound_is_not_for_are_refused():
    known = dict(dim=2, bound=1.0, diameter=2.0, rounds=5, deviation=0.1)
    with pytest.raises(ValueError, match="step must be at most"):
        bounds.extragradient_stability(population=10, smooth=1.0, step=1.1, **known)
    with pytest.raises(ValueError, match="step must be at most"):
        bounds.extragradient_expansion(distance=1.0, step=1.1, smooth=1.0, diameter=2.0)
    with pytest.raises(ValueError, match="step must be at most"):
        bounds.extragradient_gap(step=0.6, smooth=1.0, **known)


@pytest.mark.slow
def test_a_row_of_the_benchmark_keeps_its_bound():
    case = stability.CASES[0]._replace(ns=(60,))
    made = stability.row(case, 60, 3)
    assert 0 < made["mean"] <= made["largest"] <= made["bound"] <= made["bound_not_smooth"]
    assert stability.CASES[4].quantity == "generalisation"
    assert made["statement"]["epsilon"] <= made["epsilon"]


# --- generalisation ---


def test_minimisers_generalise_within_the_bound():
    """f = (w - x)^2 / 2 + w v - v^2 / 2 on |w|, |v| <= 1: R(w) = w^2 + ..., kappa = sqrt(2)."""
    n, gaps = 10, []
    for _ in range(2000):
        x = RNG.choice([-1.0, 1.0], size=n)
        w = x.mean() / 2  # argmin of w^2 / 2 - w mean + w^2 / 2
        gaps.append(w * x.mean())  # R - R_S, without the constant that has mean 0
    bound = bounds.pl_generalisation(population=n, optimisation=0.0, bound_w=3.0, bound_v=2.0,
                                     smooth=math.sqrt(2), pl=2.0, modulus=1.0)
    assert 0 < np.mean(gaps) <= bound
    printed = (1 + math.sqrt(2)) * 3 * (math.sqrt(0.1 / 4) + math.sqrt(9 / 16 + 4 / 2) / n)
    assert bounds.pl_generalisation(population=n, optimisation=0.1, bound_w=3.0, bound_v=2.0,
                                    smooth=math.sqrt(2), pl=2.0, modulus=1.0) > printed


def test_what_is_stable_has_the_gap_of_its_records_and_little_more():
    known = dict(empirical=0.2, stability=0.01, bound=3.0)
    assert bounds.weak_gap(**known, saddle=False) == pytest.approx(0.23)
    assert bounds.weak_gap(**known) == pytest.approx(0.2 + 0.03 * math.sqrt(2))
    assert bounds.strong_gap(**known, smooth=2.0, modulus=1.0) == pytest.approx(
        0.2 + 0.09 * math.sqrt(2))


# --- gaps ---


def test_the_exact_gap_of_descent_ascent_keeps_its_bound():
    """Without coupling and projection the expected gap has a closed form."""
    p, mu, sigma, size = 6, 1.5, 0.7, 1.0
    for rounds in (10, 100, 1000):
        tails = np.cumsum(1 / np.arange(rounds - 1, 0, -1.0))
        exact = mu * size**2 / rounds**2 + p * sigma**2 / (mu * rounds**2) * np.sum(tails**2)
        radius = 10.0  # never left
        bound = bounds.gda_empirical_gap(
            modulus=mu, bound_w=mu * (radius + size), bound_v=mu * (radius + size), dim_w=p,
            dim_v=p, radius_w=radius, radius_v=radius, deviation=sigma, rounds=rounds)
        assert exact <= bound
    assert bounds.gda_empirical_gap(
        modulus=mu, bound_w=1.0, bound_v=1.0, dim_w=p, dim_v=p, radius_w=1.0, radius_v=1.0,
        deviation=0.0, rounds=10, offset=2.0) == pytest.approx(
            math.log(10 * math.e) / (mu * 10) + 4 * mu * 2 / 10)


def test_the_gap_of_one_pass_is_least_at_the_step_of_the_corollary():
    known = dict(dim=10, bound=2.0, diameter=3.0, rounds=50, deviation=0.4)
    best = 3.0 / math.sqrt(7 * 50 * (4 + 10 * 0.16))
    least = bounds.extragradient_gap(step=best, **known)
    assert least == pytest.approx(2 * 3 * math.sqrt(7 * (4 + 1.6) / 50))
    assert all(bounds.extragradient_gap(step=best * x, **known) > least for x in (0.5, 2.0))


def test_proximal_points_have_the_gap_of_their_proof():
    known = dict(dim=4, bound=1.0, smooth=1.0, diameter=2.0, deviation=0.0)
    best = bounds.proximal_gap(prox=10.0, rounds=10_000, **known)
    assert best == pytest.approx(1.5 * 10 * 4 / 10_000 + (4 + 12) / 10)
    assert bounds.proximal_gap(prox=10.0, rounds=100, **{**known, "deviation": 0.1},
                               inexact=0.5) == pytest.approx(
        0.5 + 0.6 + 1.6 + 3 * 10 * 4 * 0.01 + 0.1 * 0.2)


# --- lower bounds ---


def test_nobody_beats_the_statistical_term_and_noise_costs_at_most_everything():
    known = dict(dim=16, bound=2.0, diameter=3.0)
    assert bounds.lower_bound(population=100, epsilon=None, **known) == pytest.approx(0.6)
    assert bounds.lower_bound(population=100, epsilon=1.0, **known) == pytest.approx(0.6 + 0.24)
    assert bounds.lower_bound(population=100, epsilon=1e-6, **known) == pytest.approx(0.6 + 6)
    assert bounds.group_lower_bound(population=500, groups=5, dim=16, lipschitz=2.0, diameter=3.0,
                                    epsilon=1.0) == pytest.approx(0.84)


@pytest.mark.parametrize(("function", "change", "message"), [
    (bounds.gda_stability, dict(population=0), "population must be"),
    (bounds.gda_stability, dict(modulus=0.0), "modulus must lie in"),
    (bounds.gda_stability, dict(smooth=-1.0), "smooth must lie in"),
    (bounds.lower_bound, dict(epsilon=0.0), "epsilon must lie in"),
    (bounds.lower_bound, dict(bound=math.nan), "bound must lie in")])
def test_numbers_out_of_range_are_named(function, change, message):
    known = dict(population=10, bound=1.0)
    known |= (dict(modulus=1.0, rounds=5) if function is bounds.gda_stability
              else dict(dim=3, diameter=1.0, epsilon=1.0))
    with pytest.raises(ValueError, match=message):
        function(**known | change)


# --- what completes a paper ---


def test_the_maximum_over_a_strongly_concave_player_generalises_as_bounded_and_attains_it():
    """The loss <x, v> - (rho / 2) |v|^2 on all of R^3 has the maximum |mean|^2 / (2 rho)."""
    n, rho = 20, 0.7
    x = RNG.normal(size=(20_000, n, 3))
    x /= np.linalg.norm(x, axis=2, keepdims=True)
    found = np.mean(np.sum(x.mean(1) ** 2, 1)) / (2 * rho)
    bound = bounds.maximum_generalisation(population=n, bound_v=1.0, modulus=rho)
    assert found == pytest.approx(bound, rel=0.03)


def test_a_weak_gap_given_the_coins_becomes_a_strong_one_by_the_outputs_variance():
    """f = <w, v> with w = v = the mean of n signs: strong gap |w| + |v|, weak gap given coins 0."""
    w, v = (RNG.choice([-1.0, 1.0], size=(2, 50_000, 25)).mean(2))
    tau = math.sqrt(np.var(w) + np.var(v))
    strong = np.mean(np.abs(w) + np.abs(v))
    bound = bounds.low_variance_gap(weak=0.0, bound=math.sqrt(2), deviation=tau)
    assert 0.3 * bound < strong < bound
    assert bounds.low_variance_gap(weak=0.4, bound=1.0, deviation=0.0) == 0.4


@pytest.mark.parametrize(("n", "value"), [(1000, 1.20), (10_000, 0.402)])
def test_the_outputs_variance_says_something_of_descent_ascent_in_n_squared_rounds(n, value):
    """Full batches of a game of modulus 1/2 that is not known to be smooth; any point has 2.83."""
    rounds = n**2
    release = 2 * math.sqrt(rounds) / (n * 0.2367)  # the noise of epsilon 1 and delta 1e-6
    moved = bounds.gda_stability(population=n, modulus=0.5, bound=1.0, rounds=rounds)
    own = bounds.gda_empirical_gap(modulus=0.5, bound_w=0.5**0.5, bound_v=0.5**0.5, dim_w=5,
                                   dim_v=5, radius_w=1.0, radius_v=1.0, deviation=release,
                                   rounds=rounds)
    weak = bounds.weak_gap(empirical=own, stability=moved, bound=1.0)
    assert bounds.low_variance_gap(weak=weak, bound=1.0, deviation=math.sqrt(n / 2) * moved) == (
        pytest.approx(value, rel=0.01))


def test_norms_of_noise_and_reads_of_a_record_stay_below_their_likely_bounds():
    norms = np.linalg.norm(0.3 * RNG.normal(size=(2000, 2 * 30, 5)), axis=2).sum(1)
    likely = bounds.extragradient_noise(dim=5, deviation=0.3, rounds=30, failure=0.05)
    assert np.mean(norms > likely) <= 0.05
    assert likely < 1.3 * norms.mean()
    n, rounds, batch = 50, 200, 5
    reads = RNG.binomial(rounds, batch / n, size=(4000, n)).max(1)
    assert np.mean(reads > 2 * rounds * batch / n) <= bounds.proximal_failure(
        population=n, rounds=rounds, batch=batch) < 1


def test_single_draws_have_a_weak_gap_from_their_own_gap_and_stability():
    known = dict(population=30, dim=4, bound=1.0, smooth=1.0, diameter=2.0, step=0.01, rounds=900,
                 deviation=0.1)
    gap = {k: x for k, x in known.items() if k != "population"}
    assert bounds.extragradient_weak_gap(**known) == pytest.approx(
        bounds.extragradient_gap(**gap) + math.sqrt(2) * bounds.extragradient_stability(**known))


def test_formulas_of_plans_are_handed_on():
    from jaxminimax.algorithms import bounds as own

    assert all(getattr(bounds, name) is getattr(own, name) for name in (
        "WeightedDescent", "average_gap", "bandit_regret", "descent_stability", "weak_gap"))


# --- Polyak-Lojasiewicz in w, strongly concave in v ---

PL_ROUNDS = 1200


def pl_steps(pl, smooth, modulus, rounds=PL_ROUNDS):
    """Theorem 3's steps, with the cap on those of w that keeps their ratio from the first round."""
    t = np.arange(1.0, rounds + 1)
    kappa, curved = smooth / modulus, smooth + smooth**2 / modulus
    c = max(8 * kappa**2 * math.sqrt(curved / pl), 4 * math.sqrt(2) * kappa**2)
    return (np.minimum(2 / (pl * t), 1 / (smooth * c)),
            np.minimum(2 * c / (pl * t ** (2 / 3)), 1 / smooth))


def pl_runs(steps, slope_w, slope_v, start, limit, noise, seeds=400):
    """Descent-ascent over w in R and |v| <= limit; w_t of all runs, `[T + 1, seeds]`."""
    rng = np.random.default_rng(1)
    w, v = (np.full(seeds, x) for x in start)
    seen = [w]
    for s, r in zip(*steps, strict=True):
        g = slope_w(w, v) + noise * rng.normal(size=seeds)
        h = slope_v(w, v) + noise * rng.normal(size=seeds)
        w, v = w - s * g, np.clip(v + r * h, -limit, limit)
        seen.append(w)
    return np.stack(seen)


@pytest.mark.parametrize("limit", [0.2, 50.0])
@pytest.mark.parametrize(("waves", "pl", "coupling"), [(0.0, 2.0, 1.0), (0.0, 2.0, 0.1),
                                                       (3.0, 1 / 32, 0.3)])
def test_runs_of_a_pl_game_keep_the_bound_on_the_primal_risk(waves, pl, coupling, limit):
    """f = w^2 + waves sin(w)^2 + c w v - v^2 / 2, not convex with waves; its saddle point is 0.

    At the smaller limit the best response lies on the boundary of V for most w.
    """
    def primal(w):
        best = np.clip(coupling * w, -limit, limit)
        return w**2 + waves * np.sin(w) ** 2 + coupling * w * best - best**2 / 2

    smooth = float(np.linalg.norm([[2 + 2 * waves, coupling], [coupling, -1.0]], 2))
    steps = pl_steps(pl, smooth, 1.0)
    start = (1.5, limit)
    runs = pl_runs(steps, lambda w, v: 2 * w + waves * np.sin(2 * w) + coupling * v,
                   lambda w, v: coupling * w - v, start, limit, noise=0.3)
    found = primal(runs).mean(1)
    known = dict(smooth=smooth, pl=pl, modulus=1.0, variance_w=0.09, variance_v=0.09,
                 start=float(primal(np.array(1.5))),
                 diameter_v=abs(limit - np.clip(coupling * 1.5, -limit, limit)))
    for rounds in (1, 3, 10, 100, PL_ROUNDS):
        bound = bounds.pl_empirical_gap(*(x[:rounds] for x in steps), **known)
        assert found[rounds] <= bound, rounds


def test_the_distance_from_a_best_response_is_exact_while_w_rests():
    """v' = (1 - r) v + r noise in closed form, read off what the last step of w adds to a."""
    rounds, r, s = 12, 0.3, 0.1
    steps = np.append(np.full(rounds, 1e-300), s)
    found = bounds.pl_empirical_gap(steps, np.full(rounds + 1, r), smooth=1.0, pl=0.5, modulus=1.0,
                                    variance_w=0.4, variance_v=0.7, start=0.0, diameter_v=2.0)
    square = 4 * (1 - r) ** (2 * rounds) + 0.7 * r**2 * sum(
        (1 - r) ** (2 * t) for t in range(rounds))
    assert found == pytest.approx(s / 2 * square + 2 / 2 * s**2 * 0.4)  # H = 2
    with pytest.raises(ValueError, match=r"step must be at most 0\.5 for smooth=2"):
        bounds.pl_empirical_gap(np.array([0.6]), np.array([0.1]), smooth=1.0, pl=0.5, modulus=1.0,
                                variance_w=0.4, variance_v=0.7, start=0.0, diameter_v=2.0)


def test_random_pl_games_never_exceed_the_bound_even_without_noise():
    """w^2 and a coupling of several coordinates, unequal curvatures and constant steps."""
    rng = np.random.default_rng(2)
    for _ in range(60):
        d = 3
        a = np.diag(rng.uniform(0.3, 1.0, d))
        b, c = np.diag(rng.uniform(0.5, 1.0, d)), rng.normal(size=(d, d)) * rng.uniform(0, 0.5)
        smooth = float(np.linalg.norm(np.block([[a, c], [c.T, -b]]), 2))
        modulus, pl = float(np.diag(b).min()), float(np.diag(a).min())
        hessian = a + c @ np.linalg.solve(b, c.T)
        curved = smooth + smooth**2 / modulus
        s = np.full(40, rng.uniform(0.02, 1.0) / curved)
        r = np.full(40, rng.uniform(0.1, 1.0) / smooth)
        w, v = rng.normal(size=d), rng.normal(size=d)
        known = dict(smooth=smooth, pl=pl, modulus=modulus, variance_w=0.0, variance_v=0.0,
                     start=w @ hessian @ w / 2,
                     diameter_v=float(np.linalg.norm(v - np.linalg.solve(b, c.T @ w))))
        for t in range(40):
            w, v = w - s[t] * (a @ w + c @ v), v + r[t] * (c.T @ w - b @ v)
            bound = bounds.pl_empirical_gap(s[:t + 1], r[:t + 1], **known)
            assert w @ hessian @ w / 2 <= bound * (1 + 1e-9)


def pl_number(population, *, capped):
    """Theorem 5's number at its best T, full batches: mu = rho = 1/2, L = G = 1, d = 10, eps 1."""
    known = dict(smooth=1.0, pl=0.5, modulus=0.5)
    release = jmm.Query(clip=Saddle(1.0, 1.0), population=population)
    plan = jmm.calibrate(jmm.sgda, jmm.sgda.Hyper(
        query=release, step=Saddle(0.1, 0.1), iterations=1), 1.0, 1e-6)
    one = float(plan.query.noise_multiplier.w) / population  # of one round; T rounds: times T^(1/2)

    def number(rounds):
        variance = 5 * rounds * one**2
        steps = pl_steps(rounds=rounds, **known)
        if not capped:
            t = np.arange(1.0, rounds + 1)
            steps = (np.minimum(4 / t, 1 / 3), steps[1])
        gap = bounds.pl_empirical_gap(*steps, variance_w=variance, variance_v=variance, start=1.0,
                                      diameter_v=1.0, **known)
        return bounds.pl_excess_risk(population=population, optimisation=gap, bound_w=1.0,
                                     bound_v=1.0, **known)

    return min(map(number, (10, 30, 100, 300, 1000, 3000, 10_000, 30_000)))


@pytest.mark.slow
def test_the_numbers_of_theorem_5_are_those_of_the_page():
    """Any point where gradients are at most 1 has an excess of G^2 / (2 mu) = 1 at most."""
    found = [pl_number(n, capped=True) for n in (1000, 10_000, 100_000)]
    text = (pathlib.Path(bounds.__file__).parents[2] / "docs" / "choosing.md").read_text("utf-8")
    assert "Theorem 5 of Yang et al. (2022) is {:.1f}, {:.1f} and {:.2f} there".format(
        *found) in " ".join(text.split())
    assert found[1] > 1 > found[2]
    assert pl_number(100_000, capped=False) > 1000  # the ratio of the steps is not kept


# --- two populations that nobody tells apart ---


def test_no_tilt_is_told_apart_and_bounds_fall_as_they_should():
    known = dict(bound=2.0, diameter=3.0)

    def best(n, **privacy):
        return max(bounds.two_point_lower_bound(population=n, tilt=float(t), **known, **privacy)
                   for t in np.geomspace(1e-4, 1, 60))

    def slope(low, high, **privacy):
        return math.log(best(high, **privacy) / best(low, **privacy)) / math.log(high / low)

    assert slope(100, 1600, epsilon=None) == pytest.approx(-0.5, abs=0.02)
    assert slope(400, 3200, epsilon=0.01) == pytest.approx(-1.0, abs=0.07)
    for n in (50, 800):  # below the order, and the constant is no small one
        order = bounds.lower_bound(population=n, dim=1, epsilon=0.02, **known)
        assert 0.05 * order < best(n, epsilon=0.02) < order
        assert best(n, epsilon=50.0) == pytest.approx(best(n, epsilon=None))
        assert best(n, epsilon=0.02) > best(n, epsilon=None)
        assert best(n, epsilon=0.02, delta=1e-6) <= best(n, epsilon=0.02)
    one = bounds.two_point_lower_bound(population=1, tilt=1.0, epsilon=0.5, **known)
    assert one == pytest.approx(3.0 * (1 - math.tanh(0.25)))  # randomised response attains this


HARD = {"extragradient": {"smooth": 1e-3, "diameter": 2.0, "passes": "one"},
        "sgda": {"diameter": 2.0, "passes": "one"},
        "recursive": {"smooth": 1e-3, "diameter": 2.0},
        "proximal": {"smooth": 1e-3, "diameter": 2.0, "passes": "one"},
        "ftrl": {"diameter": 2.0}}


def hardest(n, epsilon, delta):
    """The tilt of the largest lower bound for M = 1 and D = 2, and that bound."""
    return max(((float(t), bounds.two_point_lower_bound(
        population=n, bound=1.0, diameter=2.0, tilt=float(t), epsilon=epsilon, delta=delta))
        for t in np.geomspace(0.005, 1, 40)), key=lambda x: x[1])


def hard_plan(name, **privacy):
    return jmm.plan(getattr(jmm, name), population=200, dim=1, bound=1.0, **HARD[name], **privacy)


def hard_gaps(name, hyper, tilt, runs=40, n=200):
    """Strong gaps on the two populations, `[2 runs]`; all runs read samples of their own."""
    hard = jmm.problems.affine(matrix=np.zeros((1, 1)), offset_bound=1.0,
                               domain=jmm.problems.box(-np.ones(1), np.ones(1)))
    run = jax.jit(lambda key, x: jmm.run(key, Saddle(jnp.zeros(1), ()), x, hyper,
                                         getattr(jmm, name), hard.problem)[0].z.w[0])
    rng, gaps = np.random.default_rng(7), []
    for i in range(2 * runs):
        sign = 1 if i % 2 else -1
        x = np.where(rng.random((n, 1)) < (1 + sign * tilt) / 2, 1.0, -1.0)
        gaps.append(tilt * (1 + sign * float(run(jax.random.key(i), jnp.asarray(x)))))
    return np.mean(gaps), np.std(gaps) / math.sqrt(2 * runs)


@pytest.mark.nightly
@pytest.mark.parametrize("epsilon", [0.2, 2.0])
@pytest.mark.parametrize("name", list(HARD))
def test_on_hard_populations_plans_are_between_what_nobody_beats_and_what_they_promise(
        name, epsilon):
    privacy = dict(epsilon=epsilon, delta=1e-5)
    plan = hard_plan(name, **privacy)
    tilt, least = hardest(200, **privacy)
    mean, error = hard_gaps(name, plan.hyper, tilt)
    assert least - 3 * error < mean < plan.guarantee


@pytest.mark.slow
def test_without_its_noise_a_run_does_what_no_private_algorithm_can():
    privacy = dict(epsilon=0.02, delta=1e-5)
    quiet = jmm.mechanism.composed.with_noise_of_all(hard_plan("sgda", **privacy).hyper, 0.0)
    tilt, least = hardest(200, **privacy)
    mean, error = hard_gaps("sgda", dataclasses.replace(quiet, step=Saddle(5.0, 5.0)), tilt)
    assert mean + 3 * error < least
