"""The benchmarks of rates: counted evaluations, fitted slopes, and what the theorems promise."""

import collections
import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxminimax as jmm
from benchmarks.common import evaluations
from benchmarks.examples import demo_games
from benchmarks.rates import __main__ as rates
from benchmarks.rates import cases as rate_cases
from benchmarks.rates import games as rate_games
from benchmarks.rates.cases import CASES
from jaxminimax import FixedSize, Full, Poisson, Query, Saddle, extragradient, proximal
from jaxminimax.mechanism import CyclicPoisson, Resolvent
from jaxminimax.releases import record_isolation

CLIP, QUIET = Saddle(9.0, 9.0), Saddle(0.0, 0.0)


def case(algorithm, variant, epsilon):
    return next(c for c in CASES if (c.algorithm, c.variant, c.epsilon) == (algorithm, variant,
                                                                            epsilon))


# --- counting ---


def run_of(name, sampling):
    query = Query(clip=CLIP, noise_multiplier=QUIET, sampling=sampling, population=12)
    if name == "proximal":
        one = Resolvent(bound=1.0, prox=3.0, lipschitz=1.0, diameter=9.0, noise_multiplier=0.0,
                        sampling=sampling, population=12, assumes="monotone")
        return proximal, proximal.Hyper(query=proximal.certified(one), iterations=2)
    module = getattr(jmm, name)
    return module, module.Hyper(query=query, iterations=3, step=Saddle(0.1, 0.1))


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "sampling"), [
    ("sgda", Full()), ("sgda", Poisson(rate=0.6)), ("extragradient", FixedSize(batch=4)),
    ("proximal", Full()), ("proximal", Poisson(rate=0.6))], ids=str)
def test_evaluations_are_those_that_happen(name, sampling, monkeypatch):
    """Against a count while the program runs."""
    seen = collections.Counter()
    # which refuses callbacks
    monkeypatch.setattr(record_isolation, "_check_equations", lambda equations: None)

    def operator(z, x):
        jax.debug.callback(lambda _: seen.update(["once"]), jnp.sum(x))
        return Saddle(z.v + x, x - z.w)

    algorithm, hyper = run_of(name, sampling)
    start, data = Saddle(jnp.zeros(2), jnp.zeros(2)), jnp.zeros((12, 2))

    def program(key, data, problem):
        return jmm.run(key, start, data, hyper, algorithm, problem)[0]

    problem = jmm.Problem(operator)
    jax.block_until_ready(jax.jit(program, static_argnums=2)(jax.random.key(0), data, problem))
    jax.effects_barrier()
    counted = evaluations.count(lambda k, d: program(k, d, evaluations.marked(problem)),
                                jax.random.key(0), data)
    assert counted == seen["once"] > 0


@pytest.mark.nightly
def test_a_mapped_program_counts_every_run():
    algorithm, hyper = run_of("extragradient", Full())
    problem = evaluations.marked(jmm.Problem(lambda z, x: Saddle(z.v + x, x - z.w)))
    start = Saddle(jnp.zeros(()), jnp.zeros(()))  # scalars: shapes tell nothing

    def program(key):
        return jmm.run(key, start, jnp.zeros(12), hyper, algorithm, problem)[0]

    one = evaluations.count(program, jax.random.key(0))
    assert one == 3 * 2 * 12
    assert evaluations.count(jax.vmap(program), jax.random.split(jax.random.key(0), 5)) == 5 * one


@pytest.mark.parametrize(("sampling", "bands"), [
    (Full(), 1), (CyclicPoisson(rate=1.0, parts=4), 4)], ids=str)
def test_a_conditional_counts_once_and_an_output_without_use_counts(sampling, bands):
    """Sums have a program for each platform; only one player moves."""
    query = Query(clip=Saddle(1.0, None), noise_multiplier=Saddle(0.0, None), sampling=sampling,
                  population=12, bands=bands)
    hyper = jmm.sgda.Hyper(query=query, iterations=4, step=Saddle(0.1, 0.1))
    problem = evaluations.marked(jmm.Problem(lambda z, x: Saddle(z.w + x, jnp.zeros(()))))
    start = Saddle(jnp.zeros(3), jnp.zeros(()))
    counted = evaluations.count(lambda key: jmm.run(
        key, start, jnp.zeros((12, 3)), hyper, jmm.sgda, problem)[0], jax.random.key(0))
    assert counted == 4 * 12 // bands


def test_a_loop_of_unknown_length_is_refused():
    problem = evaluations.marked(jmm.Problem(lambda z, x: z))

    def program(z):
        return jax.lax.while_loop(lambda z: jnp.sum(z.w) < 1,
                                  lambda z: problem.operator(z, jnp.ones(())), z)

    with pytest.raises(ValueError, match="unknown length"):
        evaluations.count(program, Saddle(jnp.ones(2), ()))


@pytest.mark.nightly
@pytest.mark.parametrize("one", {  # of any epsilon; the loops of that one are counted elsewhere
    (c.algorithm, c.variant): c for c in CASES if c.algorithm != "recursive"}.values(),
                         ids=lambda c: c.name)
def test_counted_evaluations_are_those_of_the_theorem(one):
    n = one.quick[0]
    assert rates.counted(one.build(n)) == one.cost(n)


@pytest.mark.nightly
def test_costs_are_of_the_promised_order():
    """n for one pass, 2 T m for sampled extragradient, n^(3/2) log n for the proximal point."""
    for n in (1000, 8000):
        assert 0.9 * n <= case("extragradient", "one pass", 8.0).cost(n) <= n
        assert case("extragradient", "many passes", 8.0).cost(n) == 2 * n**2
        assert case("proximal", "one pass", 8.0).cost(n) <= 10 * n * np.log(n)
        assert case("proximal", "many passes", 8.0).cost(n) <= 10 * n**1.5 * np.log(n)


@pytest.mark.nightly
def test_the_excess_of_groups_around_a_point_is_that_of_the_sample():
    data = np.asarray(rate_cases.group_sample(20)(jax.random.key(0)), np.float64)
    means, spreads = data.mean(1), data.var(1).sum(1) / 2
    w, _, best = demo_games.group_means_optimum(means, spreads)
    np.testing.assert_allclose(w, 0, atol=1e-6)
    x = np.linspace(-0.3, 0.4, 10)
    worst = np.max(np.sum((x - means) ** 2, 1) / 2 + spreads)
    assert rate_cases.group_excess(Saddle(jnp.asarray(x), ())) == pytest.approx(worst - best,
                                                                                abs=1e-6)


# --- slopes ---


def test_the_slope_of_a_power_law_is_its_exponent_and_the_interval_covers():
    rng = np.random.default_rng(0)
    ns, inside = [100, 200, 400, 800], 0
    for _ in range(60):
        gaps = [n**-0.5 * rng.gamma(4.0, 0.25, size=48) for n in ns]
        actual, low, high = rates.slope(ns, gaps)
        assert low < actual < high
        inside += low <= -0.5 <= high
    assert inside >= 50
    actual, low, high = rates.slope(ns, [np.full(5, 3.0 / n) for n in ns])
    assert (actual, low, high) == pytest.approx((-1.0, -1.0, -1.0))


@pytest.mark.nightly
def test_the_gap_of_the_game_is_the_strong_gap():
    z = Saddle(jnp.array([0.3, -0.2, 0.5]), jnp.array([0.1, 0.4, -0.3]))
    a, b, c = rate_games._A, rate_games._B, rate_games._C
    w, v = np.asarray(z.w), np.asarray(z.v)
    exact = np.linalg.norm(a.T @ w - c) + b @ w + np.linalg.norm(a @ v + b) + c @ v
    np.testing.assert_allclose(rate_cases.game_gap(z), exact, rtol=1e-6)
    start = float(rate_cases.game_gap(rate_cases.START))
    assert start == pytest.approx(np.linalg.norm(b) + np.linalg.norm(c), rel=1e-6)


@pytest.mark.nightly
def test_weak_gaps_average_over_data_inside_and_coins_outside():
    one = dataclasses.replace(case("extragradient", "one pass", 8.0), measure="weak", coins=3)
    job = one.build(40)
    query = dataclasses.replace(job.hyper.query, noise_multiplier=QUIET)
    job = dataclasses.replace(job, hyper=dataclasses.replace(job.hyper, query=query))
    assert rates.measured(one, job, 40, 12).shape == (3,)
    weak = rates.measured(dataclasses.replace(one, coins=1), job, 40, 12)
    strong = rates.measured(dataclasses.replace(one, measure="strong"), job, 40, 12)
    assert (weak.shape, strong.shape) == ((1,), (12,))
    assert 0 < float(weak[0]) < strong.mean()  # the gap is convex, and the runs are the same


@pytest.mark.nightly
def test_the_command_writes_rows_points_and_a_plot(tmp_path, monkeypatch, capsys):
    quick = [dataclasses.replace(case("extragradient", "one pass", 8.0), quick=[100, 200, 400])]
    monkeypatch.setattr(rates, "CASES", quick)
    out, figure = tmp_path / "r.json", tmp_path / "r.png"
    assert rates.main(["--quick", "--seeds", "4", "--json", str(out), "--plot", str(figure)]) == 0
    made = json.loads(out.read_text())
    assert set(made["rows"][0]) >= {"algorithm", "problem", "measure", "slope", "slope_low",
                                    "slope_high", "theory", "evaluations"}
    assert [p["n"] for p in made["points"]] == [100, 200, 400]
    assert figure.stat().st_size > 10_000
    assert "extragradient" in capsys.readouterr().out
    assert all(p["evaluations"] == p["evaluations_theory"] for p in made["points"])
    monkeypatch.setattr(rates, "run", lambda *_: pytest.fail("measured again"))
    table = tmp_path / "r.md"
    assert rates.main(["--quick", "--seeds", "4", "--resume", "--json", str(out),
                       "--markdown", str(table)]) == 0
    assert "| extragradient | one pass |" in table.read_text()
    with pytest.raises(SystemExit):
        rates.main(["--quick", "--seeds", "5", "--resume", "--json", str(out)])


@pytest.mark.nightly
def test_the_private_run_is_calibrated():
    for one in (case("extragradient", "one pass", 8.0), case("proximal", "many passes", 0.2)):
        job = one.build(100)
        made = jmm.epsilon(job.algorithm.mechanism(job.hyper), rate_cases.DELTA)
        assert 0.99 * one.epsilon < made <= one.epsilon
    assert extragradient.mechanism(case("extragradient", "many passes", 8.0).build(50).hyper
                                   ).times == 2 * 50**2
