"""Plans: settings from public numbers that meet their target, and say what they promise."""

import dataclasses
import inspect
import math
import types
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxminimax as jmm
from jaxminimax import Problem, Saddle
from jaxminimax.algorithms import ALGORITHMS, planning
from jaxminimax.algorithms.planning import Plan
from jaxminimax.mechanism import CorrelatedSums, TreeSums, sums_for
from tests.algorithms.test_plan_rates import PLANS
from tests.helpers.lanes import rest_nightly

TARGET = dict(epsilon=1.0, delta=1e-6)
NUMBERS = dict(dim=4, bound=2.0, diameter=3.0)
SMOOTH = dict(NUMBERS, smooth=1.0)
TASK = jmm.problems.group_means(radius=1.0, record_bound=1.0)
GROUPS = dict(problem=TASK, sizes=(400, 300), dim=4)

CASES = [
    (jmm.sgda, dict(population=60, dim=4, bound=2.0, smooth=1.0)),
    (jmm.sgda, dict(population=8, dim=4, bound=2.0)),
    (jmm.sgda, dict(population=400, passes="one", **NUMBERS)),
    (jmm.gda, dict(population=200, bound=2.0, smooth=1.0, modulus=0.5)),
    (jmm.extragradient, dict(population=400, **SMOOTH)),
    (jmm.extragradient, dict(population=8, passes="many", **SMOOTH)),
    (jmm.extragradient, dict(population=20, passes="full", **SMOOTH)),
    (jmm.optimistic, dict(population=400, **SMOOTH)),
    (jmm.optimistic, dict(population=400, game="strongly_monotone", **SMOOTH)),
    (jmm.optimistic, dict(population=4000, proved=True, **SMOOTH)),
    (jmm.proximal, dict(population=400, **SMOOTH)),
    (jmm.proximal, dict(population=50, passes="many", **SMOOTH)),
    (jmm.recursive, dict(population=4000, **SMOOTH)),
    (jmm.recursive_sgda, dict(population=400, inner=20, **NUMBERS)),
    (jmm.recursive_inner, dict(inner=jmm.optimistic, iterations=50, population=400, **SMOOTH)),
    (jmm.phased_erm, GROUPS),
    (jmm.group_oco, GROUPS),
    (jmm.group_sgd, dict(iterations=20, **GROUPS)),
    (jmm.active_groups, dict(iterations=20, **GROUPS)),
    (jmm.ftrl, dict(population=400, **NUMBERS)),
]
# of other plans the first of their rows on rates
CASES += [(ALGORITHMS[name], row.numbers(row.ns[0])) for name, row in {
    row.name.split(",")[0]: row for row in reversed(PLANS)}.items()
    if ALGORITHMS[name] not in {algorithm for algorithm, _ in CASES}]


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "numbers"), CASES, ids=[
    f"{a.__name__.split('.')[-1]}-{n.get('passes', '')}" for a, n in CASES])
def test_a_plan_meets_its_target_and_names_its_theorem(algorithm, numbers):
    made = jmm.plan(algorithm, **TARGET, **numbers)
    assert isinstance(made, Plan)
    assert isinstance(made.hyper, algorithm.Hyper)
    assert 0.99 < jmm.epsilon(algorithm.mechanism(made.hyper), 1e-6) <= 1.0
    assert made.guarantee is None or 0 < made.guarantee < math.inf
    assert not (made.vacuous and made.guarantee is None)
    assert made.why
    assert all(sentence.endswith(".") for sentence in made.why)


def test_every_plan_has_a_case_and_an_algorithm_without_a_plan_is_refused():
    planned = {name for name, module in ALGORITHMS.items() if hasattr(module, "plan")}
    assert planned == {algorithm.__name__.split(".")[-1] for algorithm, _ in CASES}
    with pytest.raises(ValueError, match="balanced_groups has no plan"):
        jmm.plan(jmm.balanced_groups, **TARGET)
    with pytest.raises(TypeError, match="algorithm"):
        jmm.plan(types.ModuleType("mine"), **TARGET)


def test_more_records_make_a_promise():
    """Of one pass and of a stream, whose bounds have all constants."""
    for algorithm, more in ((jmm.sgda, {"passes": "one"}), (jmm.ftrl, {})):
        few, many = (jmm.plan(algorithm, **TARGET, population=n, **NUMBERS, **more)
                     for n in (20, 10**6))
        assert few.vacuous
        assert not many.vacuous
        assert many.guarantee < NUMBERS["bound"] * NUMBERS["diameter"] <= few.guarantee


@pytest.mark.parametrize("algorithm", [jmm.recursive, jmm.recursive_sgda, jmm.ftrl, jmm.sgda])
def test_without_a_target_there_is_no_noise(algorithm):
    more = {jmm.recursive: {"smooth": 1.0}, jmm.sgda: {"passes": "one"}}.get(algorithm, {})
    made = jmm.plan(algorithm, epsilon=None, delta=1e-6, population=400, **NUMBERS, **more)
    assert jmm.epsilon(algorithm.mechanism(made.hyper), 1e-6) == math.inf


@pytest.mark.parametrize(("algorithm", "numbers", "message"), [
    (jmm.proximal, dict(population=9), "missing a required argument: 'dim'"),
    (jmm.proximal, dict(population=9, prox=1.0, **SMOOTH), "unexpected keyword argument 'prox'"),
    (jmm.proximal, dict(population=9, passes="two", **SMOOTH), "passes must be one of one, many"),
    (jmm.sgda, dict(population=9, passes="one", dim=4, bound=2.0), "diameter must be a number"),
    (jmm.sgda, dict(population=9, batch=3, dim=4, bound=2.0), "batch is for passes='one'"),
    (jmm.gda, dict(population=9, bound=2.0, smooth=1.0, modulus=0.0), "modulus must lie in"),
])
def test_numbers_that_are_missing_or_wrong_are_named(algorithm, numbers, message):
    with pytest.raises(ValueError, match=message):
        jmm.plan(algorithm, **TARGET, **numbers)


# --- what every plan with a number keeps ---

UNIT = dict(dim=10, bound=1.0, diameter=math.sqrt(8))
STEEP = dict(UNIT, smooth=1.0)
NUMBERED = {
    "sgda": (jmm.sgda, STEEP), "sgda, not smooth": (jmm.sgda, UNIT),
    "sgda, one": (jmm.sgda, dict(UNIT, passes="one")),
    "gda": (jmm.gda, dict(STEEP, modulus=0.5)),
    "extragradient": (jmm.extragradient, STEEP), "proximal": (jmm.proximal, STEEP),
    "recursive": (jmm.recursive, STEEP), "recursive_sgda": (jmm.recursive_sgda, UNIT),
    "recursive_inner": (jmm.recursive_inner, dict(STEEP, inner=jmm.extragradient)),
    "optimistic": (jmm.optimistic, dict(STEEP, proved=True)),
    "optimistic, bilinear": (jmm.optimistic, dict(STEEP, proved=True, records=(1.0, 0.5))),
    "ftrl": (jmm.ftrl, UNIT), "group_oco": (jmm.group_oco, {}), "group_sgd": (jmm.group_sgd, {}),
    "active_groups": (jmm.active_groups, {})}
SMALL = {"sgda, not smooth"}  # n^2 rounds
# their releases are private for replaced records alone
REPLACED = {"sgda, one", "extragradient", "proximal", "ftrl", "group_oco", "group_sgd",
            "active_groups"}


def of_population(name, n, **more):
    algorithm, numbers = NUMBERED[name]
    if numbers:
        return jmm.plan(algorithm, **{**TARGET, "population": n, **numbers, **more})
    if algorithm is jmm.group_oco:
        more = {"iterations": n // 4, **more}  # more have no number
    return jmm.plan(algorithm, **{**TARGET, "problem": TASK, "sizes": (n // 2, n // 2), "dim": 10,
                                  **more})


every_number = pytest.mark.parametrize("name", NUMBERED)


def test_every_plan_with_a_number_is_listed_and_the_others_are_rates():
    for algorithm, numbers in CASES:
        if algorithm in (jmm.recursive_sgda, jmm.proximal) and "passes" not in numbers:
            continue
        if (algorithm, numbers.get("passes")) in {
                (jmm.extragradient, "many"), (jmm.extragradient, "full"), (jmm.proximal, "many"),
                (jmm.phased_erm, None)}:
            assert jmm.plan(algorithm, **TARGET, **numbers).guarantee is None
        else:
            assert algorithm in {a for a, _ in NUMBERED.values()}


@pytest.mark.slow
@every_number
def test_a_guarantee_falls_with_records_and_rises_with_the_noise_of_the_run(name):
    few, many = (200, 800) if name in SMALL else (2000, 16_000)
    made = [of_population(name, n) for n in (few, many)]
    assert made[1].guarantee < made[0].guarantee
    assert made[0].gap in ("strong", "weak", "risk")
    assert made[0].on in ("population", "records")
    algorithm, numbers = NUMBERED[name]
    calibrated = []

    def louder(hyper):  # the run has twice the noise that the target asks for
        quiet = jmm.calibrate(algorithm, hyper, 1.0, 1e-6)
        calibrated.append(quiet)
        if hasattr(quiet, "phase"):
            return dataclasses.replace(quiet, phase=dataclasses.replace(
                quiet.phase, query=twice(quiet.phase.query)))
        losses = {"losses": dataclasses.replace(
            quiet.losses, noise_multiplier=2 * quiet.losses.noise_multiplier)} if hasattr(
                quiet, "losses") else {}
        return dataclasses.replace(quiet, query=twice(quiet.query), **losses)

    multiplier = 2 * planning.gaussian_multiplier(1.0, 1e-6)
    target = planning.Target(1.0, 1e-6, louder, lambda: multiplier)
    if numbers:
        loud = algorithm.plan(target, population=few, **numbers)
    else:
        rounds = few // 4 if algorithm is jmm.group_oco else None
        loud = algorithm.plan(target, problem=TASK, sizes=(few // 2,) * 2, dim=10,
                              iterations=rounds)
    assert calibrated
    assert 1.001 * made[0].guarantee < loud.guarantee < 4.5 * made[0].guarantee


def twice(query):
    """A description with twice the noise."""
    if hasattr(query, "parts"):
        return dataclasses.replace(query, parts=tuple(map(twice, query.parts)))
    return dataclasses.replace(query, noise_multiplier=jax.tree.map(
        lambda z: 2 * z, query.noise_multiplier))


@pytest.mark.slow
@every_number
def test_a_guarantee_is_for_the_relation_of_the_target(name):
    """A record that is added or removed moves a sum half as far as one that is replaced."""
    n = 200 if name in SMALL else 2000
    if name in REPLACED:
        with pytest.raises(ValueError, match=r"replace_one|replaced"):
            of_population(name, n, neighbours="add_or_remove_one")
        return
    assert of_population(name, n, neighbours="add_or_remove_one").guarantee < (
        of_population(name, n).guarantee)


@pytest.mark.slow
@every_number
def test_public_terms_raise_a_guarantee_but_no_noise_and_a_near_start_lowers_it(name):
    algorithm, _ = NUMBERED[name]
    known, n = inspect.signature(algorithm.plan).parameters, 200 if name in SMALL else 2000
    if "public_bound" not in known:
        assert "problem" in known
        return
    plain = of_population(name, n)
    steep = {"public_smooth": 1.0} if "public_smooth" in known else {}
    more = of_population(name, n, public_bound=2.0, **steep)
    assert more.trivial == pytest.approx(3 * math.sqrt(8))
    assert plain.trivial == pytest.approx(math.sqrt(8))
    # `extragradient` and `optimistic` pay for their steps' length alone, by `smooth`
    assert more.guarantee >= plain.guarantee * (1 if name.startswith("optimistic") else 1.001)
    assert clip_of(more) == clip_of(plain)
    assert of_population(name, n, radius=math.sqrt(2)).guarantee < plain.guarantee
    for wrong, message in ((dict(public_bound=-1.0), "public_bound must lie in"),
                           (dict(radius=3.0), "radius must lie in")):
        with pytest.raises(ValueError, match=message):
            of_population(name, n, **wrong)


def clip_of(plan):
    query = getattr(plan.hyper, "phase", plan.hyper).query
    return query.bound if hasattr(query, "bound") else query.clip


def test_public_terms_are_not_paid_for_with_noise():
    """Records of norm .05 and a public coupling of 1 on two balls: as one M it was 1.005."""
    numbers = dict(TARGET, population=2000, dim=6, bound=0.05, public_bound=math.sqrt(2),
                   diameter=math.sqrt(8))
    steep = dict(smooth=1e-3, public_smooth=1.0)
    expected = {"sgda": (0.160, 0.090), "extragradient": (0.090, 0.040),
                "proximal": (0.055, 0.030), "recursive": (0.143, 0.072), "ftrl": (0.297, 0.149)}
    for name, values in expected.items():
        more = {"sgda": dict(passes="one"), "ftrl": {}}.get(name, steep)
        if name == "proximal":
            more = more | dict(smooth_difference=0.0)
        if name == "recursive":
            more = more | dict(rounds="bound_optimal")
        for radius, value in zip((None, math.sqrt(2)), values, strict=True):
            made = jmm.plan(ALGORITHMS[name], **numbers, **more, radius=radius)
            assert made.guarantee == pytest.approx(value, abs=6e-4)
            assert made.trivial == pytest.approx((0.05 + math.sqrt(2)) * math.sqrt(8))


# --- a game whose public term is larger than its records ---


def ball(x):
    return x / jnp.maximum(1.0, jnp.linalg.norm(x))


def linear(z, record):
    return Saddle(*(x.astype(y.dtype) for x, y in zip(record, z, strict=True)))


def coupled(c):
    return Problem(operator=linear, public=lambda z: Saddle(c * z.v, -c * z.w),
                   project=lambda z: Saddle(ball(z.w), ball(z.v)))


def measured(algorithm, made, n, mean, c=1.0, runs=20):
    """Exact strong gaps on the population of <a, w> + c <w, v> - <b, v>, and the last states."""
    size, problem = float(made.trivial / math.sqrt(8) - c * math.sqrt(2)), coupled(c)

    def one(key):
        draw, own, start = jax.random.split(key, 3)
        x = jnp.sign(jax.random.normal(draw, (n, 6))) * 0.4 * size / math.sqrt(6) + mean[None]
        z = jax.random.normal(start, (2, 3))
        z = z / jnp.linalg.norm(z, axis=1, keepdims=True)
        return jmm.run(own, Saddle(*z), (x[:, :3], x[:, 3:]), made.hyper, algorithm,
                       problem)[0].average

    w, v = (np.asarray(x, float) for x in jax.jit(lambda keys: jax.lax.map(one, keys))(
        jax.random.split(jax.random.key(3), runs)))
    a, b = mean[:3], mean[3:]
    return (w @ a + np.linalg.norm(c * w - b, axis=1) + v @ b + np.linalg.norm(c * v + a, axis=1))


@pytest.mark.slow
@pytest.mark.parametrize("name", rest_nightly([
    "extragradient", "recursive", "sgda", "ftrl", "proximal", "recursive_sgda"], 3))
def test_a_guarantee_holds_where_public_terms_are_larger_than_records(name):
    """Mean gap < guarantee, and that below a quarter of the trivial bound where it can be.

    With L for L_all in the gaps' Lipschitz step `recursive` printed .027 for a mean gap of .071,
    and `sgda` with L alone in its second moment .030 for .044.
    """
    n, more = 2000, {"sgda": dict(passes="one"), "ftrl": {}, "recursive_sgda": {}}.get(
        name, dict(smooth=1e-3, public_smooth=1.0))
    if name == "recursive":
        more = more | dict(solver=jmm.solvers.near_linear)
    made = jmm.plan(ALGORITHMS[name], **TARGET, population=n, dim=6, bound=0.05,
                    public_bound=math.sqrt(2), diameter=math.sqrt(8), problem=coupled(1.0), **more)
    mean = np.zeros(6)
    mean[[0, 3]] = 0.6 * 0.05 / math.sqrt(2)
    found = measured(ALGORITHMS[name], made, n, mean)
    assert np.all(np.isfinite(found))
    assert found.mean() < made.guarantee < made.trivial * (1 if name == "recursive_sgda" else 0.25)
    assert found.max() < 1.5 * made.guarantee
    if name == "sgda":  # where the public term decides
        assert found.mean() > 0.25 * made.guarantee


@pytest.mark.slow
def test_a_plan_for_no_public_terms_is_named_where_the_problem_has_some():
    numbers = dict(TARGET, population=200, dim=6, bound=0.5, diameter=math.sqrt(8), smooth=1.0)
    problem = coupled(1.0)
    data = tuple(jnp.zeros((200, 3)) for _ in range(2))
    start = Saddle(jnp.zeros(3), jnp.zeros(3))
    for algorithm in (jmm.extragradient, jmm.proximal):
        with pytest.raises(ValueError, match="public_bound is missing"):
            jmm.plan(algorithm, **numbers, problem=problem)
        assert jmm.plan(algorithm, **numbers, problem=problem._replace(public=None)).guarantee > 0
        without = jmm.plan(algorithm, **numbers).hyper
        known = jmm.plan(algorithm, **numbers, problem=problem, public_bound=math.sqrt(2),
                         public_smooth=1.0).hyper
        for hyper, named in ((without, True), (known, False)):
            report = jmm.check(problem, start, data, hyper, algorithm, measure=False)
            assert any("public terms" in text for text in report.warnings) == named
            assert not jmm.check(problem._replace(public=None), start, data, hyper, algorithm,
                                 measure=False).warnings
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                jmm.fit(jax.random.key(0), start, data, hyper, algorithm, problem, delta=1e-6,
                        progress=False)
            assert any("public terms" in str(text.message) for text in said) == named


@pytest.mark.slow
def test_certificates_hold_with_the_constants_as_documented():
    """`smooth` of the records, `public_smooth` of the public term: nothing is NaN."""
    numbers = dict(TARGET, population=200, dim=6, bound=0.05, diameter=math.sqrt(8), smooth=1e-3,
                   public_bound=math.sqrt(2), public_smooth=1.0)
    data = tuple(0.05 * jnp.ones((200, 3)) / math.sqrt(6) for _ in range(2))
    for algorithm in (jmm.proximal, jmm.recursive):
        made = jmm.plan(algorithm, **numbers)
        state, _ = jmm.run(jax.random.key(0), Saddle(jnp.ones(3) / 2, jnp.ones(3) / 2), data,
                           made.hyper, algorithm, coupled(1.0))
        assert all(bool(jnp.all(jnp.isfinite(x))) for x in jax.tree.leaves(state.average))


# --- defaults over a grid ---

GRID = [(n, dim, epsilon, delta) for n in (1000, 16_000, 128_000) for dim in (3, 10, 1000)
        for epsilon in (0.5, 4.0, 10.0) for delta in (1e-5, 1e-8)]


def on_grid(name, n, dim, epsilon, delta):
    if NUMBERED[name][1]:
        return of_population(name, n, dim=dim, epsilon=epsilon, delta=delta)
    return of_population(name, n, dim=dim, epsilon=epsilon, delta=delta)


@pytest.mark.nightly
@every_number
def test_default_plans_are_made_and_meet_their_target_over_a_grid(name):
    """For any public numbers, within half a per cent; and more records never raise the bound."""
    sizes = (100, 400) if name in SMALL else (1000, 16_000, 128_000)
    if name == "recursive_sgda":
        sizes = sizes[:2]
    algorithm, _ = NUMBERED[name]
    for dim, epsilon, delta in {(d, e, x) for _, d, e, x in GRID}:
        made = [on_grid(name, n, dim, epsilon, delta) for n in sizes]
        for plan in made:
            assert 0.995 * epsilon <= jmm.epsilon(algorithm.mechanism(plan.hyper), delta) <= epsilon
        assert [x.guarantee for x in made] == sorted((x.guarantee for x in made), reverse=True)


def test_streams_are_charged_for_the_numbers_that_they_have():
    """With 2^20 numbers charged, three in twenty of these plans were refused."""
    for n in (20_000, 100_000):
        for epsilon in (1.0, 4.0, 9.0, 10.0):
            query = jmm.plan(jmm.ftrl, population=n, dim=10, bound=1.0, diameter=2.0,
                             epsilon=epsilon, delta=1e-5).hyper.query
            assert query.parameters == 10
            assert 0.995 * epsilon <= jmm.epsilon(query, 1e-5) <= epsilon
    for leaves, kind in ((1000, CorrelatedSums), (2**18, TreeSums)):
        assert sums_for(1.0, leaves, parameters=10).parameters == 10
        assert isinstance(sums_for(1.0, leaves), kind)
        assert sums_for(1.0, leaves).parameters == 2**20


@pytest.mark.slow
def test_a_stream_of_larger_points_than_planned_is_refused():
    made = jmm.plan(jmm.ftrl, population=20, dim=10, bound=1.0, diameter=2.0, **TARGET)
    data = tuple(jnp.zeros((20, k)) for k in (8, 3))
    problem = Problem(operator=linear)
    for sizes, refused in (((8, 2), False), ((4, 3), False), ((8, 3), True)):
        data = tuple(jnp.zeros((20, k)) for k in sizes)
        start = Saddle(*(jnp.zeros(k) for k in sizes))
        if refused:
            with pytest.raises(ValueError, match="parameters"):
                jmm.run(jax.random.key(0), start, data, made.hyper, jmm.ftrl, problem)
        else:
            jmm.run(jax.random.key(0), start, data, made.hyper, jmm.ftrl, problem)


# --- numbers of single plans ---


def test_many_passes_take_the_step_of_the_smallest_number():
    numbers = dict(TARGET, population=1000, radius=math.sqrt(2), **STEEP)
    best, paper = jmm.plan(jmm.sgda, **numbers), jmm.plan(jmm.sgda, mode="paper", **numbers)
    assert (best.gap, best.on) == (paper.gap, paper.on) == ("weak", "population")
    assert paper.hyper.step == jmm.sgda.theorem2_step(population=1000, dim=10, smooth=1.0,
                                                      epsilon=1.0, delta=1e-6)
    assert best.guarantee < 0.9 * paper.guarantee
    assert best.hyper.step.w < paper.hyper.step.w
    assert best.hyper.query == paper.hyper.query
    rate = jmm.plan(jmm.sgda, **{**numbers, "diameter": None, "radius": None})
    assert rate.guarantee is None
    assert rate.hyper == paper.hyper
    with pytest.raises(ValueError, match="mode must be one of tight, paper"):
        jmm.plan(jmm.sgda, mode="best", **numbers)


def test_bilinear_games_have_a_number_on_the_population():
    numbers = dict(TARGET, population=30_000, proved=True, **STEEP)
    own, there = (jmm.plan(jmm.optimistic, **numbers, **more)
                  for more in ({}, dict(records=(1.0, 0.5))))
    assert (own.on, there.on) == ("records", "population")
    assert there.guarantee - own.guarantee == pytest.approx(
        math.sqrt(8) * (1 + 0.5 * math.sqrt(8)) / math.sqrt(30_000))
    assert there.hyper == own.hyper


@pytest.mark.slow
def test_group_plans_have_no_number_where_their_conditions_fail():
    rough = TASK._replace(convex=False)
    sized = dict(TARGET, sizes=(400, 300), dim=4)
    for algorithm in (jmm.group_oco, jmm.group_sgd, jmm.active_groups):
        made = jmm.plan(algorithm, problem=TASK, iterations=150, **sized)
        assert made.guarantee > 0
        assert made.gap == "risk"
        assert jmm.plan(algorithm, problem=rough, iterations=150, **sized).guarantee is None
    for more in (dict(loss_bound=0.5, iterations=150),  # it would be the risk of clipped losses
                 dict(iterations=151), {}):  # 150 pairs are in the smaller group
        assert jmm.plan(jmm.group_oco, problem=TASK, **sized, **more).guarantee is None


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [jmm.group_oco, jmm.group_sgd, jmm.active_groups])
def test_one_group_has_the_regret_of_its_model_alone(algorithm):
    """Its weight stays 1, whatever the noise of its losses is."""
    made = jmm.plan(algorithm, **TARGET, problem=TASK, sizes=(400,), dim=4, iterations=100)
    model = (jmm.ftrl.regret_bound(made.hyper.query.parts[0], step=made.hyper.step, dim=4,
                                   diameter=TASK.diameter) if algorithm is jmm.group_oco else
             jmm.group_sgd.model_regret(made.hyper, dim=4, diameter=TASK.diameter))
    least = made.guarantee - model
    assert least == 0 if algorithm is not jmm.group_sgd else least > 0


@pytest.mark.parametrize("records", [(1.0,), (1.0, 1.0, 1.0), 1.0, (1.0, math.nan),
                                     (math.inf, 1.0), (-1.0, 1.0), (True, 1.0), "11"])
def test_bilinear_games_take_two_bounds_of_a_record(records):
    numbers = dict(TARGET, population=300, proved=True, **STEEP)
    with pytest.raises(ValueError, match="records"):
        jmm.plan(jmm.optimistic, **numbers, records=records)
    assert jmm.plan(jmm.optimistic, **numbers, records=(0, 1)).guarantee > 0  # 0 at the start


def test_descent_takes_the_steps_of_its_theorem():
    """2 / (rho (t + phi + 1)), phi = (l / rho)^2 - 2, of l with the public terms."""
    made = jmm.plan(jmm.gda, **TARGET, population=200, bound=2.0, smooth=0.5, modulus=0.25,
                    public_smooth=0.5).hyper
    ones, at = Saddle(jnp.ones(2), jnp.ones(2)), jmm.gda.init(Saddle(jnp.zeros(2), jnp.zeros(2)),
                                                              made)
    for t in (1, 2, 10):
        change, _ = jmm.gda.rule(made, jnp.asarray(float(t)), ones, at)
        assert float(-change.w[0]) == pytest.approx(2 / (0.25 * (t + 14 + 1)))
    assert made.averaging == jmm.averaging.WEIGHTED


def test_rounds_and_batches_are_for_the_noise_of_the_relation():
    """K = 4 m^2 / (d z^2): a record that is added or removed halves z."""
    inner = [jmm.plan(jmm.recursive_sgda, **TARGET, **{**UNIT, "dim": 4000}, population=4000,
                      neighbours=relation).hyper.inner
             for relation in ("replace_one", "add_or_remove_one")]
    assert inner[1] == pytest.approx(4 * inner[0], rel=0.05)
