"""Recursive regularisation over other algorithms: what it equals, what it is charged, its bound."""

import dataclasses
import functools
import math
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxminimax as jmm
from jaxminimax import Problem, Query, Repeat, Saddle, recursive_inner
from jaxminimax.algorithms import recursive
from jaxminimax.mechanism import Resolvent
from tests.algorithms.test_recursive import GAME, ZERO, K, sample
from tests.helpers.lanes import rest_nightly

RUN = jax.jit(jmm.run, static_argnames=("algorithm", "problem", "observe"))
M, DATA = 6, sample(jax.random.key(3), 20)  # three parts, and two rows more than they hold
QUERY = Query(clip=Saddle(2.0, 2.0), noise_multiplier=Saddle(3.0, 3.0), joint=True, population=M)
STEPS = {"step": Saddle(*(jnp.asarray([0.2, 0.1, 0.05]),) * 2)}


def solved(parts=3, prox=4 * 0.25, **numbers):
    return recursive.certified(Resolvent(**{
        "bound": 2.0, "prox": prox, "lipschitz": 1.0, "diameter": math.sqrt(2),
        "noise_multiplier": 3.0, "population": M, "assumes": "monotone", "doubling": True,
        **numbers}), parts)


def hyper_of(inner, rounds=3, numbers=None, **phase):
    values = {jmm.gda: {"modulus": 1.0}, jmm.proximal: {}}.get(inner, {"step": Saddle(0.1, 0.1)})
    made = {"query": solved(rounds, 2.0) if inner is jmm.proximal else QUERY, "iterations": 2,
            **values, **phase}
    return recursive_inner.Hyper(phase=inner.Hyper(**made), base=0.25, inner=inner, rounds=rounds,
                                 numbers=numbers or {})


INNER = {"sgda": hyper_of(jmm.sgda), "gda": hyper_of(jmm.gda),
         "extragradient": hyper_of(jmm.extragradient, numbers=STEPS),
         "optimistic": hyper_of(jmm.optimistic, numbers=STEPS), "proximal": hyper_of(jmm.proximal)}
every_inner = pytest.mark.parametrize("name", rest_nightly(
    ["extragradient", "proximal", "sgda", "gda", "optimistic"], 2))


def quiet(hyper):
    return jmm.mechanism.composed.with_noise_of_all(hyper, 0.0)


def path(hyper, data=DATA, problem=GAME, key=0, algorithm=recursive_inner):
    """Iterates after every round, `[iterations, 2 K]`, and the last state."""
    state, seen = RUN(jax.random.key(key), ZERO, data, hyper, algorithm, problem,
                      lambda state: state.z)
    return np.concatenate(seen, 1), state


# --- what it equals ---


@pytest.mark.slow
def test_one_certified_solution_a_phase_is_recursive_itself():
    """The same releases of the same noise; the mean of one point alone is rounded once more."""
    query = solved()
    mine = recursive_inner.Hyper(phase=jmm.proximal.Hyper(query=query, iterations=1), base=0.25,
                                 inner=jmm.proximal, rounds=3)
    theirs = recursive.Hyper(query=query, iterations=3)
    assert recursive_inner.mechanism(mine) == recursive.mechanism(theirs)
    (one, end), (other, last) = path(mine), path(theirs, algorithm=recursive)
    np.testing.assert_allclose(one, other, rtol=0, atol=1e-14)
    for x, y in zip(end.average, last.average, strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-14)
    numbers = dict(population=4000, dim=10, bound=1.0, diameter=2.0, smooth=1.0, epsilon=1.0,
                   delta=1e-6)
    for more in ({}, {"rounds": 3, "public_bound": 1.0, "public_smooth": 0.5}):
        made = jmm.plan(recursive_inner, inner=jmm.proximal, **numbers, **more)
        plan = jmm.plan(recursive, **numbers, **more)
        assert made._replace(hyper=None) == plan._replace(hyper=None)
        assert recursive_inner.mechanism(made.hyper) == recursive.mechanism(plan.hyper)


@pytest.mark.slow
def test_decaying_descent_is_recursive_sgda():
    """Steps 1 / (mu_t (k + 1)) on the regularised problem, and the last iterate: up to rounding.

    In the first part all numbers of releases agree, so that the noise is the same; then the inner
    algorithm, whose average counts points that it released at, makes one release more.
    """
    rounds = 3
    weights = jnp.asarray([recursive.modulus(0.25, t) for t in range(1, rounds + 1)])
    last = jmm.averaging.Averaging(skip=1 - 0.5 / 5)
    theirs = jmm.recursive_sgda.Hyper(query=QUERY, base=0.25, diameter=math.sqrt(2), rounds=rounds,
                                      inner=5, decaying=True)
    for mute in (False, True):
        mine = hyper_of(jmm.gda, offset=1.0, iterations=5, averaging=last,
                        numbers={"modulus": weights})
        one, other = (path(quiet(x) if mute else x, algorithm=a)
                      for x, a in ((mine, recursive_inner), (theirs, jmm.recursive_sgda)))
        outs, expected = one[0][4::5], other[0][3::4]
        if not mute:
            np.testing.assert_allclose(one[0][:4], other[0][:4], atol=1e-5)
        else:
            for t in range(rounds):
                np.testing.assert_allclose(outs[t], expected[t], atol=1e-5)


@pytest.mark.slow
@every_inner
def test_phases_are_the_inner_algorithm_on_the_regularised_problem_of_a_part(name):
    """Without noise, by runs of the inner algorithm on slices of the data."""
    hyper = quiet(INNER[name])
    found = path(hyper)[1].average
    z, centre = ZERO, ZERO
    for t in (1, 2, 3):
        centre = recursive.recentred(centre, z, t)
        mu = recursive.modulus(0.25, t)
        part = jax.tree.map(lambda x, t=t: x[M * (t - 1): M * t], DATA)
        phase = dataclasses.replace(hyper.phase, **jax.tree.map(lambda x, t=t: x[t - 1],
                                                                hyper.numbers))
        if name == "proximal":  # prox 2 (2^t - 1) less mu_t, on the problem with mu_t
            plain = dataclasses.replace(
                phase.query, doubling=False, prox=2.0 * (2**t - 1) - mu, steps=None,
                lipschitz=1.0 + mu)
            phase = dataclasses.replace(phase, query=jmm.proximal.certified(plain))
        # numbers, since a certified solution takes no traced ones
        at = Saddle(*(np.asarray(x, np.float64) for x in centre))
        problem = GAME._replace(public=lambda z, mu=mu, at=at: Saddle(*(
            p + mu * (x - c) for p, x, c in zip(GAME.public(z), z, at, strict=True)))
            if GAME.public else Saddle(*(mu * (x - c) for x, c in zip(z, at, strict=True))))
        z = jmm.run(jax.random.key(0), z, part, phase, hyper.inner, problem)[0].average
    tolerance = 2e-2 if name == "proximal" else 2e-6  # certificates differ
    for one, other in zip(found, z, strict=True):
        np.testing.assert_allclose(one, other, atol=tolerance)


# --- what it is charged ---


@pytest.mark.slow
@every_inner
def test_one_phase_is_charged_and_no_more_releases_are_made(name):
    hyper = INNER[name]
    alone = hyper.inner.mechanism(hyper.phase)
    made = recursive_inner.mechanism(hyper)
    assert made == dataclasses.replace(alone, parts=3)
    assert made.releases() == 3 * alone.releases() == hyper.iterations * (
        2 if name == "extragradient" else 1)
    if name != "proximal":  # whose weights grow with the parts
        assert jmm.epsilon(made, 1e-6) == jmm.epsilon(alone, 1e-6) > 0
    louder = jmm.calibrate(recursive_inner, hyper, 1.0, 1e-6)
    assert 0.99 < jmm.epsilon(recursive_inner.mechanism(louder), 1e-6) <= 1.0
    with pytest.raises(ValueError, match=r"of the whole data only|replace_one"):
        jmm.epsilon(made, 1e-6, neighbours="add_or_remove_one")
    state = path(hyper)[1]
    assert int(state.spent) == made.releases()
    late = jax.jit(lambda state: recursive_inner.update(
        jax.random.key(0), state, DATA, hyper, GAME))(state)
    assert np.all(np.isnan(late.z.w))


@pytest.mark.slow
@every_inner
def test_a_record_is_read_in_its_part_alone(name):
    hyper = INNER[name]
    plain = path(hyper)[0]
    for part in (0, 1, 2):
        other = tuple(x.at[M * part + 2].set(-x[M * part + 2]) for x in DATA)
        found, first = path(hyper, other)[0], part * hyper.phase.iterations
        assert np.array_equal(plain[:first], found[:first])
        assert not np.array_equal(plain[first: first + 2], found[first: first + 2])
    assert np.array_equal(plain, path(hyper, tuple(x.at[18:].set(1e9) for x in DATA))[0])
    with pytest.raises(ValueError, match="3 parts of 6 records"):
        path(hyper, tuple(x[:17] for x in DATA))


def still(z, record):
    return jax.tree.map(lambda x: 0 * x, z)


FREE = Problem(operator=still)


@pytest.mark.slow
@pytest.mark.parametrize("name", rest_nightly(["extragradient", "sgda", "gda", "optimistic"], 2))
def test_every_release_has_the_noise_that_is_charged_and_none_has_that_of_another(name):
    """A problem of zeros: what moves z is noise alone, of deviation 2 * 3 / 6 on each coordinate.

    The weight lambda is next to nothing, so that no quadratic moves anything.
    """
    one = {"averaging": jmm.averaging.Averaging(skip=0.75)}  # the last point
    hyper = dataclasses.replace(hyper_of(INNER[name].inner, **one), base=1e-12)
    wide, keys = 400, jax.random.split(jax.random.key(7), 6)
    start = Saddle(jnp.zeros(wide), jnp.zeros(wide))
    data = jnp.zeros((18, 1))

    def moves(hyper):
        def of(key):
            _, seen = jmm.run(key, start, data, hyper, recursive_inner, FREE, lambda s: s.inner.z)
            return seen
        return np.concatenate(jax.jit(lambda keys: jax.lax.map(of, keys))(keys), 2)

    z = moves(hyper)  # [runs, rounds, 2 wide]
    first = z[:, ::2]  # after the first round of each phase
    starts = moves_started(hyper, start, data, keys)
    step = 1.0 if name == "gda" else 0.1  # its first step is 1 / modulus
    moved = (first - starts) / step
    assert np.std(moved) == pytest.approx(2.0 * 3.0 / M, rel=0.03)
    halved = moves(dataclasses.replace(hyper, phase=dataclasses.replace(
        hyper.phase, query=dataclasses.replace(QUERY, noise_multiplier=Saddle(1.5, 1.5)))))
    assert np.std(halved[:, 0] / step) == pytest.approx(2.0 * 1.5 / M, rel=0.05)
    # of two phases, of one run: as independent as any
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert abs(np.corrcoef(moved[0, a], moved[0, b])[0, 1]) < 0.2


def moves_started(hyper, start, data, keys):
    """Where the phases start, `[runs, phases, 2 wide]`."""
    def of(key):
        _, seen = jmm.run(key, start, data, hyper, recursive_inner, FREE, lambda s: s.average)
        return seen

    outs = np.concatenate(jax.jit(lambda keys: jax.lax.map(of, keys))(keys), 2)
    return np.concatenate([0 * outs[:, :1], outs[:, 1:-1:2]], 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sgda", "extragradient", "optimistic"])
def test_operators_of_records_are_clipped(name):
    """A record of norm 10^6 moves a step by C / m; the weight lambda is next to nothing here."""
    hyper = dataclasses.replace(quiet(INNER[name]), base=1e-9)
    problem = Problem(operator=lambda z, record: Saddle(record[0], record[1]))
    data = tuple(jnp.zeros((18, K)).at[0].set(1e6) for _ in "wv")
    z = path(hyper, data, problem)[0]
    reach = float(hyper.numbers["step"].w[0]) if hyper.numbers else 0.1
    assert np.linalg.norm(z[0]) == pytest.approx(reach * 2.0 / M, rel=1e-4)


@pytest.mark.slow
def test_a_certified_phase_has_the_noise_of_its_weight():
    """2 M z (1 + 2 rho) / (p_t m) / 2 in phase t, p_t = 2 (2^t - 1)."""
    hyper = hyper_of(jmm.proximal, iterations=1)
    free = Problem(operator=still)
    wide, data = 400, jnp.zeros((18, 1))
    start = Saddle(jnp.zeros(wide), jnp.zeros(wide))
    keys = jax.random.split(jax.random.key(5), 3)
    outs = np.concatenate(jax.jit(lambda keys: jax.lax.map(lambda key: jmm.run(
        key, start, data, hyper, recursive_inner, free, lambda s: s.average)[1], keys))(keys), 2)
    centre = np.zeros_like(outs[:, 0])
    for t in (1, 2, 3):
        before = outs[:, t - 2] if t > 1 else np.zeros_like(centre)
        centre = ((2 ** (t - 1) - 1) * centre + 2 ** (t - 1) * before) / (2**t - 1)
        around = 0.5 * centre + 0.5 * before  # 4 lambda / p = 1/2
        size = float(jmm.mechanism.resolvent.noise_unit(
            jmm.mechanism.resolvent.on_part(hyper.phase.query, t - 1))) * 3.0
        assert np.std(outs[:, t - 1] - around) == pytest.approx(size, rel=0.05)


def altered(update):
    """`optimistic`, with another `update`."""
    made = types.ModuleType("altered")
    for name in ("Hyper", "State", "mechanism", "example", "init"):
        setattr(made, name, getattr(jmm.optimistic, name))
    made.update = update
    return made


def hidden(key, state, data, hyper, problem):
    """With half of the noise."""
    half = dataclasses.replace(hyper, query=dataclasses.replace(
        hyper.query, noise_multiplier=jax.tree.map(lambda z: z / 2, hyper.query.noise_multiplier)))
    return jmm.optimistic.update(key, state, data, half, problem)


def lifted(key, state, data, hyper, problem):
    wide = dataclasses.replace(hyper, query=dataclasses.replace(
        hyper.query, clip=Saddle(20.0, 20.0)))
    return jmm.optimistic.update(key, state, data, wide, problem)


def twice(key, state, data, hyper, problem):
    """Makes a release of the number before once more, elsewhere."""
    new = jmm.optimistic.update(key, state, data, hyper, problem)
    g = jmm.release(key, jmm.optimistic.mechanism(hyper), state.spent, problem, new.z, data)
    return new._replace(memory=g)


def more(key, state, data, hyper, problem):
    """Makes one at another place, which nobody describes."""
    new = jmm.optimistic.update(key, state, data, hyper, problem)
    other = dataclasses.replace(jmm.optimistic.mechanism(hyper), place=1)
    return new._replace(memory=jmm.release(key, other, state.spent, problem, new.z, data))


def bare(key, state, data, hyper, problem):
    new = jmm.optimistic.update(key, state, data, hyper, problem)
    return new._replace(memory=jax.tree.map(lambda x: x + jnp.sum(data[0]), new.memory))


@pytest.mark.parametrize(("update", "message"), [
    (hidden, "other settings"), (lifted, "other settings"), (twice, "two releases"),
    (more, "at place 1"), (bare, "data past a release")])
def test_an_inner_algorithm_that_releases_what_is_not_charged_is_refused(update, message):
    inner = altered(update)
    hyper = dataclasses.replace(INNER["optimistic"], inner=inner)
    with pytest.raises(ValueError, match=message):
        jmm.run(jax.random.key(0), ZERO, DATA, hyper, recursive_inner, GAME)


@pytest.mark.nightly
def test_a_jit_inside_the_inner_algorithm_is_of_every_part():
    """It is traced once a round's program: its numbers come from the state, not from a cache."""
    inner = altered(functools.partial(jax.jit, static_argnames=("problem",))(
        jmm.optimistic.update))
    # a public term that closes over traced numbers cannot be static, so this one reads none
    inner.update = lambda key, state, data, hyper, problem: compiled(key, state, data, hyper)

    @jax.jit
    def compiled(key, state, data, hyper):
        return jmm.optimistic.update(key, state, data, hyper, GAME)

    compiled_alone = jmm.run(jax.random.key(0), ZERO, tuple(x[:M] for x in DATA),
                             INNER["optimistic"].phase, inner, GAME)[0]
    assert int(compiled_alone.spent) == 2  # traced before, for all of the data
    hyper = dataclasses.replace(INNER["optimistic"], inner=inner, numbers={})
    assert np.all(np.isfinite(path(hyper)[0]))
    for part in (0, 1, 2):
        other = tuple(x.at[M * part + 2].set(-x[M * part + 2]) for x in DATA)
        one, two, first = path(hyper)[0], path(hyper, other)[0], 2 * part
        assert np.array_equal(one[:first], two[:first])
        assert not np.array_equal(one[first], two[first])


@pytest.mark.parametrize("name", ["ftrl", "group_oco", "group_sgd", "active_groups",
                                  "balanced_groups", "phased_erm", "recursive", "recursive_sgda"])
def test_an_algorithm_that_does_not_repeat_one_release_of_all_data_is_refused(name):
    from tests import golden

    algorithm, phase, *_ = next(case for label, case in golden.CASES.items()
                                if label.split("/")[0] == name) if name != "recursive" else (
        recursive, recursive.Hyper(query=solved(2), iterations=2))
    hyper = recursive_inner.Hyper(phase=phase, base=0.1, inner=algorithm, rounds=2)
    with pytest.raises(ValueError, match=f"inner must repeat one release.*{name} describes a"):
        recursive_inner.mechanism(hyper)
    with pytest.raises(ValueError, match=f"inner={name} has no proven error"):
        jmm.plan(recursive_inner, inner=algorithm, population=100, dim=2, bound=1.0, diameter=1.0,
                 smooth=1.0, epsilon=1.0, delta=1e-6)


@pytest.mark.parametrize(("change", "message"), [
    (dict(rounds=0), "rounds must be"),
    (dict(base=-1.0), "base must lie in"),
    (dict(numbers={"query": QUERY}), "numbers may change fields of optimistic.Hyper but query"),
    (dict(numbers={"stride": jnp.ones(3)}), "got stride"),
    (dict(numbers={"step": Saddle(jnp.ones(2), jnp.ones(3))}), "numbers must have 3 entries"),
])
def test_settings_that_do_not_fit_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        recursive_inner.init(ZERO, dataclasses.replace(INNER["optimistic"], **change))


def test_certified_solutions_need_their_own_growing_weight():
    plain = jmm.proximal.certified(dataclasses.replace(solved(), doubling=False, steps=None))
    for query, message in ((plain, "doubling must be True"),
                           (solved(prox=0.9), "prox must lie in")):
        hyper = hyper_of(jmm.proximal, query=query)
        with pytest.raises(ValueError, match=message):
            recursive_inner.init(ZERO, hyper)


# --- its bound ---


NUMBERS = dict(dim=2 * K, bound=math.sqrt(0.5) + math.sqrt(0.98), diameter=math.sqrt(2), smooth=1.0,
               epsilon=1.0, delta=1e-6)


@pytest.mark.parametrize("inner", [jmm.extragradient, jmm.optimistic])
def test_the_error_and_the_step_are_those_of_its_formula(inner):
    known = recursive_inner.KNOWN[inner]
    rounds, smooth, mu, start, variance = 50, 2.0, 0.3, 0.7, 0.04
    error, step = known.error_and_step(smooth, variance, rounds, mu, start)
    c, cap, averaged = {jmm.extragradient: (1.25, 3**-0.5, 50),
                        jmm.optimistic: (2.0, 0.25, 49)}[inner]

    def of(eta):
        return math.sqrt((start**2 / (2 * eta * averaged) + c * eta * variance) / mu)

    grid = np.exp(np.linspace(-12, math.log(cap / smooth), 4001))
    assert error == pytest.approx(of(step)) == pytest.approx(min(map(of, grid)), rel=1e-5)
    assert step <= cap / smooth * (1 + 1e-12)
    assert known.error_and_step(smooth, 0.0, rounds, mu, start)[1] == pytest.approx(cap / smooth)


@pytest.mark.nightly
@pytest.mark.parametrize("inner", [jmm.extragradient, jmm.optimistic])
def test_a_phase_is_as_near_its_solution_as_the_theorem_says(inner):
    """On a game that turns: the root of the mean square distance, over 60 draws of the noise."""
    n = 400
    made = jmm.plan(recursive_inner, inner=inner, population=n, rounds=1, iterations=300, **NUMBERS)
    hyper, data = made.hyper, sample(jax.random.key(1), n)
    mu = recursive.modulus(float(hyper.base), 1)
    start = Saddle(jnp.full(K, 0.2), jnp.full(K, -0.2))
    keys = jax.random.split(jax.random.key(2), 60)
    z = np.concatenate(jax.jit(lambda keys: jax.lax.map(lambda key: jmm.run(
        key, start, data, hyper, recursive_inner, GAME)[0].average, keys))(keys), 1)
    a, b = (np.asarray(x, float).mean(0) for x in data)
    # v + a + mu (w - c) = 0 and -w + b + mu (v - c) = 0, inside the set
    matrix = np.block([[mu * np.eye(K), np.eye(K)], [-np.eye(K), mu * np.eye(K)]])
    u = np.linalg.solve(matrix, mu * np.concatenate(start) - np.concatenate([a, b]))
    if max(np.linalg.norm(u[:K]), np.linalg.norm(u[K:])) > 0.5:
        exact = dataclasses.replace(quiet(hyper), phase=dataclasses.replace(
            quiet(hyper).phase, iterations=3000), numbers={"step": jax.tree.map(
                lambda x: x * 0 + 0.2 / (1 + mu), hyper.numbers["step"])})
        u = np.concatenate(jmm.run(jax.random.key(0), start, data, exact, recursive_inner,
                                   GAME)[0].average)
    measured = math.sqrt(np.mean(np.sum((z - u) ** 2, 1)))
    noise = NUMBERS["bound"] * float(hyper.phase.query.noise_multiplier.w) / n
    error, _ = recursive_inner.KNOWN[inner].error_and_step(
        1.0 + mu, 2 * K * noise**2, 300, mu, float(np.linalg.norm(np.concatenate(start) - u)))
    assert 0.1 * error < measured < error


@pytest.mark.nightly
@pytest.mark.parametrize("inner", [jmm.extragradient, jmm.optimistic])
def test_a_plan_keeps_its_guarantee(inner):
    """The mean strong gap on the population is below the bound, for phases of two counts."""
    n = 4096
    for rounds in (1, 2):
        made = jmm.plan(recursive_inner, inner=inner, population=n, iterations=300, rounds=rounds,
                        **NUMBERS)
        assert made.guarantee < made.trivial
        keys = jax.random.split(jax.random.key(rounds), 8)

        def output(key, hyper=made.hyper):
            own, draw = jax.random.split(key)
            return jmm.run(own, ZERO, sample(draw, n), hyper, recursive_inner, GAME)[0].average

        w, v = map(np.asarray, jax.jit(lambda keys: jax.lax.map(output, keys))(keys))
        a, b = 0.2 * np.eye(K)[0], 0.2 * np.eye(K)[1]
        gaps = (w @ a + v @ b + 0.5 * np.linalg.norm(v + a, axis=1)
                + 0.5 * np.linalg.norm(w - b, axis=1))
        assert np.mean(gaps) + 2 * np.std(gaps) / math.sqrt(8) < made.guarantee


def test_phases_of_a_black_box_pay_less_than_their_gap_would():
    """e^2 = A^2 / (2 eta S mu) + .. here; by 2 a / mu, of the gap's bound, it is larger."""
    known = recursive_inner.KNOWN[jmm.optimistic]
    error, step = known.error_and_step(1.3, 0.01, 200, 0.3, 0.5)
    gap = jmm.algorithms.bounds.average_gap(step=step, rounds=199, second=4 * 0.01, variance=0.01,
                                            diameter=1.0, radius=0.5)
    assert error < math.sqrt(2 * gap / 0.3)


def test_there_is_one_description_for_all_phases():
    hyper = INNER["optimistic"]
    assert isinstance(recursive_inner.mechanism(hyper), Repeat)
    assert hyper.iterations == 6
