"""GANs, Markov decision processes, robust learning: closed forms, and private runs that learn."""

import dataclasses
import functools
import itertools
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxminimax as jmm
from benchmarks.data_sets import files as data_files
from benchmarks.data_sets import images as set_images
from benchmarks.examples import __main__ as examples
from benchmarks.examples import demo_gan, demo_mdp
from benchmarks.examples import dro as example_dro
from jaxminimax import Saddle

P = jmm.problems
run = jax.jit(jmm.run, static_argnames=("algorithm", "problem"))


def private(problem, start, data, *, clip, step, epsilon=1.0, rounds=150, seed=3):
    """A calibrated run over the full batch, and its hyper-parameters."""
    n = len(jax.tree.leaves(data)[0])
    hyper = jmm.sgda.Hyper(query=jmm.Query(clip=clip, population=n), step=step, iterations=rounds,
                           averaging=jmm.averaging.TAIL)
    hyper = jmm.calibrate(jmm.sgda, hyper, epsilon, 1e-6)
    state, _ = run(jax.random.key(seed), start, data, hyper, jmm.sgda, problem)
    return state, hyper


def assert_close(a, b, tolerance=1e-10):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=tolerance), a, b)


def assert_operator_is_the_gradient(problem, z, data):
    """The records' mean operator and the public terms, against the gradient of the value."""
    @jax.jit
    def both(z):
        g = jax.grad(lambda z: problem.value(z, data))(z)
        return jmm.metrics.mean_operator(problem, z, data), g

    operator, gradient = both(z)
    assert_close(operator, Saddle(gradient.w, jax.tree.map(np.negative, gradient.v)))


@pytest.fixture(scope="module")
def drawn():
    """What the generators draw, in one program."""
    p, r, _ = quarters()

    @jax.jit
    def draw(key):
        wave = demo_gan.cosine_discriminator(key, dim=3, hidden=50, low=1.0, high=9.0)
        wild = np.array([[0.0, 0.0, 0.0], [1e3, -1e4, 1.0], [0.3, 0.2, -0.1]])
        return {
            "cosine": jax.vmap(jax.grad(wave), (None, 0))(jnp.ones(50), wild),
            "latents": demo_gan.latents(key, 64, DIM),
            "ring": demo_gan.ring(key, 400, modes=4, spread=0.02),
            "transitions": demo_mdp.transitions(key, 30_000, p, r),
        }

    return jax.tree.map(np.asarray, draw(jax.random.key(1)))


@pytest.fixture(scope="module")
def regression():
    """A fifth of the records answer with another feature."""
    x = RNG.normal(size=(3000, 3)) / math.sqrt(3)
    g = (RNG.random(3000) < 0.2).astype(int)
    return g, (x, x[np.arange(3000), g] + 0.1 * RNG.normal(size=3000))


# --- Wasserstein GAN ---

DIM = 4
RNG = np.random.default_rng(0)
HALF = RNG.normal(size=(32, DIM))
BANK = np.concatenate([HALF, -HALF])
POINTS = 0.2 * RNG.normal(size=(2000, DIM)) + np.array([0.5, -0.3, 0.0, 0.1])
LINEAR = demo_gan.wgan(lambda w, z: w @ z, lambda v, xi: v + xi, BANK, limit=2.0, norm="ball",
                       penalty=1.0)


def test_a_linear_gan_has_its_saddle_at_the_mean_of_the_records():
    zero, mean, value = np.zeros(DIM), POINTS.mean(0), jax.jit(LINEAR.value)
    operator = jax.jit(lambda z: jmm.metrics.mean_operator(LINEAR, z, POINTS))
    assert_close(operator(Saddle(zero, mean)), Saddle(zero, zero))
    for x in RNG.normal(size=(5, DIM)):  # f(w, v*) = |w|^2 / 2, and f(0, v) = 0 for every v
        assert value(Saddle(x, mean), POINTS) == pytest.approx(x @ x / 2)
        assert value(Saddle(zero, x), POINTS) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.nightly
def test_a_private_linear_gan_finds_the_mean_to_the_noise():
    """The averaged operator of w is near 0, so v is off by the averaged noise and no more."""
    z, clip = POINTS, 2.0
    state, hyper = private(LINEAR, Saddle(jnp.zeros(DIM), jnp.zeros(DIM)), z,
                           clip=Saddle(clip, None), step=Saddle(0.5, 0.3), rounds=300)
    std = clip * hyper.query.noise_multiplier.w / len(z) / math.sqrt(150)
    off = np.linalg.norm(state.average.v - z.mean(0))
    assert 0.1 * std < off < 4 * std * math.sqrt(DIM)
    assert off < 0.3 * np.linalg.norm(z.mean(0))


def test_of_a_gan_only_the_discriminator_is_noised_and_charged():
    z, clip, multiplier = POINTS[:200], 1.5, 7.0
    query = jmm.Query(clip=Saddle(clip, None), noise_multiplier=Saddle(multiplier, None),
                      population=200)
    hyper = jmm.sgda.Hyper(query=query, step=Saddle(1e-3, 1e-3), iterations=1)
    start = jmm.sgda.init(Saddle(jnp.full(DIM, 0.1), jnp.zeros(DIM)), hyper)
    keys = jax.random.split(jax.random.key(2), 1000)
    rounds = jax.jit(lambda z: jax.lax.map(
        lambda k: jmm.sgda.update(k, start, z, hyper, LINEAR).z, keys))
    moved, other = (jax.tree.map(np.asarray, rounds(x)) for x in (z, z + 1.0))
    noise = (moved.w - moved.w.mean(0)) / 1e-3
    assert noise.std() == pytest.approx(clip * multiplier / 200, rel=0.06)
    assert np.ptp(moved.v, axis=0).max() == 0.0  # no noise, the same for every key
    np.testing.assert_array_equal(other.v, moved.v)  # and for all data
    assert np.abs(other.w - moved.w).max() > 0
    charged = jmm.epsilon(jmm.sgda.mechanism(hyper), 1e-6)
    both = dataclasses.replace(query, clip=Saddle(clip, clip),
                               noise_multiplier=Saddle(multiplier, multiplier))
    assert charged == pytest.approx(jmm.epsilon(jmm.Repeat(query=both, times=1), 1e-6)
                                    / math.sqrt(2), rel=0.1)
    half = dataclasses.replace(query, noise_multiplier=Saddle(multiplier / 2, None))
    assert jmm.epsilon(jmm.Repeat(query=half, times=1), 1e-6) > 1.9 * charged


def test_the_operator_and_public_term_of_a_gan_are_the_gradient_of_its_value():
    problem = demo_gan.wgan(P.mlp_scorer, demo_gan.mlp_generator, BANK, penalty=0.2)
    shapes = Saddle({"W1": (DIM, 6), "b1": (6,), "W2": (6,)},
                    {"W1": (DIM, 5), "b1": (5,), "W2": (5, DIM), "b2": (DIM,)})
    z = Saddle(*({k: RNG.normal(size=x) for k, x in player.items()} for player in shapes))
    assert_operator_is_the_gradient(problem, z, POINTS[:30])
    of_one = jax.jit(problem.operator)(z, POINTS[0]).v
    assert not any(np.any(x) for x in jax.tree.leaves(of_one))


@pytest.mark.slow
def test_a_cosine_discriminator_has_gradients_below_the_root_of_two(drawn):
    norms = np.linalg.norm(drawn["cosine"], axis=1)
    assert np.all((norms > 0.5) & (norms <= math.sqrt(2)))


def test_limits_on_weights_are_projections():
    w = {"wide": 2 * RNG.normal(size=(3, 7)), "tall": 2 * RNG.normal(size=(7, 3)),
         "b1": 5 * np.ones(5)}
    limit = jax.jit(demo_gan.limited, static_argnums=(1, 2))
    spectral = limit(w, 5.0, "spectral")
    for name in ("wide", "tall"):
        u, size, vt = np.linalg.svd(w[name], full_matrices=False)
        assert size[-1] < 5.0 < size[0]  # some are cut and some are not
        np.testing.assert_allclose(spectral[name], u @ np.diag(np.minimum(size, 5.0)) @ vt,
                                   atol=1e-10)
    np.testing.assert_allclose(spectral["b1"], np.sqrt(5) * np.ones(5))
    assert_close(limit(spectral, 5.0, "spectral"), spectral)
    np.testing.assert_allclose(demo_gan.limited(w, 0.5, "entry")["wide"],
                               np.clip(w["wide"], -0.5, 0.5))
    assert sum(np.sum(x**2) for x in limit(w, 0.5, "ball").values()) == pytest.approx(0.25)


def test_the_sliced_distance_of_a_shifted_sample_is_the_mean_projection_of_the_shift():
    key, x = jax.random.key(4), POINTS[:100, :2]
    distance = jax.jit(lambda a, b: demo_gan.sliced_wasserstein(key, a, b, 1000))
    assert distance(x, x[::-1].copy()) == pytest.approx(0.0, abs=1e-12)
    # E |<t, u>| of a direction on the circle is 2 |t| / pi
    assert distance(x + np.array([3.0, 4.0]), x) == pytest.approx(10 / math.pi, rel=0.05)


@pytest.mark.nightly
def test_modes_are_covered_where_points_are(drawn):
    @jax.jit
    def covered(records):
        centres = demo_gan.ring_centres(4)
        made = jnp.concatenate([jnp.tile(centres[:3], (100, 1)), jnp.full((100, 2), 9.0)])
        return jax.vmap(lambda x: demo_gan.modes_covered(x, centres, within=0.1))(
            jnp.stack([made, records]))

    modes, inside = map(np.asarray, covered(drawn["ring"]))
    np.testing.assert_array_equal(modes, [3, 4])
    np.testing.assert_allclose(inside, [0.75, 1.0])


def test_a_bank_of_latent_points_has_mean_zero(drawn):
    np.testing.assert_allclose(drawn["latents"].mean(0), 0, atol=1e-15)
    assert drawn["latents"].std() == pytest.approx(1.0, abs=0.2)
    with pytest.raises(ValueError, match="even"):
        demo_gan.latents(jax.random.key(0), 3, 2)


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
    i, a, j = (np.array(x) for x in zip(*rows, strict=True))
    return counts / 4, reward, (i, a, j, reward[i, a])


def test_the_two_state_chain_is_solved_exactly():
    policy, gain, h = demo_mdp.optimal_policy(*two_states())
    np.testing.assert_array_equal(policy, [[0, 1], [1, 0]])
    assert gain == pytest.approx(0.75)
    # g + h_0 = P h + r, so h_1 - h_0 = g / 0.6
    np.testing.assert_allclose(h, [-0.625, 0.625])
    even = demo_mdp.average_reward(*two_states(), np.full((2, 2), 0.5))
    assert even == pytest.approx(0.3 / (0.3 + 0.6))


def test_policy_iteration_beats_every_deterministic_policy():
    rng = np.random.default_rng(3)
    p, r = rng.dirichlet(np.ones(4), size=(4, 3)), rng.random((4, 3))
    _, gain, _ = demo_mdp.optimal_policy(p, r)
    every = [demo_mdp.average_reward(p, r, np.eye(3)[list(choice)])
             for choice in itertools.product(range(3), repeat=4)]
    assert gain == pytest.approx(max(every), abs=1e-12)


def test_the_saddle_point_of_a_process_is_its_best_policy():
    p, r = two_states()
    policy, gain, h = demo_mdp.optimal_policy(p, r)
    time = np.array([0.25, 0.75])  # spent in the two states
    z = Saddle(h, time[:, None] * policy)
    assert demo_mdp.mdp_gap(z, p, r, 1.0) == pytest.approx(0.0, abs=1e-12)
    start = demo_mdp.mdp_start(2, 2)
    assert demo_mdp.mdp_gap(start, p, r, 1.0) > 0.4
    np.testing.assert_allclose(demo_mdp.mdp_policy(jnp.asarray(z.v)), policy)
    assert gain == pytest.approx(float((z.v * r).sum()))


def test_transitions_have_the_bilinear_form_as_their_mean():
    p, r, data = quarters()
    design = np.array([[2.0, 1.0], [1.0, 1.0], [1.0, 2.0]]) / 8
    times = np.rint(8 * design).astype(int)[data[0], data[1]]  # as often as the design says
    data = tuple(np.repeat(x, times) for x in data)
    uniform = demo_mdp.mdp(states=3, actions=2, bias=1.5)
    problem = demo_mdp.mdp(states=3, actions=2, bias=1.5, design=design)
    one = tuple(x[5] for x in data)

    @jax.jit
    def all_of(z):
        z = problem.project(z)
        return (z, problem.value(z, data), jmm.metrics.strong_gap(problem, z, data),
                jmm.metrics.vi_gap_bound(problem, z, data), problem.operator(z, one),
                uniform.operator(z, one))

    z, value, gap, bound, g, plain = all_of(Saddle(np.array([2.0, -0.3, 0.4]), RNG.random((3, 2))))
    h, mu = map(np.asarray, z)
    assert mu.sum() == pytest.approx(1.0)
    assert np.abs(h).max() == 1.5
    assert value == pytest.approx((mu * (p @ h - h[:, None] + r)).sum())
    assert gap == pytest.approx(demo_mdp.mdp_gap(z, p, r, 1.5))
    assert bound == pytest.approx(float(gap))
    i, a, j, reward = one
    assert i != j
    for g_one, inverse in ((g, 1 / design[i, a]), (plain, 6)):
        assert np.linalg.norm(g_one.w) == pytest.approx(math.sqrt(2) * mu[i, a] * inverse)
        assert np.linalg.norm(g_one.v) == pytest.approx(abs(h[j] - h[i] + reward) * inverse)


def test_drawn_transitions_follow_the_process(drawn):
    p, r, _ = quarters()
    i, a, j, reward = drawn["transitions"]
    counts = np.zeros((3, 2, 3))
    np.add.at(counts, (i, a, j), 1)
    np.testing.assert_allclose(counts / 5000, p, atol=0.05)
    np.testing.assert_allclose(reward, r[i, a])


def test_a_grid_world_leads_to_its_last_cell():
    p, r = demo_mdp.grid_world(3, slip=0.0)
    policy, gain, h = demo_mdp.optimal_policy(p, r)
    # 0, 1, ..., 4 steps from the goal start 1, 2, 3, 2, 1 of the nine cells: a visit takes 3 steps
    assert gain == pytest.approx(1 / 3)
    assert policy[7, 1] == policy[5, 2] == 1.0  # right and down, next to it
    assert h.argmax() == 8


@pytest.mark.parametrize(("make", "message"), [
    (lambda: demo_mdp.average_reward(np.eye(2)[:, None], np.ones((2, 1)), np.ones((2, 1))),
     "parts"),
    (lambda: demo_mdp.average_reward(*two_states(), np.ones((2, 2))), "policy"),
    (lambda: demo_mdp.optimal_policy(np.ones((2, 2, 2)), np.ones((2, 2))), "add up to 1"),
    (lambda: demo_mdp.optimal_policy(np.ones((2, 2)), np.ones((2, 2))), r"\[S, A, S\]"),
    (lambda: demo_mdp.mdp(states=2, actions=2, bias=1.0, design=np.ones((2, 2))), "design"),
    (lambda: demo_mdp.mdp(states=2, actions=2, bias=0.0), "bias"),
    (lambda: demo_gan.wgan(P.mlp_scorer, demo_gan.mlp_generator, BANK, limit=-1.0), "limit"),
    (lambda: demo_gan.wgan(P.mlp_scorer, demo_gan.mlp_generator, BANK, norm="nuclear"), "norm"),
    (lambda: demo_gan.wgan(P.mlp_scorer, demo_gan.mlp_generator, BANK[:0]), "bank"),
    (lambda: P.worst_mixture(P.squared_loss, shares=np.ones(2), radius=1.0), "shares"),
    (lambda: P.reweighted(P.squared_loss, divergence="cvar", level=1.5, radius=1.0, bound=1.0),
     "level"),
    (lambda: P.reweighted(P.squared_loss, divergence="kl", level=0.5, radius=1.0, bound=1.0),
     "divergence"),
])
def test_bad_numbers_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# --- robust learning ---


def risk_of(losses, divergence, level):
    return float(jax.jit(functools.partial(P.reweighted_risk, divergence=divergence,
                                           level=level))(losses))


def test_the_worst_share_is_the_mean_of_the_largest_losses():
    losses = np.array([3.0, 1.0, 7.0, 2.0, 5.0])
    assert risk_of(losses, "cvar", 0.4) == pytest.approx(6.0)
    assert risk_of(losses, "cvar", 0.5) == pytest.approx((7 + 5 + 3 / 2) / 2.5)


def test_a_little_reweighting_adds_a_standard_deviation():
    losses = RNG.random(200)
    assert risk_of(losses, "chi_square", 0.01) == pytest.approx(losses.mean() + 0.1 * losses.std())
    # all weight on one record
    assert risk_of(losses, "chi_square", 199.0) == pytest.approx(losses.max(), rel=1e-6)
    etas = np.linspace(-3, 1, 4001)[:, None]
    by_grid = etas[:, 0] + 2 * np.sqrt(np.mean(np.maximum(losses - etas, 0) ** 2, 1))
    assert risk_of(losses, "chi_square", 3.0) == pytest.approx(by_grid.min(), rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("divergence", "level"), [("cvar", 0.2), ("chi_square", 1.5)])
def test_the_dual_of_a_reweighting_is_its_risk_at_the_best_numbers(divergence, level, regression):
    pairs = jax.tree.map(lambda x: x[:400], regression[1])
    theta = np.array([0.3, 0.1, -0.4])
    losses = example_dro.losses(theta[None], pairs)[0]
    problem = P.reweighted(P.squared_loss, divergence=divergence, level=level, radius=1.0,
                           bound=1.0)

    @jax.jit
    @jax.vmap
    def values(eta):
        w = P.reweighted_start(theta, divergence, eta=eta).w
        if divergence == "chi_square":
            w["scale"] = jnp.sqrt(jnp.mean(jax.nn.relu(losses - eta) ** 2)) + 1e-9
        return problem.value(Saddle(w, ()), pairs)

    risk = risk_of(losses, divergence, level)
    least = float(values(np.linspace(-0.6, 0.6, 601)).min())
    assert risk - 1e-9 <= least <= risk * 1.001
    z = P.reweighted_start(theta, divergence, eta=0.05)
    assert_operator_is_the_gradient(problem, z, pairs)
    z = problem.project(Saddle(P.reweighted_start(3 * theta, divergence, eta=-2.0).w, ()))
    assert z.w["eta"] == -1.0
    assert np.linalg.norm(z.w["theta"]) == pytest.approx(1.0)


def test_the_worst_mixture_is_the_worst_source(regression):
    g, pairs = regression
    share = float(np.mean(g))
    problem = P.worst_mixture(P.squared_loss, shares=np.array([1 - share, share]), radius=1.0)
    theta = np.array([0.8, 0.1, 0.0])
    each = example_dro.losses(theta[None], pairs)[0]
    means = [each[np.asarray(g) == k].mean() for k in (0, 1)]
    assert means[1] > means[0]
    worst = jax.jit(lambda w: jmm.metrics.primal_risk(problem, w, regression))(theta)
    assert worst == pytest.approx(max(means))
    z = Saddle(theta, np.array([0.3, 0.7]))
    assert_operator_is_the_gradient(problem, z, regression)
    one = jax.jit(problem.operator)(z, jax.tree.map(lambda x: x[0], regression))
    assert np.count_nonzero(one.v) == 1  # a record speaks for its own source
    plain = P.worst_mixture(P.squared_loss, shares=np.ones(1), radius=1.0)
    alone = jax.jit(plain.value)(Saddle(theta, np.ones(1)), (np.zeros_like(g), pairs))
    assert alone == pytest.approx(each.mean())


@pytest.mark.nightly
def test_a_private_model_for_the_worst_share_is_better_for_it(regression):
    _, pairs = regression
    problem = P.reweighted(P.squared_loss, divergence="cvar", level=0.2, radius=2.0, bound=1.0)
    start = P.reweighted_start(jnp.array([1.0, 0.0, 0.0]), "cvar", eta=0.1)  # right for most
    state, _ = private(problem, start, pairs, clip=Saddle(6.0, None), step=Saddle(0.05, 0.0),
                       epsilon=3.0)
    before, after = (risk_of(example_dro.losses(z.w["theta"][None], pairs)[0], "cvar", 0.2)
                     for z in (start, state.average))
    assert after < 0.8 * before


# --- the command ---


@pytest.mark.nightly
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
    ("digits --plot x.txt", "--plot: got 'x.txt'"),
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
    monkeypatch.setattr(data_files.Files, "read", lambda *_: b"")
    monkeypatch.setattr(data_files, "idx", lambda _: pixels.astype(np.uint8))
    small = set_images.images("mnist", size=7)
    assert small.shape == (2, 49)
    assert small.dtype == np.float32
    assert small[1, 8] == pytest.approx(pixels[1, 4:8, 4:8].mean() / 255)
    with pytest.raises(ValueError, match="divide 28"):
        set_images.images("mnist", size=5)
