"""GANs, Markov decision processes, robust learning: closed forms, and private runs that learn."""

import dataclasses
import itertools
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxminimax as jmm
from benchmarks import data as benchmark_data
from benchmarks import example_dro, examples
from jaxminimax import Saddle

P = jmm.problems
run = jax.jit(jmm.run, static_argnames=("algorithm", "problem"))


def private(problem, start, data, *, clip, step, epsilon=1.0, rounds=150, seed=3):
    """A calibrated run over the full batch, and its hyper-parameters."""
    n = len(jax.tree.leaves(data)[0])
    hyper = jmm.sgda.Hyper(query=jmm.Query(clip=clip, population=n), step=step, iterations=rounds,
                           averaging=jmm.TAIL)
    hyper = jmm.calibrate(jmm.sgda, hyper, epsilon, 1e-6)
    state, _ = run(jax.random.key(seed), start, data, hyper, jmm.sgda, problem)
    return state, hyper


def full_gradient(problem, z, data):
    """The operator of the value, to compare with the records' mean and the public terms."""
    g = jax.grad(lambda z: problem.value(z, data))(z)
    return Saddle(g.w, jax.tree.map(jnp.negative, g.v))


def assert_close(a, b, tolerance=1e-10):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=tolerance), a, b)


# --- Wasserstein GAN ---

DIM = 4
BANK = P.latents(jax.random.key(5), 64, DIM)
LINEAR = P.wgan(lambda w, z: w @ z, lambda v, xi: v + xi, BANK, limit=2.0, norm="ball",
                penalty=1.0)


def points(n=2000):
    return 0.2 * jax.random.normal(jax.random.key(0), (n, DIM)) + jnp.array([0.5, -0.3, 0.0, 0.1])


def test_a_linear_gan_has_its_saddle_at_the_mean_of_the_records():
    z = points()
    star = Saddle(jnp.zeros(DIM), jnp.mean(z, 0))
    assert_close(jmm.metrics.mean_operator(LINEAR, star, z),
                 Saddle(jnp.zeros(DIM), jnp.zeros(DIM)))
    for w in jax.random.normal(jax.random.key(1), (5, DIM)):
        # f(w, v*) = |w|^2 / 2, and f(0, v) = 0 for every v
        assert LINEAR.value(Saddle(w, star.v), z) == pytest.approx(float(w @ w) / 2)
        assert LINEAR.value(Saddle(star.w, w), z) == pytest.approx(0.0, abs=1e-12)


def test_a_private_linear_gan_finds_the_mean_to_the_noise():
    """The averaged operator of w is near 0, so v is off by the averaged noise and no more."""
    z, clip = points(), 2.0
    state, hyper = private(LINEAR, Saddle(jnp.zeros(DIM), jnp.zeros(DIM)), z,
                           clip=Saddle(clip, None), step=Saddle(0.5, 0.3), rounds=300)
    std = clip * hyper.query.noise_multiplier.w / len(z) / math.sqrt(150)
    off = jnp.linalg.norm(state.average.v - jnp.mean(z, 0))
    assert 0.1 * std < off < 4 * std * math.sqrt(DIM)
    assert off < 0.3 * jnp.linalg.norm(jnp.mean(z, 0))


def test_of_a_gan_only_the_discriminator_is_noised_and_charged():
    z, clip, multiplier = points(200), 1.5, 7.0
    query = jmm.Query(clip=Saddle(clip, None), noise_multiplier=Saddle(multiplier, None),
                      population=200)
    hyper = jmm.sgda.Hyper(query=query, step=Saddle(1e-3, 1e-3), iterations=1)
    start = jmm.sgda.init(Saddle(jnp.full(DIM, 0.1), jnp.zeros(DIM)), hyper)
    keys = jax.random.split(jax.random.key(2), 1000)
    moved = jax.jit(jax.vmap(lambda k: jmm.sgda.update(k, start, z, hyper, LINEAR).z))(keys)
    noise = np.asarray(moved.w - jnp.mean(moved.w, 0)) / 1e-3
    assert noise.std() == pytest.approx(clip * multiplier / 200, rel=0.06)
    assert np.ptp(np.asarray(moved.v), axis=0).max() == 0.0  # no noise, the same for every key
    other = jmm.sgda.update(keys[0], start, z + 1.0, hyper, LINEAR).z
    assert_close(other.v, moved.v[0], 0.0)  # and for all data
    charged = jmm.epsilon(jmm.sgda.mechanism(hyper), 1e-6)
    both = dataclasses.replace(query, clip=Saddle(clip, clip),
                               noise_multiplier=Saddle(multiplier, multiplier))
    assert charged == pytest.approx(jmm.epsilon(jmm.Repeat(query=both, times=1), 1e-6)
                                    / math.sqrt(2), rel=0.1)
    half = dataclasses.replace(query, noise_multiplier=Saddle(multiplier / 2, None))
    assert jmm.epsilon(jmm.Repeat(query=half, times=1), 1e-6) > 1.9 * charged


def test_the_operator_and_public_term_of_a_gan_are_the_gradient_of_its_value():
    keys = jax.random.split(jax.random.key(7), 3)
    problem = P.wgan(P.mlp_scorer, P.mlp_generator, BANK, penalty=0.2, one_use=True)
    z = Saddle(P.mlp_init(keys[0], DIM, 6), P.generator_init(keys[1], latent=DIM, hidden=5,
                                                             dim=DIM))
    records = points(30)
    assert_close(jmm.metrics.mean_operator(problem, z, records),
                 full_gradient(problem, z, records))
    assert not any(jnp.any(x) for x in jax.tree.leaves(problem.operator(z, records[0]).v))


def test_a_cosine_discriminator_has_gradients_below_the_root_of_two():
    d = P.cosine_discriminator(jax.random.key(1), dim=3, hidden=50, scale=4.0)
    x = jnp.array([[0.0, 0.0, 0.0], [1e3, -1e4, 1.0], [0.3, 0.2, -0.1]])
    g = jax.vmap(jax.grad(d), (None, 0))(jnp.ones(50), x)
    norms = jnp.linalg.norm(g, axis=1)
    assert jnp.all(norms <= math.sqrt(2))
    assert jnp.all(norms > 0.5)


@pytest.mark.parametrize("shape", [(3, 7), (7, 3)])
def test_limits_on_weights_are_projections(shape):
    keys = jax.random.split(jax.random.key(3))
    w = {"W1": 3 * jax.random.normal(keys[0], shape), "b1": jax.random.normal(keys[1], (5,))}
    spectral = P.limited(w, 1.5, "spectral")
    u, s, vt = jnp.linalg.svd(w["W1"], full_matrices=False)
    assert s[-1] < 1.5 < s[0]  # some are cut and some are not
    np.testing.assert_allclose(spectral["W1"], u @ jnp.diag(jnp.minimum(s, 1.5)) @ vt, atol=1e-10)
    assert jnp.linalg.norm(spectral["b1"]) <= 1.5 + 1e-12
    assert_close(P.limited(spectral, 1.5, "spectral"), spectral)
    entry = P.limited(w, 0.5, "entry")
    np.testing.assert_allclose(entry["W1"], jnp.clip(w["W1"], -0.5, 0.5))
    ball = P.limited(w, 0.5, "ball")
    assert sum(jnp.sum(x**2) for x in ball.values()) == pytest.approx(0.25)


def test_the_sliced_distance_of_a_shifted_sample_is_the_mean_projection_of_the_shift():
    key, x = jax.random.key(4), points(200)
    assert P.sliced_wasserstein(key, x, x) == 0.0
    line = x[:, :1]
    assert P.sliced_wasserstein(key, line + 0.7, line) == pytest.approx(0.7, rel=1e-9)
    # E |<t, u>| of a direction on the circle is 2 |t| / pi
    far = P.sliced_wasserstein(key, x[:, :2] + jnp.array([3.0, 4.0]), x[:, :2], 4000)
    assert far == pytest.approx(10 / math.pi, rel=0.05)


def test_modes_are_covered_where_points_are():
    centres = P.ring_centres(4)
    made = jnp.concatenate([jnp.tile(centres[:3], (10, 1)), jnp.full((10, 2), 9.0)])
    modes, inside = P.modes_covered(made, centres, within=0.1)
    assert (int(modes), float(inside)) == (3, 0.75)
    every = P.modes_covered(P.ring(jax.random.key(0), 2000, modes=4, spread=0.05), centres,
                            within=0.3)
    assert (int(every[0]), float(every[1])) == (4, 1.0)


def test_a_bank_of_latent_points_has_mean_zero():
    np.testing.assert_allclose(jnp.mean(BANK, 0), 0, atol=1e-15)
    with pytest.raises(ValueError, match="even"):
        P.latents(jax.random.key(0), 3, 2)


# --- Markov decision processes ---


def two_states(gain=0.6, loss=0.2):
    """Action 1 in state 0 leads to state 1 with probability `gain`; state 1 pays and is lost again.

    The best policy takes action 1 in state 0 and action 0 in state 1, for gain / (gain + loss).
    """
    transition = np.array([[[1.0, 0.0], [1 - gain, gain]], [[loss, 1 - loss], [1.0, 0.0]]])
    return transition, np.array([[0.0, 0.0], [1.0, 1.0]])


def quarters():
    """A process of quarters, and data that hold every transition as often as it is likely."""
    rng = np.random.default_rng(0)
    counts = rng.multinomial(4, [0.3, 0.3, 0.4], size=(3, 2))
    reward = rng.random((3, 2))
    rows = [(i, a, j) for i, a, j in itertools.product(range(3), range(2), range(3))
            for _ in range(counts[i, a, j])]
    i, a, j = (jnp.array(x) for x in zip(*rows, strict=True))
    return counts / 4, reward, (i, a, j, jnp.asarray(reward)[i, a])


def test_the_two_state_chain_is_solved_exactly():
    policy, gain, h = P.optimal_policy(*two_states())
    np.testing.assert_array_equal(policy, [[0, 1], [1, 0]])
    assert gain == pytest.approx(0.75)
    # g + h_0 = P h + r, so h_1 - h_0 = g / 0.6
    np.testing.assert_allclose(h, [-0.625, 0.625])
    assert P.average_reward(*two_states(), np.full((2, 2), 0.5)) == pytest.approx(0.3 / (0.3 + 0.6))


def test_policy_iteration_beats_every_deterministic_policy():
    rng = np.random.default_rng(3)
    p, r = rng.dirichlet(np.ones(4), size=(4, 3)), rng.random((4, 3))
    _, gain, _ = P.optimal_policy(p, r)
    every = [P.average_reward(p, r, np.eye(3)[list(choice)])
             for choice in itertools.product(range(3), repeat=4)]
    assert gain == pytest.approx(max(every), abs=1e-12)


def test_the_saddle_point_of_a_process_is_its_best_policy():
    p, r = two_states()
    policy, gain, h = P.optimal_policy(p, r)
    time = np.array([0.25, 0.75])  # spent in the two states
    z = Saddle(h, time[:, None] * policy)
    assert P.mdp_gap(z, p, r, 1.0) == pytest.approx(0.0, abs=1e-12)
    start = P.mdp_start(2, 2)
    assert P.mdp_gap(start, p, r, 1.0) > 0.4
    np.testing.assert_allclose(P.mdp_policy(jnp.asarray(z.v)), policy)
    assert gain == pytest.approx(float((z.v * r).sum()))


@pytest.mark.parametrize("weights", [None, np.array([[2.0, 1.0], [1.0, 1.0], [1.0, 2.0]]) / 8])
def test_transitions_have_the_bilinear_form_as_their_mean(weights):
    p, r, data = quarters()
    if weights is not None:  # each pair as often as the design says
        times = np.rint(8 * weights).astype(int)[np.asarray(data[0]), np.asarray(data[1])]
        data = tuple(jnp.repeat(x, times) for x in data)
    problem = P.mdp(states=3, actions=2, bias=1.5, design=weights)
    keys = jax.random.split(jax.random.key(2))
    z = problem.project(Saddle(2 * jax.random.normal(keys[0], (3,)),
                               jax.random.uniform(keys[1], (3, 2))))
    assert jnp.sum(z.v) == pytest.approx(1.0)
    assert jnp.max(jnp.abs(z.w)) <= 1.5
    form = (np.asarray(z.v) * (p @ np.asarray(z.w) - np.asarray(z.w)[:, None] + r)).sum()
    assert problem.value(z, data) == pytest.approx(form)
    assert jmm.metrics.strong_gap(problem, z, data) == pytest.approx(P.mdp_gap(z, p, r, 1.5))
    assert jmm.metrics.vi_gap_bound(problem, z, data) == pytest.approx(P.mdp_gap(z, p, r, 1.5))
    g = problem.operator(z, tuple(x[0] for x in data))
    i, a, j, reward = (x[0] for x in data)
    ratio = float(z.v[i, a]) * (6 if weights is None else 1 / weights[i, a])
    assert jnp.linalg.norm(g.w) == pytest.approx(math.sqrt(2) * ratio if i != j else 0.0)
    assert jnp.linalg.norm(g.v) == pytest.approx(
        abs(float(z.w[j] - z.w[i] + reward)) * (6 if weights is None else 1 / weights[i, a]))


def test_drawn_transitions_follow_the_process():
    p, r, _ = quarters()
    i, a, j, reward = P.transitions(jax.random.key(0), 30_000, p, r)
    counts = np.zeros((3, 2, 3))
    np.add.at(counts, (np.asarray(i), np.asarray(a), np.asarray(j)), 1)
    np.testing.assert_allclose(counts / 5000, p, atol=0.05)
    np.testing.assert_allclose(reward, r[np.asarray(i), np.asarray(a)])


def test_a_grid_world_leads_to_its_last_cell():
    p, r = P.grid_world(3, slip=0.0)
    policy, gain, h = P.optimal_policy(p, r)
    # 0, 1, ..., 4 steps from the goal start 1, 2, 3, 2, 1 of the nine cells: a visit takes 3 steps
    assert gain == pytest.approx(1 / 3)
    assert policy[7, 1] == policy[5, 2] == 1.0  # right and down, next to it
    assert h.argmax() == 8


@pytest.mark.parametrize(("make", "message"), [
    (lambda: P.average_reward(np.eye(2)[:, None], np.ones((2, 1)), np.ones((2, 1))), "parts"),
    (lambda: P.average_reward(*two_states(), np.ones((2, 2))), "policy"),
    (lambda: P.optimal_policy(np.ones((2, 2, 2)), np.ones((2, 2))), "add up to 1"),
    (lambda: P.optimal_policy(np.ones((2, 2)), np.ones((2, 2))), r"\[S, A, S\]"),
    (lambda: P.mdp(states=2, actions=2, bias=1.0, design=np.ones((2, 2))), "design"),
    (lambda: P.mdp(states=2, actions=2, bias=0.0), "bias"),
    (lambda: P.wgan(P.mlp_scorer, P.mlp_generator, BANK, limit=-1.0), "limit"),
    (lambda: P.wgan(P.mlp_scorer, P.mlp_generator, BANK, norm="nuclear"), "norm"),
    (lambda: P.wgan(P.mlp_scorer, P.mlp_generator, BANK[:0]), "bank"),
    (lambda: P.worst_mixture(P.squared_loss, shares=np.ones(2), radius=1.0), "shares"),
    (lambda: P.reweighted(P.squared_loss, divergence="cvar", level=1.5, radius=1.0, bound=1.0),
     "level"),
    (lambda: P.reweighted(P.squared_loss, divergence="kl", level=0.5, radius=1.0, bound=1.0),
     "divergence"),
    (lambda: P.adversarial(radius=Saddle(2.0, 1.0), shift="common"), "penalty"),
    (lambda: P.adversarial(radius=Saddle(2.0, 1.0), penalty=1.0, dual="best_response"), "dual"),
    (lambda: P.adversarial(radius=Saddle(2.0, -1.0)), r"radius\.v"),
])
def test_bad_numbers_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# --- robust learning ---


def regression(n=400):
    return P.two_populations(jax.random.key(1), n, dim=3, minority=0.2)


def test_the_worst_share_is_the_mean_of_the_largest_losses():
    losses = jnp.array([3.0, 1.0, 7.0, 2.0, 5.0])
    def risk(level):
        return float(P.reweighted_risk(losses, divergence="cvar", level=level))
    assert risk(0.4) == pytest.approx(6.0)
    assert risk(0.5) == pytest.approx((7 + 5 + 3 / 2) / 2.5)
    assert risk(0.999999) == pytest.approx(3.6, rel=1e-5)


def test_a_little_reweighting_adds_a_standard_deviation():
    losses = jax.random.uniform(jax.random.key(0), (200,))
    def risk(level):
        return float(P.reweighted_risk(losses, divergence="chi_square", level=level))
    assert risk(0.01) == pytest.approx(float(losses.mean() + 0.1 * losses.std()), rel=1e-9)
    top = float(losses.max())
    assert risk(199.0) == pytest.approx(top, rel=1e-6)  # all weight on one record
    etas = jnp.linspace(-3, 1, 4001)
    by_grid = jax.vmap(lambda e: e + 2 * jnp.sqrt(jnp.mean(jax.nn.relu(losses - e) ** 2)))(etas)
    assert risk(3.0) == pytest.approx(float(by_grid.min()), rel=1e-4)


@pytest.mark.parametrize(("divergence", "level"), [("cvar", 0.2), ("chi_square", 1.5)])
def test_the_dual_of_a_reweighting_is_its_risk_at_the_best_numbers(divergence, level):
    _, pairs = regression()
    theta = jnp.array([0.3, 0.1, -0.4])
    losses = jax.vmap(P.squared_loss, (None, 0))(theta, pairs)
    problem = P.reweighted(P.squared_loss, divergence=divergence, level=level, radius=1.0,
                           bound=1.0)
    risk = float(P.reweighted_risk(losses, divergence=divergence, level=level))
    values = []
    for eta in jnp.linspace(0, 0.6, 301):
        w = P.reweighted_start(theta, divergence, eta=float(eta)).w
        if divergence == "chi_square":
            w["scale"] = jnp.sqrt(jnp.mean(jax.nn.relu(losses - eta) ** 2))
        values.append(float(problem.value(Saddle(w, ()), pairs)))
    assert min(values) >= risk - 1e-9
    assert min(values) == pytest.approx(risk, rel=1e-3)
    z = problem.project(Saddle(P.reweighted_start(3 * theta, divergence, eta=-1.0).w, ()))
    assert z.w["eta"] == 0.0
    assert jnp.linalg.norm(z.w["theta"]) == pytest.approx(1.0)
    z = P.reweighted_start(theta, divergence, eta=0.05)
    assert_close(jmm.metrics.mean_operator(problem, z, pairs), full_gradient(problem, z, pairs))


def test_the_worst_mixture_is_the_worst_source():
    g, pairs = regression()
    shares = np.bincount(np.asarray(g)) / len(g)
    problem = P.worst_mixture(P.squared_loss, shares=shares, radius=1.0)
    theta = jnp.array([0.8, 0.1, 0.0])
    each = jax.vmap(P.squared_loss, (None, 0))(theta, pairs)
    means = [float(each[np.asarray(g) == k].mean()) for k in (0, 1)]
    assert means[1] > means[0]
    assert jmm.metrics.primal_risk(problem, theta, (g, pairs)) == pytest.approx(max(means))
    z = Saddle(theta, jnp.array([0.3, 0.7]))
    assert_close(jmm.metrics.mean_operator(problem, z, (g, pairs)),
                 full_gradient(problem, z, (g, pairs)))
    one = problem.operator(z, jax.tree.map(lambda x: x[0], (g, pairs)))
    assert jnp.sum(one.v != 0) == 1  # a record speaks for its own source
    plain = P.worst_mixture(P.squared_loss, shares=np.ones(1), radius=1.0)
    alone = plain.value(Saddle(theta, jnp.ones(1)), (jnp.zeros_like(g), pairs))
    assert alone == pytest.approx(float(each.mean()))


# --- moved features ---


def classes(n=300):
    return P.fragile_classes(jax.random.key(6), n, dim=4)


def classifier():
    return {"weight": jnp.array([0.7, -0.2, 0.4, 1.1]), "bias": jnp.array(0.1)}


def test_one_shift_against_labels_is_as_strong_as_one_for_each_record():
    (x, y), w, r = classes(), classifier(), 0.5
    problem = P.adversarial(radius=Saddle(10.0, r))
    risk = jmm.metrics.primal_risk(problem, w, (x, y))
    unit = w["weight"] / jnp.linalg.norm(w["weight"])
    moved = x - r * y[:, None] * unit[None]
    margins = y * (moved @ w["weight"] + w["bias"])
    assert risk == pytest.approx(float(jnp.mean(jax.nn.softplus(-margins))))
    for key in jax.random.split(jax.random.key(0), 20):  # no other shifts do worse
        u = jax.random.normal(key, x.shape)
        u = r * u / jnp.linalg.norm(u, axis=1, keepdims=True)
        tried = y * ((x + u) @ w["weight"] + w["bias"])
        assert jnp.mean(jax.nn.softplus(-tried)) < risk
    assert P.robust_accuracy(w, (x, y), r) == pytest.approx(float(jnp.mean(margins > 0)))
    assert P.robust_accuracy(w, (x, y), 0.0) == pytest.approx(
        float(jnp.mean(y * (x @ w["weight"] + w["bias"]) > 0)))


@pytest.mark.parametrize("how", [dict(), dict(shift="common", penalty=1.0)])
def test_the_operator_of_shifts_is_the_gradient_of_the_value(how):
    data, w = classes(), classifier()
    problem = P.adversarial(radius=Saddle(2.0, 0.5), **how)
    z = problem.project(Saddle(w, jnp.array([0.3, 0.0, -2.0, 0.1])))
    assert jnp.linalg.norm(z.v) == pytest.approx(0.5)
    assert_close(jmm.metrics.mean_operator(problem, z, data), full_gradient(problem, z, data))


def test_the_best_response_of_shifts_follows_the_classifier():
    w = classifier()
    problem = P.adversarial(radius=Saddle(10.0, 0.5), dual="best_response")
    z = problem.project(Saddle(w, jnp.zeros(4)))
    assert_close(z.v, 0.5 * w["weight"] / jnp.linalg.norm(w["weight"]))
    plain = P.adversarial(radius=Saddle(10.0, 0.0))  # nothing moves: logistic regression
    assert not jnp.any(plain.project(Saddle(w, jnp.ones(4))).v)


def test_private_training_against_shifts_ends_near_that_without_noise():
    data = classes(3000)
    problem = P.adversarial(radius=Saddle(10.0, 0.5))
    start = P.linear_start(4)
    state, _ = private(problem, start, data, clip=Saddle(1.5, 10.0), step=Saddle(1.0, 0.2),
                       epsilon=3.0)
    risk = jmm.metrics.primal_risk(problem, state.average.w, data)
    assert risk < 0.75 * jmm.metrics.primal_risk(problem, start.w, data)
    assert P.robust_accuracy(state.average.w, data, 0.5) > 0.7


def test_a_private_policy_earns_more_than_the_uniform_one():
    process = two_states()
    data = P.transitions(jax.random.key(0), 5000, *process)
    problem = P.mdp(states=2, actions=2, bias=1.0)
    state, _ = private(problem, P.mdp_start(2, 2), data, clip=Saddle(4.0, 12.0),
                       step=Saddle(0.2, 0.1))
    policy = np.asarray(P.mdp_policy(state.average.v))
    assert P.average_reward(*process, policy) > 0.68  # of 0.75; the uniform one earns 0.33
    start = P.mdp_gap(P.mdp_start(2, 2), *process, 1.0)
    assert P.mdp_gap(state.average, *process, 1.0) < 0.5 * start


def test_a_private_model_for_the_worst_tenth_is_better_for_it():
    g, pairs = P.two_populations(jax.random.key(1), 3000, dim=3, minority=0.2)
    problem = P.reweighted(P.squared_loss, divergence="cvar", level=0.2, radius=2.0, bound=1.0)
    start = P.reweighted_start(jnp.array([1.0, 0.0, 0.0]), "cvar", eta=0.1)  # right for most
    state, _ = private(problem, start, pairs, clip=Saddle(6.0, None), step=Saddle(0.05, 0.0),
                       epsilon=3.0)
    theta = jnp.stack([start.w["theta"], state.average.w["theta"]])
    before, after = (float(P.reweighted_risk(jnp.asarray(x), divergence="cvar", level=0.2))
                     for x in example_dro.losses(theta, pairs))
    assert after < 0.8 * before


# --- the command ---


def test_an_example_trains_prints_and_draws(tmp_path, capsys):
    files = tmp_path / "mdp.json", tmp_path / "mdp.png"
    assert examples.main(["mdp", "--quick", "--epsilon", "2", "--json", str(files[0]),
                          "--plot", str(files[1])]) == 0
    out = json.loads(files[0].read_text())
    assert {"environment", "arguments", "title", "rows", "statements"} == set(out)
    assert [r["epsilon"] for r in out["rows"]] == [2.0, None]
    assert all(r["average_reward"] > 0.4 for r in out["rows"])  # best 0.477, uniform 0.167
    (statement,) = out["statements"]
    assert statement["epsilon"] == pytest.approx(2.0, rel=1e-3)
    assert "one transition" in statement["unit"]
    assert files[1].stat().st_size > 1000
    assert "differential privacy for one transition" in capsys.readouterr().out


@pytest.mark.parametrize(("argv", "message"), [
    ("cat", "invalid choice: 'cat'"),
    ("gan --epsilon 0", "--epsilon: got '0'; give a number between 0 and 1e"),
    ("gan --epsilon nan", "--epsilon: got 'nan'"),
    ("mdp --delta 2", "--delta: got '2'"),
    ("mdp --dataset mnist", "--dataset mnist: mdp has grid"),
    ("dro --seeds 0", "--seeds: got '0'; give an integer, at least 1"),
    ("gan --data-dir nowhere", "--data-dir: got 'nowhere', no such folder"),
    ("adversarial --plot x.pdf", "--plot: got 'x.pdf'"),
    ("mdp --json none/x.json", "--json: cannot write 'none/x.json'"),
])
def test_bad_input_reads_no_data(argv, message, capsys, monkeypatch):
    for example in examples.EXAMPLES.values():
        monkeypatch.setattr(example, "run", lambda _: pytest.fail("data were read"))
    with pytest.raises(SystemExit) as stop:
        examples.main(argv.split())
    assert stop.value.code == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error.count("\n") == 1
    assert message in error


def test_small_images_are_means_of_blocks(monkeypatch):
    pixels = np.arange(2 * 28 * 28, dtype=np.uint32).reshape(2, 28, 28) % 251
    monkeypatch.setattr(benchmark_data, "_read_verified", lambda *_: b"")
    monkeypatch.setattr(benchmark_data, "_read_idx", lambda _: pixels.astype(np.uint8))
    small = benchmark_data.images("mnist", size=7)
    assert small.shape == (2, 49)
    assert small.dtype == np.float32
    assert small[1, 8] == pytest.approx(pixels[1, 4:8, 4:8].mean() / 255)
    with pytest.raises(ValueError, match="divide 28"):
        benchmark_data.images("mnist", size=5)
