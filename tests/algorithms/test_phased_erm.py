"""Phased risk minimisation: what it reads, releases and refuses, what its noise rests on."""

import dataclasses
import functools
import math

import dp_accounting as dpa
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxminimax as jmm
from jaxminimax import Saddle, mechanism, phased_erm, problems
from jaxminimax.mechanism import GroupSolution
from jaxminimax.releases.solutions import release_group_solution
from jaxminimax.solvers import groups

RUN = jax.jit(jmm.run, static_argnames=("algorithm", "problem", "observe"))
BALL = problems.ball(1.0)
POINTS = problems.group_means(radius=1.0, record_bound=1.0)
REFERENCE = dict(sizes=(1024,) * 5, lipschitz=1.0, bound=1.0, diameter=1.0)
TARGET = dict(epsilon=1.0, delta=1e-6)


def path(state):
    return state.z.w


def describe(problem, sizes, phases, **change):
    numbers = dict(lipschitz=problem.lipschitz, bound=problem.bound, smooth=problem.smooth,
                   diameter=problem.diameter, reg_w=3.0, reg_lam=1.0, noise_multiplier=0.0,
                   sizes=sizes, phases=phases)
    return phased_erm.Hyper(query=phased_erm.certified(GroupSolution(**numbers | change)))


def released(hyper, data, problem, w, seed=0):
    """The points of a run, `[phases, d]`."""
    return np.asarray(RUN(jax.random.key(seed), Saddle(w, ()), data, hyper, phased_erm, problem,
                          path)[1])


# --- reference values ---


def theorem2_eta(sizes, dim, lipschitz, bound, diameter, epsilon, delta, smooth=None):
    """The step of Theorem 2 as printed, for the paper's noise."""
    total = sum(sizes)
    private = epsilon / math.sqrt(72 * dim * math.log(min(sizes)) * math.log(1 / delta))
    statistical = math.sqrt(len(sizes) / total) / math.log(total) ** 0.75
    return diameter / max(lipschitz, bound / diameter) * min(private, statistical)


@pytest.mark.usefixtures("real_noise")
@pytest.mark.parametrize(("phase", "reg_w", "exact", "noise"), [
    (1, 5.149, 4.764e-3, 2.05e-2), (2, 10.30, 2.736e-3, 1.18e-2), (5, 82.38, 6.654e-4, 2.87e-3),
    (10, 2636.0, 9.806e-5, 4.23e-4)])
def test_sensitivity_and_noise_are_those_of_the_reference_table(phase, reg_w, exact, noise):
    eta = theorem2_eta(**REFERENCE, dim=10, **TARGET)
    assert eta == pytest.approx(3.808356e-3, rel=1e-6)
    query = phased_erm.regularised(eta, **REFERENCE, smooth=1.0)
    assert (query.phases, set(mechanism.phase_sizes(query))) == (10, {102})
    assert query.reg_lam == pytest.approx(0.2564, abs=5e-5)
    at = query.reg_w * 2 ** (phase - 1)
    assert at == pytest.approx(reg_w, rel=3e-4)
    assert mechanism.solutions.exact_sensitivity(query, at) == pytest.approx(exact, rel=3e-4)
    z = jmm.accounting.calibrate_noise(query, 1.0, 1e-6).noise_multiplier
    assert z == pytest.approx(dpa.get_sigma_gaussian(1.0, 1e-6), rel=1e-9)
    assert z * mechanism.solutions.solution_length(query, at) == pytest.approx(noise, rel=3e-3)


def test_the_step_size_lets_the_noise_of_a_phase_be_as_large_as_it_may():
    sizes, dim, z = (200_000,) * 2, 400, dpa.get_sigma_gaussian(0.02, 1e-6)
    known = dict(sizes=sizes, lipschitz=2.0, bound=3.0, diameter=4.0)
    eta = phased_erm.calibrated_eta(**known, dim=dim, epsilon=0.02, delta=1e-6)
    query = phased_erm.regularised(eta, **known)
    shares = [dim * (z * mechanism.solutions.solution_length(query, query.reg_w * 2.0**t)) ** 2
              / (2.0 ** -(t + 1) * 4.0**2) for t in range(query.phases)]
    assert max(shares) == pytest.approx(1.0, rel=1e-6)
    easy = dict(dim=1, epsilon=10.0, delta=1e-6)
    assert phased_erm.calibrated_eta(**known, **easy) == theorem2_eta(**known, **easy)


# --- the released points ---


def corners(p, d):
    u = np.eye(p, d) - np.append(np.full(p, 1 / p), np.zeros(d - p))
    return u / np.linalg.norm(u[0])


@functools.cache
def reference_run():
    """The noiseless points of five groups around a point, in ten phases, and their records."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(5, 1024, 10))
    data = np.linspace(-0.1, 0.2, 10) + 0.4 * corners(5, 10)[:, None] + (
        0.3 * x / np.linalg.norm(x, axis=2, keepdims=True))
    hyper = jmm.plan(phased_erm, problem=POINTS, sizes=(1024,) * 5, dim=10, **TARGET).hyper
    quiet = dataclasses.replace(hyper.query, noise_multiplier=0.0)
    hyper = phased_erm.Hyper(query=quiet)
    return hyper, data, released(hyper, jnp.asarray(data), POINTS, jnp.zeros(10))


@pytest.mark.slow
def test_every_phase_of_the_reference_run_is_certified_again_from_its_records():
    hyper, data, points = reference_run()
    query, centre = hyper.query, jnp.zeros(10)
    each = mechanism.phase_sizes(query)[0]
    for t, point in enumerate(points):
        rows = jnp.asarray(data[:, t * each:(t + 1) * each])

        def risks(w, rows=rows):
            return jnp.mean(jnp.sum((w[None, None] - rows) ** 2, 2) / 2, 1)

        reg_w = query.reg_w * 2**t
        value = groups.objective(risks, centre, reg_w=reg_w, reg_lam=query.reg_lam)
        actual = groups.certify(jax.grad(value), BALL.project, jnp.asarray(point),
                                smooth=mechanism.solutions.solution_smooth(query, reg_w),
                                modulus=reg_w)
        wanted = query.slack * mechanism.solutions.exact_sensitivity(query, reg_w)
        away = float(actual.distance + jnp.linalg.norm(actual.point - point))
        assert away <= 2 * wanted
        centre = jnp.asarray(point)


@pytest.mark.slow
def test_the_last_point_is_near_the_point_that_is_near_all_groups():
    _, _, points = reference_run()
    best = np.linspace(-0.1, 0.2, 10)
    start = np.linalg.norm(best)
    assert np.linalg.norm(points[-1] - best) < 0.6 * start
    assert np.all(np.diff(np.linalg.norm(points[:3] - best, axis=1)) < 0)


@pytest.mark.slow
def test_a_record_is_read_in_its_phase_and_in_no_other():
    """13, 9 and 6 records in 3 phases: 4, 3 and 2 each, what is left over and padding never."""
    sizes, phases, most = (13, 9, 6), 3, 13
    hyper = describe(POINTS, sizes, phases)
    rng = np.random.default_rng(3)
    data = rng.normal(size=(3, most, 2)) / 3
    places = [(i, j) for i in range(3) for j in range(most)]
    others = np.stack([data] + [data] * len(places))
    for k, place in enumerate(places):
        others[(k + 1, *place)] += 0.5
    points = jax.jit(lambda sets: jax.lax.map(lambda x: jmm.run(
        jax.random.key(0), Saddle(jnp.zeros(2), ()), x, hyper, phased_erm, POINTS, path)[1],
        sets))(jnp.asarray(others))
    for (i, j), moved in zip(places, points[1:], strict=True):
        phase = min(j // (sizes[i] // phases), phases)
        same = np.all(np.asarray(moved == points[0]), axis=1)
        assert list(same) == [t < phase for t in range(phases)]


@pytest.mark.slow
def test_unequal_groups_weigh_every_record_of_a_phase_equally():
    sizes = (4, 2)
    hyper = describe(POINTS, sizes, 1, reg_w=1.0, slack=1e-4)
    data = np.random.default_rng(4).normal(size=(2, 4, 2)) / 3
    (point,) = released(hyper, jnp.asarray(data), POINTS, jnp.zeros(2))
    groups = [data[i, :n] for i, n in enumerate(sizes)]
    risks = np.array([np.mean(np.sum((point - x) ** 2, 1)) / 2 for x in groups])
    v = np.exp(risks) / np.exp(risks).sum()
    slope = sum(a * (point - x.mean(0)) for a, x in zip(v, groups, strict=True)) + point
    assert np.linalg.norm(slope) < 1e-3


# --- sensitivity and noise ---

LINE = problems.worst_group(lambda w, x: jnp.clip(x, -1.0, 1.0) * w[0] + 1.0, BALL, lipschitz=1.0,
                            bound=2.0, smooth=1e-9, convex=True)


@pytest.mark.slow
def test_opposite_lines_attain_the_sensitivity_but_for_the_slack():
    """One group and a strong entropy: the weights' part vanishes, 2 L / (n mu) is left."""
    hyper = describe(LINE, (6,), 1, reg_lam=1e9)
    one, two = (released(hyper, jnp.zeros((1, 6)).at[0, 2].set(x), LINE, jnp.zeros(1))
                for x in (9.0, -9.0))
    exact = mechanism.solutions.exact_sensitivity(hyper.query, hyper.query.reg_w)
    assert abs(one - two)[0, 0] == pytest.approx(2 / (6 * 3.0), rel=1e-3)
    length = mechanism.solutions.solution_length(hyper.query, 3.0)
    assert 0.98 * exact < abs(one - two)[0, 0] <= length


@pytest.mark.slow
def test_random_neighbours_never_exceed_the_sensitivity():
    rng = np.random.default_rng(5)
    problem = problems.group_glm("logistic", feature_bound=1.0, radius=1.0)
    shares = []
    for reg_w, reg_lam in ((0.5, 0.02), (2.0, 0.3)):
        hyper = describe(problem, (5, 7), 1, reg_w=reg_w, reg_lam=reg_lam)
        x, y = rng.normal(size=(40, 2, 7, 3)), rng.choice([-1.0, 1.0], (40, 2, 7))
        other = x.copy()
        other[:, 0, 1] = -x[:, 0, 1] + 0.3 * rng.normal(size=(40, 3))
        start = Saddle(jnp.zeros(3), ())
        run = jax.jit(jax.vmap(lambda x, y, hyper=hyper, start=start: jmm.run(
            jax.random.key(0), start, (x, y), hyper, phased_erm, problem)[0].z.w))
        apart = np.linalg.norm(run(x, y) - run(other, y), axis=1)
        shares += list(apart / mechanism.solutions.solution_length(hyper.query, reg_w))
    assert 0.1 < max(shares) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_the_noise_is_the_length_times_the_multiplier(factor):
    """In every phase, and half of it would be seen."""
    flat = problems.worst_group(lambda w, x: 0.5 + 0 * x * w[0], problems.ball(1e6), lipschitz=1.0,
                                bound=1.0, smooth=1.0, convex=True)
    query = describe(flat, (9, 8), 3, diameter=2e6, noise_multiplier=7.0 * factor).query
    w, data = jnp.zeros(20_000), jnp.zeros((2, 9))
    release = jax.jit(lambda phase: release_group_solution(
        jax.random.key(1), query, phase, flat, w, data))
    for phase in range(3):
        noise = np.asarray(release(jnp.int32(phase)))
        expected = 7.0 * mechanism.solutions.solution_length(query, query.reg_w * 2**phase)
        assert (abs(np.std(noise) / expected - 1) < 0.03) == (factor == 1.0)
        assert abs(np.mean(noise)) < 0.05 * expected


@pytest.mark.slow
def test_phases_share_no_noise():
    flat = problems.worst_group(lambda w, x: 0.5 + 0 * x * w[0], problems.ball(1e6), lipschitz=1.0,
                                bound=1.0, smooth=1.0, convex=True)
    hyper = describe(flat, (9, 8), 3, diameter=2e6, noise_multiplier=7.0)
    d = 20_000
    points = released(hyper, jnp.zeros((2, 9)), flat, jnp.zeros(d))
    noise = np.diff(points, axis=0, prepend=0.0)  # a flat loss leaves the centre where it is
    assert np.all(noise.std(1) > 0)
    for x in (noise, abs(noise)):
        apart = np.corrcoef(x)[np.triu_indices(3, 1)]
        assert np.all(abs(apart) < 4.5 / math.sqrt(d))


def test_a_halved_sensitivity_would_be_seen_by_the_opposite_lines(monkeypatch):
    """Who releases less noise than the true distance times z, releases too little."""
    query = describe(LINE, (6,), 1, reg_lam=1e9).query
    true = 2 * LINE.lipschitz / (6 * query.reg_w)
    assert mechanism.solutions.solution_length(query, query.reg_w) >= true
    exact = mechanism.solutions.exact_sensitivity
    monkeypatch.setattr(mechanism.solutions, "exact_sensitivity",
                        lambda q, mu: exact(q, mu) / 2)
    assert mechanism.solutions.solution_length(query, query.reg_w) < true


@pytest.mark.slow
def test_float32_programs_solve_in_float64():
    rng = np.random.default_rng(7)
    data = (rng.normal(size=(2, 12, 3)).astype(np.float32),
            rng.choice([-1.0, 1.0], (2, 12)).astype(np.float32))
    problem = problems.group_glm("logistic", feature_bound=1.0, radius=2.0)
    hyper = describe(problem, (12, 12), 2, slack=1e-6)
    with jax.enable_x64(False):
        start = Saddle(jnp.zeros(3, jnp.float32), ())
        one, _ = RUN(jax.random.key(0), start, data, hyper, phased_erm, problem)
        keys = jax.random.split(jax.random.key(0), (1, 2))
        hypers = jmm.stack([hyper])
        many, _ = jax.jit(jmm.sweep, static_argnames=("algorithm", "problem"))(
            keys, start, data, hypers, phased_erm, problem)
    assert one.z.w.dtype == np.float32
    assert np.all(np.isfinite(one.z.w))  # certified to 1e-6 of the sensitivity
    assert many.z.w.shape == (1, 2, 3)
    np.testing.assert_allclose(many.z.w[0, 0], one.z.w, atol=1e-6)


@pytest.mark.slow
def test_an_ill_conditioned_problem_takes_newton_steps_and_one_of_kinks_subgradients():
    steep = problems.group_glm("squared", feature_bound=1.0, radius=5.0, label_bound=5.0)
    data = (jnp.asarray(np.random.default_rng(8).normal(size=(2, 40, 3))), jnp.ones((2, 40)))
    hyper = describe(steep, (40, 40), 1, reg_w=0.05, reg_lam=0.01)
    assert hyper.query.steps > 5000
    assert np.all(np.isfinite(released(hyper, data, steep, jnp.zeros(3))))
    hinge = problems.group_glm("hinge", feature_bound=1.0, radius=1.0)
    hyper = describe(hinge, (8, 8), 1, smooth=None, slack=0.3)
    assert 1000 < hyper.query.steps < 400_000
    point = released(hyper, (data[0][:, :8], data[1][:, :8]), hinge, jnp.zeros(3))
    assert np.all(np.isfinite(point))


# --- failing closed ---


@pytest.mark.slow
@pytest.mark.parametrize("change", [dict(lipschitz=0.02, bound=0.02), dict(steps=3),
                                    dict(diameter=1.0)], ids=["constants", "steps", "diameter"])
def test_traced_descriptions_that_do_not_hold_release_nothing_whatever_the_data(change):
    """The host cannot look at traced numbers: covered or not is decided where the run is."""
    good = describe(POINTS, (8, 8), 1)
    bad = dataclasses.replace(good, query=dataclasses.replace(good.query, **change))
    for seed in range(2):
        data = jnp.asarray(np.random.default_rng(seed).normal(size=(2, 8, 2)))
        assert np.all(np.isfinite(released(good, data, POINTS, jnp.zeros(2))))
        assert np.all(np.isnan(released(bad, data, POINTS, jnp.zeros(2))))


@pytest.mark.slow
def test_a_point_far_from_the_origin_leaves_no_digits_for_a_certificate():
    """Rounding by eps |w| hides from the certificate: nobody's solution is released there."""
    hyper = describe(POINTS, (8, 8), 1, slack=1e-3)
    for at, finite in ((0.0, True), (1e13, False)):
        problem = POINTS._replace(project=lambda w, at=at: jnp.clip(w, at - 0.7, at + 0.7),
                                  loss=lambda w, z, at=at: 0.5 * jnp.sum((w - at - z) ** 2))
        data = jnp.full((2, 8, 2), 0.1)
        w = released(hyper, data, problem, jnp.full(2, at))
        assert bool(np.all(np.isfinite(w))) == finite


def test_a_large_weight_of_the_entropy_does_not_round_the_risks_away():
    """reg_lam logsumexp(L / reg_lam) carries reg_lam ln p; P here does not."""
    risks = jnp.array([0.3, 0.7])
    value = groups.objective(lambda w: risks + w[0], jnp.zeros(1), reg_w=1.0, reg_lam=1e12)
    assert float(value(jnp.zeros(1))) == pytest.approx(0.5, abs=1e-9)
    small = groups.objective(lambda w: risks + w[0], jnp.zeros(1), reg_w=1.0, reg_lam=1e-3)
    assert float(small(jnp.zeros(1))) == pytest.approx(0.7 - 1e-3 * math.log(2), abs=1e-9)


def test_projections_must_keep_float64():
    problem = POINTS._replace(project=lambda w: BALL.project(w).astype(jnp.float32))
    query = describe(POINTS, (8, 8), 1).query
    with pytest.raises(ValueError, match=r"problem\.project answers in less than float64"):
        release_group_solution(jax.random.key(0), query, jnp.int32(0), problem, jnp.zeros(2),
                               jnp.zeros((2, 8, 2)))


@pytest.mark.slow
def test_what_is_not_certified_is_not_released():
    data = jnp.asarray(np.random.default_rng(0).normal(size=(2, 8, 2)))
    good = describe(POINTS, (8, 8), 1, reg_w=0.3, slack=1e-6).query
    few = dataclasses.replace(good, steps=2)
    false = problems.group_means(radius=1.0, record_bound=1.0)._replace(
        loss=lambda w, z: 30 * jnp.sum((w - z) ** 2) + jnp.sum(jnp.cos(40 * w)))
    for query, problem, finite in ((good, POINTS, True), (few, POINTS, False),
                                   (few, false, False)):
        w = release_group_solution(jax.random.key(0), query, jnp.int32(0), problem, jnp.zeros(2),
                                   data)
        assert bool(jnp.all(jnp.isfinite(w))) == finite
        assert finite or bool(jnp.all(jnp.isnan(w)))


def test_phases_beyond_the_allowed_number_are_nan():
    hyper = describe(POINTS, (6,), 2)
    state = phased_erm.init(Saddle(jnp.zeros(2), ()), hyper)
    update = jax.jit(phased_erm.update, static_argnames="problem")
    for allowed in (True, True, False):
        state = update(jax.random.key(0), state, jnp.zeros((1, 6, 2)), hyper, problem=POINTS)
        assert bool(jnp.all(jnp.isfinite(state.z.w))) == allowed


def test_an_accuracy_that_float64_cannot_reach_is_refused_before_data_are_read():
    query = describe(POINTS, (64, 64), 3).query
    beyond = dataclasses.replace(query, slack=1e-12, steps=10**6, noise_multiplier=5.0)
    hyper = phased_erm.Hyper(query=beyond)
    for call in (lambda: phased_erm.certified(beyond), lambda: jmm.epsilon(beyond, 1e-5),
                 lambda: phased_erm.init(Saddle(jnp.zeros(2), ()), hyper),
                 lambda: jmm.run(jax.random.key(0), Saddle(jnp.zeros(2), ()), None, hyper,
                                 phased_erm, POINTS)):
        with pytest.raises(ValueError, match=r"slack=1e-12 asks for .*raise slack"):
            call()
    hinge = problems.group_glm("hinge", feature_bound=1.0, radius=1.0)
    with pytest.raises(ValueError, match="smooth the loss"):
        describe(hinge, (1000,), 9, smooth=None)


@pytest.mark.parametrize(("change", "message"), [
    (dict(phases=9), "phases must be at most 8"), (dict(phases=0), "phases must be an integer"),
    (dict(reg_w=0.0), "reg_w must lie in"), (dict(reg_lam=math.nan), "reg_lam must lie in"),
    (dict(slack=0.0), "slack must lie in"), (dict(bound=-1.0), "bound must lie in"),
    (dict(noise_multiplier=-1.0), "noise_multiplier must lie in"), (dict(sizes=()), "sizes"),
    (dict(steps=3), "steps must be at least"), (dict(smooth=-1.0), "smooth must lie in")])
def test_a_bad_description_is_refused_with_the_fix(change, message):
    query = dataclasses.replace(describe(POINTS, (8, 9), 2).query, **change)
    with pytest.raises(ValueError, match=message):
        jmm.epsilon(query, 1e-5)


@pytest.mark.parametrize(("change", "problem", "message"), [
    ({}, problems.group_glm("sigmoid", feature_bound=1.0, radius=1.0), "not known to be convex"),
    ({}, problems.adversarial(POINTS, lambda w, z: z), "not known to be convex"),
    ({}, POINTS._replace(lipschitz=2.5), "lipschitz must be at least the problem's 2.5"),
    ({}, POINTS._replace(bound=9.0), "bound must be at least"),
    ({}, POINTS._replace(smooth=None), "not known to be smooth"),
    ({}, POINTS._replace(loss=lambda w, z: jnp.sum(w - z).astype(jnp.float32)), "than float64"),
    (dict(steps=None), POINTS, r"phased_erm\.certified"),
    (dict(noise_multiplier=None), POINTS, "not set"),
    (dict(sizes=(8, 7)), POINTS, "leading axes")])
def test_what_the_description_does_not_cover_is_refused(change, problem, message):
    query = dataclasses.replace(describe(POINTS, (8, 9), 2).query, **change)
    with pytest.raises(ValueError, match=message):
        release_group_solution(jax.random.key(0), query, jnp.int32(0), problem, jnp.zeros(2),
                               jnp.zeros((2, 9, 2)))


# --- accounting ---


@pytest.mark.usefixtures("real_noise")
def test_all_phases_together_cost_one_gaussian():
    hyper = jmm.plan(phased_erm, problem=POINTS, sizes=(300, 400), dim=2, **TARGET).hyper
    assert hyper.query.noise_multiplier == pytest.approx(4.224679, abs=1e-6)
    assert jmm.epsilon(hyper.query, 1e-6) == pytest.approx(1.0, rel=1e-9)
    for spent, expected in ((0, 0.0), (1, 1.0), (8, 1.0)):
        assert jmm.epsilon(hyper.query, 1e-6, spent=spent) == pytest.approx(expected, rel=1e-9)
    half = dataclasses.replace(hyper.query, noise_multiplier=hyper.query.noise_multiplier / 2)
    assert jmm.epsilon(half, 1e-6) > 2
    # on the same data as something else, it adds up
    both = jmm.Sequence(parts=(hyper.query, hyper.query))
    z = hyper.query.noise_multiplier / math.sqrt(2)
    assert jmm.epsilon(both, 1e-6) == pytest.approx(dpa.get_epsilon_gaussian(z, 1e-6), rel=1e-6)


def test_the_statement_names_what_the_noise_rests_on():
    hyper = describe(POINTS, (8, 9), 2, noise_multiplier=None)
    hyper = jmm.calibrate(phased_erm, hyper, 1.0, 1e-6)
    made = jmm.statement(phased_erm, hyper, delta=1e-6)
    assert any("convex, 2-Lipschitz, 1-smooth" in x and "[0, 2]" in x for x in made.assumed)
    assert any("How long a run takes" in x for x in made.assumed)
    assert any("without a certificate" in x for x in made.enforced)
    assert "2 groups of 4 records that no other reads" in made.sampling[0]
    assert (made.spent, made.allowed) == (2, 2)
