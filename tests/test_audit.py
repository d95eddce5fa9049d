"""The audit: its bound is one, it sees most of what is claimed, and it refutes nothing sound."""

import dataclasses
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import jaxminimax as jmm
from benchmarks import audit as benchmark
from benchmarks import stream_attack
from jaxminimax import Disjoint, FixedSize, Full, Poisson, Saddle, audit, gda, sgda
from jaxminimax.accounting._curves import gaussian_epsilon

DELTA = 1e-2
CLIP = Saddle(0.5, 2.0)
RO, AR = "replace_one", "add_or_remove_one"


def hyper_of(algorithm, sampling, rounds, epsilon, neighbours=RO, clip=CLIP):
    query = jmm.Query(clip=clip, sampling=sampling, population=20)
    own = {"modulus": 1.0} if algorithm is gda else {"step": Saddle(0.5, 0.25)}
    hyper = algorithm.Hyper(query=query, iterations=rounds, **own)
    return jmm.calibrate(algorithm, hyper, epsilon, DELTA, neighbours=neighbours)


def loud(sampling, rounds, z=1.5):
    """Not calibrated, which takes seconds for some samplings."""
    query = jmm.Query(clip=CLIP, noise_multiplier=Saddle(z, z), sampling=sampling, population=20)
    return sgda.Hyper(query=query, iterations=rounds, step=Saddle(0.5, 0.25))


# --- the bound ---


@pytest.mark.parametrize(("trials", "error"), [(1, 0.1), (20, 0.01), (200, 0.00025)])
def test_clopper_pearson_bounds_err_no_more_often_than_stated(trials, error):
    """Coverage summed over the binomial law, on a grid of probabilities: no simulation."""
    hits = np.arange(trials + 1)
    low, high = audit.clopper_pearson(hits, trials, error)
    for p in np.concatenate([[0.0, 1e-9, 1.0], np.linspace(0.001, 0.999, 400), low + 1e-12, high]):
        law = stats.binom.pmf(hits, trials, min(p, 1.0))
        assert law[low > p].sum() <= error * (1 + 1e-6)
        assert law[high < p].sum() <= error * (1 + 1e-6)


def test_clopper_pearson_agrees_with_scipy():
    for hits in (0, 1, 37, 99, 100):
        low, high = audit.clopper_pearson(hits, 100, 0.005)
        exact = stats.binomtest(hits, 100).proportion_ci(0.99, "exact")
        np.testing.assert_allclose((low, high), (exact.low, exact.high), rtol=1e-9,
                                   atol=1e-11)


def lower_bounds(mu, delta, confidence, repetitions, runs=2000):
    rng = np.random.default_rng(7)
    for _ in range(repetitions):
        one, two = rng.normal(mu, size=runs), rng.normal(size=runs)
        yield audit.lower_bound({"x": one}, {"x": two}, delta, confidence)[0]


@pytest.mark.parametrize("mu", [0.5, 1.5])
def test_no_bound_of_a_gaussian_pair_is_above_its_epsilon(mu):
    exact = gaussian_epsilon(mu, DELTA)
    values = np.array(list(lower_bounds(mu, DELTA, 0.999, 200)))
    assert values.max() <= exact
    assert values.mean() > 0.2 * exact


def test_a_bound_at_low_confidence_errs_no_more_often_than_it_may():
    """Close enough to the truth that it would show: at 1/2 some bounds are wrong, under a half."""
    exact = gaussian_epsilon(1.0, DELTA)
    wrong = np.mean(np.array(list(lower_bounds(1.0, DELTA, 0.5, 200))) > exact)
    assert 0 < wrong < 0.5


def test_equal_distributions_have_no_epsilon():
    for value in lower_bounds(0.0, 1e-3, 0.999, 50):
        assert value == 0


def test_the_bound_finds_the_order_and_the_statistic_that_tell():
    rng = np.random.default_rng(1)
    far, near = rng.normal(3.0, size=4000), rng.normal(size=4000)
    noise = rng.normal(size=(2, 4000))
    for one, two in ((far, near), (near, far)):
        value, name, hits, trials = audit.lower_bound(
            {"noise": noise[0], "x": one}, {"noise": noise[1], "x": two}, DELTA)
        assert (name, trials) == ("x", 2000)
        assert value > 3
        assert hits[0] != hits[1]


def test_failures_that_tell_are_seen():
    """Whichever data set they are likelier on."""
    rng = np.random.default_rng(3)
    often, seldom = (rng.uniform(size=4000) < p for p in (0.5, 0.01))
    for one, two in ((often, seldom), (seldom, often)):
        assert audit.lower_bound({"x": one * 1.0}, {"x": two * 1.0}, DELTA)[0] > 2


def test_the_runs_that_choose_do_not_enter_the_bound():
    """Statistics that separate in the first half only are worth nothing."""
    rng = np.random.default_rng(2)
    one, two = rng.normal(size=(2, 4000))
    one[:2000] += 10
    assert audit.lower_bound({"x": one}, {"x": two}, DELTA)[0] == 0


# --- the pair and the statistic ---

SAMPLINGS = [Full(), Poisson(rate=0.25), Disjoint(batch=6), FixedSize(batch=5),
             FixedSize(batch=5, replacement=True)]


@pytest.mark.slow
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_the_likelihood_ratio_is_the_one_of_what_was_released(sampling):
    """E_Q[P/Q] = E_P[Q/P] = 1: so the releases have the laws that the accountant charges."""
    runs, rounds = 20_000, 2
    hyper = loud(sampling, rounds, 6.0)
    data = audit.worst_pair(hyper.query, RO)
    both = audit.releases(jax.random.key(3), sgda, hyper, data, runs)
    assert both.shape == (2, runs, rounds, 2, 1)
    one, two = (audit.likelihood_ratio(x, hyper.query, RO) for x in both)
    for ratio in (np.exp(two), np.exp(-one)):
        assert abs(ratio.mean() - 1) < 4.5 * ratio.std() / math.sqrt(runs)
        assert ratio.std() > 0.1


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("pair", ["worst_pair", "random_pair"])
def test_pairs_differ_in_one_record_that_is_read(sampling, pair):
    query = jmm.Query(clip=CLIP, sampling=sampling, population=20)
    for neighbours in (RO, AR):
        seed = () if pair == "worst_pair" else (4,)
        data = getattr(audit, pair)(*seed, query, neighbours)
        for x in data:
            differs = np.flatnonzero((np.asarray(x[0]) != np.asarray(x[1])).any(1))
            assert len(differs) == 1
            assert differs[0] < getattr(sampling, "batch", 20)
            assert x.dtype == jnp.float32
            assert np.isnan(x[1, differs[0]]).all() == (neighbours == AR)


def test_a_player_without_a_clip_norm_takes_no_part():
    hyper = hyper_of(gda, Full(), 2, 4.0, clip=Saddle(None, 2.0))
    found = audit.audit(jax.random.key(1), gda, hyper, DELTA, runs=20_000)
    assert 0.5 * found.epsilon_claimed < found.epsilon_lower <= found.epsilon_claimed


# --- whole audits ---


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [1.0, 4.0])
@pytest.mark.parametrize(("algorithm", "sampling", "rounds"), [
    (sgda, Full(), 1), (sgda, Full(), 5), (gda, Full(), 1), (gda, Full(), 5),
    (sgda, Poisson(rate=0.25), 1), (sgda, Disjoint(batch=5), 1),
], ids=lambda x: getattr(x, "__name__", str(x)))
def test_most_of_the_claim_is_attained_and_no_more(algorithm, sampling, rounds, epsilon):
    hyper = hyper_of(algorithm, sampling, rounds, epsilon)
    found = audit.audit(jax.random.key(20240), algorithm, hyper, DELTA, runs=60_000)
    assert 0.99 * epsilon < found.epsilon_claimed <= epsilon
    assert not found.violated
    assert (found.runs, found.trials) == (60_000, 30_000)
    assert found.epsilon_lower >= 0.6 * found.epsilon_claimed


@pytest.mark.slow
@pytest.mark.parametrize("name", ["extragradient", "proximal"])
@pytest.mark.parametrize(("sampling", "rounds", "share"), [
    (Full(), 1, 0.6), (Full(), 3, 0.5), (Disjoint(batch=6), 3, 0.6), (Poisson(rate=0.25), 1, 0.4)],
    ids=str)
def test_the_other_algorithms_attain_most_of_it_too(name, sampling, rounds, share):
    module = benchmark.modules()[name]
    hyper = benchmark.hyper_of(name, module, benchmark.Case(sampling, rounds))
    hyper = jmm.calibrate(module, hyper, 4.0, DELTA)
    found = audit.audit(jax.random.key(7), module, hyper, DELTA, runs=30_000)
    assert share * found.epsilon_claimed <= found.epsilon_lower <= found.epsilon_claimed <= 4.0


@pytest.mark.slow
@pytest.mark.parametrize(("name", "changes"), [
    ("extragradient", {"times": 1}), ("proximal", {"noise": 0.5})])
def test_the_other_algorithms_are_caught_too(name, changes, monkeypatch):
    """A round of extragradient charged as one release; a proximal point with half its noise."""
    module = benchmark.modules()[name]
    hyper = benchmark.hyper_of(name, module, benchmark.Case(Full(), 1))
    hyper = jmm.calibrate(module, hyper, 4.0, DELTA)
    query = hyper.query
    factor = changes.get("noise", 2**-0.5)  # two releases at the noise of one
    if name == "proximal":
        query = dataclasses.replace(query, noise_multiplier=factor * query.noise_multiplier)
    else:
        z = jax.tree.map(lambda x: factor * x, query.noise_multiplier)
        query = dataclasses.replace(query, noise_multiplier=z)
    monkeypatch.setattr(audit, "epsilon", lambda *_, **__: 4.0)
    found = audit.audit(jax.random.key(7), module, dataclasses.replace(hyper, query=query), DELTA,
                        runs=60_000)
    assert found.violated


@pytest.mark.slow
@pytest.mark.parametrize(("sampling", "rounds", "neighbours", "pair", "share"), [
    (FixedSize(batch=5), 1, RO, "worst", 0.6),
    (FixedSize(batch=5), 3, RO, "worst", 0.4),
    (FixedSize(batch=5, replacement=True), 1, RO, "worst", 0.4),
    (Poisson(rate=0.25), 3, AR, "worst", 0.4),
    (Poisson(rate=0.25, capacity=11), 3, RO, "worst", 0.4),
    (Poisson(rate=0.25), 3, RO, "random", 0.1),
    (Full(), 5, AR, "worst", 0.55),
    (Full(), 5, RO, "random", 0.2),
    (Disjoint(batch=6), 7, RO, "worst", 0.4),
], ids=str)
def test_what_composes_stays_below_its_claim(sampling, rounds, neighbours, pair, share):
    found = audit.audit(jax.random.key(5), sgda, loud(sampling, rounds), DELTA, runs=20_000,
                        neighbours=neighbours, pair=pair)
    assert share * found.epsilon_claimed <= found.epsilon_lower <= found.epsilon_claimed
    assert math.isfinite(found.epsilon_claimed)


@pytest.mark.slow
def test_a_claim_that_is_too_small_is_refuted(monkeypatch):
    monkeypatch.setattr(audit, "epsilon", lambda *_, **__: 1.0)
    hyper = hyper_of(gda, Full(), 1, 4.0)
    assert audit.audit(jax.random.key(1), gda, hyper, DELTA, runs=20_000).violated


@pytest.mark.parametrize(("values", "message"), [
    ({"runs": 3}, "runs"), ({"pair": "best"}, "pair"), ({"confidence": 1.0}, "confidence"),
    ({"neighbours": "swap"}, "neighbours"), ({"delta": 0.0}, "delta"),
])
def test_audits_that_make_no_sense_are_refused(values, message):
    hyper = hyper_of(gda, Full(), 1, 1.0)
    with pytest.raises(ValueError, match=message):
        audit.audit(jax.random.key(0), gda, hyper, **{"delta": DELTA, **values})


# --- the benchmark ---


@pytest.fixture
def few(monkeypatch):
    cases = tuple(c for c in benchmark.CASES if c.rounds == 1)
    monkeypatch.setattr(benchmark, "CASES", cases[:2])
    monkeypatch.setattr(benchmark, "EPSILONS", (1.0,))
    every = benchmark.modules()
    some = {name: every[name] for name in ("gda", "recursive", "group_sgd")}
    monkeypatch.setattr(benchmark, "modules", lambda: some)
    monkeypatch.setattr(benchmark, "STREAMS", lambda: benchmark.stream_attack.attacks()[1:2])
    return monkeypatch


@pytest.mark.slow
@pytest.mark.parametrize("number", range(4))
def test_records_that_are_read_once_are_attacked_and_half_the_noise_is_caught(number):
    attack = stream_attack.attacks()[number]
    hyper = jmm.calibrate(attack.algorithm, attack.hyper, 4.0, DELTA)

    def attained(factor):
        def less(part):
            return dataclasses.replace(part, noise_multiplier=factor * part.noise_multiplier)

        query = hyper.query
        query = (dataclasses.replace(query, parts=tuple(map(less, query.parts)))
                 if isinstance(query, jmm.Parallel) else less(query))
        run = dataclasses.replace(hyper, query=query)
        return stream_attack.audit(jax.random.key(7), attack, run, DELTA, runs=30_000).epsilon_lower

    assert 0.55 * 4.0 <= attained(1.0) <= 4.0 < attained(0.5)


def test_the_benchmark_has_every_algorithm_and_every_sampling():
    assert {"sgda", "gda", "extragradient", "proximal", "group_sgd",
            "active_groups"} <= set(benchmark.modules())
    assert [attack.algorithm for attack in benchmark.STREAMS()] == [
        jmm.phased_erm, jmm.ftrl, jmm.group_oco, jmm.group_oco]
    assert {type(c.sampling) for c in benchmark.CASES} == {Full, Poisson, Disjoint, FixedSize}
    assert {type(c.sampling) for c in benchmark.CASES if c.quick} == {
        Full, Poisson, Disjoint, FixedSize}


def test_an_algorithm_that_the_benchmark_does_not_know_is_named(monkeypatch):
    monkeypatch.setattr(benchmark, "OWN", {"gda": {}})
    with pytest.raises(LookupError, match="sgda"):
        benchmark.modules()


@pytest.mark.slow
def test_the_benchmark_writes_rows_and_statements(few, tmp_path, capsys):
    assert benchmark.main(["--runs", "2000", "--json", str(tmp_path / "audit.json")]) == 0
    record = json.loads((tmp_path / "audit.json").read_text())
    assert set(record) == {"environment", "arguments", "seconds", "rows", "statements"}
    assert len(record["rows"]) == len(record["statements"]) == 5
    for row, statement in zip(record["rows"], record["statements"], strict=True):
        assert {"algorithm", "mechanism", "epsilon_claimed", "epsilon_lower", "runs", "delta",
                "neighbours", "seconds"} <= set(row)
        assert row["epsilon_lower"] <= row["epsilon_claimed"] == statement["epsilon"]
    assert "Poisson, rate 0.25, 1 round " in capsys.readouterr().out


def test_a_violation_is_loud(few, capsys, monkeypatch):
    row = {"algorithm": "gda", "mechanism": "full batch", "neighbours": RO, "pair": "worst",
           "epsilon_claimed": 1.0, "epsilon_lower": 2.0, "share": 2.0, "runs": 9, "violated": True}
    monkeypatch.setattr(benchmark, "everything", lambda *_: ([row], [{}]))
    assert benchmark.main(["--quick"]) == 1
    assert "VIOLATED: gda" in capsys.readouterr().err


@pytest.mark.parametrize("runs", ["0", "x", "999"])
def test_too_few_runs_are_refused_in_one_line(runs, capsys):
    with pytest.raises(SystemExit) as stop:
        benchmark.main(["--runs", runs])
    assert stop.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1
