"""Certificates of a released point: they hold, they are charged, and what voids them is refused."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxminimax as jmm
from benchmarks.privacy.attacks import certificate
from jaxminimax import Saddle
from jaxminimax.drivers.certificates import bound_gap, bound_risk, largest_mean
from jaxminimax.mechanism import HeldOutBound
from jaxminimax.releases.held_out import release_held_out_bound

KEY = jax.random.key(7)
BETA = 0.05
SHARE = jmm.problems.worst_group(lambda w, x: x, jmm.problems.ball(1.0), lipschitz=1.0, bound=1.0)
POINT = Saddle(jnp.zeros(1), ())
LABELS = np.arange(300) % 3
HELD = jmm.problems.hold_out(LABELS, 0.2)
LOSSES = jmm.GroupLosses(bound=1.0, sizes=HELD.sizes, noise_multiplier=2.0, noise="laplace")
OTHERS = jmm.GroupLosses(bound=1.0, sizes=(80, 80, 80), noise_multiplier=2.0, noise="laplace")
ROWS = np.linspace(0, 1, 300, dtype=np.float32)


def certify(**how):
    given = {"mechanism": LOSSES, "z": POINT, "data": ROWS, "problem": SHARE, "held_out": HELD,
             "training": OTHERS, "delta": 1e-6, **how}
    return jmm.certify(KEY, **given)


# --- places ---


def test_every_record_is_held_out_or_left_to_the_training():
    data = {"x": np.arange(300), "y": np.arange(600).reshape(300, 2)}
    taken, rest = HELD.taken(data), HELD.rest(data)
    assert sorted([*taken["x"], *rest["x"]]) == list(range(300))
    assert (taken["y"][:, 0] == 2 * taken["x"]).all()
    assert HELD.sizes == tuple(np.bincount(HELD.taken(LABELS))) == (20, 20, 20)
    assert (HELD.rows == jmm.problems.hold_out(LABELS, 0.2).rows).all()
    assert (HELD.rows != jmm.problems.hold_out(LABELS, 0.2, seed=1).rows).any()
    assert len(jmm.problems.hold_out(1000, 0.1).rows) == 100
    some = jmm.problems.hold_out(LABELS - 1, 0.2)  # rows of label 0 are in no group
    assert (LABELS[some.rows] != 0).all()
    assert some.sizes == (20, 20)
    assert len(some.rest(ROWS)) == 260
    for of in (HELD, jmm.problems.hold_out(300, 0.2)):
        for places in (of.rows, of.labels):
            with pytest.raises(ValueError, match="read-only"):
                places[:] = 0


def test_places_are_drawn_evenly():
    """Every place is held out as often as any other, so that no order of the rows decides."""
    draws = [jmm.problems.hold_out(50, 0.2, seed=k).rows for k in range(2000)]
    counts = np.bincount(np.concatenate(draws), minlength=50)
    assert abs(counts - 400).max() < 5 * math.sqrt(400 * 0.8)


@pytest.mark.parametrize("rows", [np.arange(240, 300), list(range(240, 300)), slice(240, 300),
                                  range(240, 300), 60, 0.2, None, np.arange(300) >= 240])
def test_places_that_a_user_names_are_refused(rows):
    """The end of a table that is sorted by its label is no sample of the population."""
    with pytest.raises(TypeError, match=r"jmm\.problems\.hold_out"):
        certify(held_out=rows)


@pytest.mark.parametrize(("how", "words"), [
    ({"labels": np.where(np.arange(300) >= 240, 0, -1)}, "without groups"),
    ({"labels": np.arange(300) % 3}, "without groups"), ({"labels": np.zeros(300)}, "float64"),
    ({"share": -0.2}, "share"), ({"share": 1.2}, "share"), ({"share": 1e-9}, "on a side"),
    ({"seed": -1}, "seed")])
def test_places_made_by_hand_are_drawn_too(how, words):
    """Labels that leave rows out would choose the others, as at the end of a sorted table."""
    with pytest.raises(ValueError, match=words):
        dataclasses.replace(PLAIN, **how)
    given = {"labels": PLAIN.labels, "share": 0.2, "seed": 0, "grouped": False, **how}
    with pytest.raises(ValueError, match=words):
        type(PLAIN)(**given)
    labels = np.zeros(300, int)
    made = type(PLAIN)(labels, 0.2, 0, False)
    labels[240:] = -1
    assert (made.labels == 0).all()


def test_a_sorted_table_is_certified_as_well_as_a_shuffled_one():
    """The Referee's table: x in {-1, 1} sorted, and its end held out, covers nothing."""
    rng, h, n, failed, end = np.random.default_rng(0), 40, 200, [], []
    query = HeldOutBound(bound=1.0, population=h, noise_multiplier=1e-3)
    for k in range(400):
        x = np.sort(np.where(rng.random(n) < 0.6, 1.0, -1.0))  # gap of w = 1: 2 E x = .4
        places = jmm.problems.hold_out(n, h / n, seed=k).rows
        failed.append(bound_gap(max(2 * x[places].mean(), 0.0), query, 2.0, BETA).bound < 0.4)
        end.append(bound_gap(max(2 * x[:h].mean(), 0.0), query, 2.0, 0.99).bound < 0.4)
    assert np.mean(failed) <= BETA
    assert np.mean(end) == 1  # of a bound that may fail in 99 % of cases


@pytest.mark.parametrize(("records", "share", "words"), [
    (100, 0.0, "share"), (100, 1.0, "share"), (100, math.nan, "share"), (5, 0.1, "on a side"),
    (np.array([0, 0, 0, 1]), 0.5, "on a side"), (np.array([0.0, 1.0]), 0.5, "group numbers"),
    (np.array([-1, -1]), 0.5, "group numbers"), (np.zeros((2, 2), int), 0.5, "group numbers"),
    (0, 0.5, "records"), (2.5, 0.5, "records")])
def test_draws_that_leave_nothing_are_refused(records, share, words):
    with pytest.raises(ValueError, match=words):
        jmm.problems.hold_out(records, share)


# --- the charge ---


@pytest.mark.slow
def test_a_certificate_costs_no_more_than_the_dearer_of_both():
    quiet = dataclasses.replace(OTHERS, noise_multiplier=4.0)
    for training in (quiet, OTHERS, dataclasses.replace(OTHERS, noise_multiplier=1.0)):
        made = certify(training=training)
        dearer = max(jmm.epsilon(x, 1e-6) for x in (training, LOSSES))
        assert made.statement.epsilon == pytest.approx(dearer, rel=1e-9)
    assert certify(training=None).statement.epsilon == jmm.epsilon(LOSSES, 1e-6)
    assert made.statement.records == 300
    text = str(made)
    assert "drawn from public coins (seed 0)" in " ".join(text.split())
    assert "Nothing else reads the records held out, before or after" in " ".join(text.split())


@pytest.mark.slow
def test_training_that_may_have_read_the_same_rows_is_refused():
    of_all = dataclasses.replace(OTHERS, sizes=(100, 100, 100))
    several = jmm.Sequence(parts=(OTHERS, dataclasses.replace(OTHERS, sizes=(240,)), of_all))
    unstated = jmm.mechanism.Solution(sensitivity=1.0, noise_multiplier=2.0, because="-")
    for training in (of_all, several, unstated):
        with pytest.raises(ValueError, match=r"Train on held_out\.rest"):
            certify(training=training)
    rest = np.setdiff1d(np.arange(300), HELD.rows)
    assert certify(training=unstated, read=rest).statement.epsilon > 0
    for overlap in (np.arange(300), HELD.rows[:1], [int(HELD.rows[-1])]):
        with pytest.raises(ValueError, match="held out"):
            certify(training=unstated, read=overlap)
    held = np.isin(np.arange(300), HELD.rows)
    for read in (~held, held, HELD.rows - 300, HELD.rows + 300, HELD.rows + 0.0, ["a"], [],
                 rest[None], [slice(0, 300)]):
        with pytest.raises(ValueError, match="read must be the numbers of rows"):
            certify(training=unstated, read=read)


def test_a_certificate_has_keys_of_its_own():
    """With the key of the training it still draws other noise."""
    first = jmm.Parallel(parts=(OTHERS, LOSSES)).parts
    assert first[0].place != first[1].place
    alone, beside = certify(training=None), certify(training=OTHERS)
    assert alone.released != beside.released


# --- whether bounds hold ---


@functools.cache
def games(count, records, seed=0):
    """Random bilinear games on two balls, from 16 kinds of records, and samples of them."""
    rng, d, kinds = np.random.default_rng(seed), 3, 16
    a = rng.normal(size=(count, 1, d, d)) + rng.normal(size=(count, kinds, d, d)) * rng.uniform(
        0, 1, (count, 1, 1, 1))
    b, c = (rng.normal(size=(count, 1, d)) + rng.normal(size=(count, kinds, d)) * rng.uniform(
        0, 1.5, (count, 1, 1)) for _ in range(2))
    op = np.linalg.norm(a, 2, axis=(2, 3))
    size = np.hypot(np.linalg.norm(b, axis=2) + op, np.linalg.norm(c, axis=2) + op).max(1)
    b, c = (x / size[:, None, None] for x in (b, c))
    drawn = rng.integers(kinds, size=(count, records))
    z = rng.normal(size=(2, count, d))
    z *= rng.uniform(0, 1, (2, count, 1)) / np.linalg.norm(z, axis=2, keepdims=True)
    return (a / size[:, None, None, None], b, c), drawn, z


def bilinear(w, v, x):
    return w @ x[0] @ v + x[1] @ w - x[2] @ v


SET = jmm.problems.product(jmm.problems.ball(1.0), jmm.problems.ball(1.0))
GAME = jmm.problems.Bounded(
    jmm.Problem(jmm.saddle_operator(bilinear), project=SET.project, support=SET.support),
    bound=1.0, smooth=1.0, diameter=SET.diameter)


@pytest.mark.slow
@pytest.mark.parametrize("of", ["strong_gap", "primal_risk"])
def test_none_of_a_thousand_games_is_above_its_certificate(of):
    count, h = 1000, 60
    kinds, drawn, (w, v) = games(count, h)
    primal = of == "primal_risk"
    query = jmm.accounting.calibrate_noise(HeldOutBound(
        bound=1.0, population=h, loss_range=(-2.0, 2.0) if primal else None),
        1.0, 1e-6)
    data = tuple(np.take_along_axis(x, drawn.reshape(*drawn.shape, *(1,) * (x.ndim - 2)), 1)
                 for x in kinds)
    radius = 1 + np.linalg.norm(v, axis=1) if primal else np.hypot(
        1 + np.linalg.norm(w, axis=1), 1 + np.linalg.norm(v, axis=1))
    y = jax.jit(jax.vmap(lambda key, z, x, r: release_held_out_bound(
        key, query, jnp.int32(0), GAME.problem, z, x, r)))(
        jax.random.split(KEY, count), Saddle(jnp.asarray(w, jnp.float32),
                                             jnp.asarray(v, jnp.float32)),
        tuple(jnp.asarray(x, jnp.float32) for x in data), jnp.asarray(radius, jnp.float32))
    a, b, c = (x.mean(1) for x in kinds)
    upper = np.einsum("ia,ia->i", b, w) + np.linalg.norm(np.einsum("iab,ia->ib", a, w) - c, axis=1)
    lower = -np.einsum("ib,ib->i", c, v) - np.linalg.norm(
        np.einsum("iab,ib->ia", a, v) + b, axis=1)
    true = upper if primal else upper - lower
    bounds = np.array([bound_gap(float(y[i]), query, float(radius[i]), BETA).bound
                       for i in range(count)])
    assert (bounds >= true).all()
    assert np.median(bounds) < 4  # and says something


@pytest.mark.slow
def test_a_bound_of_losses_is_nearly_attained():
    """Losses in {0, 1} whose mean is just above what no loss at all certifies."""
    h, count, rng = 3, 4000, np.random.default_rng(0)
    losses = jmm.GroupLosses(bound=1.0, sizes=(h,), noise_multiplier=1e-3, noise="gaussian")
    truth = bound_risk(np.array([4e-3 / h]), losses, 0.5).bound + 1e-9  # 4 deviations of noise
    draws = rng.binomial(h, truth, count) / h
    noise = 1e-3 / h * rng.normal(size=count)
    failed = np.mean([bound_risk(np.array([y]), losses, 0.5).bound < truth for y in draws + noise])
    assert 0.45 < failed < 0.5 + 3 * math.sqrt(0.25 / count)


def test_the_bound_of_a_mean_is_that_of_the_relative_entropy():
    for mean, share in ((0.0, 0.3), (0.2, 0.01), (0.9, 2.0), (1.0, 0.1)):
        p = largest_mean(mean, share)
        kl = sum(a * math.log(a / b) for a, b in ((mean, p), (1 - mean, 1 - p)) if a > 0)
        assert kl <= share * (1 + 1e-6)
        assert p == 1 or kl == pytest.approx(share, rel=1e-6)
        assert mean <= p <= mean + math.sqrt(share / 2) + 1e-12  # Pinsker
    assert largest_mean(0.0, 0.3) == pytest.approx(1 - math.exp(-0.3))


@pytest.mark.slow
@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
def test_the_worst_group_is_covered(noise):
    rng, count, true = np.random.default_rng(1), 2000, np.linspace(0.1, 0.4, 5)
    losses = jmm.GroupLosses(bound=1.0, sizes=(40,) * 5, noise_multiplier=4.0, noise=noise)
    y = rng.binomial(40, true, (count, 5)) / 40
    drawn = rng.laplace(size=y.shape) if noise == "laplace" else rng.normal(size=y.shape)
    failed = np.mean([bound_risk(row, losses, BETA).bound < 0.4 for row in y + 0.1 * drawn])
    assert failed <= BETA


def test_no_split_of_beta_gives_a_narrower_bound_than_is_printed():
    assert not certificate.narrow().fires


@pytest.mark.slow
def test_both_halves_of_a_gap_are_certified():
    assert not certificate.below().fires


@pytest.mark.slow
def test_a_game_is_certified_at_its_released_point():
    rng = np.random.default_rng(0)
    held = jmm.problems.hold_out(400, 0.25)
    game = jmm.problems.matrix_game(entry_bound=1.0, shape=(2, 3))
    payoffs = rng.uniform(-1, 1, (400, 2, 3)).astype(np.float32)
    query = HeldOutBound(bound=game.bound, population=100, noise_multiplier=3.0)
    z = Saddle(jnp.full(2, 0.5), jnp.full(3, 1 / 3))
    training = jmm.Repeat(times=2, query=jmm.Query(
        clip=Saddle(1.0, 1.0), noise_multiplier=Saddle(50.0, 50.0), population=300))
    how = dict(held_out=held, training=training, delta=1e-6, of="strong_gap")
    made = jmm.certify(KEY, query, z, payoffs, game, **how)
    near = jmm.certify(KEY, query, z, payoffs, game, reach=math.sqrt(2), **how)
    assert near.bound < made.bound  # the distance from z is below the diameter
    true = float(jmm.metrics.strong_gap(game.problem, z, payoffs[held.rows]))
    assert made.bound == pytest.approx(made.released[0] + made.noise + made.sampling, rel=1e-5)
    assert abs(made.released[0] - true) < 4 * made.noise
    assert made.to_json()["of"] == "strong_gap"


@pytest.mark.slow
def test_a_point_at_the_edge_has_a_number_whatever_records_are():
    """Where float32 left it outside, the far end of the set is beyond the diameter."""
    held, z = jmm.problems.hold_out(100, 0.5), Saddle(*[jnp.full(1, 1 + 1e-5)] * 2)
    query = HeldOutBound(bound=2.0, population=50, noise_multiplier=1.0)
    game = GAME._replace(problem=GAME.problem._replace(operator=jmm.saddle_operator(
        lambda w, v, x: jnp.sum(w * x) - jnp.sum(v * x))))
    for reach in (None, math.sqrt(2)):
        for x in (np.ones((100, 1), np.float32), -np.ones((100, 1), np.float32)):
            made = jmm.certify(KEY, query, z, x, game, held_out=held, training=None, delta=1e-6,
                               of="strong_gap", reach=reach)
            assert math.isfinite(made.bound)


# --- what is refused or printed ---


def test_clipped_losses_are_refused():
    """The Referee's loss: 10 with probability .2, so a risk of 2, of which 1 would be certified."""
    problem = jmm.problems.worst_group(lambda w, x: x, jmm.problems.ball(1.0), lipschitz=1.0,
                                       bound=10.0)
    data = np.where(np.random.default_rng(0).random(300) < 0.2, 10.0, 0.0).astype(np.float32)
    with pytest.raises(ValueError, match="bound=10"):
        certify(problem=problem, data=data)
    assert "the risk of min(loss, 1)" in str(certify())


def test_conditions_are_printed():
    assert "independent draws of the population" in str(certify())
    assert certify().to_json()["conditions"] == certify().conditions


PLAIN = jmm.problems.hold_out(300, 0.2)
QUERY = HeldOutBound(bound=1.0, population=60, noise_multiplier=2.0)
CENTRE = Saddle(jnp.zeros(3), jnp.zeros(3))


@pytest.mark.parametrize(("how", "words"), [
    ({"mechanism": QUERY}, "takes a GroupLosses"), ({"problem": GAME}, "takes a GroupLosses"),
    ({"of": "weak_gap"}, "of must be"), ({"beta": 0.0}, "beta"), ({"beta": 1.0}, "beta"),
    ({"mechanism": OTHERS}, "sizes"), ({"held_out": PLAIN}, "labels, share"),
    ({"mechanism": dataclasses.replace(LOSSES, only_argmax=True)}, "only_argmax"),
    ({"mechanism": dataclasses.replace(LOSSES, noise_multiplier=None)}, "not set"),
    ({"data": ROWS[:200]}, "leading axes"),
    ({"mechanism": dataclasses.replace(LOSSES, times=2)}, "'times': 1"),
    ({"of": "strong_gap"}, "takes a HeldOutBound"),
    ({"of": "strong_gap", "mechanism": QUERY, "problem": GAME.problem}, "records of any content"),
    ({"of": "strong_gap", "mechanism": QUERY, "problem": GAME, "z": CENTRE}, "from each group"),
    ({"of": "strong_gap", "mechanism": QUERY, "problem": GAME, "held_out": PLAIN,
      "z": Saddle(jnp.full(3, 2.0), jnp.zeros(3))}, "outside of the feasible set"),
    ({"of": "primal_risk", "mechanism": QUERY, "problem": GAME, "held_out": PLAIN, "z": CENTRE},
     "with a loss_range"),
    *(({"of": "strong_gap", "mechanism": QUERY, "problem": GAME._replace(**of), "held_out": PLAIN,
        "z": CENTRE, "reach": reach}, words) for of, reach, words in (
            ({}, 0.5, "too small"), ({}, 1e-30, "too small"), ({}, 0.0, "reach"),
            ({}, math.nan, "reach"), ({}, -3.0, "reach"), ({"diameter": 0.5}, None, "too small"),
            ({"diameter": math.nan}, None, "diameter"), ({"diameter": -2.0}, None, "diameter"),
            ({"bound": math.nan}, None, "bound"), ({"bound": -1.0}, None, "bound"))),
    ({"of": "strong_gap", "problem": GAME, "held_out": PLAIN, "z": CENTRE,
      "mechanism": dataclasses.replace(QUERY, population=61)}, "'population': 60"),
    ({"of": "strong_gap", "problem": GAME, "held_out": PLAIN, "z": CENTRE,
      "mechanism": dataclasses.replace(QUERY, bound=0.9)}, "are not the problem"),
])
def test_what_cannot_be_certified_is_refused(how, words):
    with pytest.raises(ValueError, match=words):
        certify(**{"training": None, **how})


