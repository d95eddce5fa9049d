"""Noisy SGD for the worst group: the updates, what they cost, and where they end."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize

import jaxminimax as jmm
from benchmarks.examples import demo_games
from jaxminimax import (
    FixedSize,
    Full,
    GroupGradients,
    GroupLosses,
    Poisson,
    Query,
    Repeat,
    Saddle,
    Sequence,
    active_groups,
    group_sgd,
    metrics,
    problems,
)
from jaxminimax.mechanism import Selection

RUN = jax.jit(jmm.run, static_argnames=("algorithm", "problem", "observe"))
SIZES = (6, 9, 4)
MEANS = problems.group_means(radius=1.0, record_bound=1.0)
both = pytest.mark.parametrize("algorithm", [group_sgd, active_groups],
                               ids=lambda a: a.__name__.rpartition(".")[2])


def hyper_of(algorithm, sizes=SIZES, rounds=4, z=(0.0, 0.0), sampling=Full(), clip=2.0, bound=2.0,
             noise=None, **more):
    query = GroupGradients(clip=clip, noise_multiplier=z[0], sampling=sampling, sizes=sizes)
    active = algorithm is active_groups
    losses = GroupLosses(bound=bound, noise_multiplier=z[1], sizes=sizes, only_argmax=active,
                         noise=noise)
    if active and noise is None:
        losses = Selection(bound=bound, noise_multiplier=z[1], sizes=sizes)
    steps = {"step": 0.3} if active else {"step": 0.3, "weight_step": 2.0}
    return algorithm.Hyper(**{**steps, "query": query, "losses": losses, "iterations": rounds,
                              **more})


def uncalibrated(algorithm, **more):
    return hyper_of(algorithm, z=(None, None), **more)


def points(sizes=SIZES, dim=2, seed=0):
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(len(sizes)), sizes)
    z = rng.normal(size=(len(labels), dim)) / 2 + rng.normal(size=(len(sizes), dim))[labels]
    z *= 0.9 / np.linalg.norm(z, axis=1).max()
    data, actual = problems.by_group(z, labels)
    assert actual == sizes
    return jnp.asarray(data)


def start(dim=2):
    return Saddle(jnp.zeros(dim), ())


def moments(data, sizes=SIZES):
    own = [np.asarray(x)[:n] for x, n in zip(data, sizes, strict=True)]
    return np.array([x.mean(0) for x in own]), np.array([x.var(0).sum() / 2 for x in own])


# --- the updates, beside the paper ---


@pytest.mark.slow
def test_weights_are_multiplied_and_the_model_descends_on_one_drawn_group():
    data, rounds, runs = points(), 4, 300
    m, c = moments(data)
    hyper = hyper_of(group_sgd, rounds=rounds)
    keys = jax.random.split(jax.random.key(0), runs)
    state, path = jax.lax.map(lambda key: RUN(key, start(), data, hyper, group_sgd, MEANS,
                                              lambda state: state.z), keys)
    w = np.concatenate([np.zeros((runs, 1, 2)), path.w], 1)
    v = np.concatenate([np.full((runs, 1, 3), -np.log(3)), path.v], 1)
    hits, expected = np.zeros(3), np.zeros(3)
    for t in range(rounds):
        risk = np.sum((w[:, t, None] - m) ** 2, 2) / 2 + c  # at w_t, before it moves
        moved = v[:, t] + 2.0 * risk
        np.testing.assert_allclose(v[:, t + 1], moved - np.log(np.exp(moved).sum(1))[:, None],
                                   rtol=1e-6)  # losses leave as float32 numbers
        choices = w[:, t, None] - 0.3 * (w[:, t, None] - m)  # the step of each group
        far = np.linalg.norm(choices - w[:, t + 1, None], axis=2)
        assert np.all(far.min(1) < 1e-12)
        hits += np.bincount(far.argmin(1), minlength=3)
        expected += np.exp(v[:, t]).sum(0)
    assert np.all(abs(hits - expected) < 4.5 * np.sqrt(expected))
    np.testing.assert_allclose(state.average.w, w.mean(1), rtol=1e-9)
    np.testing.assert_allclose(state.average.v, np.exp(v).mean(1), rtol=1e-9)
    assert np.all(np.asarray(state.spent) == 2 * rounds)


@pytest.mark.slow
def test_the_active_group_is_the_worst_one():
    data, rounds = points(), 30
    m, c = moments(data)
    state, path = RUN(jax.random.key(0), start(), data, hyper_of(active_groups, rounds=rounds),
                      active_groups, MEANS, lambda state: state.z)
    w, seen = np.zeros((1, 2)), np.zeros(3)
    for t in range(rounds):
        i = np.argmax(np.sum((w[-1] - m) ** 2, 1) / 2 + c)
        seen[i] += 1
        w = np.vstack([w, w[-1] - 0.3 * (w[-1] - m[i])])
        np.testing.assert_allclose(path.w[t], w[-1], atol=1e-12)
        np.testing.assert_array_equal(path.v[t], seen)
    np.testing.assert_allclose(state.average.w, w.mean(0), atol=1e-12)
    np.testing.assert_allclose(state.average.v, seen / rounds)


@pytest.mark.slow
@both
def test_the_model_stays_in_its_set_whatever_its_tree(algorithm):
    problem = problems.worst_group(lambda w, x: x["a"] * w["a"] + jnp.sum(x["b"] * w["b"]),
                                   problems.ball(0.5), lipschitz=1.0, bound=1.0)
    data = {"a": jnp.ones((2, 3), jnp.float32), "b": jnp.ones((2, 3, 2), jnp.float32)}
    w = {"a": jnp.zeros((), jnp.float32), "b": jnp.zeros(2, jnp.float32)}
    hyper = hyper_of(algorithm, sizes=(3, 2), rounds=9, z=(5.0, 5.0))
    state, path = RUN(jax.random.key(0), Saddle(w, ()), data, hyper, algorithm, problem,
                      lambda state: state.z.w)
    length = np.sqrt(path["a"] ** 2 + np.sum(path["b"] ** 2, 1))
    assert length.max() == pytest.approx(0.5)
    assert {x.dtype for x in jax.tree.leaves((state.z.w, state.average.w))} == {
        np.dtype("float32")}


@pytest.mark.slow
def test_fit_is_run_and_spends_two_releases_a_round():
    data, algorithm, skip = points(), group_sgd, 0.5
    hyper = hyper_of(algorithm, z=(3.0, 3.0), rounds=4,
                     averaging=jmm.averaging.Averaging(skip=skip))
    key = jax.random.key(3)
    fit = jmm.fit(key, start(), data, hyper, algorithm, MEANS, delta=1e-6, every=2, progress=False)
    state, path = RUN(key, start(), data, hyper, algorithm, MEANS, lambda state: state.z.w)
    # another program, of two rounds: the compiler may contract products with sums elsewhere
    np.testing.assert_allclose(fit.state.z.w, state.z.w, rtol=1e-13)
    w = np.concatenate([np.zeros((1, 2)), path])
    np.testing.assert_allclose(state.average.w, w[2:].mean(0))
    assert (fit.statement.spent, fit.statement.allowed) == (8, 8)
    assert fit.statement.epsilon == fit.statement.epsilon_spent_if_fixed


@pytest.mark.slow
@both
def test_after_the_last_round_there_is_nothing(algorithm):
    data, hyper = points(), hyper_of(algorithm, z=(1.0, 1.0), rounds=2)
    state = algorithm.init(start(), hyper)
    one = jax.jit(functools.partial(algorithm.update, problem=MEANS))
    for _ in range(2):
        state = one(jax.random.key(0), state, data, hyper)
        assert np.isfinite(state.z.w).all()
    state = one(jax.random.key(0), state, data, hyper)
    assert np.isnan(state.z.w).all()
    assert np.isnan(state.average.w).all()
    if algorithm is group_sgd:
        assert np.isnan(state.z.v).all()


@both
def test_what_does_not_fit_together_is_refused(algorithm):
    hyper = hyper_of(algorithm)
    other = dataclasses.replace(hyper.losses, sizes=(6, 9, 5))
    with pytest.raises(ValueError, match="same groups"):
        algorithm.mechanism(dataclasses.replace(hyper, losses=other))
    how = dict(bound=2.0, noise_multiplier=0.0, sizes=SIZES)
    turned = GroupLosses(**how) if algorithm is active_groups else Selection(**how)
    with pytest.raises(ValueError, match="only_argmax"):
        algorithm.mechanism(dataclasses.replace(hyper, losses=turned))
    with pytest.raises(ValueError, match="Saddle"):
        algorithm.init(Saddle(jnp.zeros(2), jnp.zeros(3)), hyper)
    with pytest.raises(ValueError, match="step"):
        algorithm.init(start(), dataclasses.replace(hyper, step=-1.0))
    with pytest.raises(ValueError, match="noise_multiplier"):
        algorithm.update(jax.random.key(0), algorithm.init(start(), hyper), points(),
                         uncalibrated(algorithm), MEANS)


# --- what they cost ---


def alone(query, times=1):
    """As if one group were all the data."""
    return Repeat(query=Query(clip=Saddle(query.clip, None), population=max(query.sizes),
                              noise_multiplier=Saddle(query.noise_multiplier, None),
                              sampling=query.sampling), times=times)


@pytest.mark.parametrize("sampling", [Full(), Poisson(rate=0.1), FixedSize(batch=10),
                                      FixedSize(batch=10, replacement=True)], ids=str)
def test_groups_amplify_nothing(sampling):
    """Four groups cost what one of them would alone, with every release of it."""
    query = GroupGradients(clip=3.0, noise_multiplier=2.0, sampling=sampling, sizes=(100,) * 4)
    four = jmm.epsilon(Repeat(query=query, times=5), 1e-6)
    assert four == jmm.epsilon(alone(query, 5), 1e-6)
    z = GroupLosses(bound=3.0, sizes=(100,) * 4, noise_multiplier=2.0, times=5)
    assert jmm.epsilon(z, 1e-9) == pytest.approx(2.5, rel=1e-3)


@pytest.mark.parametrize("replacement", [True, False])
def test_the_smallest_group_decides_what_fixed_samples_cost(replacement):
    sampling = FixedSize(batch=10, replacement=replacement)
    query = GroupGradients(clip=1.0, noise_multiplier=2.0, sampling=sampling, sizes=(40, 100, 900))
    costs = [jmm.epsilon(alone(dataclasses.replace(query, sizes=(n,)), 5), 1e-6)
             for n in query.sizes]
    assert costs[0] > costs[1] > costs[2]
    assert jmm.epsilon(Repeat(query=query, times=5), 1e-6) == costs[0]


def test_a_run_that_stops_has_spent_its_rounds_of_both():
    hyper = hyper_of(group_sgd, z=(400.0, 20.0), rounds=50)
    full = group_sgd.mechanism(hyper)

    def rounds(k):
        return jmm.epsilon(group_sgd.mechanism(dataclasses.replace(hyper, iterations=k)), 1e-6)

    for spent, done in ((2, 1), (3, 2), (20, 10), (21, 11), (100, 50), (150, 50)):
        assert jmm.epsilon(full, 1e-6, spent) == rounds(done)
    assert jmm.epsilon(full, 1e-6, 0) == 0.0
    # one after the other, as many releases would be gradients alone, and none of the dearer losses
    apart = Sequence(parts=full.parts)
    assert jmm.epsilon(apart, 1e-6, 50) == jmm.epsilon(full.parts[0], 1e-6) < rounds(25) / 2


@pytest.mark.parametrize(("share", "full", "laplace"), [
    (0.1, 60.16, 514.12), (0.2, 61.30, 268.83), (0.3, 63.22, 183.26), (0.5, 70.29, 113.16)])
def test_both_releases_share_a_budget(share, full, laplace):
    """Reference noise, over the replace-one sensitivities; its coarser grid rounds up."""
    hyper = uncalibrated(group_sgd, sizes=(1000,) * 5, rounds=200, noise="laplace")
    made = jmm.calibrate(group_sgd, hyper, 1.0, 1e-6, share=share)
    assert made.losses.noise_multiplier == pytest.approx(laplace, rel=2e-2)
    assert made.losses.noise_multiplier < laplace
    assert made.query.noise_multiplier / 2 == pytest.approx(full, rel=2e-3)
    assert jmm.epsilon(group_sgd.mechanism(made), 1e-6) == pytest.approx(1.0, rel=1e-3)
    losses = dataclasses.replace(made.losses, times=200)
    assert jmm.epsilon(losses, 1e-6) == pytest.approx(share, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "rounds", "sampling", "half"), [
    (group_sgd, 200, FixedSize(batch=50), 3.46290),
    (group_sgd, 200, Poisson(rate=0.05), 6.132 / 2),
    (active_groups, 17, FixedSize(batch=50, replacement=True), 1.60037),
])
def test_noise_of_samples_beside_the_losses(algorithm, rounds, sampling, half):
    hyper = uncalibrated(algorithm, sizes=(1000,) * 5, rounds=rounds, sampling=sampling,
                         noise="laplace")
    made = jmm.calibrate(algorithm, hyper, 1.0, 1e-6)
    assert made.query.noise_multiplier / 2 == pytest.approx(half, rel=1e-3)
    if rounds == 17:
        assert made.losses.noise_multiplier == pytest.approx(72.99, rel=1e-3)


def test_noise_of_the_losses_is_kept_and_must_leave_room():
    hyper = hyper_of(group_sgd, sizes=(100, 200), z=(None, 300.0), rounds=50)
    made = jmm.calibrate(group_sgd, hyper, 1.0, 1e-6, share=0.9)
    assert made.losses.noise_multiplier == 300.0
    assert jmm.epsilon(group_sgd.mechanism(made), 1e-6) == pytest.approx(1.0, rel=1e-3)
    with pytest.raises(ValueError, match="The other releases alone have"):
        jmm.calibrate(group_sgd, hyper_of(group_sgd, z=(None, 3.0), rounds=50), 1.0, 1e-6)
    with pytest.raises(ValueError, match="share"):
        jmm.calibrate(group_sgd, hyper, 1.0, 1e-6, share=1.0)


@both
def test_rounds_are_calibrated_together(algorithm):
    hyper = hyper_of(algorithm, z=(40.0, 200.0))
    most = jmm.accounting.calibrate_iterations(algorithm, hyper, 1.0, 1e-6)

    def spent(more):
        return jmm.epsilon(algorithm.mechanism(dataclasses.replace(
            hyper, iterations=most.iterations + more)), 1e-6)

    assert spent(0) <= 1.0 < spent(1)


@pytest.mark.slow
def test_the_statement_says_what_is_released_of_which_groups():
    made = jmm.calibrate(group_sgd, uncalibrated(group_sgd, sampling=Poisson(rate=0.5)), 1.0, 1e-6)
    stated = jmm.statement(group_sgd, made, delta=1e-6)
    assert stated.epsilon == pytest.approx(1.0, rel=1e-3)
    text = " ".join(str(stated).split())
    for part in ("3 groups of 4 to 9 records", "charged as if always the same one",
                 "Poisson samples of it at rate 0.5", "mean losses in [0, 2]",
                 "The loss of each record is clipped", "The operator of each record is clipped",
                 "The group of every record is public"):
        assert text.count(part) >= 1, part
    assert stated.noise_multiplier == ({"": made.query.noise_multiplier},
                                       {made.losses.unit: made.losses.noise_multiplier})
    assert stated.clip[0] == {"": 2.0}
    assert "Only" not in text
    index = jmm.statement(active_groups, hyper_of(active_groups, z=(9.0, 9.0)), delta=1e-6)
    assert "index of the largest" in str(index)


@pytest.mark.parametrize(("change", "message"), [
    ({"sizes": [5, 5]}, "tuple"), ({"sizes": ()}, "tuple"), ({"sizes": (5, 0)}, "sizes"),
    ({"clip": 0.0}, "clip"), ({"noise_multiplier": -1.0}, "noise_multiplier"),
    ({"sampling": jmm.Disjoint(batch=2)}, "passes"), ({"sampling": FixedSize(batch=7)}, "batch"),
    ({"sampling": Poisson(rate=2.0)}, "rate"),
])
def test_descriptions_that_make_no_sense_are_refused(change, message):
    query = GroupGradients(**{"clip": 1.0, "noise_multiplier": 1.0, "sizes": (6, 9), **change})
    with pytest.raises(ValueError, match=message):
        jmm.epsilon(Repeat(query=query, times=1), 1e-6)
    if "sizes" in change:
        losses = GroupLosses(bound=1.0, noise_multiplier=1.0, sizes=change["sizes"])
        with pytest.raises(ValueError, match=message):
            jmm.epsilon(losses, 1e-6)


def test_only_replaced_records_are_covered():
    for part in group_sgd.mechanism(hyper_of(group_sgd, z=(9.0, 9.0))).parts:
        with pytest.raises(ValueError, match="replace_one"):
            jmm.epsilon(part, 1e-6, neighbours="add_or_remove_one")


# --- schedules ---


def test_schedules_are_the_stated_formulas_of_public_numbers():
    sizes, dim, n = (1500, 1000), 10, 1000
    T = group_sgd.rounds(sizes=sizes, dim=dim, epsilon=1.0, delta=1e-6)
    assert int(np.ceil(n**2 / (dim * np.log(1e6)))) == T
    hyper = hyper_of(group_sgd, sizes=sizes, rounds=T, z=(60.0, 200.0), clip=0.5, bound=3.0)
    made = group_sgd.scheduled(hyper, dim=dim, diameter=2.0)
    assert made.step == pytest.approx(2 / np.sqrt(T * (0.25 + dim * (0.5 * 60 / n) ** 2)))
    most = 3.0 + 3.0 * 200 / n * np.log(2 * n * T)
    assert made.weight_step == pytest.approx(np.sqrt(2 * np.log(2) / T) / most)
    sampled = dataclasses.replace(hyper.query, sampling=Poisson(rate=0.1))
    assert group_sgd.gradient_step(sampled, T, dim=dim, diameter=2.0) == pytest.approx(
        2 / np.sqrt(T * (0.25 + dim * (0.5 * 60 / 100) ** 2)))
    # the reference's T of 17 at unit constants: K = 5000 in 5 groups
    assert active_groups.rounds(sizes=(1000,) * 5, epsilon=1.0, delta=1e-6, diameter=1.0,
                                lipschitz=1.0, bound=1.0) == 17
    known = dict(sizes=(100, 150), epsilon=2.0, delta=1e-6)
    constants = {k: getattr(MEANS, k) for k in ("lipschitz", "bound", "diameter")}
    planned = jmm.plan(active_groups, problem=MEANS, dim=2, **known).hyper
    assert planned.iterations == 4 * active_groups.rounds(**known, **constants)
    with pytest.raises(ValueError, match="noise_multiplier"):
        group_sgd.scheduled(uncalibrated(group_sgd), dim=2, diameter=1.0)


# --- where they end ---


def simplex(n, p=5, dim=10, far=0.4, seed=0):
    """Groups around a common point, which is the solution; records in the unit ball."""
    u = np.eye(p, dim) - np.append(np.full(p, 1 / p), np.zeros(dim - p))
    u *= far / np.linalg.norm(u[0])
    rng = np.random.default_rng(seed)
    return u[:, None] + rng.uniform(-1, 1, (p, n, dim)) * 0.5 / np.sqrt(dim)


def excess(algorithm, n, runs, rounds=None):
    """Mean excess of the empirical worst-group risk at (1, 1e-6), the runs' averages, its error."""
    data, sizes, dim = simplex(n), (n,) * 5, 10
    rounds = rounds or group_sgd.rounds(sizes=sizes, dim=dim, epsilon=1.0, delta=1e-6)
    hyper = jmm.calibrate(algorithm, uncalibrated(algorithm, sizes=sizes, rounds=rounds), 1.0, 1e-6)
    hyper = algorithm.scheduled(hyper, dim=dim, diameter=MEANS.diameter)
    keys = jax.random.split(jax.random.key(1), runs)
    average = jax.vmap(lambda key: RUN(
        key, Saddle(jnp.zeros(dim, jnp.float32), ()), jnp.asarray(data, jnp.float32), hyper,
        algorithm, MEANS)[0].average)(keys)
    means, spreads = moments(data, sizes)
    w = np.asarray(average.w, np.float64)
    risk = np.max(np.sum((w[:, None] - means) ** 2, 2) / 2 + spreads, 1)
    error = np.std(risk) / np.sqrt(runs)
    return np.mean(risk) - demo_games.group_means_optimum(means, spreads)[2], average, hyper, error


@pytest.mark.nightly
def test_the_excess_risk_of_weighted_groups_falls_like_one_over_n():
    ns = (125, 400)
    actual = [excess(group_sgd, n, 16) for n in ns]
    values = [x[0] for x in actual]
    slope = np.log(values[1] / values[0]) / np.log(ns[1] / ns[0])
    error = np.hypot(*(x[3] / x[0] for x in actual)) / np.log(ns[1] / ns[0])
    assert error < 0.15
    assert -1.3 - 2 * error < slope < -1 + 2 * error  # -1 in theory, a little steeper at small n
    assert values[1] < 0.045
    hyper, n = actual[1][2], ns[1]
    bound = (2 * np.sqrt((4 + 10 * (2 * hyper.query.noise_multiplier / n) ** 2)
                         / hyper.iterations) + 2 * np.log(5) / (hyper.iterations *
                                                                hyper.weight_step) + 2 / n)
    assert values[1] < bound
    np.testing.assert_allclose(np.mean(actual[1][1].v, 0), 0.2, atol=0.03)  # by symmetry


@pytest.mark.nightly
def test_the_active_group_is_a_baseline():
    value, average, *_ = excess(active_groups, 1000, 12, rounds=100)
    assert value < 0.045  # what the start, which is not trained, has
    np.testing.assert_allclose(np.mean(average.v, 0), 0.2, atol=0.1)


@pytest.mark.slow
def test_a_group_that_is_always_the_worst_gets_all_weight():
    """Then the problem is that of this group alone."""
    data = points((200, 200, 200))
    harder = problems.worst_group(
        lambda w, x: jnp.sum((w - x[:2]) ** 2) / 2 + x[2], problems.ball(1.0), lipschitz=2.0,
        bound=4.0)
    worst = jnp.concatenate([data, jnp.zeros((3, 200, 1)).at[1].set(2.0)], 2)
    for algorithm in (group_sgd, active_groups):
        hyper = uncalibrated(algorithm, sizes=(200,) * 3, rounds=400, bound=4.0,
                             averaging=jmm.averaging.TAIL)
        hyper = jmm.calibrate(algorithm, hyper, 20.0, 1e-6)
        hyper = algorithm.scheduled(hyper, dim=2, diameter=2.0)
        state, _ = RUN(jax.random.key(0), start(), worst, hyper, algorithm, harder)
        last = jnp.exp(state.z.v) if algorithm is group_sgd else state.average.v
        assert last[1] > 0.9
        assert np.linalg.norm(state.average.w - data[1].mean(0)) < 0.1


@pytest.mark.slow
def test_absolute_losses_end_at_the_optimum_of_a_linear_programme():
    rng = np.random.default_rng(0)
    p, n, d = 3, 12, 2
    x = rng.normal(size=(p, n, d))
    x /= np.maximum(1, np.linalg.norm(x, axis=2, keepdims=True))
    y = np.clip(x @ rng.normal(size=d) + 0.5 * rng.normal(size=(p, n)), -1, 1)
    # over (w, t, u): min t with u >= |<x, w> - y| and t >= mean_j u_ij
    rows = p * n
    flat = x.reshape(rows, d)
    mean = np.kron(np.eye(p), np.full(n, 1 / n))
    above = np.block([[flat, np.zeros((rows, 1)), -np.eye(rows)],
                      [-flat, np.zeros((rows, 1)), -np.eye(rows)],
                      [np.zeros((p, d)), -np.ones((p, 1)), mean]])
    limit = np.concatenate([y.ravel(), -y.ravel(), np.zeros(p)])
    price = np.zeros(d + 1 + rows)
    price[d] = 1
    span = [(-1, 1)] * d + [(None, None)] * (1 + rows)
    best = optimize.linprog(price, above, limit, bounds=span)
    problem = problems.worst_group(
        lambda w, z: jnp.abs(z[0] @ w - z[1]), problems.box(-np.ones(d), np.ones(d)),
        lipschitz=1.0, bound=1 + d**0.5)
    data = (jnp.asarray(x), jnp.asarray(y))
    hyper = hyper_of(group_sgd, sizes=(n,) * p, rounds=8000, clip=1.0, bound=1 + d**0.5)
    hyper = group_sgd.scheduled(hyper, dim=d, diameter=problem.diameter)
    state, _ = RUN(jax.random.key(0), start(d), data, hyper, group_sgd, problem)
    actual = metrics.worst_group_risk(problem, state.average.w, data, (n,) * p)
    assert best.fun - 1e-9 <= actual <= best.fun + 0.02


# --- what the accountant remembers, and what a stopped run has spent ---


@pytest.mark.parametrize(("epsilon", "laplace"), [(1.0, 73.0), (8.0, 13.0)])
def test_answers_do_not_depend_on_what_was_asked_before(epsilon, laplace):
    """The same cost at one factor, but of another kind: here only the gradients' noise scales."""
    sizes = (1000,) * 5
    hyper = jmm.group_sgd.Hyper(
        query=jmm.GroupGradients(clip=1.0, sizes=sizes), step=1.0, weight_step=1.0, iterations=200,
        losses=jmm.GroupLosses(bound=1.0, noise_multiplier=laplace, sizes=sizes))
    jmm.accounting.calibrate_noise(jmm.group_sgd.mechanism(hyper), epsilon, 1e-6)
    made = jmm.calibrate(jmm.group_sgd, hyper, epsilon, 1e-6)
    spent = jmm.epsilon(jmm.group_sgd.mechanism(made), 1e-6)
    assert 0.995 * epsilon < spent <= epsilon


def test_parts_in_turn_with_unequal_counts_are_charged_in_full_once_all_is_spent():
    query = jmm.Query(clip=Saddle(1.0, None), noise_multiplier=Saddle(10.0, None), population=10)
    losses = jmm.GroupLosses(bound=1.0, noise_multiplier=5.0, sizes=(5, 5), times=1)
    made = jmm.Sequence(parts=(jmm.Repeat(query=query, times=20), losses), in_turn=True)
    assert made.truncated(21) == made
    assert [part.times for part in made.truncated(2).parts] == [1, 1]
    assert [part.times for part in made.truncated(3).parts] == [2, 1]
    assert [part.times for part in made.truncated(12).parts] == [11, 1]


def test_indices_without_noise_have_no_guarantee_and_say_so():
    stated = jmm.statement(active_groups, hyper_of(active_groups), delta=1e-6)
    assert str(stated).startswith("NO privacy guarantee")
