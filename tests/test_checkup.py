"""Mistakes of structure end in words, before anything runs; and what `check` tells of a run."""

import dataclasses
import importlib
import os
import sys

import equinox as eqx
import flax.linen as linen
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import jaxminimax as jmm
from benchmarks.examples import demo_gan
from jaxminimax import Saddle, checkup
from jaxminimax.mechanism import Repeat
from tests import golden

N, DIM, DELTA = 64, 3, 1e-3
KEY = jax.random.key(0)
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, DIM)).astype(np.float32)
Y = (np.arange(N) % 2).astype(np.float32)
PROBLEM = jmm.problems.auc(jmm.problems.linear_scorer, prior=0.5, radius=Saddle(10.0, 5.0))
START = jmm.problems.auc_start(jnp.zeros(DIM))


def query(**changed):
    return jmm.Query(**dict(clip=Saddle(1.0, 1.0), population=N,
                            noise_multiplier=Saddle(1.0, 1.0)) | changed)


def hyper(**changed):
    return jmm.sgda.Hyper(**dict(query=query(), step=Saddle(0.1, 0.1), iterations=2) | changed)


class Tensor:
    """Stands in for those of libraries that are not installed."""

    shape = (N,)

    def __array__(self, dtype=None, copy=None):
        return np.zeros(N, dtype)

    def __repr__(self):
        return "3.14159"


class DataLoader:
    """Stands in for that of torch."""

    def __iter__(self):
        return iter(((X, Y),))


def of_library(name, kind):
    return type(kind, (Tensor,), {"__module__": f"{name}.core"})()


def loss(w, v, example):
    return jnp.sum(w["theta"])


def with_loss(function):
    return PROBLEM._replace(operator=jmm.types.SaddleOperator(function))


# what was given for an argument of `run`, and what the message names
MISTAKES = {
    "clip is one number": (dict(hyper=hyper(query=query(clip=1.0))), "clip must be a Saddle"),
    "clip is a tuple": (dict(hyper=hyper(query=query(clip=(1.0, 1.0)))), "clip must be a Saddle"),
    "noise is one number": (dict(hyper=hyper(query=query(noise_multiplier=1.0))),
                            "noise_multiplier must be a Saddle"),
    "sampling is a number": (dict(hyper=hyper(query=query(sampling=0.1))), "sampling must be Full"),
    "step is one number": (dict(hyper=hyper(step=0.1)), "step must be a Saddle"),
    "an optimiser that is made": (dict(hyper=hyper(optimiser=optax.adam(0.1))),
                                  "optimiser must be a Saddle.*Saddle.optax.adam"),
    "a pair of optimisers that are made": (
        dict(hyper=hyper(optimiser=Saddle(optax.adam(0.1), optax.sgd))), "optimiser.w.*Hyper.step"),
    "one factory": (dict(hyper=hyper(optimiser=optax.adam)), "optimiser must be a Saddle.*adam"),
    "averaging by its name": (dict(hyper=hyper(averaging="tail")), "averaging must be.*'tail'"),
    "iterations are a float": (dict(hyper=hyper(iterations=2.0)), "must be an integer.*2.0"),
    "hyper is a class": (dict(hyper=jmm.sgda.Hyper), r"sgda\.Hyper\(query=.*class Hyper"),
    "hyper is a query": (dict(hyper=query()), r"sgda\.Hyper\(query=.*Query"),
    "hyper of another algorithm": (dict(algorithm=jmm.extragradient),
                                   r"extragradient\.Hyper.*got sgda\.Hyper"),
    "hyper is a dictionary": (dict(hyper={"step": 0.1}), "hyper must be.*dict"),
    "z is a pair": (dict(z=(START.w, START.v)), "z must be a Saddle.*got tuple"),
    "z is a dictionary": (dict(z={"w": START.w, "v": START.v}), "z must be a Saddle.*got dict"),
    "integer parameters": (dict(z=jmm.problems.auc_start(jnp.zeros(DIM, int))),
                           r"z.w\['a'\] has dtype int"),
    "a tensor in z": (dict(z=Saddle({**START.w, "theta": of_library("torch", "Tensor")}, START.v)),
                      r"z.w\['theta'\].*torch.Tensor.*numpy\(\)"),
    "a loss for a problem": (dict(problem=loss), "problem must be a Problem.*saddle_operator"),
    "an operator for a problem": (dict(problem=PROBLEM.operator),
                                  "problem must be a Problem, got SaddleOperator"),
    "a problem of groups": (dict(problem=jmm.problems.group_means(radius=1.0, record_bound=1.0)),
                            "must be a Problem for this algorithm, got a GroupProblem"),
    "a loss with more to say": (dict(problem=with_loss(lambda w, v, x: (loss(w, v, x), 1.0))),
                                "one number, got tuple.*auxiliary"),
    "a loss of several numbers": (dict(problem=with_loss(lambda w, v, x: w["theta"])),
                                  r"one number, got shape \(3,\)"),
    "an operator without arguments": (dict(problem=PROBLEM._replace(operator=lambda: START)),
                                      r"problem.operator is called with \(z, example\)"),
    "an operator's pair": (dict(problem=PROBLEM._replace(operator=lambda z, x: (z.w, z.v))),
                           "operator's value must be a Saddle.*got tuple"),
    "an operator unlike z": (dict(problem=PROBLEM._replace(
        operator=lambda z, x: Saddle(z.w["theta"], z.v))), "operator's value for w must look like"),
    "a module of nnx with a counter": (
        dict(z=Saddle(nnx.Dropout(0.5, rngs=nnx.Rngs(0)), ())),
        "z.w.* must be an array.*nnx.split|z.w.* has dtype.*nnx.split"),
    "a module of equinox": (dict(z=Saddle(eqx.nn.MLP(2, 2, 2, 1, key=KEY), ())),
                            r"z.w.* must be an array.*eqx\.partition"),
    "a module of linen": (dict(z=Saddle(linen.Dense(1), ())), "z.w must be an array.*model.init"),
    "a counter among the parameters": (dict(z=Saddle({"n": jnp.int32(0)}, ())),
                                       r"z.w\['n'\] has dtype int32.*close over"),
    "a loader": (dict(data=DataLoader()), "data must be an array.*HostData"),
    "lists": (dict(data=(X.tolist(), Y.tolist())),
              r"data\[0\] must be an array.*list of float.*padded"),
    "text": (dict(data=(X, np.array(["a"] * N))), r"data\[1\] has dtype <U1"),
    "objects": (dict(data=(X, np.array([None] * N, object))), r"data\[1\] has dtype object"),
    "a frame of pandas": (dict(data=(of_library("pandas", "DataFrame"), Y)),
                          r"data\[0\].*pandas.DataFrame: give x.to_numpy"),
    "a frame of polars": (dict(data=of_library("polars", "DataFrame")),
                          "data must.*polars.DataFrame: give x.to_numpy"),
    "tensors": (dict(data=(of_library("torch", "Tensor"), Y)), r"data\[0\].*torch.Tensor.*numpy"),
    "an algorithm by its name": (dict(algorithm="sgda"), "algorithm must be a module.*'sgda'"),
    "a function for an algorithm": (dict(algorithm=jmm.sgda.update), "algorithm must be a module"),
    "a legacy key": (dict(key=jax.random.PRNGKey(0)), "typed key.*uint32.*wrap_key_data"),
    "a number for a key": (dict(key=7), r"typed key.*secret_key\(\)"),
}


def arguments(changed):
    known = dict(key=KEY, z=START, data=(X, Y), hyper=hyper(), algorithm=jmm.sgda, problem=PROBLEM)
    return known | changed


def run(key, z, data, hyper, algorithm, problem):
    return jmm.run(key, z, data, hyper, algorithm, problem)


def fit(key, z, data, hyper, algorithm, problem):
    return jmm.fit(key, z, data, hyper, algorithm, problem, delta=DELTA, progress=False)


def sweep(key, z, data, hyper, algorithm, problem):
    keys = jax.random.split(key, (1, 1)) if isinstance(key, jax.Array) and key.ndim == 0 else key
    return jmm.sweep(keys, z, data, jmm.stack([hyper]), algorithm, problem)


def tune(key, z, data, hyper, algorithm, problem):
    return jmm.tune(key, z, data, [hyper], algorithm, problem, score=lambda at, record: 0.0,
                    score_range=(0.0, 1.0), epsilon=1.0, delta=DELTA, expected=2.0)


def checked(key, z, data, hyper, algorithm, problem):
    return jmm.check(problem, z, data, hyper, algorithm, measure=False)


def released(key, z, data, hyper, algorithm, problem):
    return jmm.release(key, jmm.sgda.mechanism(hyper), jnp.int32(0), problem, z, data)


def started(key, z, data, hyper, algorithm, problem):
    return jmm.sgda.init(z, hyper)


@pytest.mark.slow
@pytest.mark.parametrize("name", MISTAKES)
@pytest.mark.parametrize("function", [run, fit, sweep, tune])
def test_what_is_wrong_is_named_before_anything_runs(function, name):
    changed, message = MISTAKES[name]
    with pytest.raises((ValueError, TypeError), match=f"(?s){message}|stack needs") as caught:
        function(**arguments(changed))
    assert "3.14159" not in str(caught.value)  # no number of the data
    assert str(X[0, 0]) not in str(caught.value)


@pytest.mark.parametrize("function", [run, fit, sweep])
def test_an_iterator_is_refused_with_the_way_out(function):
    with pytest.raises(TypeError, match=r"data must be an array.*got generator.*HostData"):
        function(**arguments(dict(data=(x for x in (X, Y)))))


@pytest.mark.parametrize("name", [x for x, (changed, _) in MISTAKES.items() if "key" not in changed
                                  and "label" not in x and "unlike" not in x and "pair" not in x])
def test_check_names_it_too(name):
    changed, message = MISTAKES[name]
    with pytest.raises((ValueError, TypeError), match=f"(?s){message}|must be|step"):
        checked(**arguments(changed))


@pytest.mark.parametrize(("function", "needed"), [
    (released, {"z", "data", "problem", "key"}), (started, {"z", "hyper"})])
def test_parts_of_a_run_name_it_too(function, needed):
    tried = [x for x, (changed, _) in MISTAKES.items() if set(changed) <= needed
             and x not in ("sampling is a number", "a problem of groups") and "label" not in x]
    assert len(tried) > 10
    for name in tried:
        with pytest.raises((ValueError, TypeError)) as caught:
            function(**arguments(MISTAKES[name][0]))
        assert any(x in str(caught.value) for x in ("must", "has dtype", "called with")), name


@pytest.mark.parametrize("ask", [
    lambda algorithm, hyper: jmm.calibrate(algorithm, hyper, 1.0, DELTA),
    lambda algorithm, hyper: jmm.accounting.calibrate_iterations(algorithm, hyper, 1.0, DELTA),
    lambda algorithm, hyper: jmm.statement(algorithm, hyper, delta=DELTA),
])
@pytest.mark.parametrize("name", [
    x for x, (changed, _) in MISTAKES.items() if set(changed) <= {"hyper", "algorithm"}
    and x.split()[0] not in ("step", "averaging", "iterations") and "optimis" not in x
    and x != "one factory"])  # the accountant reads none of these
def test_the_accountant_names_what_it_reads(ask, name):
    changed, message = MISTAKES[name]
    made = arguments(changed)
    with pytest.raises((ValueError, TypeError), match=message):
        ask(made["algorithm"], made["hyper"])


DESCRIBED = jmm.sgda.mechanism(hyper())


@pytest.mark.parametrize("make", [
    lambda kind: kind(parts=[DESCRIBED]), lambda kind: kind(parts=DESCRIBED),
    lambda kind: kind(parts=None), lambda kind: kind(parts=(1.0,)),
    lambda kind: kind(parts=10**400),
])
@pytest.mark.parametrize("kind", [jmm.Sequence, jmm.Parallel])
def test_parts_that_are_no_tuple_of_mechanisms_are_refused(kind, make):
    for ask in (lambda made: jmm.epsilon(made, DELTA), lambda made: made.releases(),
                lambda made: jmm.accounting.calibrate_noise(made, 1.0, DELTA)):
        with pytest.raises(ValueError, match=r"parts must be a tuple|mechanism is a Repeat"):
            ask(make(kind))


@pytest.mark.parametrize("sampling", [
    jmm.Poisson(rate=Saddle(0.1, 0.1)), jmm.Poisson(rate=np.ones(2)), jmm.Poisson(rate=10**400),
    jmm.FixedSize(batch=10**400), jmm.FixedSize(batch=10**400, replacement=True),
    jmm.FixedSize(batch=Saddle(1, 1)), jmm.Disjoint(batch=2**70),
])
def test_samplings_of_odd_numbers_are_refused(sampling):
    described = Repeat(query=query(sampling=sampling), times=2)
    for ask in (lambda: jmm.epsilon(described, DELTA),
                lambda: jmm.accounting.calibrate_noise(described, 1.0, DELTA)):
        with pytest.raises(ValueError, match=r"rate|batch"):
            ask()


@pytest.mark.parametrize("made", [
    jmm.Repeat(query=query(population=10**400), times=1), jmm.Repeat(query=query(), times=10**400),
    jmm.GroupLosses(bound=1.0, sizes=(10**400,), times=1, noise_multiplier=1.0),
    jmm.mechanism.RecordLosses(bound=10**400, noise_multiplier=1.0, times=4),
])
def test_integers_that_no_float_holds_are_refused(made):
    with pytest.raises(ValueError, match="must be"):
        jmm.epsilon(made, DELTA)
    with pytest.raises(ValueError, match="people"):
        jmm.epsilon(DESCRIBED, DELTA, people=10**400)
    with pytest.raises(TypeError, match="alongside"):
        jmm.calibrate(jmm.sgda, hyper(), 1.0, DELTA, alongside=DESCRIBED)


def test_a_delta_that_protects_nobody_is_pointed_at():
    for delta, words in ((1 / N, "at or above 1/n"), (0.5, "IS NO PRIVACY")):
        with pytest.warns(UserWarning, match=words):
            stated = jmm.statement(jmm.sgda, hyper(), delta=delta)
        assert any("would meet this statement too" in x for x in stated.assumed)
    assert not any("would meet" in x for x in jmm.statement(jmm.sgda, hyper(), delta=1e-6).assumed)


def test_a_folder_that_cannot_be_written_is_refused_at_once(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    for path in (file, file / "below", os.devnull):
        with pytest.raises(ValueError, match="no folder that can be written to"):
            jmm.fit(KEY, START, (X, Y), hyper(), jmm.sgda, PROBLEM, delta=DELTA, checkpoint=path)


def test_what_is_missing_is_named_with_its_extra(monkeypatch, tmp_path):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'jaxminimax\[fit\]'"):
        jmm.fit(KEY, START, (X, Y), hyper(), jmm.sgda, PROBLEM, delta=DELTA, checkpoint=tmp_path)
    monkeypatch.setitem(sys.modules, "sklearn.base", None)
    for name in ("estimators", "apps.estimators"):
        monkeypatch.delitem(sys.modules, f"jaxminimax.{name}", raising=False)
    with pytest.raises(ImportError, match=r"pip install 'jaxminimax\[sklearn\]'"):
        importlib.import_module("jaxminimax.estimators")


# --- labels ---


@pytest.mark.parametrize("call", [run, fit])
def test_no_value_of_the_data_decides_whether_a_run_is_refused(call):
    """Labels of another set, numbers that are none: a refusal would tell of them without noise."""
    for data in ((X, Y + 1), (np.full_like(X, np.inf), np.full_like(Y, np.nan))):
        done = call(**arguments(dict(data=data)))
        assert np.all(np.isfinite(np.asarray(done.state.average.w["theta"])))


# --- the report ---


def test_the_report_knows_no_number_of_the_data():
    stated = [jmm.check(PROBLEM, START, data, hyper(), delta=1e-6, measure=False).to_json()
              for data in ((X, Y), (np.full_like(X, np.nan), Y + 5))]
    assert stated[0] == stated[1]
    assert stated[0]["warnings"] == []
    assert stated[0]["records"]["number"] == N
    assert stated[0]["labels"] == [0, 1]
    assert [stated[0]["players"][p]["moves"].split()[0] for p in "wv"] == ["descends", "ascends"]
    assert stated[0]["players"]["w"]["numbers"] == DIM + 2


def test_the_report_tells_what_to_change():
    made = hyper(query=query(noise_multiplier=None, parameters=2))
    words = str(jmm.check(PROBLEM, START, (X, Y), made, delta=0.5, measure=False))
    for stated in ("delta = 0.5 is at or above", "No noise is set", "below the 6 numbers",
                   "must be among {0, 1}", "clip norm 1"):
        assert stated in words
    with pytest.raises(ValueError, match="population must be"):
        jmm.check(PROBLEM, START, (X[:9], Y[:9]), made)


@pytest.mark.slow
def test_the_report_counts_what_adaptive_clips_release():
    given = dict(step=Saddle(0.1, 0.1), iterations=4)
    counted = query(adaptive=jmm.AdaptiveClip(), parameters=6)  # two counts go beside six numbers
    report = jmm.check(PROBLEM, START, (X, Y), jmm.sgda.Hyper(query=counted, **given),
                       measure=False)
    assert "below the 8 numbers" in str(report)


@pytest.mark.slow
def test_a_round_is_measured_on_made_up_data():
    made = hyper(query=query(noise_multiplier=None))
    cost = jmm.check(PROBLEM, START, (X, Y), made).cost
    assert 0 < cost["seconds"] < 60
    assert cost["bytes"] > X.nbytes


@pytest.mark.slow
def test_another_draw_has_its_slots_and_its_price_beside_the_expected_rows():
    n, delta = 2000, 1e-6
    made = [hyper(iterations=200, query=jmm.Query(
        clip=Saddle(1.0, 1.0), population=n, noise_multiplier=Saddle(3.0, 3.0), sampling=x))
        for x in (jmm.Poisson(rate=16 / n, again=0.2), jmm.Poisson(rate=16 / n))]
    records = np.zeros((n, DIM), np.float32), np.arange(n) % 2.0
    report = jmm.check(PROBLEM, START, records, made[0], delta=delta, measure=False)
    rounds, how = report.rounds, made[0].query.sampling
    # at as many records in the mean
    usual = dataclasses.replace(made[0].query, sampling=jmm.Poisson(rate=rounds["batch size"] / n))
    other = dataclasses.replace(made[0], query=usual)
    own, less = (jmm.epsilon(jmm.sgda.mechanism(x), delta) for x in (made[0], other))
    assert rounds["epsilon saved if seldom again"] == pytest.approx(1 - less / own, abs=1e-4)
    assert 0.01 < 1 - less / own < 0.1
    assert rounds["drawn again"] == how.redraw_probability(n) <= 0.2
    slots = how.rows_read(n), usual.sampling.rows_read(n)
    assert rounds["slots if seldom again"] == slots[1] > slots[0] == rounds["rows read"]
    text = str(report)
    assert (f"drawn again with probability {how.redraw_probability(n):.2g} at most (1/1,000: "
            f"{slots[1]} slots, and epsilon {1 - less / own:.1%} less for as many records)") in text
    assert not {"slots if seldom again", "drawn again"} & set(text.splitlines()[5].split(", "))
    # no price without a delta, and nothing to compare with where samples are seldom drawn again
    free = jmm.check(PROBLEM, START, records, made[0], measure=False)
    assert free.rounds["epsilon saved if seldom again"] is None
    assert f"(1/1,000: {slots[1]} slots)" in str(free)
    seldom = jmm.check(PROBLEM, START, records, made[1], delta=delta, measure=False)
    assert "slots if seldom again" not in seldom.rounds
    assert "probability 0.0" in str(seldom)
    whole = jmm.check(PROBLEM, START, (X, Y), hyper(), delta=DELTA, measure=False)
    assert "drawn again" not in whole.rounds
    assert "drawn again" not in str(whole)


def test_expected_rows_stand_beside_slots_and_parameters_of_one_way_in_one_line():
    report = str(jmm.check(PROBLEM, START, (X, Y), hyper(query=query(
        sampling=jmm.Poisson(rate=0.125))), measure=False))
    slots = jmm.Poisson(rate=0.125).rows_read(N)
    assert f"8 rows expected in {slots} slots of a release" in report
    assert f"{slots / 8:.3g} times as many rows" in report
    lines = {name: how for name, how in (x.split(": ") for x in report.splitlines()
                                         if " numbers a row for " in x)}
    assert len(lines) == len(set(lines.values())) < len(jax.tree.leaves(START))


def test_groups_are_reported_too():
    problem = jmm.problems.group_glm("logistic", feature_bound=1.0, radius=1.0)
    data, sizes = jmm.problems.by_group((X, 2 * Y - 1), np.arange(N) % 4)
    described = jmm.GroupGradients(clip=1.0, sizes=sizes)
    made = jmm.group_sgd.Hyper(
        query=described, step=0.1, weight_step=0.1, iterations=4,
        losses=jmm.GroupLosses(bound=1.0, sizes=sizes, times=4))
    report = jmm.check(problem, Saddle(jnp.zeros(DIM), ()), data, made, jmm.group_sgd,
                       measure=False)
    assert report.records["number"] == N


@pytest.mark.slow
def test_noise_for_numbers_that_a_release_has_not_is_pointed_out():
    def report(z, **kwargs):
        noisy = query(noise_multiplier=Saddle(z, z), **kwargs)
        return jmm.check(PROBLEM, START, (X, Y), jmm.sgda.Hyper(
            query=noisy, step=Saddle(0.1, 0.1), iterations=4), measure=False)

    actual = str(report(1e4))
    noisy, exact = (
        jmm.Repeat(query=query(noise_multiplier=Saddle(1e4, 1e4), **more), times=1)
        .effective_noise_multiplier("replace_one") for more in ({}, {"parameters": 6}))
    assert f"parameters=6 needs {100 * (1 - noisy / exact):.1f} % less noise" in actual
    assert 0.05 < 1 - noisy / exact < 0.5
    for none in (report(1e4, parameters=6), report(5.0)):
        assert "less noise" not in str(none)


@pytest.mark.parametrize("name", ["ftrl/tree", "group_oco", "balanced_groups", "phased_erm"])
def test_algorithms_whose_descriptions_are_no_query_are_checked(name):
    algorithm, made, problem, start, data = golden.CASES[name]
    report = jmm.check(problem, start, data, made, algorithm, measure=False)
    assert report.privacy["noise is set"]


# --- signs of public terms ---


P = jmm.problems
GAME = P.quadratic_game(modulus=1.0, coupling=0.5, radius=Saddle(2.0, 2.0))
ONES = Saddle(jnp.ones(3), jnp.ones(3))


def regularised(w, v):
    return GAME._replace(public=lambda z: Saddle(w * z.w, v * z.v))


def coupled(sign):
    """Terms that are bent in both players, as those of a GAN with a public generator."""
    def terms(z):
        return jnp.tanh(z.w.sum()) * jnp.cos(z.v).sum()

    return GAME._replace(public=lambda z: (lambda g: Saddle(g.w, sign * g.v))(jax.grad(terms)(z)))


@pytest.mark.slow
@pytest.mark.parametrize(("problem", "words"), [
    (GAME, []), (regularised(0.1, 0.2), []), (coupled(-1.0), []),
    (regularised(0.0, -0.2), ["drives v away"]),
    (regularised(-0.1, -0.2), ["drives w away", "drives v away"]),
    (coupled(1.0), ["One player's part"])])
def test_a_wrong_sign_of_a_player_is_named(problem, words):
    found = checkup.warnings_of_signs(problem, ONES)
    assert len(found) == len(words)
    assert all(word in text for word, text in zip(words, found, strict=True))


def public_terms():
    theta = jnp.zeros(3)
    shares = np.full((2, 2), 0.25)
    yield P.auc(P.linear_scorer, prior=0.3, radius=Saddle(5.0, 5.0)), P.auc_start(theta)
    for divergence in ("cvar", "chi_square"):
        yield (P.reweighted(P.squared_loss, divergence=divergence, level=0.5, radius=2.0,
                            bound=1.0), P.reweighted_start(theta, divergence))
    yield (P.partial_auc(P.linear_scorer, prior=0.3, max_fpr=0.3, penalty=0.1,
                        radius=Saddle(5.0, 5.0)),
           P.partial_auc_start(theta))
    yield (P.parity(P.linear_scorer, shares=shares.sum(0), weight=1.0),
           P.parity_start(theta, shares=shares.sum(0)))
    yield P.fermi(P.linear_scorer, shares=shares.sum(0), weight=1.0), P.fermi_start(
        theta, shares=shares.sum(0))
    bank = demo_gan.latents(jax.random.key(2), 8, 3)
    yield (demo_gan.wgan(lambda w, x: jnp.tanh(w @ x), lambda v, xi: v + xi, bank, limit=1.0),
           Saddle(jnp.ones(3), jnp.ones(3)))


@pytest.mark.nightly
def test_the_public_terms_of_the_library_have_no_warning():
    for problem, start in public_terms():
        assert checkup.warnings_of_signs(problem, start) == ()


def test_check_reports_it():
    query = jmm.Query(clip=Saddle(1.0, 1.0), population=10)
    hyper = jmm.sgda.Hyper(query=query, step=Saddle(0.1, 0.1), iterations=5)
    report = jmm.check(regularised(0.1, -0.1), ONES, (jnp.ones((10, 3)),) * 2, hyper,
                       measure=False)
    assert any("drives v away" in text for text in report.warnings)
