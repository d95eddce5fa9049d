"""Layers as their authors write them: scans, heads, slices, groups; none escapes the clip norm."""

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from benchmarks.privacy import random_models
from jaxminimax import Saddle, clipped_sum, saddle_operator
from jaxminimax.base import programs
from jaxminimax.gradients.ghost import planning
from jaxminimax.gradients.integer_sums import Grid, is_words
from jaxminimax.gradients.summation import Rounding
from jaxminimax.mechanism.grid import BLOCK
from tests.helpers.lanes import rest_nightly

SIZE = 4


@pytest.fixture(autouse=True)
def as_for_users():
    with jax.numpy_rank_promotion("allow"):
        yield


def rng():
    return np.random.default_rng(0)


def kinds(loss, z, x):
    """What is kept of each parameter, by name."""
    plan = planning.plan(loss, z, jax.tree.map(lambda a: a[0], x), Saddle(True, True))
    return {name: t for name, t in zip(plan.names, plan.treatments, strict=True) if t is not None}


def distance(loss, z, x):
    """Between the clipped sums of both strategies, in clip norms."""
    total = jax.jit(lambda z, x, how: clipped_sum(
        saddle_operator(loss), Saddle(0.5, 0.5), strategy=how)(z, x), static_argnums=2)
    moved = jax.tree.map(jnp.subtract, total(z, x, "ghost"), total(z, x, "vmap"))
    return 2 * max(float(jnp.max(jnp.abs(a))) for a in jax.tree.leaves(moved))


# --- random models ---


WIDE = random_models.covering(seed for seed in range(200) if seed % 3 < 2)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", rest_nightly([*WIDE, 2, 5, 8], 4))
def test_random_models_are_clipped_as_by_whole_gradients(seed):
    """At magnitudes from 1e-30 to 1e30, every layer against whole gradients in float64.

    `main` runs hundreds.
    """
    model = random_models.draw(seed, np.float32 if seed % 3 == 2 else np.float64)
    actual = random_models.examine(model)
    assert actual.difference <= random_models.CLOSE
    assert actual.longest <= 1 + 1e-6


# --- what is a use ---


def sliced(w, v, x):
    return jnp.sum((x @ w["m"][0]) * (x @ w["m"][0:1, :, :][0])) + jnp.sum(jnp.tanh(x @ w["m"][-1]))


def overlapping(w, v, x):
    return sum(jnp.sum(jnp.einsum("k,gko->go", x, w["m"][i: i + 2])) for i in (0, 1))


def stacked(w, v, x):
    return jnp.sum(jax.lax.scan(lambda h, m: (h + h @ (0.5 * m), None), x, w["m"])[0])


def both(w, v, x):
    """A matrix of the stack that is scanned over is also used alone."""
    return stacked(w, v, x) + jnp.sum(x @ w["m"][1])


@pytest.mark.slow
@pytest.mark.parametrize(("loss", "kind", "parts", "words"), [
    (sliced, "Gram", 2, "Gram products of 2 rows, 2 parts of it"),
    (overlapping, "function", 0, "by way of a function of it"),
    (stacked, "rank one", 1, "rank one, |x| |d|, for each of 3 matrices"),
    (both, "function", 0, "by way of a function of it"),
])
def test_parts_of_a_parameter_are_apart_or_are_put_together(loss, kind, parts, words):
    """w[0:2] and w[1:3] as two parts would give 2.00 for a norm of 2.45."""
    z, x = Saddle({"m": jnp.ones((3, 20, 20))}, ()), np.ones((SIZE, 20))
    (actual,) = kinds(loss, z, x).values()
    assert (actual.kind, len(actual.parts), str(actual)) == (
        kind, parts, f"per-example gradient, {words}" if kind == "function" else words)
    total = clipped_sum(saddle_operator(loss), Saddle(1.0, None), strategy="ghost")
    alone = jax.jit(total)(z, x[:1]).w["m"]
    assert jnp.linalg.norm(alone) <= 1.0 + 1e-12
    assert jnp.linalg.norm(alone) == pytest.approx(1.0, rel=1e-6)


@pytest.mark.slow
def test_a_loop_that_nobody_reads_adds_nothing():
    def loss(w, v, x):
        jax.lax.scan(lambda h, m: (h @ m, h @ w["other"]), x, w["m"])
        return jnp.sum(jnp.tanh(x @ w["other"]))

    z, x = Saddle({"m": jnp.ones((3, 8, 8)), "other": jnp.ones((8, 8))}, ()), np.ones((SIZE, 8))
    assert distance(loss, z, x) < 1e-12


def test_steps_without_results_and_slices_without_entries_add_nothing():
    def loss(w, v, x):
        jax.debug.callback(lambda _: None, x[0])
        nothing = [x[:0] @ w["cut"][i:i] for i in (0, 1)]
        return jnp.sum(jnp.tanh(x @ w["m"])) + sum(map(jnp.sum, nothing))

    z, x = Saddle({"cut": jnp.ones((8, 8)), "m": jnp.ones((8, 8))}, ()), np.ones((SIZE, 8))
    actual = kinds(loss, z, x)
    assert [t.kind for t in actual.values()] == ["unused", "rank one"]
    assert distance(loss, z, x) < 1e-12


@pytest.mark.slow
def test_matrices_picked_by_number_are_rows_or_fall_back():
    """An expert that a record picks; a loop by number, which differs from a scan over the stack."""
    def expert(w, v, x):
        return jnp.sum(jnp.tanh(x @ w["m"][jnp.argmax(x[:3])]))

    def counted(w, v, x):
        return jnp.sum(jax.lax.fori_loop(0, 3, lambda i, h: h + jnp.tanh(h @ w["m"][i]), x))

    draw = rng()
    z, x = Saddle({"m": jnp.asarray(draw.normal(size=(3, 8, 8)))}, ()), draw.normal(size=(SIZE, 8))
    for loss, kind, words in (
            (expert, "rows", "the row that is looked up"),
            (counted, "vmap", "vmap because 3 lookups of 3 matrices picked by number")):
        (actual,) = kinds(loss, z, x).values()
        assert actual.kind == kind
        assert str(actual).endswith(words)
        assert distance(loss, z, x) < 1e-12


# --- low rank ---

RANK, FROZEN = 2, rng().normal(size=(3, 24, 24)) / 5


def factor_by_factor(h, a, b, frozen):
    return h @ frozen + 0.5 * ((h @ a) @ b)


def added_up(h, a, b, frozen):
    return h @ (jax.lax.stop_gradient(frozen) + 0.5 * (a @ b))


def added_up_from_the_left(h, a, b, frozen):
    return (frozen.T + b.T @ (a.T / 2)) @ h.T


@pytest.mark.slow
@pytest.mark.parametrize("written", [factor_by_factor, added_up, added_up_from_the_left])
@pytest.mark.parametrize("stacked", [True, False], ids=["scan", "alone"])
def test_low_rank_updates_need_no_matrix_and_frozen_weights_nothing(written, stacked):
    def layer(h, p):
        out = written(h, p["a"], p["b"], jax.lax.stop_gradient(p["frozen"]))
        return h + jnp.tanh(out if out.shape == h.shape else out.T), None

    def loss(w, v, x):
        if stacked:
            return jnp.sum(jax.lax.scan(layer, x, {**w, "frozen": v})[0])
        return jnp.sum(layer(x, {"a": w["a"][0], "b": w["b"][0], "frozen": v[0]})[0])

    draw = rng()
    z = Saddle({"a": jnp.asarray(draw.normal(size=(3, 24, RANK))),
                "b": jnp.asarray(draw.normal(size=(3, RANK, 24)))}, jnp.asarray(FROZEN))
    x = draw.normal(size=(SIZE, 4, 24))
    plan = planning.plan(loss, z, x[0], Saddle(True, True))
    actual = dict(zip(plan.names, plan.treatments, strict=True))
    assert actual["v"].numbers == 0
    assert str(actual["v"]) == "not used or not differentiated, so its gradient is 0"
    assert all(0 < t.numbers <= 3 * 24 * RANK for name, t in actual.items() if name != "v")
    assert "vmap" not in {t.kind for t in actual.values()}
    made = programs.equations(jax.make_jaxpr(jax.vmap(plan.example_gradients, (None, 0)))(z, x))
    assert not [y for e in made for y in e.outvars if y.aval.shape[-3:] == (SIZE, 24, 24)]
    assert distance(loss, z, x) < 1e-12


@pytest.mark.slow
def test_terms_of_a_sum_and_factors_of_a_product_are_followed_by_themselves():
    """The same parameter in both, products of three, what is read twice, and of other shapes."""
    def loss(w, v, x):
        even = w["m"] + w["m"].T - v
        long = w["a"] @ w["m"] @ w["b"]
        cut = (w["m"] @ w["m"])[:5]
        return jnp.sum(jnp.tanh(x @ even)) + jnp.sum(jnp.sin(x @ long)) + jnp.sum(
            jnp.tanh(cut @ x)) + jnp.sum(jnp.cos(x @ even.reshape(24, 3, 8)[:, 0]))

    draw = rng()
    z = Saddle({name: jnp.asarray(draw.normal(size=(24, 24)) / 5) for name in "abm"},
               jnp.asarray(draw.normal(size=(24, 24))))
    x = draw.normal(size=(SIZE, 24))
    actual = {name: t.kind for name, t in kinds(loss, z, x).items()}
    assert actual["w['a']"] == actual["w['b']"] == "rank one"
    assert distance(loss, z, x) < 1e-12


# --- functions of parameters ---


def of_unit_columns(p):
    return p["g"] * p["m"] / jnp.linalg.norm(p["m"], axis=0, keepdims=True)


def over_its_longest_column(p):
    return p["m"] / jnp.max(jnp.linalg.norm(p["m"], axis=0))


def masked(p):
    return p["m"] * np.tri(*p["m"].shape)


def standardised(p):
    m = p["m"].reshape(2, 8, 16)  # a kernel of two pixels
    return (m - jnp.mean(m, (0, 1))) / jnp.sqrt(1e-3 + jnp.var(m, (0, 1)))


def once(x, m):
    return jnp.tanh(x[:, : m.shape[0]] @ m)


def every_step(x, m):
    return jax.lax.scan(lambda s, row: (jnp.tanh(s @ m + row),) * 2, x[0], x)[1]


def over_pixels(x, m):
    return jax.lax.conv_general_dilated(x[None, :, : m.shape[-2]], m.reshape(2, -1, m.shape[-1]),
                                        (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"))


@pytest.mark.slow
@pytest.mark.parametrize(("h", "use"), [
    (of_unit_columns, once), (of_unit_columns, every_step), (over_its_longest_column, once),
    (masked, every_step), (standardised, over_pixels)])
def test_functions_of_parameters_are_followed_to_the_parameters(h, use):
    """Beside a second, plain use; at any size, and where a record is not finite."""
    def loss(w, v, x):
        return jnp.sum(use(x, h(w))) + jnp.sum(jnp.sin(x[0] @ (w["m"] * v)))

    draw = rng()
    z = Saddle({"m": jnp.asarray(draw.normal(size=(16, 16))),
                "g": jnp.asarray(draw.normal(size=16))}, jnp.float64(0.7))
    x = draw.normal(size=(SIZE, 3, 16)) * np.array([1e-30, 1, 1e4, np.nan])[:, None, None]
    actual = kinds(loss, z, x)
    plan = planning.plan(loss, z, x[0], Saddle(True, True))
    held = sum(a.size for a in jax.tree.leaves(jax.eval_shape(plan.example_gradients, z, x[0])))
    assert held == sum(t.numbers for t in actual.values())
    assert actual["w['m']"].kind == "function"
    assert actual["w['m']"].numbers == 256
    assert str(actual["w['m']"]) == "per-example gradient, by way of a function of it"
    if h is of_unit_columns:
        assert actual["w['g']"].kind == "function"
    assert distance(loss, z, x) < 1e-12
    total = jax.jit(clipped_sum(saddle_operator(loss), Saddle(0.5, None), strategy="ghost"))
    assert jnp.all(jnp.isfinite(total(z, x).w["m"]))
    longest = max(float(jnp.sqrt(sum(jnp.sum(a**2) for a in jax.tree.leaves(
        total(z, x[i: i + 1]).w)))) for i in range(SIZE))
    assert longest == pytest.approx(0.5, rel=1e-9)
    assert longest <= 0.5


def test_what_meets_a_record_otherwise_is_no_function_of_it():
    def loss(w, v, x):
        return (jnp.sum(jnp.tanh(x @ (w["a"] * w["a"]))) + jnp.sum(w["a"] ** 2)
                + jnp.sum(x * jnp.exp(w["b"])) + jnp.sum(x @ (w["c"] * jnp.abs(x)[:, None])))

    z, x = Saddle({name: jnp.ones((8, 8)) for name in "ac"} | {"b": jnp.ones(8)}, ()), np.ones(
        (SIZE, 8))
    assert {name: t.reason for name, t in kinds(loss, z, x).items()} == {
        "w['a']": "used by mul", "w['b']": "used by exp", "w['c']": "used by mul"}
    assert distance(loss, z, x) < 1e-12


# --- models of other libraries ---


class Block(nn.Module):
    @nn.compact
    def __call__(self, h, _):
        h = h + nn.MultiHeadDotProductAttention(2, deterministic=True)(nn.LayerNorm()(h))
        return h + nn.Dense(16)(nn.gelu(nn.Dense(32)(nn.LayerNorm()(h)))), None


class Linen(nn.Module):
    """Positions, a stack of blocks in a scan, a recurrent layer."""

    @nn.compact
    def __call__(self, x):
        h = x + self.param("positions", nn.initializers.normal(), x.shape, x.dtype)
        stack = nn.scan(nn.remat(Block, prevent_cse=False), variable_axes={"params": 0}, length=2,
                        split_rngs={"params": True})
        h, _ = stack(name="stack")(h, None)
        return nn.Dense(1)(nn.RNN(nn.GRUCell(16))(h))


def linen():
    model = Linen()
    params = jax.jit(model.init)(jax.random.key(0), jnp.zeros((3, 16), jnp.float32))
    return lambda w, v, x: jnp.sum(jnp.tanh(model.apply(w, x))), params


def equinox():
    """A recurrent cell and layers stacked by a vmap of their constructor, as its guide says."""
    keys = jax.random.split(jax.random.key(0), 3)
    stack = eqx.filter_vmap(lambda key: eqx.nn.MLP(16, 16, 16, 1, key=key))(keys)
    arrays, static = eqx.partition((stack, eqx.nn.LSTMCell(16, 16, key=keys[0])), eqx.is_array)

    def loss(w, v, x):
        layers, cell = eqx.combine(w, static)
        inner, other = eqx.partition(layers, eqx.is_array)
        h, _ = jax.lax.scan(lambda h, p: (h + jax.vmap(eqx.combine(p, other))(h), None), x, inner)
        state, _ = jax.lax.scan(lambda s, row: (cell(row, s), None), (jnp.zeros(16),) * 2, h)
        return jnp.sum(state[0])

    return loss, arrays


def flax_nnx():
    rngs = nnx.Rngs(0)
    model = nnx.Sequential(nnx.Linear(16, 20, rngs=rngs), nnx.LayerNorm(20, rngs=rngs), nnx.relu,
                           nnx.Conv(20, 20, (3,), feature_group_count=4, rngs=rngs))
    graph, params = nnx.split(model)
    return lambda w, v, x: jnp.sum(jnp.tanh(nnx.merge(graph, w)(x))), params


def haiku():
    import haiku as hk

    def model(x):
        h = hk.LayerNorm(-1, True, True)(hk.Linear(20)(x))
        h = hk.DepthwiseConv1D(1, 2)(hk.Conv1D(16, 3)(h)[None])[0]
        h = hk.experimental.layer_stack(2)(hk.Linear(16))(h)
        return hk.dynamic_unroll(hk.GRU(16), h, jnp.zeros(16))[0]

    transformed = hk.without_apply_rng(hk.transform(model))
    params = jax.jit(transformed.init)(jax.random.key(0), jnp.zeros((3, 16), jnp.float32))
    return lambda w, v, x: jnp.sum(jnp.tanh(transformed.apply(w, x))), params


@pytest.mark.nightly
@pytest.mark.parametrize("author", [linen, equinox, flax_nnx, haiku])
def test_models_as_their_authors_write_them(author):
    """Everything with two axes of its own is understood; the rest is kept at its own size."""
    loss, params = author()
    z = Saddle(jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), params), ())
    x = rng().normal(size=(SIZE, 3, 16)).astype(np.float32)
    vectors = ("bias", "scale", "positions", ".b", "['b']", "offset")
    for name, actual in kinds(loss, z, x).items():
        assert (actual.kind == "vmap") == any(word in name for word in vectors), (name, str(actual))
    assert distance(loss, z, x) < 1e-4


# --- on the grid of a release ---


def grouped(w, v, x):
    h = jnp.einsum("tk,gko->go", jnp.tanh(x), v["heads"])
    return jnp.sum(jnp.tanh(h)) + sliced(w, v, x) + jnp.sum((x[0] @ w["m"][1]) ** 2)


@pytest.mark.slow
@pytest.mark.parametrize(("count", "rows"), [(5, 1), (700, 2)])
def test_sums_on_the_grid_are_those_in_floating_point(count, rows):
    """Of several parts and matrices, in one block and in several."""
    draw = rng()
    z = Saddle({"m": jnp.asarray(draw.normal(size=(3, 24, 24)), jnp.float32)},
               {"heads": jnp.asarray(draw.normal(size=(2, 24, 20)), jnp.float32)})
    x = draw.normal(size=(count, rows, 24)).astype(np.float32)
    scale = Saddle(jnp.float32(2.0**14), jnp.float32(2.0**12))
    grid = Grid(scale, jax.tree.map(lambda a: jnp.asarray(draw.integers(
        0, 256, a.shape), jnp.uint8), z), False)
    loss = grouped if rows == 2 else lambda w, v, x: jnp.sum(x @ w["m"][0]) + jnp.sum(
        jax.lax.scan(lambda h, m: (h + jnp.pad(h @ m, ((0, 0), (0, 4))), None), x, v["heads"])[0])
    how = clipped_sum(saddle_operator(loss), Saddle(1.0, 1.0), strategy="ghost")
    actual = how.sums(z, x, None, Rounding(grid, jnp.array(True), jnp.array(True)))
    for unit, integers, floats in zip(scale, actual.integers, actual.floats, strict=True):
        for a, b in zip(jax.tree.leaves(integers, is_leaf=is_words), jax.tree.leaves(floats),
                        strict=True):
            off = np.asarray(a.low, np.float64) - float(unit) * np.asarray(b, np.float64)
            assert np.max(np.abs(b)) * unit > 100  # more than the rounding
            assert np.max(np.abs(off)) <= 1.01 * -(-count // BLOCK)
