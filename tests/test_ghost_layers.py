"""Layers as their authors write them: scans, heads, slices, groups; none escapes the clip norm."""

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from benchmarks import random_models
from jaxminimax import Saddle, clipped_sum, saddle_operator
from jaxminimax.gradients import ghost
from jaxminimax.gradients.integer_sums import Grid, is_words
from jaxminimax.gradients.summation import Rounding
from jaxminimax.mechanism import BLOCK

SIZE = 4


@pytest.fixture(autouse=True)
def as_for_users():
    with jax.numpy_rank_promotion("allow"):
        yield


def rng():
    return np.random.default_rng(0)


def kinds(loss, z, x):
    """What is kept of each parameter, by name."""
    plan = ghost.plan(loss, z, jax.tree.map(lambda a: a[0], x), Saddle(True, True))
    return {name: t for name, t in zip(plan.names, plan.treatments, strict=True) if t is not None}


def distance(loss, z, x):
    """Between the clipped sums of both strategies, in clip norms."""
    total = jax.jit(lambda z, x, how: clipped_sum(
        saddle_operator(loss), Saddle(0.5, 0.5), strategy=how)(z, x), static_argnums=2)
    moved = jax.tree.map(jnp.subtract, total(z, x, "ghost"), total(z, x, "vmap"))
    return 2 * max(float(jnp.max(jnp.abs(a))) for a in jax.tree.leaves(moved))


# --- random models ---


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(len(random_models.LAYERS)))
def test_random_models_are_clipped_as_by_whole_gradients(seed):
    """At magnitudes from 1e-30 to 1e30; every layer has its turn. `main` runs hundreds."""
    model = random_models.draw(seed, np.float32 if seed % 3 == 2 else np.float64)
    found = random_models.examine(model)
    assert found.difference <= random_models.CLOSE
    assert found.longest <= 1 + 1e-6


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


@pytest.mark.parametrize(("loss", "kind", "parts", "words"), [
    (sliced, "Gram", 2, "Gram products of 2 rows, 2 parts of it"),
    (overlapping, "vmap", 0, "vmap because used in parts that overlap"),
    (stacked, "rank one", 1, "rank one, |x| |d|, for each of 3 matrices"),
    (both, "vmap", 0, "vmap because used in parts that overlap"),
])
def test_parts_of_a_parameter_are_apart_or_it_falls_back(loss, kind, parts, words):
    """w[0:2] and w[1:3] as two parts would give 2.00 for a norm of 2.45."""
    z, x = Saddle({"m": jnp.ones((3, 20, 20))}, ()), np.ones((SIZE, 20))
    (found,) = kinds(loss, z, x).values()
    assert (found.kind, len(found.parts), str(found)) == (
        kind, parts, words if kind != "vmap" else f"per-example gradient, {words}")
    total = clipped_sum(saddle_operator(loss), Saddle(1.0, None), strategy="ghost")
    alone = jax.jit(total)(z, x[:1]).w["m"]
    assert jnp.linalg.norm(alone) <= 1.0 + 1e-12
    assert jnp.linalg.norm(alone) == pytest.approx(1.0, rel=1e-6)


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
    found = kinds(loss, z, x)
    assert [t.kind for t in found.values()] == ["unused", "rank one"]
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
    params = model.init(jax.random.key(0), jnp.zeros((3, 16), jnp.float32))
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


@pytest.mark.slow
@pytest.mark.parametrize("author", [linen, equinox, flax_nnx])
def test_models_as_their_authors_write_them(author):
    """Everything with two axes of its own is understood; the rest is kept at its own size."""
    loss, params = author()
    z = Saddle(jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), params), ())
    x = rng().normal(size=(SIZE, 3, 16)).astype(np.float32)
    vectors = ("bias", "scale", "positions", ".b")
    for name, found in kinds(loss, z, x).items():
        assert (found.kind == "vmap") == any(word in name for word in vectors), (name, str(found))
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
    found = how.sums(z, x, None, Rounding(grid, jnp.array(True), jnp.array(True)))
    for unit, integers, floats in zip(scale, found.integers, found.floats, strict=True):
        for a, b in zip(jax.tree.leaves(integers, is_leaf=is_words), jax.tree.leaves(floats),
                        strict=True):
            off = np.asarray(a.low, np.float64) - float(unit) * np.asarray(b, np.float64)
            assert np.max(np.abs(b)) * unit > 100  # more than the rounding
            assert np.max(np.abs(off)) <= 1.01 * -(-count // BLOCK)
