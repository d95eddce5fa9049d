"""What no record moves is named; what records move is not: library, cookbook, optimisers."""

import inspect
import re
import types

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import jaxminimax as jmm
from jaxminimax import Saddle, problems
from jaxminimax.base.identity import People
from jaxminimax.gradients import unmoved
from jaxminimax.problems import Bounded, _groups
from tests import test_documents

pytestmark = pytest.mark.filterwarnings("error::jaxminimax.gradients.unmoved.UnmovedWarning")
WIDE, N = 8, 40
S = jax.ShapeDtypeStruct
ROW = S((WIDE,), jnp.float32), S((), jnp.int32)
IMAGE = S((6, 6, 1), jnp.float32), S((), jnp.int32)


def cross_entropy(scores, label):
    return optax.softmax_cross_entropy_with_integer_labels(scores, label)


CLIP = Saddle(1.0, None)


def all_notes(operator, z, record, clip, optimiser=None):
    """Of all looks, as `check` makes them."""
    traced = *jax.make_jaxpr(operator, return_shape=True)(z, record), z, record, clip
    return [*unmoved.notes(*traced, numbers=True), *unmoved.by_optimiser(optimiser, z, clip)]


def notes(loss, w, record=ROW, v=()):
    return all_notes(jmm.saddle_operator(loss), Saddle(w, v), record, CLIP)


def by_names(w):
    """Of a loss that every leaf moves."""
    return notes(lambda w, v, r: r * sum(jnp.sum(x**3) for x in jax.tree.leaves(w)), w,
                 S((), jnp.float32))


def checked(loss, w, record=ROW, **more):
    """Warnings of `check`, on data that it does not read."""
    data = jax.tree.map(lambda x: np.full((N, *x.shape), 7, x.dtype), record)
    query = jmm.Query(clip=Saddle(1.0, None), noise_multiplier=Saddle(1.0, None), population=N)
    hyper = jmm.sgda.Hyper(query=query, step=Saddle(0.1, 0.1), iterations=2, **more)
    problem = jmm.Problem(jmm.saddle_operator(loss))
    return jmm.check(problem, Saddle(w, ()), data, hyper, measure=False).warnings, (
        problem, Saddle(w, ()), data, hyper)


# --- what is named ---


@pytest.mark.slow
def test_a_layer_that_is_not_used_is_named_with_its_share_and_the_way_out():
    w = {"used": jnp.ones((WIDE, 2)), "spare": jnp.ones((3, 5)), "head": jnp.ones(2)}

    def loss(w, v, r):
        # a penalty moves it, and no record does
        return cross_entropy(r[0] @ w["used"] + w["head"], r[1]) + jnp.sum(w["spare"] ** 2)

    warnings, call = checked(loss, w)
    (text,) = [x for x in warnings if "moves" in x]
    assert text.startswith("No record moves z.w['spare'] (15 of 33 numbers)")
    assert "close over" in text
    problem, z, data, hyper = call
    for door in (lambda: jmm.run(jax.random.key(0), z, data, hyper, jmm.sgda, problem),
                 lambda: jmm.fit(jax.random.key(0), z, data, hyper, jmm.sgda, problem, delta=0.1,
                                 progress=False)):
        with pytest.warns(unmoved.UnmovedWarning, match=r"z.w\['spare'\] \(15 of 33") as seen:
            door()  # once a run, however many its rounds
        assert [x.category for x in seen].count(unmoved.UnmovedWarning) == 1


def test_a_loss_that_is_constant_is_named():
    for loss in (lambda w, v, r: jnp.sum(w**2), lambda w, v, r: jnp.sum(w**2) + r[0][0],
                 lambda w, v, r: jnp.sum(w**2) + jnp.sum(jnp.sign(r[0] * w))):
        assert notes(loss, jnp.ones(WIDE))[0].startswith("No record moves z.w (8 of 8 numbers)")
    (text,) = notes(lambda w, v, r: 0 * jnp.sum(r[0] * w) * r[1], jnp.ones(WIDE))
    assert text.startswith("No synthetic record moves z.w (8 of 8 numbers)")


def test_features_that_no_gradient_reads_are_named():
    def loss(w, v, r):
        return jnp.sum((w - r["label"]) ** 2) + jnp.sum(r["x"])

    record = {"x": S((WIDE,), jnp.float32), "label": S((), jnp.float32), "z": S((), jnp.int32)}
    assert [x for x in notes(loss, jnp.ones(2), record) if "computed" in x] == [
        "No gradient is computed from record['x'], record['z']: leave that out of the data, if the "
        "loss is right."]
    # in the gradient of one player who is released, and of one who is not
    assert not notes(lambda w, v, r: jnp.sum(w * r[0]) + v * r[1], jnp.ones(WIDE), v=jnp.ones(()))


def test_a_record_that_is_written_to_memory_first_is_read():
    def operator(z, r):
        memory = jax.new_ref(jnp.zeros((), r.dtype))
        memory[...] = jnp.sum(r)
        return Saddle(z.w - jax.freeze(memory), ())

    assert all_notes(operator, Saddle(jnp.ones(3), ()), S((3,), jnp.float32), CLIP) == []


def test_a_player_who_is_not_released_is_not_looked_at():
    def loss(w, v, r):
        return jnp.sum(w * r[0]) * r[1] + jnp.sum(v["running_mean"])

    assert not notes(loss, jnp.ones(WIDE), v={"running_mean": jnp.ones(3)})


# --- batch normalisation, and what looks like its statistics ---


class Linen(nn.Module):
    norm: str = "batch"
    image: bool = False

    @nn.compact
    def __call__(self, x, train=True):
        x = nn.Conv(4, (3, 3), name="first")(x) if self.image else nn.Dense(16, name="first")(x)
        if self.norm == "batch":
            x = nn.BatchNorm(use_running_average=not train, name="norm")(x)
        elif self.norm == "layer":
            x = nn.LayerNorm(name="norm")(x)
        else:
            x = nn.GroupNorm(2, name="norm")(x)
        return nn.Dense(2, name="last")(nn.relu(x).reshape(len(x), -1))


def of_linen(model, record, whole=False):
    p = model.init(jax.random.key(0), jnp.zeros((1, *record[0].shape)))

    def training(w, v, r):
        scores, _ = model.apply({**p, "params": w}, r[0][None], True, mutable=["batch_stats"])
        return cross_entropy(scores[0], r[1])

    def evaluation(w, v, r):
        return cross_entropy(model.apply(w, r[0][None], False)[0], r[1])

    return (evaluation, p) if whole else (training, p["params"])


class Nnx(nnx.Module):
    def __init__(self, rngs, norm):
        self.first, self.norm, self.last = nnx.Linear(WIDE, 16, rngs=rngs), norm(
            16, rngs=rngs), nnx.Linear(16, 2, rngs=rngs)

    def __call__(self, x):
        return self.last(nnx.relu(self.norm(self.first(x))))


def of_nnx(norm, params_alone, train=True):
    """As the cookbook splits, and with the statistics closed over."""
    model = Nnx(nnx.Rngs(0), norm)
    if not train:
        model.eval()
    graph, w, *rest = nnx.split(model, *([nnx.Param, ...] if params_alone else []))

    def loss(w, v, r):
        own = jax.tree.map(lambda x: x, rest)  # which the layer may write to
        return cross_entropy(nnx.merge(graph, w, *own)(r[0][None])[0], r[1])

    return loss, w


def moves(texts):
    """The leaves that numbers alone tell of."""
    return {name for x in texts if x.startswith("No synthetic record moves")
            for name in re.findall(r"z\.w([^ ,]*)", x)}


@pytest.mark.slow
def test_batch_normalisation_of_one_record_is_named_in_linen():
    dense = moves(checked(*of_linen(Linen(), ROW))[0])
    assert dense == {"['first']['kernel']", "['first']['bias']", "['norm']['scale']"}
    # of several pixels, something is left: all but the bias, which is subtracted
    assert moves(checked(*of_linen(Linen(image=True), IMAGE), IMAGE)[0]) == {"['first']['bias']"}
    for norm in ("layer", "group"):
        assert not checked(*of_linen(Linen(norm), ROW))[0]
    (text,) = checked(*of_linen(Linen(), ROW, whole=True))[0]  # all variables, in evaluation
    assert "z.w['batch_stats']['norm']['mean'], z.w['batch_stats']['norm']['var'] (32 of " in text
    assert "looks like running statistics" in text


@pytest.mark.slow
def test_batch_normalisation_of_one_record_is_named_in_nnx():
    for params_alone in (True, False):
        loss, w = of_nnx(nnx.BatchNorm, params_alone)
        warnings, _ = checked(loss, w)
        assert {"['first']['kernel'].value", "['first']['bias'].value"} <= moves(warnings)
        statistics = [x for x in warnings if "looks like running statistics" in x]
        assert bool(statistics) != params_alone
        if statistics:
            assert "z.w['norm']['mean'].value, z.w['norm']['var'].value (32 of " in statistics[0]
    assert not checked(*of_nnx(nnx.LayerNorm, False))[0]
    assert not checked(*of_nnx(nnx.BatchNorm, True, train=False))[0]
    (text,) = checked(*of_nnx(nnx.BatchNorm, False, train=False))[0]
    assert "looks like running statistics" in text


def of_equinox(inference):
    class Model(eqx.Module):
        first: eqx.nn.Linear
        norm: eqx.nn.BatchNorm
        last: eqx.nn.Linear

    def make():
        keys = jax.random.split(jax.random.key(0))
        return Model(eqx.nn.Linear(WIDE, 16, key=keys[0]), eqx.nn.BatchNorm(
            16, "batch", mode="batch", inference=inference), eqx.nn.Linear(16, 2, key=keys[1]))

    model, state = eqx.nn.make_with_state(make)()
    w, static = eqx.partition(model, eqx.is_inexact_array)

    def loss(w, v, r):
        m, own = eqx.combine(w, static), jax.tree.map(lambda x: x, state)  # that is read once
        return cross_entropy(m.last(jax.nn.relu(m.norm(m.first(r[0]), own)[0])), r[1])

    return loss, w


@pytest.mark.slow
def test_batch_normalisation_of_equinox_is_refused_in_training_and_named_over_an_own_axis():
    """It reads an axis that somebody names: the records', which is refused, or one of its own."""
    loss, w = of_equinox(False)
    with pytest.raises(ValueError, match=r"axis that it does not make itself.*batch"):
        checked(loss, w)

    def alone(w, v, r):
        return jax.vmap(lambda x: loss(w, v, (x, r[1])), axis_name="batch")(r[0][None])[0]

    assert {".first.weight", ".first.bias"} <= moves(checked(alone, w)[0])
    assert not checked(*of_equinox(True))[0]


@pytest.mark.parametrize("name", ["batch_stats", "running_mean", "moving_var", "counter",
                                  "num_batches_tracked", "batch_state_index"])
def test_names_of_running_statistics_are_pointed_out(name):
    (text,) = by_names({name: {"a": jnp.ones(2)}, "b": jnp.ones(2)})
    assert text.startswith(f"z.w['{name}']['a'] (2 of 4 numbers) looks like running statistics")


def test_a_mean_and_a_variance_beside_each_other_are_pointed_out_and_alone_they_are_not():
    a = jnp.ones(2)
    (text,) = by_names({"n": {"mean": a, "var": a}, "m": {"mean": a}})
    assert "z.w['n']['mean'], z.w['n']['var'] (4 of 6 numbers) looks" in text
    for w in ({"mean": a, "scale": a}, {"mean_head": a, "var_head": a}, {"a": {"mean": a},
              "b": {"var": a}}, {"counts": a}, {"mean": {"kernel": a}, "var": {"kernel": a}}):
        assert not by_names(w)


# --- optimisers ---

BODY = {"body": jnp.ones((3, 3)), "head": jnp.ones(3)}


def delayed():
    """The gradient of the round before, held in the state."""
    return optax.GradientTransformation(
        lambda w: jax.tree.map(jnp.zeros_like, w), lambda g, state, w=None: (state, g))


FROZEN, MASK = optax.set_to_zero(), {"body": True, "head": False}
NOT_MASKED = {"body": False, "head": True}


@pytest.mark.parametrize(("change", "named"), [
    (optax.multi_transform({"train": optax.adamw(0.1), "freeze": FROZEN},
                           {"body": "freeze", "head": "train"}), True),
    (optax.chain(optax.clip_by_global_norm(1.0), optax.adam(0.1), optax.masked(FROZEN, MASK)),
     True),
    (optax.masked(optax.adam(0.1), NOT_MASKED), False),  # the rest passes through
    (optax.adam(optax.linear_schedule(0.0, 1.0, 10)), False),  # the first step is 0
    (optax.MultiSteps(optax.sgd(0.1), 2).gradient_transformation(), False),
    (optax.apply_if_finite(optax.adam(0.1), 3), False),
    (optax.chain(delayed(), delayed()), False)],
    ids=["frozen by name", "frozen at the end", "masked", "warm-up", "every second", "if finite",
         "delayed"])
def test_leaves_that_an_optimiser_never_moves_are_named(change, named):
    texts = unmoved.by_optimiser(Saddle(lambda step: change, optax.sgd), Saddle(BODY, ()),
                                 Saddle(1.0, None))
    assert len(texts) == named
    if named:
        assert texts[0].startswith("The optimiser never moves z.w['body'] (9 of 12 numbers)")


def test_an_optimiser_that_asks_for_the_value_is_refused_with_the_way_out():
    plateau = Saddle(lambda step: optax.chain(optax.sgd(step), optax.contrib.reduce_on_plateau()),
                     optax.sgd)
    with pytest.raises(TypeError, match=r"optimiser\.w asks for more.*'value'.*schedule"):
        checked(lambda w, v, r: jnp.sum(w * r[0]), jnp.ones(WIDE), optimiser=plateau)
    with pytest.raises(TypeError, match="of its own"):  # of another kind, as it was
        checked(lambda w, v, r: jnp.sum(w * r[0]), jnp.ones(WIDE),
                optimiser=plateau._replace(w=mistaken))


def mistaken(step):
    def update(g, state, z=None):
        raise TypeError("of its own")

    return optax.GradientTransformation(lambda z: (), update)


MASK = jax.random.key(3)


@pytest.mark.parametrize(("key", "named"), [
    (lambda own: MASK, True), (lambda own: jax.random.key(3), True),
    (lambda own: jax.random.split(MASK)[0], True), (lambda own: own, False)])
def test_a_key_that_does_not_change_is_named(key, named):
    layer = nn.Dropout(0.5, deterministic=False)

    def loss(w, v, r, own):
        return jnp.sum(layer.apply({}, w * r[0], rngs={"dropout": key(own)}))

    problem = jmm.Problem(jmm.saddle_operator(loss), random=True)
    z = Saddle(jnp.ones(WIDE), ())
    query = jmm.Query(clip=CLIP, noise_multiplier=Saddle(1.0, None), population=N)
    made = jmm.sgda.Hyper(query=query, step=Saddle(0.1, 0.0), iterations=2)
    data = np.ones((N, WIDE), np.float32), np.ones(N, np.int32)
    found = jmm.check(problem, z, data, made, measure=False).warnings
    assert any("Problem(random=True)" in text for text in found) is named


def test_frozen_leaves_are_a_warning_of_check():
    frozen = optax.multi_transform({"train": optax.sgd(0.1), "freeze": FROZEN},
                                   {"body": "freeze", "head": "train"})
    optimiser = Saddle(lambda step: frozen, optax.sgd)
    warnings, _ = checked(lambda w, v, r: jnp.sum(r[0][:3] @ w["body"] * w["head"]) * r[1], BODY,
                          optimiser=optimiser)
    assert [x for x in warnings if "never moves z.w['body']" in x]


# --- no false alarm ---


def with_adapters(w, v, r):
    """Low rank, from B = 0."""
    return cross_entropy(r[0] @ (jnp.ones((WIDE, 2)) + w["A"] @ w["B"]), r[1])


def looked_up(w, v, r):
    """A table that starts at zero, and a head that does."""
    return cross_entropy(w["table"][r[0]].mean(0) @ w["head"], r[1])


NEW = {
    "low rank": (with_adapters, {"A": jnp.ones((WIDE, 4)), "B": jnp.zeros((4, 2))}, ROW),
    "zero start": (looked_up, {"table": jnp.zeros((50, 4)), "head": jnp.zeros((4, 2))},
                   (S((6,), jnp.int32), S((), jnp.int32))),
    "rectified": (lambda w, v, r: cross_entropy(jax.nn.relu(r[0] @ w["a"]) @ w["b"], r[1]),
                  {"a": jnp.zeros((WIDE, 20)), "b": jnp.zeros((20, 2))}, ROW),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NEW)
def test_a_start_at_zero_is_no_alarm(name):
    assert notes(*NEW[name]) == []


SHARES, REAL, COUNT = np.array([0.7, 0.3]), S((), jnp.float32), S((), jnp.int32)
FEATURES, THETA = S((3,), jnp.float32), jnp.zeros(3)
LABELLED, MARKED = (FEATURES, REAL), (FEATURES, COUNT, COUNT)
BOTH, LINEAR = Saddle(10.0, 10.0), problems.linear_scorer
PAIR, BALL = Saddle(jnp.zeros(3), jnp.zeros(3)), problems.ball(1.0)
BASE = problems.group_glm("logistic", feature_bound=1.0, radius=2.0)
SQUARES = problems.squared_loss


def of_tail(divergence):
    return (problems.reweighted(SQUARES, divergence=divergence, level=0.1, radius=3.0, bound=10.0),
            problems.reweighted_start(THETA, divergence), LABELLED)


LIBRARY = {
    "adversarial": [(problems.adversarial(loss, problems.gradient_attack(
        loss, radius=0.1, norm=norm, steps=3)), Saddle(THETA, ()), LABELLED)
        for loss in (SQUARES, BASE) for norm in ("l2", "linf")],
    "affine": [(problems.affine(matrix=np.array([[0.0, 1.0], [-1.0, 0.0]]), offset_bound=0.5,
                                domain=BALL), Saddle(jnp.zeros(2), ()), S((2,), jnp.float32))],
    "auc": [(problems.auc(LINEAR, prior=0.7, radius=BOTH, dual=dual), problems.auc_start(THETA),
             LABELLED) for dual in ("ascent", "best_response")] + [
        (problems.auc(problems.mlp_scorer, prior=0.7, radius=BOTH), problems.auc_start(
            problems.mlp_init(jax.random.key(0), dim=3, hidden=4)), LABELLED)],
    "bilinear_game": [(problems.bilinear_game(coupling=1.0, radius=BOTH), PAIR,
                       (FEATURES, FEATURES))],
    "composed": [(problems.composed(
        [lambda w, x: jnp.sum((w - problems.sanitise(x, 1.0)) ** 2) / 2], loss_bound=2.0, slope=2.0,
        curvature=1.0, domain=Saddle(problems.ball(1.0), problems.box(np.zeros(1), np.ones(1)))),
        Saddle(jnp.zeros(3), jnp.ones(1)), FEATURES)],
    "bounded_group_loss": [(problems.bounded_group_loss(
        SQUARES, shares=SHARES, level=1.0, weight=2.0, radius=1.0), Saddle(THETA, jnp.zeros(2)),
        (COUNT, LABELLED))],
    "bounded_bilinear": [(problems.bounded_bilinear(coupling=1.0, offset=1.0, radius=BOTH), PAIR,
                          (S((3, 3), jnp.float32), FEATURES, FEATURES))],
    "cournot": [(problems.cournot(cost=0.2 * np.ones(2), slope=np.ones(2), capacity=np.ones(2),
                                  price=2.0, sensitivity=1.0), Saddle(jnp.zeros(2), ()),
                 (REAL, REAL))],
    "dro": [(problems.dro(BASE, penalty=0.5, cap=cap), problems.reweighted_start(THETA, "cvar"),
             LABELLED) for cap in (10.0, np.inf)],
    "fermi": [(problems.fermi(LINEAR, shares=SHARES, weight=1.0, kind=kind),
               problems.fermi_start(THETA, shares=SHARES, kind=kind), MARKED)
              for kind in ("parity", "error_rate")],
    "group_glm": [(problems.group_glm(name, feature_bound=2.0, radius=1.0), Saddle(THETA, ()),
                   LABELLED) for name in sorted(_groups.GLM_LOSSES)],
    "group_means": [(problems.group_means(radius=1.0, record_bound=1.0), Saddle(THETA, ()),
                     FEATURES)],
    "matrix_game": [(problems.matrix_game(entry_bound=1.0, shape=(2, 2)),
                     Saddle(jnp.full(2, 0.5), jnp.full(2, 0.5)), S((2, 2), jnp.float32))],
    "multiclass_auc": [(problems.multiclass_auc(LINEAR, shares=[0.6, 0.3, 0.1], form=form,
                                                radius=BOTH),
                        problems.multiclass_auc_start(jnp.zeros((3, 3)), classes=3, form=form),
                        (FEATURES, COUNT)) for form in ("hand_till", "macro")],
    "multilabel_auc": [(problems.multilabel_auc(LINEAR, prior=[0.1, 0.3], labelled=[1.0, 0.5],
                                                radius=BOTH),
                        problems.multiclass_auc_start(jnp.zeros((3, 2)), classes=2, form="macro"),
                        (FEATURES, S((2,), jnp.float32)))],
    "parity": [(problems.parity(LINEAR, shares=SHARES, weight=1.0),
                problems.parity_start(THETA, shares=SHARES), MARKED)],
    "partial_auc": [(problems.partial_auc(LINEAR, prior=0.1, max_fpr=0.2, min_tpr=low, penalty=0.1,
                                          radius=BOTH),
                     problems.partial_auc_start(THETA, min_tpr=low), LABELLED)
                    for low in (None, 0.5)],
    "per_person": [(problems.per_person(problems.auc(LINEAR, prior=0.7, radius=BOTH)),
                    problems.auc_start(THETA), People(
                        rows=(S((2, 3), jnp.float32), S((2,), jnp.float32)),
                        present=S((2,), bool)))],
    "quadratic_game": [(problems.quadratic_game(modulus=1.0, coupling=0.5, radius=BOTH), PAIR,
                        (FEATURES, FEATURES))],
    "reweighted": [of_tail("cvar"), of_tail("chi_square")],
    "variational_inequality": [(problems.variational_inequality(
        lambda u, record: jnp.stack([u[1], -u[0]]) - record, BALL), Saddle(jnp.zeros(2), ()),
        S((2,), jnp.float32))],
    "worst_group": [(problems.worst_group(SQUARES, BALL, lipschitz=1.0, bound=2.0),
                     Saddle(THETA, ()), LABELLED)],
    "worst_mixture": [(problems.worst_mixture(SQUARES, shares=SHARES, radius=1.0),
                       Saddle(THETA, jnp.full(2, 0.5)), (COUNT, LABELLED))],
}


def alarms(problem, z, record):
    problem = problem.problem if isinstance(problem, Bounded) else problem
    clip = Saddle(1.0, 1.0 if jax.tree.leaves(z.v) else None)
    return all_notes(problem.operator, z, record, clip, Saddle(optax.sgd, optax.adam))


def test_every_problem_of_the_library_is_looked_at():
    made = {"adversarial", "per_person"} | {
        name for name, make in vars(problems).items() if inspect.isfunction(make) and (
            inspect.signature(make).return_annotation in (jmm.Problem, jmm.GroupProblem, Bounded))}
    assert made == set(LIBRARY)


@pytest.mark.slow
@pytest.mark.parametrize("name", LIBRARY)
def test_problems_of_the_library_raise_no_alarm(name):
    for case in LIBRARY[name]:
        assert alarms(*case) == []


@pytest.mark.nightly
def test_the_cookbook_raises_no_alarm(monkeypatch):
    """Each of its runs is looked at in place of made; what it reads afterwards are its starts."""
    seen = []

    class Run(tuple):
        state = property(lambda self: self[0])
        observations = property(lambda self: jnp.stack([self[0].z.w] * 20))

    def looked_at(key, z, data, hyper, algorithm, problem, **more):
        report = jmm.check(problem, z, data, hyper, algorithm, measure=False)
        seen.append([x for x in report.warnings if re.search("moves|looks like|computed from", x)])
        spent = algorithm.mechanism(hyper).releases()
        return Run((types.SimpleNamespace(z=z, average=z, spent=spent), None))

    monkeypatch.setattr(jmm, "run", looked_at)
    names = {}
    for block in test_documents.blocks(test_documents.read("docs/cookbook.md")):
        if block.language == "python" and not block.waived and re.search(
                r"jmm\.run|train\(|auc_of\(", block.text):
            exec(block.text, names)
    assert len(seen) >= 8
    assert seen == [[]] * len(seen)
