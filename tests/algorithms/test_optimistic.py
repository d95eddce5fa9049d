"""Optimistic descent-ascent: its recursion, its stability, and what a round costs."""

import dataclasses
import functools
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxminimax as jmm
from jaxminimax import Saddle, optimistic, sgda

N, D = 12, 2
KEY = jax.random.key(11)
ROWS = tuple(np.random.default_rng(3).normal(size=(2, N, D)))
START = Saddle(np.full(D, 0.8), np.full(D, -0.5))
BILINEAR = jmm.problems.bilinear_game(coupling=1.0, radius=Saddle(50.0, 50.0))
CENTRED = tuple(x - x.mean(0) for x in ROWS)  # the saddle point is 0
RUN = jax.jit(jmm.run, static_argnames=("algorithm", "problem", "observe"))


def query(z=0.0, sampling=jmm.Full()):
    clip = 100.0 if z == 0.0 else 1.0
    return jmm.Query(clip=Saddle(clip, clip), noise_multiplier=Saddle(z, z), population=N,
                     sampling=sampling)


def hyper(z=0.0, rounds=40, step=0.3, sampling=jmm.Full()):
    return optimistic.Hyper(query=query(z, sampling), step=Saddle(step, 0.5 * step),
                            iterations=rounds)


def reference(task, rounds, step):
    """The recursion on the full operator, in NumPy; NumPy's arrays are the players, stacked."""
    operators = jax.jit(jax.vmap(task.operator, (None, 0)))
    public, project = jax.jit(task.public), jax.jit(task.project)
    z, before, path = np.stack(START), None, []
    for _ in range(rounds):
        path.append(z)
        one = operators(Saddle(*z), ROWS)
        g = np.stack([np.asarray(x).mean(0) for x in one]) + np.stack(public(Saddle(*z)))
        before = g if before is None else before
        z = z - np.array([[step], [0.5 * step]]) * (2 * g - before)
        z = np.stack(project(Saddle(*z)))
        before = g
    return z, np.mean(path, 0)


@pytest.mark.slow
def test_without_noise_it_is_the_recursion_with_public_terms_extrapolated_too():
    game = jmm.problems.quadratic_game(modulus=0.2, coupling=0.9, radius=Saddle(0.9, 0.7))
    task = game._replace(public=lambda z: Saddle(0.3 * z.w, 0.1 * z.v + 0.2))
    for rounds in (2, 25):
        state = RUN(KEY, START, ROWS, hyper(rounds=rounds), optimistic, task)[0]
        last, average = reference(task, rounds, 0.3)
        np.testing.assert_allclose(np.stack(state.z), last, rtol=1e-12)
        np.testing.assert_allclose(np.stack(state.average), average, rtol=1e-12)


@pytest.mark.slow
def test_its_last_iterate_finds_the_saddle_that_descent_ascent_spirals_away_from():
    """On f = w v from (1, 1), at half the inverse of the Lipschitz constant."""
    start = Saddle(np.ones(D), np.ones(D))

    def last(algorithm):
        made = algorithm.Hyper(query=query(), step=Saddle(0.5, 0.5), iterations=80)
        state = RUN(KEY, start, CENTRED, made, algorithm, BILINEAR)[0]
        return float(jnp.linalg.norm(jnp.concatenate(state.z)))

    assert last(optimistic) < 1e-3
    assert last(sgda) > 10


@pytest.mark.slow
def test_a_round_is_one_release_charged_as_one_of_sgda():
    made = hyper(4.0, rounds=6, sampling=jmm.Poisson(rate=0.5))
    plain = sgda.Hyper(query=made.query, step=made.step, iterations=6)
    assert optimistic.mechanism(made) == sgda.mechanism(plain)
    state = optimistic.init(START, made)
    step = jax.jit(lambda state: optimistic.update(KEY, state, ROWS, made, BILINEAR))
    for k in range(1, 8):
        state = step(state)
        assert int(state.spent) == k
        assert bool(jnp.all(jnp.isfinite(state.z.w))) == (k <= 6)


def test_its_charge_is_that_of_sgda_to_the_last_digit():
    for sampling in (jmm.Full(), jmm.Poisson(rate=0.1)):
        made = dataclasses.replace(query(4.0), sampling=sampling)
        actual = {jmm.epsilon(x.mechanism(x.example(made, 50)), 1e-6) for x in (optimistic, sgda)}
        assert len(actual) == 1


@pytest.mark.slow
def test_its_first_step_is_that_of_sgda():
    made = hyper(1.0, rounds=3)
    plain = sgda.Hyper(query=made.query, step=made.step, iterations=3)
    one, other = (x.update(KEY, x.init(START, h), ROWS, h, BILINEAR)
                  for x, h in ((optimistic, made), (sgda, plain)))
    chex.assert_trees_all_close(one.z, other.z, rtol=1e-14)


@functools.cache
def alone(z):
    return RUN(KEY, START, ROWS, hyper(z, rounds=5), optimistic, BILINEAR)[0]


@pytest.mark.slow
def test_it_goes_through_every_driver():
    stacked = jmm.stack([hyper(1.0, rounds=5), hyper(2.0, rounds=5)])
    keys = jax.random.split(KEY, (2, 1)).at[0, 0].set(KEY)
    states = jmm.sweep(keys, START, ROWS, stacked, optimistic, BILINEAR, progress=False)[0]
    chex.assert_trees_all_close(jax.tree.map(lambda x: x[0, 0], states), alone(1.0), rtol=1e-12)
    done = jmm.fit(KEY, START, ROWS, hyper(1.0, rounds=5), optimistic, BILINEAR, delta=1e-6,
                   progress=False, every=2)
    chex.assert_trees_all_close(done.state, alone(1.0), rtol=1e-12)
    assert done.statement.epsilon == jmm.epsilon(optimistic.mechanism(hyper(1.0, rounds=5)), 1e-6)


@pytest.mark.parametrize("step", [Saddle(0.0, 0.1), Saddle(0.1, float("nan"))])
def test_a_step_that_is_none_is_refused(step):
    with pytest.raises(ValueError, match=r"step\.[wv] must lie in"):
        optimistic.init(START, optimistic.Hyper(query=query(), step=step, iterations=3))


# --- the plan ---

PUBLIC = dict(epsilon=1.0, delta=1e-6, population=2000, dim=20, bound=2 * math.sqrt(2), smooth=1.0,
              diameter=2 * math.sqrt(2), radius=math.sqrt(2))


def noise(hyper):
    """V of a full batch: d sigma^2."""
    return 20 * (hyper.query.clip.w * hyper.query.noise_multiplier.w / 2000) ** 2


def test_a_plan_takes_its_step_from_the_noise_as_calibrated():
    for rounds, kappa in ((300, 1.0), (1000, 0.5)):
        made = jmm.plan(optimistic, iterations=rounds, kappa=kappa, **PUBLIC)
        step = kappa * math.sqrt(2) / math.sqrt(rounds * noise(made.hyper))
        assert made.hyper.step == Saddle(*(pytest.approx(min(0.5, step)),) * 2)
        assert made.hyper.averaging == jmm.averaging.WEIGHTED
        assert made.guarantee is None
    few = jmm.plan(optimistic, **{**PUBLIC, "epsilon": 50.0})
    assert few.hyper.step.w == pytest.approx(0.5, rel=1e-2)
    # where the noise begins to limit the step
    assert few.hyper.iterations == pytest.approx(2 * math.sqrt(2) / math.sqrt(
        noise(few.hyper) / few.hyper.iterations), rel=1e-2)
    rounds = [jmm.plan(optimistic, **{**PUBLIC, "population": n}).hyper.iterations
              for n in (2000, 30_000, 10**6)]
    assert rounds[0] == 300 < rounds[1] < rounds[2] == 3000
    quiet = jmm.plan(optimistic, proved=True, **{**PUBLIC, "epsilon": None})
    assert quiet.hyper.step.w == 0.25
    assert quiet.guarantee == pytest.approx(2 / (2 * 0.25 * 299))


def bound(step, square, spread, rounds=300, ball=None):
    """The theorem's, with rho_D = min{R, D / 2^(1/2)} = R."""
    ball = math.sqrt(square) if ball is None else ball
    return (square / (2 * step * (rounds - 1)) + 2 * step * spread
            + ball * math.sqrt(spread / (rounds - 1)))


def test_a_guarantee_is_where_the_theorem_is():
    proved = jmm.plan(optimistic, proved=True, **PUBLIC)
    step, spread = proved.hyper.step.w, noise(proved.hyper)
    assert proved.guarantee == pytest.approx(bound(step, 2, spread))
    assert (proved.gap, proved.on) == ("strong", "records")
    assert proved.vacuous == (proved.guarantee >= proved.trivial)
    assert "any point at all" in proved.why[-1]
    assert step <= 0.25
    for factor in (0.7, 1.4):  # the step minimises the bound, but for T in place of T - 1
        assert bound(factor * step, 2, spread) > proved.guarantee
    measured = {game: jmm.plan(optimistic, game=game, **PUBLIC)
                for game in ("monotone", "bilinear", "strongly_monotone")}
    assert [p.guarantee is None for p in measured.values()] == [True, False, True]
    far = jmm.plan(optimistic, game="bilinear", **{**PUBLIC, "epsilon": 50.0})
    assert far.guarantee is None  # its step is 1 / (2 L)
    poisson = jmm.plan(optimistic, proved=True, sampling=jmm.Poisson(rate=0.1), **PUBLIC)
    assert poisson.guarantee > 0
    assert jmm.plan(optimistic, proved=True, **{**PUBLIC, "population": 20}).vacuous


@pytest.mark.slow
def test_the_guarantee_holds_for_runs_from_the_plan():
    from benchmarks.accuracy.zoo import games as zoo_games

    game = zoo_games.bilinear()
    made = jmm.plan(optimistic, proved=True, **PUBLIC, iterations=100)
    hyper = dataclasses.replace(made.hyper, query=dataclasses.replace(
        game.copied(made.hyper.query), exact=False))
    runs = jax.jit(jax.vmap(lambda key: game.gap(jmm.run(
        key, game.start, game.data, hyper, optimistic, game.problem)[0].average)))
    actual = np.asarray(runs(jax.random.split(KEY, 64)))
    assert actual.mean() + 3 * actual.std() / 8 < made.guarantee
    assert made.guarantee < float(game.gap(game.start))


SIMPLICES = dict(epsilon=1.0, delta=1e-6, population=20_000, bound=math.sqrt(40), smooth_l1=1.0,
                 dim=Saddle(20, 20), iterations=300)


def test_entropic_plans_have_the_norms_of_their_geometry():
    numbers = SIMPLICES | dict(geometry=optimistic.ENTROPIC)
    made = jmm.plan(optimistic, proved=True, **numbers)
    hyper = made.hyper
    sigma = math.sqrt(40) * hyper.query.noise_multiplier.w / 20_000
    square, spread = 4 * math.log(20), 4 * sigma**2 * math.log(40)
    assert hyper.geometry == optimistic.ENTROPIC
    assert hyper.step.w == pytest.approx(min(0.25, math.sqrt(0.25 * square / (300 * spread))))
    assert made.guarantee == pytest.approx(bound(hyper.step.w, square, spread))
    sampled = jmm.plan(optimistic, proved=True, sampling=jmm.Poisson(rate=0.1), **numbers)
    assert sampled.guarantee is None  # no Pythagoras in that norm
    measured = jmm.plan(optimistic, game="bilinear", **numbers).hyper.step.w
    assert measured == pytest.approx(min(1.0, 2 * math.sqrt(square / (300 * spread))))


@pytest.mark.parametrize(("population", "smooth", "chosen"), [
    (20_000, 20.0, "entropy"), (20_000, 1.0, "euclidean"), (1000, 20.0, "euclidean")])
def test_a_plan_takes_the_geometry_of_the_smaller_bound(population, smooth, chosen):
    numbers = SIMPLICES | dict(population=population, smooth=smooth, proved=True)
    made = jmm.plan(optimistic, **numbers)
    both = {g.w: jmm.plan(optimistic, geometry=g, **numbers).guarantee
            for g in (optimistic.EUCLIDEAN, optimistic.ENTROPIC)}
    assert made.hyper.geometry == Saddle(chosen, chosen)
    assert made.guarantee == min(both.values()) == both[chosen]
    assert f"{chosen} steps have the smaller bound" in made.why[0]


def test_a_matrix_game_states_its_constant_for_each_geometry():
    """Entropic steps with the constant of l2 were six times worse than Euclidean ones."""
    game = jmm.problems.matrix_game(entry_bound=2.0, shape=(8, 8))
    assert (game.smooth, game.smooth_l1) == (16.0, 2.0)
    made = jmm.plan(optimistic, epsilon=4.0, delta=1e-6, population=5000, dim=Saddle(8, 8),
                    bound=game.bound, smooth=game.smooth, smooth_l1=game.smooth_l1)
    assert made.hyper.geometry == optimistic.ENTROPIC


@pytest.mark.parametrize(("change", "message"), [
    (dict(game="convex"), "game must be one of"),
    (dict(iterations=1), "iterations must be an integer, at least 2"),
    (dict(diameter=None), "diameter must be a number"),
    (dict(radius=3.0), "radius must lie in"),
    (dict(dim=Saddle(10, 10)), "dim must be an integer"),
    (dict(geometry=Saddle("entropy", "entropy")), "entropic steps take smooth_l1"),
    (dict(smooth_l1=1.0), r"it takes dim=Saddle\(d_w, d_v\)"),
    (SIMPLICES | dict(diameter=None, radius=None, smooth=0.5), "smooth must lie in"),
    (SIMPLICES | dict(diameter=None, radius=None, smooth=None), "smooth is missing"),
    (dict(smooth=None), "smooth must be a number"),
    (dict(geometry=Saddle("entropy", "euclidean")), "one geometry for both players"),
    (dict(sampling=jmm.Disjoint(batch=5)), "drawn anew in every release"),
])
def test_numbers_that_make_no_plan_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        jmm.plan(optimistic, **{**PUBLIC, **change})
