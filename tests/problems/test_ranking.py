"""AUC of several classes or labels, and partial AUC: against pairs of records and scikit-learn."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

import jaxminimax as jmm
from jaxminimax import Saddle, problems

K, WIDE = 3, Saddle(1e3, 1e3)
RNG = np.random.default_rng(0)
X = RNG.normal(size=(150, 3))
labels = np.argmax(X @ RNG.normal(size=(3, K)) + RNG.normal(size=(150, K)), 1)
SHARES = np.bincount(labels) / len(labels)
DATA = jnp.asarray(X), jnp.asarray(labels)
BINARY = DATA[0], jnp.asarray(labels == 0, jnp.float64)
PRIOR = float(SHARES[0])
THETA = np.array([0.4, -0.3, 0.2])


def comparisons(form):
    """Score, rows to be ranked above and rows below, of every comparison."""
    if form == "macro":
        return [(i, 0, labels == i, labels != i) for i in range(K)]
    return [(i, j, labels == i, labels == j) for i in range(K) for j in range(K) if i != j]


def square(plus, minus):
    return np.mean((1 - plus[:, None] + minus[None]) ** 2) - 1


@pytest.mark.slow
@pytest.mark.parametrize("form", ["macro", "hand_till"])
def test_the_value_at_the_best_responses_is_the_mean_pairwise_loss(form):
    theta = RNG.normal(size=(3, K))
    s = X @ theta
    a, b = np.zeros((2, K, 1 if form == "macro" else K))
    for i, j, above, below in comparisons(form):
        a[i, j], b[i, j] = s[above, i].mean(), s[below, i].mean()
    expected = np.mean([square(s[above, i], s[below, i]) for i, _, above, below in
                        comparisons(form)])
    problem = problems.multiclass_auc(problems.linear_scorer, shares=SHARES, form=form,
                                      radius=WIDE, dual="best_response")
    z = problem.project(Saddle({"theta": jnp.asarray(theta), "a": jnp.asarray(a),
                                "b": jnp.asarray(b)}, jnp.zeros_like(a)))
    np.testing.assert_allclose(z.v, b - a)
    assert jax.jit(problem.value)(z, DATA) == pytest.approx(expected)
    at_saddle = jax.jit(lambda z: jmm.metrics.mean_operator(problem, z, DATA))(z)
    for x in (at_saddle.w["a"], at_saddle.w["b"], at_saddle.v):
        np.testing.assert_allclose(x, 0, atol=1e-12)


def labelled():
    """Three labels that overlap, the first of which is missing in a third of the rows."""
    y = (X @ RNG.normal(size=(3, K)) + RNG.normal(size=(len(X), K)) > 0.3).astype(float)
    y[::3, 0] = np.nan
    y[::6, 0] = -1.0
    counted = np.isin(y, (0, 1))
    prior = np.array([np.mean(y[counted[:, j], j]) for j in range(K)])
    return y, dict(prior=prior, labelled=counted.mean(0))


@pytest.mark.slow
def test_several_labels_are_the_mean_pairwise_loss_of_the_labels_that_are_there():
    y, shares = labelled()
    theta = RNG.normal(size=(3, K))
    s = X @ theta
    pairs = [(s[y[:, j] == 1, j], s[y[:, j] == 0, j]) for j in range(K)]
    problem = problems.multilabel_auc(problems.linear_scorer, **shares, radius=WIDE,
                                      dual="best_response")
    means = (jnp.array([[np.mean(one[i])] for one in pairs]) for i in (0, 1))
    z = problem.project(Saddle(dict(zip(("theta", "a", "b"), (jnp.asarray(theta), *means),
                                        strict=True)), jnp.zeros((K, 1))))
    data = DATA[0], jnp.asarray(y)
    assert jax.jit(problem.value)(z, data) == pytest.approx(np.mean([square(*x) for x in pairs]))
    at_saddle = jax.jit(lambda z: jmm.metrics.mean_operator(problem, z, data))(z)
    for x in (at_saddle.w["a"], at_saddle.w["b"], at_saddle.v):
        np.testing.assert_allclose(x, 0, atol=1e-12)


@pytest.mark.slow
def test_several_labels_reach_least_squares_over_pairs():
    y, shares = labelled()
    problem = problems.multilabel_auc(problems.linear_scorer, **shares, radius=WIDE)
    start = problems.multiclass_auc_start(jnp.zeros((3, K)), classes=K, form="macro")
    theta = np.asarray(without_noise(problem, start, (DATA[0], jnp.asarray(y)), 1500, 0.4
                                     ).w["theta"])
    for j in range(K):
        apart = (X[y[:, j] == 1][:, None] - X[y[:, j] == 0][None]).reshape(-1, 3)
        best = np.linalg.lstsq(apart, np.ones(len(apart)), rcond=None)[0]
        np.testing.assert_allclose(theta[:, j], best, atol=1e-3)


@pytest.mark.slow
def test_labels_of_which_one_is_true_are_the_classes():
    both = (problems.multilabel_auc(problems.linear_scorer, prior=SHARES, radius=WIDE),
            problems.multiclass_auc(problems.linear_scorer, shares=SHARES, form="macro",
                                    radius=WIDE))
    z = jax.tree.map(lambda x: jnp.asarray(RNG.normal(size=x.shape)), problems.multiclass_auc_start(
        jnp.zeros((3, K)), classes=K, form="macro"))
    ours, macro = (problem.operator(z, (DATA[0][0], y)) for problem, y in zip(
        both, (jax.nn.one_hot(labels[0], K), labels[0]), strict=True))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), ours, macro)


def test_a_record_without_labels_adds_nothing():
    problem = problems.multilabel_auc(problems.linear_scorer, prior=SHARES, radius=WIDE)
    z = problems.multiclass_auc_start(jnp.ones((3, K)), classes=K, form="macro")
    g = problem.operator(z, (DATA[0][0], jnp.array([jnp.nan, -1.0, 2.0])))
    assert not any(np.any(x) for x in jax.tree.leaves(g))


@pytest.mark.parametrize(("how", "words"), [
    (dict(prior=[0.5, 1.0]), "prior must be .* leave out labels"),
    (dict(prior=0.5), "prior must be"), (dict(prior=[0.5], labelled=[0.0]), "labelled must be"),
    (dict(prior=[0.5], labelled=[0.5, 0.5]), "labelled must be 1 shares"),
    (dict(prior=[0.5], dual="best"), "dual"),
    (dict(prior=[0.5], radius=Saddle(0.0, 1.0)), r"radius\.w")])
def test_wrong_numbers_of_labels_are_refused(how, words):
    with pytest.raises(ValueError, match=words):
        problems.multilabel_auc(problems.linear_scorer, **{"radius": WIDE, **how})


def test_a_record_with_another_number_of_labels_is_refused():
    problem = problems.multilabel_auc(problems.linear_scorer, prior=SHARES, radius=WIDE)
    z = problems.multiclass_auc_start(jnp.ones((3, K)), classes=K, form="macro")
    with pytest.raises(ValueError, match="vector of labels"):
        problem.operator(z, (DATA[0][0], jnp.ones(2)))


def without_noise(problem, start, data, rounds, step):
    clip = Saddle(1e6, None if problem.project(start)[1] is None else 1e6)
    query = jmm.Query(clip=clip, population=len(X), noise_multiplier=Saddle(0.0, 0.0))
    hyper = jmm.sgda.Hyper(query=query, step=Saddle(step, step), iterations=rounds)
    return jax.jit(jmm.run, static_argnums=(4, 5))(
        jax.random.key(0), start, data, hyper, jmm.sgda, problem).state.z


@pytest.mark.slow
def test_hand_till_reaches_least_squares_over_pairs_and_the_metric_of_scikit_learn():
    problem = problems.multiclass_auc(problems.linear_scorer, shares=SHARES, form="hand_till",
                                      radius=WIDE)
    start = problems.multiclass_auc_start(jnp.zeros((3, K)), classes=K, form="hand_till")
    theta = np.asarray(without_noise(problem, start, DATA, 1500, 0.4).w["theta"])
    for i in range(K):  # every class j weighs the same against class i
        apart = [(X[labels == i][:, None] - X[labels == j][None]).reshape(-1, 3)
                 for j in range(K) if j != i]
        weights = np.concatenate([np.full(len(x), len(x) ** -0.5) for x in apart])
        best = np.linalg.lstsq(weights[:, None] * np.concatenate(apart), weights, rcond=None)[0]
        np.testing.assert_allclose(theta[:, i], best, atol=1e-3)
    p = np.asarray(jax.nn.softmax(X @ theta))
    ours = np.mean([roc_auc_score(labels[above | below] == i, p[above | below, i])
                    for i, _, above, below in comparisons("hand_till")])
    assert ours == pytest.approx(roc_auc_score(labels, p, multi_class="ovo"))
    assert ours > 0.7


@pytest.mark.slow
@pytest.mark.parametrize("min_tpr", [None, 0.5])
def test_the_partial_value_is_the_pairwise_loss_of_the_pairs_that_are_left(min_tpr):
    s, positive = X @ THETA, labels == 0
    count = [round(0.5 * np.sum(positive)), round(0.3 * np.sum(~positive))]
    minus = np.sort(s[~positive])[-count[1]:]
    plus = np.sort(s[positive])[:count[0]] if min_tpr else s[positive]
    kept = Saddle(count[0] / np.sum(positive), count[1] / np.sum(~positive))
    problem = problems.partial_auc(
        problems.linear_scorer, prior=PRIOR, max_fpr=kept.v, penalty=1e-7, radius=WIDE,
        min_tpr=1 - kept.w if min_tpr else None)
    a, b = plus.mean(), minus.mean()
    v = b - a
    # thresholds between the last score that is kept and the first that is not
    last_plus, last_minus = (np.mean(x[k - 1:k + 1]) for x, k in zip(
        (np.sort(s[positive]), np.sort(s[~positive])[::-1]), count, strict=True))
    w = {"theta": THETA, "a": a, "b": b,
         "eta_minus": (last_minus - b) ** 2 + 2 * (1 + v) * last_minus}
    if min_tpr:
        w["eta_plus"] = (last_plus - a) ** 2 - 2 * (1 + v) * last_plus
    z = jax.tree.map(jnp.asarray, Saddle(w, v))
    assert jax.jit(problem.value)(z, BINARY) == pytest.approx(square(plus, minus), abs=1e-5)
    operator, gradient = jax.jit(lambda z: (
        jmm.metrics.mean_operator(problem, z, BINARY),
        jax.grad(problem.value)(z, BINARY)))(z)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-9), operator.w, gradient.w)
    assert abs(operator.v) < 1e-6  # v was its best response
    assert max(abs(operator.w["a"]), abs(operator.w["b"])) < 1e-6


@pytest.mark.nightly
def test_a_partial_scorer_is_better_where_it_counts():
    """One feature ranks all records a little, the other one only those at the top."""
    rng = np.random.default_rng(1)
    y = np.arange(150) % 2.0
    rare = rng.random(150) < 0.35
    x = np.stack([y + rng.normal(size=150), np.where(rare, 3 * y, -1.0) - 1.5 * rng.normal(
        size=150) * (1 - y) * ~rare], 1)
    data = jnp.asarray(x), jnp.asarray(y)
    by_auc = without_noise(problems.auc(problems.linear_scorer, prior=0.5, radius=WIDE),
                           problems.auc_start(jnp.zeros(2)), data, 600, 0.05)
    by_part = without_noise(
        problems.partial_auc(problems.linear_scorer, prior=0.5, max_fpr=0.1, penalty=0.3,
                             radius=WIDE), problems.partial_auc_start(jnp.zeros(2)), data, 600, .02)
    part, whole_curve = (roc_auc_score(y, x @ z.w["theta"], max_fpr=0.1)
                         for z in (by_part, by_auc))
    assert part > whole_curve + 0.01


@pytest.mark.slow
@pytest.mark.parametrize("form", ["macro", "hand_till", "multilabel"])
def test_every_record_is_monotone_and_within_the_constants(form):
    radius, r, own = Saddle(0.3, 0.2), 1.0, labels
    several = form == "multilabel"
    bound, smooth, diameter = problems.auc_constants(
        np.minimum(SHARES, 1 - SHARES) if several else SHARES, form=form, feature_bound=r,
        radius=radius)
    problem = problems.multiclass_auc(problems.linear_scorer, shares=SHARES, form=form,
                                      radius=radius) if not several else problems.multilabel_auc(
        problems.linear_scorer, prior=SHARES, radius=radius)
    if several:
        own = RNG.integers(0, 2, (len(X), K))
    start = problems.multiclass_auc_start(jnp.zeros((3, K)), classes=K,
                                          form="macro" if several else form)
    flat, back = jax.flatten_util.ravel_pytree(start)

    def operator(u, record):
        return jax.flatten_util.ravel_pytree(problem.operator(back(u), record))[0]

    @jax.jit
    @jax.vmap
    def of_point(u, record):
        u = jax.flatten_util.ravel_pytree(problem.project(back(u)))[0]
        jacobian = jax.jacobian(operator)(u, record)
        return (jnp.linalg.norm(operator(u, record)), jnp.linalg.norm(jacobian, 2),
                jnp.linalg.eigvalsh(jacobian + jacobian.T)[0], u)

    x = X / np.linalg.norm(X, axis=1, keepdims=True)
    norms, slopes, moduli, us = of_point(RNG.normal(size=(150, len(flat))),
                                         (jnp.asarray(x), own))
    assert 0.3 * bound < norms.max() <= bound
    assert 0.3 * smooth < slopes.max() <= smooth
    assert moduli.min() >= -1e-9
    assert np.linalg.norm(us[:, None] - us[None], axis=2).max() <= diameter


def test_the_bound_of_a_partial_auc_holds():
    radius = Saddle(0.5, 0.5)
    numbers = dict(prior=PRIOR, max_fpr=0.2, min_tpr=0.5, radius=radius)
    problem = problems.partial_auc(problems.linear_scorer, penalty=1e-3, **numbers)
    apart, score, count = math.hypot(1, 1) * 0.5, 0.5, max(1 / (0.2 * (1 - PRIOR)), 2 / PRIOR)
    bound = count * math.sqrt(4 * ((apart + 1 + 0.5) ** 2 + apart**2 + score**2) + 1)
    start = problems.partial_auc_start(jnp.zeros(3), min_tpr=0.5)
    flat, back = jax.flatten_util.ravel_pytree(start)
    data = BINARY[0] / jnp.linalg.norm(BINARY[0], axis=1, keepdims=True), BINARY[1]
    g = jax.jit(jax.vmap(lambda u, x: jax.flatten_util.ravel_pytree(
        problem.operator(problem.project(back(u)), x))[0]))(RNG.normal(size=(150, len(flat))), data)
    assert 0.2 * bound < np.linalg.norm(g, axis=1).max() <= bound


@pytest.mark.parametrize(("make", "message"), [
    (lambda: problems.multiclass_auc(problems.linear_scorer, shares=[0.5, 0.6], form="macro",
                                     radius=WIDE), "shares"),
    (lambda: problems.multiclass_auc(problems.linear_scorer, shares=[0.5, 0.5], form="ovo",
                                     radius=WIDE), "form"),
    (lambda: problems.auc_constants([0.5], form="labels", feature_bound=1.0, radius=WIDE), "form"),
    (lambda: problems.auc_constants([1.5], form="multilabel", feature_bound=1.0, radius=WIDE),
     "prior"),
    (lambda: problems.partial_auc(problems.linear_scorer, prior=0.5, max_fpr=1.0, penalty=0.1,
                                  radius=WIDE), "max_fpr"),
    (lambda: problems.partial_auc(problems.linear_scorer, prior=0.5, max_fpr=0.1, min_tpr=1.0,
                                  penalty=0.1, radius=WIDE), "min_tpr"),
])
def test_bad_numbers_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
