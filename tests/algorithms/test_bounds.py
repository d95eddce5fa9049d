"""Bounds hold on games whose gaps are known, and are attained where a proof leaves nothing."""

import math

import numpy as np
import pytest
import scipy

from jaxminimax.algorithms import bounds, gda, group_oco, recursion
from jaxminimax.mechanism import Poisson, RecordLosses

DIAMETER = math.sqrt(8)  # of two unit balls
D = 3


def norm(x):
    return np.linalg.norm(x, axis=-1)


def in_ball(x):
    return x / np.maximum(1, norm(x))[..., None]


def of_ball(slope, curve):
    """max over |v| <= 1 of <slope, v> - (curve / 2) |v|^2."""
    size = norm(slope)
    if curve == 0:
        return size
    return np.where(size >= curve, size - curve / 2, size**2 / (2 * curve))


def games(rng, count, records=16):
    """Losses a w + w A v - b v of `records` kinds, equally likely, with operators of norm 1."""
    shape = (count, 1, D, D), (count, records, D, D), (count, 1, D), (count, records, D)
    matrix = rng.normal(size=shape[0]) * rng.uniform(0.05, 1, (count, 1, 1, 1)) + 0.7 * rng.normal(
        size=shape[1]) * rng.uniform(0, 1, (count, 1, 1, 1))
    a, b = (rng.normal(size=shape[2]) + rng.normal(size=shape[3]) * rng.uniform(
        0, 1.5, (count, 1, 1)) for _ in range(2))
    steep = np.linalg.norm(matrix, 2, axis=(2, 3))
    size = np.hypot(norm(a) + steep, norm(b) + steep).max(1)[:, None, None]
    return matrix / size[..., None], a / size, b / size


def mean(game, weights=None):
    if weights is None:
        return tuple(x.mean(1) for x in game)
    return tuple(np.einsum("ik,ik...->i...", weights, x) for x in game)


def operator(w, v, game, curve=0.0):
    matrix, a, b = game
    return (a + np.einsum("iab,ib->ia", matrix, v) + curve * w,
            b - np.einsum("iab,ia->ib", matrix, w) + curve * v)


def gap(w, v, game, curve=0.0):
    """The strong gap of every game, with (curve / 2) (|w|^2 - |v|^2), exactly."""
    matrix, a, b = game
    return (np.sum(a * w + b * v, 1) + curve / 2 * np.sum(w**2 + v**2, 1)
            + of_ball(np.einsum("iab,ia->ib", matrix, w) - b, curve)
            + of_ball(np.einsum("iab,ib->ia", matrix, v) + a, curve))


# --- balls and averages ---


def test_the_ball_around_a_set_is_jungs_or_that_around_the_start():
    assert bounds.reaches(2.0) == (2.0, pytest.approx(math.sqrt(2)))
    assert bounds.reaches(2.0, 1.0) == (1.0, 1.0)
    assert bounds.reaches(2.0, 1.9) == (1.9, pytest.approx(math.sqrt(2)))
    for radius in (0.0, -1.0, 2.1, math.nan):
        with pytest.raises(ValueError, match="radius must lie in"):
            bounds.reaches(2.0, radius)
    corners = np.eye(40)  # a simplex of side 2^(1/2): its ball nearly has the radius of Jung
    assert 0.98 < norm(corners - corners.mean(0)).max() / bounds.reaches(math.sqrt(2))[1] <= 1


def test_differences_add_up_to_no_more_than_the_lemma_says():
    """E sup_u <sum y_t, u - c> = rho E ||sum y_t|| on a ball: .921 of it for d = 3 normals."""
    rng = np.random.default_rng(0)
    total = np.sum(np.arange(1, 21)[:, None] * rng.normal(size=(4000, 20, 3)), 1)
    found = norm(total).mean() / math.sqrt(3 * np.sum(np.arange(1, 21) ** 2))
    assert 0.9 < found < 0.94


def test_the_best_step_has_the_smallest_bound_which_is_a_closed_form():
    numbers = dict(rounds=50, second=3.0, diameter=2.0, radius=1.5)
    step = bounds.best_step(**numbers)
    least = bounds.average_gap(step=step, variance=2.0, **numbers)
    assert least == pytest.approx(1.5 * math.sqrt(3 / 50) + math.sqrt(2) * math.sqrt(2 / 50))
    for factor in (0.5, 0.9, 1.1, 2.0):
        assert bounds.average_gap(step=factor * step, variance=2.0, **numbers) > least


def test_noisy_descent_stays_below_its_bound_from_the_edge():
    rng = np.random.default_rng(1)
    game, rounds, noise = mean(games(rng, 60)), 200, 0.5
    second = 1 + 2 * D * noise**2
    step = bounds.best_step(rounds=rounds, second=second, diameter=DIAMETER)
    most = bounds.average_gap(step=step, rounds=rounds, second=second, diameter=DIAMETER,
                              variance=2 * D * noise**2)
    w, v = (x / norm(x)[:, None] for x in rng.normal(size=(2, 60, D)))
    total = np.zeros((2, 60, D))
    for _ in range(rounds):
        total += (w, v)
        g, h = operator(w, v, game)
        w = in_ball(w - step * (g + noise * rng.normal(size=w.shape)))
        v = in_ball(v - step * (h + noise * rng.normal(size=w.shape)))
    found = gap(*total / rounds, game)
    assert 0.1 * most < found.max() < most


def test_samples_that_are_drawn_again_are_seldom_short_of_a_record():
    """Against the binomial law: P[record drawn | fits] / q, for slots with little room."""
    for n, rate, slots in ((50, 0.2, 12), (300, 0.05, 18), (1000, 0.02, 22)):
        sampling = Poisson(rate=rate, capacity=slots)
        law = scipy.stats.binom
        drawn = law.cdf(slots - 1, n - 1, rate) / law.cdf(slots, n, rate)
        less = sampling.shortfall(n)
        assert 1 - drawn == pytest.approx(less, rel=1e-6)
        assert 0 < less <= sampling.redraw_probability(n) < 0.5
        numbers = dict(bound=2.0, diameter=3.0)
        assert bounds.with_redraws(1.0, less, **numbers) * (1 - less) == pytest.approx(1.0)
        assert bounds.with_redraws(1.0, less, public_bound=0.1, **numbers) == 1 + 6 * less


def fitting(sampling, n):
    """The law of a sample's size, given that it fits, from that of the slots' distinct rows."""
    room, most = sampling._room(n)
    own = np.eye(room.slots + 1)[room.slots]
    if not room.shuffled:
        own, there = np.eye(room.slots + 1)[0], 1 - (2**32 % n) / 2**32
        for _ in range(room.slots):
            hit = there * (1 - np.arange(room.slots + 1) / n)
            own = own * (1 - hit) + np.concatenate([[0], (own * hit)[:-1]])
    sizes = np.arange(min(most, room.slots) + 1)
    law = scipy.stats.binom.pmf(sizes, n, sampling.rate) * own[::-1].cumsum()[::-1][sizes]
    return sizes, law / law.sum()


@pytest.mark.parametrize(("n", "rate", "slots", "again"), [
    (1000, 0.05, None, 1e-3), (10_000, 0.01, None, 1e-3), (300, 0.3, None, 1e-3),
    (50, 0.7, None, 1e-3), (300, 0.05, 18, 1e-3), (20, 0.5, 12, 1e-3), (2, 0.5, 1, 1e-3),
    (100, 0.9, 90, 1e-3), (1000, 0.99, 990, 1e-3), (60_000, 16 / 60_000, None, 0.2),
    (1000, 0.05, None, 0.1), (300, 0.3, None, 0.5), (50, 0.7, None, 0.3)])
def test_samples_that_fit_are_no_shorter_and_vary_no_more_than_is_said(n, rate, slots, again):
    """Also where slots are lost to rows drawn twice, and where larger samples vary less."""
    sampling = Poisson(rate=rate, capacity=slots, again=again)
    sizes, law = fitting(sampling, n)
    mean, drawn = sampling.batch_size(n), law @ sizes / (rate * n)
    assert 1 - drawn <= sampling.filled_probability(n) * (1 + 1e-9)
    assert sampling.filled_probability(n) == pytest.approx(1 - drawn, rel=1e-6)
    # the mean of a release is that of all records, where it is divided by the expected size
    assert sampling.shortfall(n) == (0.0 if again > 1e-3 else sampling.filled_probability(n))
    if again > 1e-3:
        assert mean == pytest.approx(law @ sizes, rel=1e-9)
    # E||sum x_i||^2 = a ||S||^2 + b sum ||x_i||^2 of a uniform subset, over C^2 / m
    a, b = (law @ x / (n * (n - 1)) for x in (sizes * (sizes - 1.0), sizes * (n - sizes)))
    assert b * n / mean <= sampling.spread(n) * (1 + 1e-9)  # records whose sum is 0
    equal = (law @ sizes**2 - (law @ sizes) ** 2) / mean
    assert equal <= sampling.spread(n) * (1 + 1e-9)
    assert a <= (mean / n) ** 2 * (1 + 1e-9)
    assert law @ sizes**2 / mean**2 <= (1 + (1 - rate) / mean) * (1 + 1e-9)
    if again == 1e-3:
        assert (sampling.spread(n) > 1 - rate) == (rate == 0.7 or slots in (12, 1, 90, 990))


# --- recursion ---


def test_a_regularised_solution_has_the_gap_of_step_c():
    """mu R^2 / 4 at a ball's centre: attained to a few per cent, and an eighth would be broken."""
    rng, worst = np.random.default_rng(1), 0.0
    matrix = rng.normal(size=(80, D, D)) * rng.uniform(0.1, 1, (80, 1, 1))
    a, b = rng.normal(size=(2, 80, D)) * rng.uniform(0.05, 1, (2, 80, 1))
    mu, game = rng.uniform(0.1, 1, (80, 1)), (matrix, a, b)
    step = 0.5 / (np.linalg.norm(matrix, 2, axis=(1, 2))[:, None] + mu)
    w = v = np.zeros((80, D))
    for _ in range(1500):
        g, h = operator(w, v, game)
        x, y = in_ball(w - step * (g + mu * w)), in_ball(v - step * (h + mu * v))
        g, h = operator(x, y, game)
        w, v = in_ball(w - step * (g + mu * x)), in_ball(v - step * (h + mu * y))
    worst = (gap(w, v, game) / (mu[:, 0] * 2 / 4)).max()
    assert 0.9 < worst <= 1 + 1e-6


@pytest.mark.parametrize("t", [1, 2, 3, 6])
def test_the_joint_step_of_the_recursion_is_attained(t):
    rng, kept = np.random.default_rng(t), 1 - 2.0**-t
    moved, after = rng.normal(size=(2, 200_000, 2))
    moved *= rng.uniform(0, 2, (200_000, 1))
    allowed = kept * np.sum(moved**2, 1) <= np.sum(moved * after, 1)
    before = norm(moved + after)
    found = ((kept * norm(moved) + norm(after)) / before)[allowed].max()
    factor = math.sqrt(1 + kept**2 / (1 + 2 * kept))
    assert 0.999 * factor < found <= factor * (1 + 1e-9)


def test_random_recursions_keep_the_sum_that_the_bound_is_made_of():
    """S of the module on linear monotone operators with errors of any size and direction."""
    rng, largest = np.random.default_rng(2), 0.0
    for trial in range(3000):
        turn = rng.normal(size=(2, 2))
        slope = (turn - turn.T) * rng.choice([0, 0.3, 1, 5]) + rng.choice([0, 0.05, 1]) * np.eye(2)
        if trial % 2:
            slope = np.diag(rng.choice([0.0, 0.1, 1, 10], 2))
        shift, base, rounds = rng.normal(size=2), 10 ** rng.uniform(-2, 1), rng.integers(2, 6)
        released, errors, first = [np.zeros(2)], [], 0.0
        for t in range(1, rounds + 1):
            weights = 4 * base * 2.0 ** np.arange(t)
            solved = np.linalg.solve(slope + weights.sum() * np.eye(2),
                                     weights @ np.array(released) - shift)
            first = norm(solved) if t == 1 else first
            error = rng.normal(size=2) * 10 ** rng.uniform(-2, 2)
            errors.append(norm(error))
            released.append(solved + error)
        far = 4 * base * sum(2.0**k * norm(solved - z) for k, z in enumerate(released[:-1]))
        public = recursion.Public(dim=2, bound=1.0, diameter=1e9, epsilon=1.0, delta=1e-6,
                                  multiplier=1.0, radius=first)
        public.__dict__["distances"] = lambda *_, errors=errors: errors
        largest = max(largest, far / public.terms(base, 1, int(rounds))[1])
    assert 0.8 < largest <= 1 + 1e-9


# --- strongly monotone games ---


def weighted(rounds=40, population=500, noise=0.01, **more):
    return bounds.WeightedDescent(**{
        "rounds": rounds, "dim": 2 * D, "bound": 1.0, "public_bound": 0.7, "smooth": 1.1,
        "modulus": 0.5, "diameter": DIAMETER, "deviation": noise, "offset": 3.0,
        "radius": DIAMETER / 2, **more})


def test_weights_and_steps_leave_a_constant_share_of_the_distance():
    """t / (2 eta_t) - (t - 1) / (2 eta_{t-1}) - t rho / 2 = rho phi / 4, for every t."""
    made = weighted()
    before = np.concatenate([[0.0], (made.weights / (2 * made.steps))[:-1]])
    left = made.weights / (2 * made.steps) - before - made.weights * 0.5 / 2
    np.testing.assert_allclose(left, 0.5 * 3.0 / 4, atol=1e-12)
    # and `gda` takes these steps, with half of the modulus and one more of offset
    step = gda.planning.Decay(scale=1 / 0.25, offset=4.0)
    np.testing.assert_allclose(made.steps, [float(step(t)) for t in range(1, 41)], rtol=1e-6)


def test_the_bound_of_descent_is_the_sum_of_its_three_terms():
    made, t = weighted(), np.arange(1, 41)
    noise = 2 * D * 0.01**2
    expected = (0.5 * 3 * 40 * 8 / 4 + (1.7**2 + noise) * np.sum(t / (0.5 * (t + 4)))
                + math.sqrt(2) * math.sqrt(noise * np.sum(t**2))) / np.sum(t)
    assert made.empirical() == pytest.approx(expected)
    distance = total = 0.0
    for s, step in enumerate(2 / (0.5 * (t + 4)), 1):
        total += s * distance
        distance = math.sqrt(1 - 2 * step * 0.5 + (1.1 * step) ** 2) * distance + step * 2 / 500
    assert made.expected(500) == pytest.approx(
        expected + math.sqrt(2) * (1 + 1.1 / 0.5) * total / np.sum(t))


@pytest.mark.parametrize("seed", [0, 1])
def test_weighted_descent_stays_below_its_numbers(seed):
    """On the records, on the population, and of the latter nearly all runs below the likely one."""
    rng, n, rounds, curve, noise = np.random.default_rng(seed), 1000, 100, 0.5, 0.02
    game = games(rng, 40)
    smooth = math.hypot(curve, float(np.linalg.norm(game[0], 2, axis=(2, 3)).max()))
    offset = max(0.0, (smooth / curve) ** 2 - 2)
    made = weighted(rounds, noise=noise, modulus=curve, smooth=smooth, offset=offset,
                    public_bound=curve * math.sqrt(2))
    own = mean(game, rng.multinomial(n, np.ones(16) / 16, 40) / n)
    w = v = np.zeros((40, D))
    total = np.zeros((2, 40, D))
    for t in range(1, rounds + 1):
        total += (t * w, t * v)
        (g, h), step = operator(w, v, own, curve), 2 / (curve * (t + offset + 1))
        w = in_ball(w - step * (g + noise * rng.normal(size=w.shape)))
        v = in_ball(v - step * (h + noise * rng.normal(size=w.shape)))
    out = total / made.weights.sum()
    on_records, there = gap(*out, own, curve), gap(*out, mean(game), curve)
    assert on_records.max() < made.empirical()
    assert there.max() < made.expected(n) < made.likely(n, 0.05)
    assert made.likely(n, 0.05) < made.likely(n, 1e-6) < made.likely(n // 4, 1e-6)


def test_two_contractions_are_as_near_as_their_stability():
    rng, shares = np.random.default_rng(3), []
    for _ in range(12):
        n, curve = int(rng.integers(20, 60)), rng.uniform(0.2, 1)
        game = tuple(x[:1] for x in games(rng, 1, n))
        other = tuple(np.concatenate([-x[:, :1], x[:, 1:]], 1) for x in game)
        smooth = math.hypot(curve, float(np.linalg.norm(game[0], 2, axis=(2, 3)).max()))
        made = weighted(100, modulus=curve, smooth=smooth,
                        offset=max(0.0, (smooth / curve) ** 2 - 2))
        apart = []
        for data in (game, other):
            w, v, total = np.zeros((1, D)), np.zeros((1, D)), np.zeros((2, 1, D))
            for t, step in zip(made.weights, made.steps, strict=True):
                total += (t * w, t * v)
                g, h = operator(w, v, mean(data), curve)
                w, v = in_ball(w - step * g), in_ball(v - step * h)
            apart.append(total / made.weights.sum())
        gamma = bounds.contraction_stability(made.steps, made.weights, modulus=curve,
                                             smooth=smooth, apart=2 / n)
        shares.append(np.linalg.norm(apart[0] - apart[1]) / gamma)
    assert 0.3 < max(shares) <= 1


# --- samples ---


def test_coupled_runs_on_samples_are_as_near_as_their_stability():
    """In the mean over samples. With 2 L / m for 2 L / n it would be five times as large."""
    rng, smooth_shares, rough_shares = np.random.default_rng(0), [], []
    for _ in range(8):
        n, rate, rounds, runs = int(rng.integers(20, 60)), 0.2, 60, 200
        matrix, a, b = (x[0] for x in games(rng, 1, n))
        step, other = rng.uniform(0.02, 0.3), [np.array(x) for x in (matrix, a, b)]
        for x in other:
            x[0] = -x[0]
        points = np.zeros((2, 2, runs, D))
        total = np.zeros_like(points)
        for _ in range(rounds):
            total += points
            share = (rng.random((runs, n)) < rate) / (rate * n)
            for place, data in enumerate(((matrix, a, b), other)):
                sample = tuple(np.tensordot(share, x, 1) for x in data)
                g, h = operator(*points[place], sample)
                points[place] = in_ball(points[place] - step * np.stack([g, h]))
        moved = np.sqrt(np.sum((total[0] - total[1]) ** 2, (0, 2))).mean() / rounds
        known = dict(population=n, bound=1.0, step=step, rounds=rounds, batch=rate * n,
                     spread=1 - rate)
        steep = float(np.linalg.norm(matrix, 2, axis=(1, 2)).max())
        smooth_shares.append(moved / bounds.descent_stability(smooth=steep, **known))
        rough_shares.append(moved / bounds.descent_stability(**known))
    assert 0.4 < max(smooth_shares) <= 1
    assert 0.02 < max(rough_shares) <= 1


def test_stability_without_smoothness_counts_public_terms():
    known = dict(population=100, bound=1.0, step=0.1, rounds=9, batch=4.0, spread=0.75)
    assert bounds.descent_stability(**known, public_bound=2.0) == pytest.approx(
        4 / 3 * 0.1 * 3 * math.sqrt((1 + 0.75 / 4) * 9) + 0.1 * 9 / 100)
    assert bounds.descent_stability(**known, smooth=1e4) < math.inf
    assert bounds.descent_stability(**{**known, "rounds": 10**4}, smooth=1e4) == math.inf


def test_bilinear_gaps_on_the_population_and_on_the_records_differ_as_bounded():
    """The supremum over points of the difference, in the mean over tables."""
    rng, n, shares = np.random.default_rng(0), 200, []
    for _ in range(10):
        game = games(rng, 1)
        start = float(np.hypot(norm(game[1]), norm(game[2])).max())  # at the origin
        slope = float(np.sqrt(np.sum(game[0] ** 2, (2, 3))).max())
        w, v = (in_ball(rng.normal(size=(300, D))) for _ in range(2))
        there, found = gap(w, v, tuple(np.repeat(x, 300, 0) for x in mean(game))), []
        for _ in range(30):
            own = mean(game, rng.multinomial(n, np.ones(16) / 16, 1) / n)
            found.append((there - gap(w, v, tuple(np.repeat(x, 300, 0) for x in own))).max())
        shares.append(np.mean(found) / bounds.bilinear_sampling(
            population=n, start=start, slope=slope, diameter=DIAMETER, radius=math.sqrt(2)))
    assert 0.05 < max(shares) <= 1


# --- groups ---


def bandit(rng, groups, rounds, scale, top, step, runs=30):
    """The weights' average regret against the worst group of known losses, as in `group_oco`."""
    risk = np.full(groups, 0.3)
    risk[0] = 0.6
    logits, total = np.zeros((runs, groups)), np.zeros(runs)
    for _ in range(rounds):
        v = scipy.special.softmax(logits, 1)
        group = np.minimum((rng.random((runs, 1)) > v.cumsum(1)).sum(1), groups - 1)
        total += risk.max() - v @ risk
        loss = (rng.random(runs) < risk[group]) + scale * rng.laplace(size=runs)
        logits[np.arange(runs), group] -= step * np.maximum(top - loss, 0) / v[
            np.arange(runs), group]
    return total / rounds


@pytest.mark.parametrize(("groups", "rounds"), [(2, 3000), (5, 5000)])
def test_bandit_weights_stay_below_their_number_and_have_nearly_the_best_room(groups, rounds):
    losses = RecordLosses(bound=1.0, noise_multiplier=1.0, times=rounds)
    top, step = group_oco.offset(losses, groups), group_oco.weight_step(losses, groups)
    room = group_oco.room(losses, groups)

    def number(room, step=None):
        known = dict(groups=groups, rounds=rounds, bound=1.0, scale=1.0, room=room)
        best = math.sqrt(2 * math.log(groups) / (groups * rounds * ((1 + room) ** 2 + 2)))
        return bounds.bandit_regret(**known, step=best if step is None else step)

    found = bandit(np.random.default_rng(0), groups, rounds, 1.0, top, step)
    assert 0.2 * number(room, step) < found.mean() < number(room, step)
    assert number(room, step) == pytest.approx(number(room))
    least = min(number(u) for u in np.linspace(0, 12, 200))
    assert number(room) < 1.02 * least
    assert 2.5 * number(room) < number(2 * math.log(rounds))  # the published room


@pytest.mark.parametrize("gaussian", [True, False])
def test_weights_of_noisy_losses_stay_below_their_number(gaussian):
    rng, groups, rounds, scale = np.random.default_rng(0), 5, 300, 0.3
    step = math.sqrt(math.log(groups) / (rounds * (1 / 8 + scale**2 / 2)))
    number = bounds.weights_regret(groups=groups, rounds=rounds, bound=1.0, scale=scale, step=step,
                                   gaussian=gaussian)
    risk = np.full(groups, 0.3)
    risk[0] = 0.6
    logits, regret = np.zeros((200, groups)), np.zeros((200, groups))
    for _ in range(rounds):
        v = scipy.special.softmax(logits, 1)
        regret += risk - (v @ risk)[:, None]
        noise = rng.normal(size=v.shape) if gaussian else rng.laplace(size=v.shape)
        logits += step * (risk + scale * noise)
    assert 0.05 * number < regret.max(1).mean() / rounds < number
    if gaussian:
        many = math.log(groups)
        assert number == pytest.approx(2 * math.sqrt(many * (1 / 8 + scale**2 / 2) / rounds)
                                       + scale * math.sqrt(2 * many / rounds))
    known = dict(groups=groups, rounds=rounds, bound=1.0, gaussian=False)
    assert bounds.weights_regret(scale=2.0, step=0.5, **known) == math.inf
    assert bounds.weights_regret(**{**known, "groups": 1}, scale=0.3, step=0.1) < 0.1


def test_the_largest_of_gumbel_scores_is_near_the_worst_group():
    rng, groups, scale = np.random.default_rng(0), 6, 0.2
    most = bounds.selection_regret(groups=groups, scale=scale)
    noise = rng.gumbel(scale=scale, size=(20_000, groups))
    assert most == pytest.approx(noise.max(1).mean() - scale * np.euler_gamma, rel=0.02)
    found = []
    for apart in (0.05, 0.2, 0.5, 1.0):
        risk = np.array([apart, *[0.0] * (groups - 1)])
        found.append((apart - risk[(risk + noise).argmax(1)]).mean())
    assert 0.3 * most < max(found) <= most
