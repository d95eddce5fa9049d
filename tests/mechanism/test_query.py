"""Clip norms that follow counts: what a count tells, what it costs, and where norms end."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import jaxminimax as jmm
from benchmarks.accuracy import adaptive
from benchmarks.privacy.attacks import adaptive as adaptive_attack
from benchmarks.privacy.mutants import between
from jaxminimax import (
    AdaptiveClip,
    FixedSize,
    Full,
    Poisson,
    Query,
    Repeat,
    Saddle,
    accounting,
    sgda,
)
from jaxminimax.gradients import summation
from jaxminimax.mechanism import grid
from jaxminimax.mechanism.query import count_grid
from jaxminimax.releases import sums
from tests.helpers.words import one_line

N = 300
CLIP = Saddle(0.1, 100.0)
ZERO = Saddle(jnp.zeros(3, jnp.float32), jnp.zeros(2, jnp.float32))
ITSELF = jmm.Problem(operator=lambda z, x: x)
BOTH, W_ALONE = Saddle(3.0, 4.0), Saddle(3.0, None)


def query(noise=BOTH, share=0.1, quantile=Saddle(0.5, 0.8), **given):
    clip = Saddle(*(None if z is None else c for c, z in zip(CLIP, noise, strict=True)))
    return Query(**{"clip": clip, "noise_multiplier": noise, "population": N,
                    "adaptive": AdaptiveClip(share=share, quantile=quantile, rate=0.4), **given})


def joint(**given):
    return query(Saddle(3.0, 3.0), quantile=Saddle(0.6, 0.6), joint=True, **given)


def records(seed=0):
    rng = np.random.default_rng(seed)
    length = np.exp(rng.normal(size=(2, N, 1)))
    return Saddle(*(jnp.asarray(s * rng.normal(size=(N, d)), jnp.float32)
                    for s, d in zip(length, (3, 2), strict=True)))


def settings(described, rounds=1):
    return sgda.Hyper(query=described, step=Saddle(1e-3, 1e-3), iterations=rounds)


@functools.partial(jax.jit, static_argnames=("rounds", "problem"))
def path(key, described, data, rounds=1, problem=ITSELF):
    """The last state, and the clip norms after every round."""
    return jmm.run(key, ZERO, data, settings(described, rounds), sgda, problem,
                   lambda state: state.clip)


# --- noise of counts ---


def test_counts_of_both_players_have_noise_of_their_own():
    """Else their difference would be known to the last record."""
    assert not between.shared_noise().fires


# --- what is charged ---


@pytest.mark.parametrize(("described", "parts"), [
    (query(), (3.0, 4.0)), (query(share=0.5), (3.0, 4.0)), (query(W_ALONE), (3.0,)),
    (joint(), (3.0,))], ids=["separate", "half", "alone", "joint"])
def test_sums_and_counts_are_one_gaussian(described, parts):
    """1 / z_eff^2 = sum_p 1 / z_p^2 + k / z_b^2, of which the counts have their share."""
    counted = described.noise_multipliers()["counts"]
    number = 1 if described.joint else len(parts)
    sums, many = sum(z**-2 for z in parts), number * counted**-2
    assert 1 / described.multiplier() ** 2 == pytest.approx(sums + many, rel=1e-6)
    assert many / (sums + many) == pytest.approx(described.adaptive.share, rel=1e-6)
    run = Repeat(query=described, times=7)
    for neighbours, reach in (("replace_one", 2), ("add_or_remove_one", 1)):
        # of a full batch mu^2 = T (reach^2 / z^2 summed), and rounding a little more
        mu = reach * math.sqrt(7 * (sums + many))
        (charge,) = run.charges(neighbours)
        assert 1 <= reach * math.sqrt(charge.gaussian) / mu < 1.003
    plain = dataclasses.replace(run, query=dataclasses.replace(described, adaptive=None))
    assert jmm.epsilon(run, 1e-6) > jmm.epsilon(plain, 1e-6)


def test_a_calibration_keeps_the_share_and_pays_for_it_by_noise():
    plain = query(noise_multiplier=None, sampling=Poisson(rate=0.1))
    actual = [jmm.calibrate(sgda, settings(dataclasses.replace(plain, adaptive=adaptive), 10), 1.0,
                            1e-6) for adaptive in (None, AdaptiveClip(share=0.19))]
    w, v = (one.query.noise_multiplier.w for one in actual)
    assert v / w == pytest.approx(1 / 0.9, rel=1e-3)  # (1 - share)^(-1/2)
    assert actual[1].query.multiplier() == pytest.approx(actual[0].query.multiplier(), rel=1e-3)


def test_a_statement_says_that_clip_norms_move():
    stated = one_line(jmm.statement(sgda, settings(query()), delta=1e-6))
    assert "noisy count" in stated
    assert "counts " in stated
    assert jmm.mechanism.sentences.FOLLOWED in stated


# --- what a count tells ---


@pytest.mark.parametrize("rows", [1, 100, 4096, 10**6, 2**30 - 1])
def test_units_of_a_count_are_exact_and_no_finer_than_its_noise(rows):
    """A <= 2^L / z_b, so a record moves the integer by at most what is charged; sums fit."""
    for z in np.float32([1e-4, 0.3, 1.0, 7.7, 100.0, 65536.0, 4e6]):
        units, bits = map(int, count_grid(jnp.float32(z), rows))
        assert 0 < units <= 2**bits / float(z)
        assert units * rows < 2**31 - 2**26  # and its noise, 2^22 times at most 16
        if bits < 22 and z >= 1 and rows < 2**29:
            assert 2**bits / float(z) < 1.001 * (units + 1)
    assert int(count_grid(jnp.float32(1e7), 100)[0]) == 0  # no integer noise is so large: NaN
    assert np.isnan(sums.next_clip(jax.random.key(0), query(Saddle(1e9, 1e9)), CLIP,
                                    Saddle(jnp.int32(1), jnp.int32(1))).w)


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [Full(), Poisson(rate=0.3)], ids=["full", "poisson"])
def test_clip_norms_have_the_noise_that_is_described(sampling):
    """Log C moves by -rate (1/2 + (I + z_b G) / (2 m) - quantile), G normal and of one player."""
    described = query(sampling=sampling)
    m, z = jmm.mechanism.batch_size(described), described.noise_multipliers()["counts"]
    keys = jax.random.split(jax.random.key(1), 4000)
    actual = jax.jit(lambda: jax.lax.map(lambda k: sums.next_clip(
        k, described, CLIP, Saddle(jnp.int32(20), jnp.int32(-8))), keys))()
    logs = [np.log(np.float64(x) / c) for x, c in zip(actual, CLIP, strict=True)]
    scores = []
    for log, inside, quantile in zip(logs, (20, -8), described.adaptive.quantile, strict=True):
        part = quantile - log / 0.4
        scores.append((part - 0.5 - inside / (2 * m)) * 2 * m / z)
    for score in scores:
        assert stats.kstest(score, "norm").pvalue > 1e-4
    assert abs(np.corrcoef(*scores)[0, 1]) < 4 / math.sqrt(len(keys))


@pytest.mark.slow
@pytest.mark.parametrize("described", [query(), joint()], ids=["separate", "joint"])
def test_a_record_moves_a_count_by_two_halves_and_an_absent_one_by_one(described):
    """With equal keys, whatever the record is; attained, and not passed."""
    data, key = records(), jax.random.key(2)

    def after(value):
        changed = jax.tree.map(lambda x: x.at[3].set(value), data)
        return np.array([np.log(float(x)) for x in path(key, described, changed)[0].clip])

    unit = 0.4 / (2 * N)  # of the logarithm, for half a record
    inside, beyond = after(0.0), after(1e6)
    np.testing.assert_allclose(beyond - inside, 2 * unit, rtol=2e-2)
    for value in (np.nan, np.inf, -np.inf, 1e30):  # all of them count as absent
        np.testing.assert_allclose(after(value) - inside, unit, rtol=4e-2)


@pytest.mark.slow
def test_every_strategy_and_a_mesh_count_the_same_records():
    sampling = FixedSize(batch=200)
    described, data, key = query(sampling=sampling), records(), jax.random.key(4)

    def loss(w, v, x):
        return jnp.sum(w * x.w) - jnp.sum(v * x.v)

    norms = [path(key, described, data, problem=jmm.Problem(operator=jmm.saddle_operator(
        loss, strategy=strategy, microbatch=32)))[0].clip
        for strategy in ("vmap", "microbatch", "ghost")]
    mesh = jax.make_mesh((1,), ("data",))
    norms.append(path(key, described, jmm.placement.shard(data, mesh))[0].clip)
    assert len({(float(x.w), float(x.v)) for x in norms}) == 1


# --- where clip norms end ---


@pytest.mark.slow
@pytest.mark.parametrize("noisy", [False, True], ids=["quiet", "noisy"])
def test_clip_norms_end_at_the_quantiles(noisy):
    """Of norms that stay as they are; the joint clip at that of the pair's norm."""
    data = records()
    lengths = [np.linalg.norm(x, axis=1) for x in data]
    pair = np.sqrt(sum((x / c) ** 2 for x, c in zip(lengths, CLIP, strict=True)))
    noise = Saddle(1.0, 1.0) if noisy else Saddle(0.0, 0.0)
    slack = 0.05 if noisy else 0.01
    _, norms = path(jax.random.key(5), query(noise), data, 100)
    for inside, norm, quantile in zip(lengths, norms, (0.5, 0.8), strict=True):
        assert abs(np.mean(inside <= np.mean(norm[-30:])) - quantile) < slack
    _, norms = path(jax.random.key(5), joint(noise_multiplier=noise), data, 100)
    np.testing.assert_allclose(norms.v / norms.w, CLIP.v / CLIP.w, rtol=1e-4)
    assert abs(np.mean(pair <= np.mean(norms.w[-30:]) / CLIP.w) - 0.6) < slack


@pytest.mark.slow
def test_the_end_of_the_budget_and_of_the_range():
    data = records()
    state, norms = path(jax.random.key(6), query(W_ALONE), data, 3)
    assert state.clip.v is None
    assert norms.w.shape == (3,)
    over = jax.jit(lambda state: sgda.update(
        jax.random.key(6), state, data, settings(query(W_ALONE), 3), ITSELF))(state)
    assert np.isnan(over.clip.w)
    assert np.isnan(over.z.w).all()
    wild = dataclasses.replace(query(Saddle(0.0, 0.0)), adaptive=AdaptiveClip(rate=9.0))
    _, norms = path(jax.random.key(6), wild, jax.tree.map(lambda x: 0 * x, data), 12)
    assert norms.w[-1] == np.float32(CLIP.w) / 2**20  # all records are within any norm


@pytest.mark.slow
def test_a_floor_holds_clip_norms_up_and_costs_nothing():
    """All records are within any norm, so that norms fall as fast as they may."""
    data = jax.tree.map(lambda x: 0 * x, records())
    wild = dataclasses.replace(query(Saddle(0.0, 0.0)), adaptive=AdaptiveClip(rate=9.0))
    held = dataclasses.replace(wild, adaptive=AdaptiveClip(rate=9.0, floor=0.25))
    _, norms = path(jax.random.key(6), held, data, 12)
    assert (np.asarray(norms.w) >= 0.25 * np.float32(CLIP.w)).all()
    assert norms.w[-1] == np.float32(CLIP.w) * np.float32(0.25)
    assert norms.v[-1] == np.float32(CLIP.v) * np.float32(0.25)
    _, free = path(jax.random.key(6), wild, data, 12)
    assert free.w[0] == norms.w[0] or norms.w[0] == np.float32(CLIP.w) * np.float32(0.25)
    plain, costs = query(), []
    for floor in (0.0, 0.5, 1.0):
        own = dataclasses.replace(plain, adaptive=dataclasses.replace(plain.adaptive, floor=floor))
        costs.append(jmm.epsilon(sgda.mechanism(settings(own, 3)), 1e-6))
    assert len(set(costs)) == 1
    for floor in (-0.1, 1.1, math.nan):
        own = dataclasses.replace(plain, adaptive=AdaptiveClip(floor=floor))
        with pytest.raises(ValueError, match=r"adaptive\.floor"):
            jmm.epsilon(sgda.mechanism(settings(own)), 1e-6)


@pytest.mark.slow
def test_a_clip_norm_that_none_can_have_led_to_releases_nothing():
    """Noise of 0.5 * 2e-38 is no number of float32, and the sum is one: it would be bare."""
    hyper = settings(query(Saddle(0.5, 0.5)), 3)
    start, data = sgda.init(ZERO, hyper), records()
    update = jax.jit(lambda state: sgda.update(jax.random.key(6), state, data, hyper, ITSELF))
    for norm in (2e-38, 0.09 / 2**20, 0.11 * 2**20, math.inf, 0.0, -0.1):
        state = start._replace(clip=start.clip._replace(w=jnp.float32(norm)))
        new = update(state)
        assert np.isnan(new.z.w).all()
        assert np.isnan(new.clip.w)
        assert np.isfinite(new.clip.v)


# --- attacks, and bugs ---


@pytest.mark.slow
@pytest.mark.parametrize("together", [False, True], ids=["separate", "joint"])
def test_an_explicit_pair_attains_what_is_charged_for_both_parts(together):
    actual = adaptive_attack.signal(jax.random.key(7), together, 2000)
    assert not actual.violated
    assert actual.attained == pytest.approx(actual.charged, rel=0.05)


@pytest.mark.slow
def test_an_audit_of_the_update_is_below_the_claim_and_sees_most_of_it():
    lower, claimed = adaptive_attack.attack(jax.random.key(8), 10_000)
    assert 0.5 * claimed < lower < claimed


@pytest.mark.slow
def test_a_lifted_clip_is_seen(monkeypatch):
    sound = summation.clip_weight
    monkeypatch.setattr(summation, "clip_weight", lambda ratio, present: sound(
        jnp.minimum(ratio, 0.5), present))
    assert adaptive_attack.signal(jax.random.key(9), runs=1000).violated


@pytest.mark.slow
def test_a_signal_of_several_rounds_is_refused():
    hyper = dataclasses.replace(adaptive_attack.hyper_of(), iterations=2)
    with pytest.raises(ValueError, match="iterations=1"):
        jmm.audit.signal(jax.random.key(0), sgda, hyper, adaptive_attack.ZERO,
                         adaptive_attack.pair(), adaptive_attack.PROBLEM, runs=1000)


# --- measurements ---


def test_gains_are_of_the_same_splits_and_settings_differ_by_the_clip_norm_alone():
    rng = np.random.default_rng(0)
    runs = {str(k): {"1": dict(zip(adaptive.WAYS, rng.uniform(size=6), strict=True))}
            for k in range(4)}
    (row,) = adaptive.rows_of({"table": runs})
    gain = [run["1"]["tenfold, 0.9"] - run["1"]["tenfold, stays"] for run in runs.values()]
    assert row["tenfold, 0.9 gain"] == pytest.approx(np.mean(gain))
    assert row["tenfold, 0.9 gain_error"] == pytest.approx(np.std(gain, ddof=1) / 2)
    plain = settings(dataclasses.replace(query(), adaptive=None), 3)
    assert adaptive.described(plain, "stays") == plain
    moved = adaptive.described(plain, "tenfold, 0.9").query
    assert (moved.clip.w, moved.adaptive.quantile) == (10 * CLIP.w, Saddle(0.9, 0.9))


# --- refusals ---


@pytest.mark.parametrize(("given", "words"), [
    ({"adaptive": 0.5}, "AdaptiveClip"),
    ({"adaptive": AdaptiveClip(quantile=0.5)}, "Saddle"),
    ({"adaptive": AdaptiveClip(quantile=Saddle(1.0, 0.5))}, "quantile.w"),
    ({"adaptive": AdaptiveClip(rate=0.0)}, "rate"),
    ({"adaptive": AdaptiveClip(share=0.0)}, "share"),
    ({"adaptive": AdaptiveClip(share=0.6)}, "share"),
    ({"adaptive": AdaptiveClip(quantile=Saddle(0.5, 0.6)), "joint": True}, "same for both"),
    ({"exact": False}, "exact=True"),
    ({"clip": Saddle(math.inf, 1.0), "noise_multiplier": Saddle(0.0, 0.0)}, "first one"),
])
def test_what_is_not_defined_is_refused(given, words):
    with pytest.raises(ValueError, match=words):
        sgda.init(ZERO, settings(query(**given)))


def test_others_refuse_it_before_data_are_read():
    hyper = jmm.gda.Hyper(query=query(), modulus=1.0, iterations=1)
    with pytest.raises(ValueError, match=r"jmm\.sgda"):
        jax.eval_shape(lambda: jmm.gda.update(jax.random.key(0), jmm.gda.init(ZERO, hyper),
                                              records(), hyper, ITSELF))
    state = sgda.init(ZERO, settings(dataclasses.replace(query(), adaptive=None)))
    with pytest.raises(ValueError, match="same hyper"):
        jax.eval_shape(lambda: sgda.update(jax.random.key(0), state, records(),
                                           settings(query()), ITSELF))
    with pytest.raises(ValueError, match="parameters=6"):  # five numbers and two counts
        sgda.update(jax.random.key(0), sgda.init(ZERO, settings(query())), records(),
                    settings(query(parameters=6)), ITSELF)


# --- distances ---


def near(distance=3.0, times=1, noise=9.0, **given):
    given = {"because": "two records add vectors of one orthant.", **given}
    return Repeat(query=Query(**{"clip": Saddle(2.0, None), "noise_multiplier": Saddle(noise, None),
                                 "population": N, "distance": Saddle(distance, None), **given}),
                  times=times)


@pytest.mark.parametrize("distance", [2.0, math.sqrt(8), 3.0, 4.0])
@pytest.mark.parametrize("people", [1, 3])
def test_a_distance_is_charged_once_by_its_length_over_that_of_the_noise(distance, people):
    """The law of T Gaussian releases, mu = k sqrt(T) D / (C z), from Balle and Wang's formula."""
    times, delta = 5, 1e-6
    mu = people * math.sqrt(times) * distance / (2.0 * 9.0)

    def excess(e):
        return stats.norm.cdf(mu / 2 - e / mu) - math.exp(e) * stats.norm.cdf(-mu / 2 - e / mu)

    actual = jmm.epsilon(near(distance, times), delta, people=people)
    assert excess(actual) < delta < excess(0.99 * actual)
    assert jmm.audit.signals.charged_signal(near(distance, times)) == pytest.approx(
        mu / people, rel=3e-3)


def test_twice_the_clip_norm_is_what_is_charged_without_a_distance():
    plain = near(distance=4.0, because="")
    plain = dataclasses.replace(plain, query=dataclasses.replace(plain.query, distance=None))
    assert jmm.epsilon(near(4.0), 1e-6) == jmm.epsilon(plain, 1e-6)
    assert jmm.epsilon(near(2.0, noise=4.5), 1e-6) == pytest.approx(
        jmm.epsilon(plain, 1e-6), rel=1e-3)


def test_calibration_gives_a_distance_less_noise_and_rounding_its_share_of_a_clip_norm():
    (loose,), (tight,) = (accounting.calibrate_shares((near(d),), (1.0,), 1.0, 1e-6)
                          for d in (4.0, 2.0))
    assert tight.query.noise_multiplier.w == pytest.approx(
        loose.query.noise_multiplier.w / 2, rel=1e-3)
    # block sums lose ETA of a clip norm on either side, D + 2 ETA C in all, whatever D is
    z = near(2.0).query.noise_multiplier.w
    counted = near(2.0).effective_noise_multiplier("replace_one")
    assert z / counted - 1 >= 2 * 2.0 * grid.ETA / 2.0


@pytest.mark.parametrize(("given", "words"), [
    ({"distance": 1.9}, r"\[C, 2 C\]"), ({"distance": 4.1}, r"\[C, 2 C\]"),
    ({"distance": math.nan}, "distance.w"), ({"distance": "3"}, "distance.w"),
    ({"distance": None}, "one number"), ({"because": ""}, "because"), ({"because": 3}, "because"),
    ({"sampling": Poisson(rate=0.1)}, r"Full\(\)"),
    ({"sampling": FixedSize(batch=10)}, r"Full\(\)"),
    ({"adaptive": AdaptiveClip()}, "fixed clip norm"),
    ({"clip": Saddle(2.0, 2.0), "noise_multiplier": Saddle(9.0, 9.0)}, "one player"),
    ({"clip": Saddle(math.inf, None), "noise_multiplier": Saddle(0.0, None)}, r"\[C, 2 C\]"),
])
def test_a_distance_without_a_proof_is_refused(given, words):
    with pytest.raises(ValueError, match=words):
        jmm.epsilon(near(**given), 1e-6)


def test_a_distance_is_for_replaced_records_of_the_whole_data_and_has_a_reason():
    with pytest.raises(ValueError, match="replace_one"):
        jmm.epsilon(near(), 1e-6, neighbours="add_or_remove_one")
    with pytest.raises(ValueError, match="parts"):
        jmm.epsilon(dataclasses.replace(near(), parts=2), 1e-6)
    with pytest.raises(ValueError, match="reason of a distance"):
        jmm.epsilon(Repeat(query=dataclasses.replace(near().query, distance=None), times=1), 1e-6)
    with pytest.raises(ValueError, match="distance must be"):
        jmm.epsilon(Repeat(query=dataclasses.replace(near().query, distance=3.0), times=1), 1e-6)
    (assumed,) = near().assumed()
    assert "at most 3 apart" in near().summary()
    assert "one orthant" in assumed
