"""Fairness with private groups: duals, gradients, sensitivities, released shares, the metrics."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxminimax as jmm
from jaxminimax import Saddle, problems
from jaxminimax.accounting import epsilon

KINDS = ("parity", "odds", "error_rate")


def made(n=40, classes=3, groups=3, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 2))
    y, s = rng.integers(0, classes, n), rng.integers(0, groups, n)
    y[: classes * groups], s[: classes * groups] = np.divmod(np.arange(classes * groups), groups)
    return jnp.asarray(x), jnp.asarray(y), jnp.asarray(s)


def counted(data, kind, classes, groups):
    """The true shares, as `fermi` takes them."""
    joint = np.zeros((classes, groups))
    np.add.at(joint, (np.asarray(data[1]), np.asarray(data[2])), 1 / len(data[0]))
    return joint if kind == "odds" else joint.sum(0)


def scores(theta, x):
    return x @ theta


def outcome(q, y, kind):
    """Probabilities `[n, m]` of the classes; for error rates, that y is missed and that it is not.
    """
    right = q[np.arange(len(y)), y]
    return np.stack([1 - right, right], 1) if kind == "error_rate" else q


def information(p):
    """The chi-square information of a joint law `[m, k]`."""
    return float(np.sum(p**2 / (p.sum(1, keepdims=True) * p.sum(0))) - 1)


def entropy(theta, data):
    x, y, _ = data
    return float(-np.mean(np.asarray(jax.nn.log_softmax(x @ theta))[np.arange(len(y)), y]))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_best_response_of_fermi_attains_the_chi_square_information(kind):
    data, theta = made(), jnp.asarray(np.random.default_rng(1).normal(size=(2, 3)))
    shares = counted(data, kind, 3, 3)
    problem = problems.fermi(scores, shares=shares, weight=0.7, classes=3, kind=kind)
    x, y, s = map(np.asarray, data)
    q = outcome(np.asarray(jax.nn.softmax(x @ theta)), y, kind)
    parts = [y == label for label in range(3)] if kind == "odds" else [np.ones(len(y), bool)]
    wanted = sum(information(np.stack([q[of & (s == g)].sum(0) for g in range(3)], 1) / of.sum())
                 for of in parts)
    v = jax.jit(problem.best_response.v)(theta, data)
    assert v.shape == (len(parts), q.shape[1], 3)
    value_of = jax.jit(problem.value)
    value = value_of(Saddle(theta, v), data)
    assert value == pytest.approx(entropy(theta, data) + 0.7 * wanted, rel=1e-9)
    # and no other point of the box does better
    noise = jnp.asarray(np.random.default_rng(2).normal(size=(20, *v.shape)))
    others = jax.jit(jax.vmap(
        lambda x: problem.value(problem.project(Saddle(theta, v + x)), data)))(noise)
    assert np.all(np.asarray(others) <= value + 1e-12)
    # a prediction without regard to the group is worth nothing
    start = problems.fermi_start(0 * theta, shares=shares, classes=3, kind=kind)
    assert start.v.shape == v.shape
    assert value_of(start, data) == pytest.approx(math.log(3), rel=1e-9)
    np.testing.assert_allclose(jax.jit(problem.best_response.v)(start.w, data), start.v, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "groups"), [("parity", 2), ("odds", 2), ("parity", 3),
                                              ("error_rate", 2)])
def test_the_best_response_of_parity_attains_the_penalty(kind, groups):
    data, theta = made(classes=2, groups=groups), jnp.array([0.8, -0.5])
    shares = counted(data, kind, 2, groups)
    x, y, s = map(np.asarray, data)
    q = np.asarray(jax.nn.sigmoid(x @ theta))
    q = outcome(np.stack([1 - q, q], 1), y, kind)[:, 0 if kind == "error_rate" else 1]
    parts = [y == label for label in (0, 1)] if kind == "odds" else [np.ones(len(y), bool)]
    h = np.array([[q[of & (s == g)].mean() - q[of & (s != g)].mean() for g in range(groups)]
                  for of in parts])
    h = h[:, 1:] if groups == 2 else h
    plain = float(np.mean(np.logaddexp(0, x @ theta) - y * (x @ theta)))
    for penalty, wanted in (("squared", 0.7 / 2 * np.sum(h**2)), ("absolute", 0.7 * abs(h).sum())):
        for centre in (0.0, 0.4):
            problem = problems.parity(scores, shares=shares, weight=0.7, kind=kind,
                                      penalty=penalty, centre=centre)
            v = jax.jit(problem.best_response.v)(theta, data)
            z = Saddle(theta, v)
            np.testing.assert_allclose(jax.jit(problem.project)(z).v, v)
            assert jax.jit(problem.value)(z, data) == pytest.approx(plain + wanted, rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fermi", "parity", "absolute"])
@pytest.mark.parametrize("kind", KINDS)
def test_operators_are_gradients_of_the_value_and_v_has_none_of_the_weight(name, kind):
    """Player w descends the value; v ascends it over the weight, but for parity's public term."""
    data, weight = made(classes=2, groups=2), 3.0
    shares = counted(data, kind, 2, 2)
    theta, rng = jnp.array([0.8, -0.5]), np.random.default_rng(0)
    how = dict(shares=shares, weight=weight, kind=kind)
    if name == "fermi":
        problem, factor = problems.fermi(scores, **how), weight
        start = problems.fermi_start(theta, shares=shares, kind=kind)
    else:
        problem = problems.parity(scores, **how, penalty={"parity": "squared"}.get(name, name))
        start, factor = problems.parity_start(theta, shares=shares, kind=kind), 1.0
    z = Saddle(theta, start.v + 0.1 * rng.normal(size=start.v.shape))
    mean, slope = jax.jit(lambda z: (jmm.metrics.mean_operator(problem, z, data),
                                     jax.grad(problem.value)(z, data)))(z)
    np.testing.assert_allclose(mean.w, slope.w, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(mean.v, -slope.v / factor, rtol=1e-6, atol=1e-9)


@pytest.mark.slow
def test_the_gradient_of_w_is_the_closed_form():
    """Of a record (x, y, s): d/dW_{j,t} = 2 q_j ([t = s] / sqrt(p_s) - W_{j,t})."""
    shares, theta = np.array([0.3, 0.7]), jnp.array([0.8, -0.5])
    problem = problems.fermi(scores, shares=shares, weight=5.0)
    w = np.array([[[0.3, 0.9], [0.6, 0.2]]])
    x = jnp.array([1.0, 2.0])
    q = jax.nn.sigmoid(x @ theta)
    q = np.array([1 - q, q])
    for s in (0, 1):
        wanted = 2 * q[:, None] * ((np.arange(2) == s) / math.sqrt(shares[s]) - w[0])
        g = problem.operator(Saddle(theta, jnp.asarray(w)), (x, 1, s))
        np.testing.assert_allclose(-g.v[0], wanted, rtol=1e-6)
    assert not np.any(problem.operator(Saddle(theta, jnp.asarray(w)), (x, 1, 2)).v)  # in no group


@pytest.mark.parametrize("name", ["fermi", "parity"])
@pytest.mark.parametrize("kind", KINDS)
def test_no_record_is_longer_than_the_bound_and_a_changed_label_is_another_block(name, kind):
    """So under odds a changed label moves a sum by sqrt(2) bounds, and any record by two."""
    rng, theta = np.random.default_rng(3), jnp.array([2.0, -1.0])
    shares = np.array([[0.5, 0.2], [0.1, 0.2]]) if kind == "odds" else np.array([0.3, 0.7])
    how = dict(shares=shares, kind=kind)
    problem = getattr(problems, name)(scores, **how, weight=2.0)
    label = shares.sum(1) if kind == "odds" else np.ones(1)  # P(l)
    given = (shares.T / label).T.reshape(len(label), 2)  # P(s | l)
    bound = np.max(2 * np.sqrt(np.sum(1 / given, 1)) / label if name == "fermi" else
                   0.5 * np.max(1 / given, 1) / label)  # contrasts of two groups
    start = getattr(problems, f"{name}_start")(theta, **how)

    @jax.jit
    def operators(v, x):
        return jnp.stack([jnp.stack([problem.operator(Saddle(theta, v), (x, y, s)).v
                                     for s in (0, 1)]) for y in (0, 1)])

    longest = 0.0
    for _ in range(50):
        v = problem.project(Saddle(theta, 3 * rng.normal(size=start.v.shape))).v
        g = np.asarray(operators(v, jnp.asarray(20 * rng.normal(size=2)))).reshape(2, 2, -1)
        norms = np.linalg.norm(g, axis=-1)
        longest = max(longest, norms.max())
        for s, t in itertools.product((0, 1), repeat=2):
            apart = np.linalg.norm(g[0, s] - g[1, t])
            assert apart <= (math.sqrt(2) if kind == "odds" else 2) * bound + 1e-5
    assert 0.5 * bound < longest <= bound + 1e-5


def asking(n, count, z=40.0, clip=None):
    query = jmm.Query(clip=Saddle(math.sqrt(1 - 1 / count) if clip is None else clip, None),
                      noise_multiplier=Saddle(z, None), population=n)
    return jmm.Repeat(query=query, times=1)


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 5])
def test_replacing_a_record_moves_released_shares_by_what_is_charged(count):
    """By sqrt(2) / n at most; 2 C / n is charged, the same for two groups and more for others."""
    n, cells = 200, np.arange(200) % count
    described, key = asking(n, count, z=1e-3), jax.random.key(0)
    tables = np.stack([cells] * 4)
    tables[1:, 0] = 1, count - 1, count + 7  # the last one is in no cell
    actual = np.asarray(jax.vmap(lambda one: problems.release_shares(key, described, one, count))(
        jnp.asarray(tables)))
    np.testing.assert_allclose(actual[0], np.bincount(cells) / n, atol=1e-4)
    moved = n * np.linalg.norm(actual[1:] - actual[0], axis=1)
    assert max(moved) == pytest.approx(math.sqrt(2), rel=1e-3)
    assert max(moved) <= 2 * described.query.clip.w * (1 + 1e-3)
    assert count > 2 or max(moved) == pytest.approx(2 * described.query.clip.w, rel=1e-3)


@pytest.mark.slow
def test_released_shares_have_the_noise_that_is_charged_and_refuse_another_clip():
    n, z = 200, 4.0
    cells, described = jnp.arange(n) % 2, asking(n, 2, z)
    actual = jax.jit(jax.vmap(lambda key: problems.release_shares(key, described, cells, 2)))(
        jax.random.split(jax.random.key(0), 300))
    actual = np.asarray(actual)
    # the two numbers' noise is independent, and their sum is divided out
    deviation = z * described.query.clip.w / n / math.sqrt(2)
    assert np.std(actual, 0)[0] == pytest.approx(deviation, rel=0.15)
    assert abs(np.mean(actual, 0)[0] - 0.5) < 4 * deviation / math.sqrt(300)
    run = jmm.Repeat(query=jmm.Query(clip=Saddle(1.0, 1.0), population=n,
                                     noise_multiplier=Saddle(20.0, 20.0)), times=10)
    both = jmm.Sequence(parts=(described, run))
    assert epsilon(both, delta=1e-6) > epsilon(run, delta=1e-6)
    with pytest.raises(ValueError, match="clip must be"):
        problems.release_shares(jax.random.key(0), asking(n, 2, clip=1.0), cells, 2)
    with pytest.raises(ValueError, match="count"):
        problems.release_shares(jax.random.key(0), described, cells, 1)


@pytest.mark.parametrize(("how", "message"), [
    (dict(shares=[0.5, 0.6]), "add up to 1"),
    (dict(shares=[0.0, 1.0]), "positive"),
    (dict(shares=[1.0]), "two groups"),
    (dict(shares=[0.5, 0.5], kind="odds"), r"\[2, groups\]"),
    (dict(shares=[[0.5, 0.5]]), r"\[groups\]"),
    (dict(shares=[0.5, 0.5], kind="gap"), "kind"),
    (dict(shares=[0.5, 0.5], weight=0.0), "weight"),
    (dict(shares=[0.5, 0.5], radius=-1.0), "radius"),
])
@pytest.mark.parametrize("name", ["fermi", "parity"])
def test_bad_numbers_are_refused(name, how, message):
    with pytest.raises(ValueError, match=message):
        getattr(problems, name)(scores, **{"weight": 1.0, **how})


@pytest.mark.parametrize(("how", "message"), [
    (dict(penalty="cubed"), "penalty"), (dict(centre=1.5), "centre"), (dict(reach=0.0), "reach"),
    (dict(penalty="absolute", reach=2.0), "multipliers")])
def test_bad_numbers_of_parity_are_refused(how, message):
    with pytest.raises(ValueError, match=message):
        problems.parity(scores, shares=[0.5, 0.5], weight=1.0, **how)


def test_a_scorer_of_another_width_is_refused():
    problem = problems.fermi(scores, shares=[0.5, 0.5], weight=1.0, classes=3)
    with pytest.raises(ValueError, match="3 logits"):
        problem.operator(problems.fermi_start(jnp.zeros((2, 2)), shares=[0.5, 0.5], classes=3),
                         (jnp.ones(2), 0, 0))


def test_violations_are_differences_of_rates():
    predicted = np.array([1, 1, 0, 0, 1, 0, 0, 0])
    groups = np.array(["a"] * 4 + ["b"] * 4)
    y = np.array([1, 0, 1, 0, 1, 1, 0, 0])
    assert jmm.metrics.parity_violation(predicted, groups) == 0.25
    # of y = 1 both groups have one of two; of y = 0 one of two, and none
    assert jmm.metrics.odds_violation(predicted, y, groups) == 0.5
    assert jmm.metrics.parity_violation(np.zeros(8), groups) == 0.0
    three = np.array([0, 1, 2, 2, 0, 0, 0, 0])
    assert jmm.metrics.parity_violation(three, groups) == 0.75
    with pytest.raises(ValueError, match="classes"):
        jmm.metrics.parity_violation(np.linspace(0, 1, 8), groups)
    with pytest.raises(ValueError, match="one length"):
        jmm.metrics.odds_violation(predicted, y[:3], groups)
