"""A search over settings costs what its statement says: law, theorem, program and attacks."""

import dataclasses
import functools
import itertools
import json
import math

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.rdp import rdp_privacy_accountant as rdp
from jax.extend.core import ClosedJaxpr, Jaxpr
from scipy import special, stats

import jaxminimax as jmm
from benchmarks.privacy.attacks import tuning as tuning_attack
from jaxminimax import Saddle
from jaxminimax.accounting import tuning as accountant
from jaxminimax.base.random_bits import fold_in, random_words
from jaxminimax.drivers import tuning
from jaxminimax.mechanism.repetitions import BITS
from tests.helpers.words import one_line

RUNS = jmm.mechanism.Repetitions
GAUSSIAN = 0.2367  # of a run of epsilon 1 at delta 1e-6


def main_run(z=1.34254):
    query = jmm.Query(clip=Saddle(1.0, None), noise_multiplier=Saddle(z, None), population=39_992,
                      sampling=jmm.Poisson(rate=64 / 39_992))
    return jmm.Repeat(query=query, times=9373)


# --- the law of the number of runs ---


def law(runs):
    return np.asarray([w / 2**BITS for w in runs.weights])


@pytest.mark.parametrize("eta", [-0.5, 0.0, 1.0])
def test_the_law_is_the_truncated_negative_binomial(eta):
    runs = RUNS(expected=10.0, eta=eta)
    k = np.arange(1, len(runs.weights) + 1)
    g = runs.gamma
    if eta == 0:
        true = -((1 - g) ** k) / (k * math.log(g))
    else:
        true = np.exp(k * np.log1p(-g) + special.gammaln(k + eta) - special.gammaln(k + 1)
                      ) / (math.gamma(eta) * (g**-eta - 1))
    assert sum(runs.weights) == 2**BITS
    np.testing.assert_allclose(law(runs), true, rtol=3e-6, atol=2e-9)
    assert runs.mean == pytest.approx(10.0, rel=1e-6)
    mean = eta * (1 - g) / (g * (1 - g**eta)) if eta else (1 / g - 1) / math.log(1 / g)
    assert mean == pytest.approx(10.0, rel=1e-6)
    assert runs.chance_of_trying(5) == pytest.approx(1 - true @ 0.8**k, rel=1e-6)


@pytest.mark.parametrize("most", [60, 100])
def test_an_upper_end_keeps_the_mean_and_costs_more(most):
    runs = RUNS(expected=10.0, most=most)
    assert len(runs.weights) == most
    assert law(runs) @ np.arange(1, most + 1) == pytest.approx(10.0, rel=1e-9)
    assert runs.gamma < RUNS(expected=10.0).gamma


@pytest.mark.slow
@pytest.mark.parametrize("runs", [RUNS(expected=4.0, eta=0.5, most=12), RUNS(expected=3.0)])
def test_numbers_of_runs_are_drawn_from_the_law(runs, key):
    draw = jax.jit(jax.vmap(tuning.number_of_runs, (0, None)))
    actual = np.asarray(draw(jax.random.split(key, 20_000), tuning.cumulative(runs)))
    assert actual.min() == 1
    assert actual.max() <= len(runs.weights)
    p = law(runs)[:10]
    counts = np.asarray([np.sum(actual == k) for k in range(1, 11)])
    left = 1 - p.sum() + 1e-12
    observed, expected = [*counts, 20_000 - counts.sum()], 20_000 * np.append(p, left)
    assert stats.chisquare(observed, expected * 20_000 / expected.sum()).pvalue > 1e-4


def test_the_table_is_read_as_integers(monkeypatch):
    """At the words where the number changes."""
    runs = RUNS(expected=2.0, most=5)
    steps = list(itertools.accumulate(runs.weights))
    table = tuning.cumulative(runs)
    for k, step in enumerate(steps[:-1], 1):
        for word, number in ((step - 1, k), (step, k + 1)):
            words = jnp.asarray([(word >> 32) << 2 | 3, word & (2**32 - 1)], jnp.uint32)
            monkeypatch.setattr(tuning, "random_words", lambda *_, words=words: words)
            assert int(tuning.number_of_runs(jax.random.key(0), table)) == number


@pytest.mark.parametrize("wrong", [
    dict(expected=1.0), dict(expected=math.nan), dict(eta=-0.95), dict(eta=11.0), dict(most=1),
    dict(most=2.5), dict(most=30), dict(expected=1e5), dict(eta=-0.9, expected=1e4)])
def test_laws_that_there_are_not_are_refused(wrong):
    with pytest.raises(ValueError, match=r"expected|eta|most"):
        jmm.accounting.tuned_epsilon(tuning_attack.run_of(0.1), 1e-6, RUNS(**wrong))


# --- the theorem, on games that are enumerated ---


def selected(p, level, f):
    """The law of the winner's output; outputs of equal `level` are tied."""
    out = np.zeros_like(p)
    for s in set(level):
        tied = level == s
        if (mass := p[tied].sum()) > 0:
            below = min(p[level < s].sum(), 1.0)
            out[tied] = p[tied] / mass * (f(min(below + mass, 1.0)) - f(below))
    return out


def generating(runs):
    """F(x) = sum_k P[K = k] x^k; of all k, where no end was asked for."""
    g, eta = runs.gamma, runs.eta
    if runs.most is not None:
        coefficients = np.append(0.0, law(runs))
        return lambda x: float(np.polynomial.polynomial.polyval(x, coefficients))
    if eta == 0:
        return lambda x: math.log1p(-(1 - g) * x) / math.log(g)
    return lambda x: ((1 - (1 - g) * x) ** -eta - 1) / (g**-eta - 1)


def orders(size):
    """Every order of the scores of so many outputs, ties included."""
    return {tuple(np.unique(x, return_inverse=True)[1].tolist())
            for x in itertools.product(range(size), repeat=size)}


def divergence(p, q, e):
    return float(np.maximum(p - math.exp(e) * q, 0).sum())


@pytest.mark.slow
@pytest.mark.parametrize("runs", [
    RUNS(expected=10.0, eta=-0.5), RUNS(expected=10.0), RUNS(expected=10.0, eta=1.0),
    RUNS(expected=10.0, most=50), RUNS(expected=5.0, eta=1.0, most=10)], ids=str)
def test_no_game_costs_more_than_the_theorem_says(runs):
    """2 to 4 outputs, every order of scores, ties and infinite losses; and some come near."""
    rng, nearest, f = np.random.default_rng(7), 0.0, generating(runs)
    for size in (2,) * 12 + (3,) * 12 + (4,) * 2:
        p, q = (rng.dirichlet(np.full(size, 0.7)) for _ in "pq")
        if rng.random() < 0.3:
            p[rng.integers(size)] = 0.0
            p /= p.sum()
        if rng.random() < 0.8:  # near ones, as the runs of a search are
            q = (1 - (c := rng.random() * 0.2)) * p + c * q

        def profile(e, p=p, q=q):
            return max(divergence(p, q, e), divergence(q, p, e))

        e1 = accountant.condition(profile, accountant.odds(runs))
        for level in orders(size):
            a, b = (selected(x, np.asarray(level), f) for x in (p, q))
            for e in (0.01, 0.3, 1.0, 2.5):
                left = e - (runs.eta + 1) * e1 - runs.ratio
                one = profile(left) if left >= 0 else 1.0
                claimed = min(1.0, runs.mean * one)
                for x, y in ((a, b), (b, a)):
                    attained = divergence(x, y, e)
                    assert attained <= claimed * (1 + 1e-9) + 1e-12
                    if claimed < 1:
                        nearest = max(nearest, attained / max(claimed, 1e-12))
    assert nearest > 0.3


@pytest.mark.parametrize(("mu", "runs"), [
    (0.25, RUNS(expected=10.0)), (0.25, RUNS(expected=10.0, eta=1.0)), (1.0, RUNS(expected=10.0)),
    (0.25, RUNS(expected=10.0, most=100))], ids=str)
def test_an_attack_comes_within_six_per_cent(mu, runs, real_noise):
    stated = jmm.accounting.tuned_epsilon(tuning_attack.run_of(mu), 1e-6, runs)
    assert 1.0 < stated / tuning_attack.attained(mu, 1e-6, runs) < 1.06


# --- numbers ---


@pytest.mark.slow
@pytest.mark.parametrize(("expected", "total", "renyi"), [
    (10.0, 1.4407, 1.798), (30.0, 1.6045, 1.965), (100.0, 1.7651, 2.116)])
def test_the_main_run_costs_what_was_computed_elsewhere(expected, total, renyi, real_noise):
    runs = RUNS(expected=expected)
    actual = jmm.accounting.tuned_epsilon(main_run(), 1e-6, runs)
    assert total * (1 - 1e-4) < actual < 1.01 * total
    # the Renyi theorem of Papernot and Steinke, on the Gaussian that is nearest
    accountant = rdp.RdpAccountant(
        [*np.arange(1.5, 12, 0.25), *range(12, 200)],
        neighboring_relation=dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    accountant.compose(dp_event.RepeatAndSelectDpEvent(
        dp_accounting.GaussianDpEvent(1 / GAUSSIAN), mean=expected, shape=0.0))
    assert accountant.get_epsilon(1e-6) == pytest.approx(renyi, rel=5e-3)
    assert actual < 0.85 * accountant.get_epsilon(1e-6)


@pytest.mark.slow
def test_a_search_of_ten_costs_39_per_cent_of_noise(real_noise):
    target = accountant.Target(1.0, 1e-6, RUNS(), "replace_one")
    scale = accountant.least_scale(lambda s: main_run(1.34254 * s), target)
    assert scale == pytest.approx(1.391, rel=0.01)
    assert 0.998 < jmm.accounting.tuned_epsilon(main_run(1.34254 * scale), 1e-6) <= 1.0


def test_epsilon_and_delta_are_of_one_curve():
    mechanism, runs = tuning_attack.run_of(0.3), RUNS(expected=7.0, eta=0.5)
    for delta in (1e-3, 1e-8):
        at = jmm.accounting.tuned_epsilon(mechanism, delta, runs)
        assert jmm.accounting.tuned_delta(mechanism, at * (1 + 1e-6),
                                          runs) == pytest.approx(delta, rel=1e-3)
    assert jmm.accounting.tuned_delta(mechanism, 1e-3, runs) <= 1.0
    actual = [jmm.accounting.tuned_delta(mechanism, e, runs) for e in (0.01, 0.5, 1.0, 2.0, 5.0)]
    assert actual == sorted(actual, reverse=True)
    dearer = [mechanism, tuning_attack.run_of(0.4)]
    assert jmm.accounting.tuned_epsilon(dearer, 1e-6,
                                        runs) == jmm.accounting.tuned_epsilon(dearer[1], 1e-6, runs)
    assert jmm.accounting.tuned_epsilon(tuning_attack.run_of(math.inf), 1e-6, runs) == math.inf
    assert jmm.accounting.tuned_delta(tuning_attack.run_of(math.inf), 3.0, runs) == 1.0


# --- calibration ---


def settings(rows, sampling=jmm.Full(), times=1, step=1.0, noise=None, exact=True):
    query = jmm.Query(clip=Saddle(1.0, None), noise_multiplier=noise, sampling=sampling,
                      population=rows, exact=exact)
    return jmm.sgda.Hyper(query=query, step=Saddle(step, step), iterations=times)


def calibrated(candidates, apart, rows=1000, share=0.2, runs=RUNS(), epsilon=1.0):
    target = accountant.Target(epsilon, 1e-6, runs, "replace_one")
    made, score = accountant.calibrate_search(
        jmm.sgda, candidates, tuning.score_mechanism((0.0, 1.0), rows), target, apart=apart,
        share=share)
    return made, score, [accountant.one_run(jmm.sgda, h, score, apart) for h in made]


def test_lengths_of_an_algorithm_that_does_two_things_are_refused():
    class Twice:
        """Says that it does two things."""

        @staticmethod
        def mechanism(hyper):
            return jmm.Sequence(parts=(jmm.sgda.mechanism(hyper),) * 2)

    made = [settings(20, times=t, noise=Saddle(1.0, None)) for t in (3, 5)]
    with pytest.raises(ValueError, match="repeats one query"):
        tuning._check(made, Twice)
    tuning._check(made, jmm.sgda)
    hypers, lengths = tuning.stacked(made)
    assert (hypers.iterations, lengths) == (5, (3, 5))


@pytest.mark.nightly
@pytest.mark.parametrize("apart", [False, True])
def test_every_candidate_meets_the_target_and_wastes_little(apart):
    rate = jmm.Poisson(rate=0.05)
    candidates = [settings(1000, rate, 40), settings(1000, rate, 40, step=2.0),
                  settings(1000, rate, 25), settings(1000)]
    made, score, runs = calibrated(candidates, apart)
    for one in runs:
        assert 0.98 < jmm.accounting.tuned_epsilon(one, 1e-6) <= 1.0
    assert 0.98 < jmm.accounting.tuned_epsilon(runs, 1e-6) <= 1.0
    assert made[0].query == made[1].query
    assert jmm.epsilon(runs[0], 1e-6) < 0.75  # one run alone
    alone = jmm.accounting.tuned_epsilon(score, 1e-6)
    assert 0.98 < alone <= 1.0 if apart else 0.19 < alone <= 0.2


def test_a_score_on_other_records_is_not_paid_by_the_training():
    far, near = (calibrated([settings(1000)], apart) for apart in (True, False))
    assert 1.0 < near[0][0].query.noise_multiplier.w / far[0][0].query.noise_multiplier.w < 1.05
    assert far[1].query.noise_multiplier.w < near[1].query.noise_multiplier.w / 3


def test_ratios_between_players_are_kept():
    query = jmm.Query(clip=Saddle(1.0, 1.0), noise_multiplier=Saddle(1.0, 3.0), population=1000)
    hyper = dataclasses.replace(settings(1000), query=query)
    (made,), _, _ = calibrated([hyper], True)
    assert made.query.noise_multiplier.v == pytest.approx(3 * made.query.noise_multiplier.w)


# --- the program ---

ROWS = jnp.asarray([1.0, 0.0, 0.0, 0.0])
OTHER = jnp.asarray([-1.0, 0.0, 0.0, 0.0])
START = Saddle(jnp.zeros(()), ())
PROBLEM = jmm.Problem(jmm.saddle_operator(lambda w, v, x: -w * x))


def last(state):
    return state.z


def of_point(z, record):
    """What an adversary may choose: any function of the point."""
    return 0.5 + 0.1 * z.w


def of_record(z, record):
    """Reads the record as largely as it can."""
    return 1e6 * record


@functools.cache
def searches(score, at_once=1, hide_time=False, low=0.0, high=1.0, over=jax.lax.map,
             lengths=None):
    """The compiled search over keys, of candidates of one length or of `lengths`."""
    problem = tuning.score_problem(score, low, high)

    def run(key, data, rows, made, scored, table):
        return tuning.search(
            key, START, data, rows, made, scored, table, algorithm=jmm.sgda, problem=PROBLEM,
            scored=problem, point=last, at_once=at_once, hide_time=hide_time,
            lengths=lengths or (made.iterations,) * len(made.step.w))

    return jax.jit(lambda keys, *others: over(lambda key: run(key, *others))(keys)
                   if over is jax.vmap else over(lambda key: run(key, *others), keys))


SMALL = RUNS(expected=4.0, eta=0.5, most=12)


def prepared(runs=SMALL, score_noise=4.0, z=2.0):
    """Noise of floats: it is compiled sooner, but programs may round it differently."""
    made = [settings(4, noise=Saddle(z, None), step=s, exact=False) for s in (0.5, 1.0, 4.0)]
    return (jmm.stack(made), of_floats(tuning.score_mechanism((0.0, 1.0), 4).with_noise(
        score_noise)), tuning.cumulative(runs))


def of_floats(repeat):
    return dataclasses.replace(repeat, query=dataclasses.replace(repeat.query, exact=False))


@pytest.mark.slow
def test_the_winner_is_the_best_of_the_runs_that_count(key):
    made, scored, table = prepared()
    keys = jax.random.split(key, 40)
    states, scores, candidates = searches(of_point)(keys, ROWS, ROWS, made, scored, table)
    problem = tuning.score_problem(of_point, 0.0, 1.0)
    counts = jax.vmap(lambda k: tuning.number_of_runs(fold_in(k, 0), table))(keys)

    def one(key, number):
        own = fold_in(key, number)
        drawn = random_words(fold_in(own, 0), (2,))[0] % 3
        hyper = jax.tree.map(lambda x: x[drawn], made)
        state, _ = jmm.run(fold_in(own, 1), START, ROWS, hyper, jmm.sgda, PROBLEM)
        actual = jmm.release(fold_in(own, 2), scored, jnp.int32(0), problem,
                             Saddle(jnp.zeros((), jnp.float32), state.z), ROWS)
        return state.z.w, actual.w, drawn

    every = jax.jit(lambda keys: jax.lax.map(lambda key: jax.lax.map(
        functools.partial(one, key), jnp.arange(1, 13)), keys))(keys)
    assert len(set(counts.tolist())) > 3
    for i, count in enumerate(counts.tolist()):
        best = int(np.argmax(every[1][i, :count]))
        assert scores[i] == pytest.approx(float(every[1][i, best]), rel=1e-5, abs=1e-6)
        assert states.z.w[i] == pytest.approx(float(every[0][i, best]), rel=1e-5, abs=1e-6)
        assert candidates[i] == every[2][i, best]
    assert set(candidates.tolist()) == {0, 1, 2}
    assert np.all(np.asarray(states.spent) == 1)


@pytest.mark.slow
@pytest.mark.parametrize(("at_once", "hide_time"), [(1, True), (5, False)])
def test_what_leaves_is_the_same_however_many_runs_are_made(at_once, hide_time, key):
    made, scored, table = prepared()
    keys = jax.random.split(key, 40)
    plain, other = (searches(of_point, *how)(keys, ROWS, ROWS, made, scored, table)
                    for how in ((), (at_once, hide_time)))
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), plain, other)


def loops(program):
    """How many loops of a program end where its numbers say."""
    inner = (x for eqn in program.eqns for x in jax.tree.leaves(
        list(eqn.params.values()), is_leaf=lambda x: isinstance(x, ClosedJaxpr | Jaxpr)))
    return sum(eqn.primitive.name == "while" for eqn in program.eqns) + sum(
        loops(getattr(x, "jaxpr", x)) for x in inner if isinstance(x, ClosedJaxpr | Jaxpr))


@pytest.mark.slow
def test_hidden_time_tells_neither_the_number_of_runs_nor_their_candidates(key):
    made, scored, table = prepared()
    of_lengths = jmm.stack([settings(k, noise=Saddle(2.0, None), exact=False) for k in (4, 4, 4)])
    of_lengths, lengths = dataclasses.replace(of_lengths, iterations=3), (1, 3, 2)
    keys = jax.random.split(key, 20)
    actual = {hide: searches(of_point, 1, hide, lengths=lengths)(
        keys, ROWS, ROWS, of_lengths, scored, table) for hide in (False, True)}
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6),
                 *actual.values())
    assert set(actual[True][0].spent.tolist()) == {1, 2, 3}
    plain, same, differ = (loops(jax.make_jaxpr(searches(of_point, 1, hide, lengths=each))(
        keys, ROWS, ROWS, hypers, scored, table).jaxpr)
        for hide, hypers, each in ((False, made, None), (True, made, None),
                                   (True, of_lengths, lengths)))
    assert differ == same == plain - 1


def test_scores_that_are_no_numbers_are_the_least():
    problem = tuning.score_problem(lambda z, x: jnp.where(x > 0, jnp.nan, 0.25), -1.0, 1.0)
    at = Saddle(jnp.zeros(()), START)
    assert problem.operator(at, jnp.float32(1.0)).w == -1.0
    assert problem.operator(at, jnp.float32(-1.0)).w == 0.25
    for large in (1e30, -1e30):
        clipped = tuning.score_problem(lambda z, x, large=large: large * x, -1.0, 1.0)
        assert clipped.operator(at, jnp.float32(1.0)).w == math.copysign(1.0, large)


# --- attacks on searches that run ---

SEEDS, EPSILON, DELTA = 4000, 1.0, 0.02
FEW = RUNS(expected=4.0, eta=1.0, most=14)


@functools.cache
def promised(apart):
    target = accountant.Target(EPSILON, DELTA, FEW, "replace_one")
    made, score = accountant.calibrate_search(
        jmm.sgda, [settings(4, exact=False)], tuning.score_mechanism(
            (0.0, 1.0), 400 if apart else 4), target, apart=apart, share=0.8)
    return made[0], of_floats(score)  # of the same law: many runs are quicker in one vmap


def excess(found, other, threshold):
    """P[found beyond a threshold] - e^epsilon Q[...] - delta, in standard deviations."""
    p, q = (np.mean(x > threshold) for x in (found, other))
    deviation = math.sqrt((p * (1 - p) + math.exp(2 * EPSILON) * q * (1 - q)) / SEEDS + 1e-9)
    return (p - math.exp(EPSILON) * q - DELTA) / deviation


def winners(score, hyper, scored, rows, seed, high=1.0):
    """Points and scores of the winners on either data set."""
    program = searches(score, 1, False, 0.0, high, jax.vmap)
    out = []
    for i, data in enumerate((ROWS, OTHER)):
        keys = jax.random.split(jax.random.key(100 * seed + i), SEEDS)
        state, actual, _ = program(keys, data, data if rows is None else rows, jmm.stack([hyper]),
                                   scored, tuning.cumulative(FEW))
        out.append((np.asarray(state.z.w), np.asarray(actual)))
    return out


def lowest_first(z, record):
    """The lowest fifth of the losses scores highest, then the highest ones do."""
    deviations = (4 * z.w + 1) / (promised(True)[0].query.noise_multiplier.w / 2)
    rank = jax.scipy.special.ndtr(deviations)
    return jnp.where(deviations < -0.8, 1 - rank / 2, 0.8 * rank)


def quieter(described, factor):
    return jmm.mechanism.with_noise(described, 1 / factor)


@pytest.mark.slow
@pytest.mark.parametrize(("halved", "caught"), [(False, False), (True, True)])
def test_the_winner_tells_no_more_than_was_claimed(halved, caught):
    """Half of the noise is seen."""
    hyper, scored = promised(True)
    if halved:
        hyper = dataclasses.replace(hyper, query=quieter(hyper.query, 2.0))
    (a, _), (b, _) = winners(lowest_first, hyper, scored, jnp.zeros(400), 1 + halved)
    worst = max(excess(a, b, t) for t in np.quantile(a, [0.2, 0.4, 0.6, 0.8, 0.9]))
    assert worst > 6 if caught else worst < 3.5


@pytest.mark.slow
@pytest.mark.parametrize(("plant", "caught"), [
    (None, False), ("clip", True), ("uncharged", True)])
def test_the_score_tells_no_more_than_was_claimed(plant, caught):
    """A score that is the record itself; a lifted clip, or noise that was not charged, is seen."""
    hyper, scored = promised(False)
    high = 1.0
    if plant == "clip":  # the noise stays, the range does not
        query, high = scored.query, 4.0
        scored = dataclasses.replace(scored, query=quieter(dataclasses.replace(
            query, clip=Saddle(high * query.clip.w, None)), high))
    if plant == "uncharged":
        scored = quieter(scored, 4.0)
    (_, a), (_, b) = winners(of_record, hyper, scored, None, 5, high)
    worst = max(excess(a, b, t) for t in np.quantile(a, [0.2, 0.4, 0.6, 0.8, 0.9]))
    assert worst > 6 if caught else worst < 3.5


# --- the function that is called ---

POPULATION = 500
DATA = jax.random.normal(jax.random.key(2), (POPULATION,)) * 0.1 + 0.4


def closeness(z, record):
    return -jnp.abs(z.w - record)


def tuned(key=None, data=DATA, candidates=None, **changed):
    candidates = candidates if candidates is not None else [
        settings(POPULATION, jmm.Poisson(rate=0.2), times, step) for times, step in (
            (30, 1e-3), (30, 0.1), (20, 0.1))]
    asked = dict(score=closeness, score_range=(-1.0, 0.0), epsilon=2.0, delta=1e-4, point=last)
    return jmm.tune(jax.random.key(4) if key is None else key, START, data, candidates, jmm.sgda,
                    jmm.Problem(jmm.saddle_operator(lambda w, v, x: 0.5 * (w - x) ** 2)),
                    **(asked | changed))


@pytest.mark.slow
def test_a_search_on_persons_is_stated_for_persons():
    """By its statement it may then enter a ledger of persons, and none of records."""
    persons = jmm.problems.by_person(DATA, np.arange(POPULATION) % 50, most=4)
    problem = jmm.problems.per_person(
        jmm.Problem(jmm.saddle_operator(lambda w, v, x: 0.5 * (w - x) ** 2)))
    hyper = settings(50, jmm.Full(), 2, 0.1)
    actual = jmm.tune(jax.random.key(4), START, persons, [hyper], jmm.sgda, problem,
                      score=lambda w, person: 0.0 * person.present[0], score_range=(-1.0, 1.0),
                      epsilon=2.0, delta=1e-4, point=last, expected=1.5)
    assert actual.statement.unit == "one person"


@pytest.mark.nightly
def test_a_search_from_end_to_end():
    actual = tuned(expected=6.0, unit="one visit")
    assert actual.candidate in (1, 2)  # steps of 0.001 lead nowhere
    assert abs(float(actual.state.z.w) - 0.4) < 0.2
    assert float(actual.score) == pytest.approx(
        float(jnp.mean(-jnp.abs(actual.state.z.w - DATA))), abs=0.1)
    assert int(actual.state.spent) == actual.hyper.iterations == (30, 30, 20)[actual.candidate]
    stated = actual.statement
    assert 1.97 < stated.epsilon <= 2.0
    assert stated.epsilon_of_one_run < 1.6
    assert json.loads(json.dumps(stated.to_json()))["candidates"] == 3
    words = one_line(stated)
    for sentence in ("(2, 0.0001)-differential privacy for one visit", "truncated negative binom",
                     "Nobody publishes how long the search took", "clipped to [-1, 0]"):
        assert sentence in words or sentence.replace("(2", f"({stated.epsilon:.4g}") in words
    with pytest.raises(ValueError, match="A mechanism is a Repeat"):
        jmm.epsilon(jmm.Sequence(parts=(actual,)), 1e-4)


@pytest.mark.slow
def test_held_out_records_and_hidden_time_are_told():
    actual = tuned(held_out=DATA[:100] + 0.0, hide_time=True, expected=3.0, eta=1.0,
                   candidates=[settings(POPULATION, step=0.5)])
    stated = actual.statement
    assert stated.padded
    assert stated.most_runs <= 18
    assert not any("how long the search" in x for x in stated.assumed)
    assert any("its time does not reveal" in x for x in stated.enforced)
    assert any("the score read different records" in x for x in stated.assumed)


class Unread(jax.ShapeDtypeStruct):
    """Rows that nobody may look at."""


UNREAD = Unread((POPULATION,), jnp.float32)


@pytest.mark.parametrize(("changed", "message"), [
    (dict(candidates=[]), "candidates is empty"),
    (dict(candidates=[settings(POPULATION), settings(POPULATION, jmm.Poisson(rate=0.1))]),
     "different structures"),
    (dict(candidates=[settings(POPULATION, noise=Saddle(0.0, None))]), "contains a 0"),
    (dict(candidates=[settings(2 * POPULATION)]), "give held_out rows"),
    (dict(epsilon=0.0), "epsilon must lie"),
    (dict(epsilon=math.inf), "epsilon must lie"),
    (dict(delta=1.0), "delta must lie"),
    (dict(delta=0), "delta must lie"),
    (dict(expected=1), "expected"),
    (dict(expected=math.nan), "expected"),
    (dict(eta=-1.0), "eta"),
    (dict(most=4), "raise most"),
    (dict(share=1.0), "share"),
    (dict(share=0.0), "share"),
    (dict(at_once=0), "at_once"),
    (dict(score_range=(0.0, 0.0)), "score_range"),
    (dict(score_range=(0.0, math.inf)), "score_range"),
    (dict(score_range=(1.0, 0.0)), "score_range"),
    (dict(neighbours="other"), "neighbours"),
    (dict(held_out=UNREAD), "held_out holds an array of data"),
    (dict(held_out=jnp.zeros(())), "one row a record"),
])
def test_what_is_refused_is_refused_before_data_are_read(changed, message):
    with pytest.raises(ValueError, match=message):
        tuned(data=UNREAD, **({"candidates": [settings(POPULATION)]} | changed))
