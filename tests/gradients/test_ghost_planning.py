"""Clipped sums within a budget of bytes: it is kept, slices add up, and a record stays bounded."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxminimax import Saddle, clipped_sum, saddle_operator
from jaxminimax.gradients import summation
from jaxminimax.gradients.ghost import planning
from jaxminimax.gradients.integer_sums import Grid, parts
from jaxminimax.mechanism.grid import BLOCK
from jaxminimax.types import with_strategy

S = jax.ShapeDtypeStruct


def stacked(w, v, x):
    """Layers in a loop, whose gradients are whole matrices, and a head that is kept as factors."""
    h, _ = jax.lax.scan(lambda h, a: (jnp.tanh(h @ a) + h, None), x, w["layers"])
    return jnp.sum(jnp.tanh(h @ w["head"])) * v


def images(w, v, x):
    y = jax.lax.conv(x[None, None], w["kernel"], (1, 1), "SAME")
    return jnp.sum(jnp.tanh(y), (0, 2, 3)) @ w["head"] * v


def network(w, v, x):
    return jnp.sum(jnp.tanh(jnp.tanh(x @ w["in"]) @ w["out"])) * v


def shapes(*, layers=4, width=24, side=10, channels=8, records=45):
    """Points and records of each model."""
    return {
        stacked: ({"layers": (layers, width, width), "head": (width, 9)}, (records, width)),
        images: ({"kernel": (channels, 1, 3, 3), "head": (channels,)}, (records, side, side)),
        network: ({"in": (width, 4 * width), "out": (4 * width, 9)}, (records, width)),
    }


every_model = pytest.mark.parametrize("model", shapes(), ids=lambda f: f.__name__)


def drawn(model, dtype=np.float64, **size):
    """A point, and records of very different norms."""
    w, x = shapes(**size)[model]
    rng = np.random.default_rng(5)
    w = {name: jnp.asarray(rng.normal(size=s) / np.sqrt(s[-1]), dtype) for name, s in w.items()}
    scale = 10 ** rng.uniform(-2, 1, x[0])
    return (Saddle(w, jnp.ones((), dtype)),
            np.asarray(rng.normal(size=x) * scale.reshape(-1, *[1] * (len(x) - 1)), dtype))


def in_slices(model, z, x, rows, clip=Saddle(0.5, 2.0), **how):
    """A clipped sum with as large a budget as holds so many rows at a time."""
    total = clipped_sum(saddle_operator(model), clip, **how)
    one = jax.tree.map(lambda a: S(a.shape[1:], a.dtype), x)
    plan = total._chosen(z, x, len(x)).plan
    need = planning.need_of_plan(plan, z, one)
    total = clipped_sum(saddle_operator(model), clip, memory=need.bytes(rows), **how)
    chosen = total._chosen(z, x, len(x))
    assert (chosen.strategy, chosen.rows) == ("ghost", rows)
    return total


@every_model
def test_slices_are_for_the_cache_of_a_cpu_and_elsewhere_for_memory_alone(model, monkeypatch):
    z, x = drawn(model, np.float32, records=8)
    one = jax.tree.map(lambda a: S(a.shape[1:], a.dtype), x)
    total = clipped_sum(saddle_operator(model), Saddle(0.5, 2.0), strategy="ghost")
    need = planning.need_of_plan(total._chosen(z, x, len(x)).plan, z, one)
    size = 2**28 // need.record  # a quarter of the default budget
    budget = need.bytes(size)
    assert 0 < need.rows(size, budget) < size // 4
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert need.rows(size, budget) == size
    assert need.rows(size, need.bytes(size // 2)) <= size // 2


@pytest.mark.slow
@every_model
def test_slices_add_up_to_the_whole(model):
    """Of a length that does not divide the batch; with records that are absent or not finite."""
    z, x = drawn(model)
    mask = np.arange(len(x)) % 5 != 1
    x[[7, -1]] = np.nan
    full = jax.jit(clipped_sum(saddle_operator(model), Saddle(0.5, 2.0), strategy="ghost"))
    sliced = jax.jit(in_slices(model, z, x, 16, strategy="ghost"))
    for some in (mask, np.arange(len(x)) == 44, np.arange(len(x)) == 40, np.zeros(len(x), bool)):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-11),
                     sliced(z, x, some), full(z, x, some))


def on_grid(total, z, x):
    """The sum on a grid of 2^-18, in units of 1."""
    dither = jax.tree.map(lambda a: jnp.full(a.shape, 77, jnp.uint8), z)
    grid = Grid(jax.tree.map(lambda _: jnp.float32(2.0**18), Saddle(0, 0)), dither, False)
    actual = total.sums(z, x, None, summation.Rounding(grid, jnp.array(False), jnp.array(True)))
    return jax.tree.map(lambda a: sum(parts(a, jnp.float64)) / 2.0**18, actual.integers,
                        is_leaf=lambda a: hasattr(a, "low"))


def test_one_record_moves_slices_by_its_clip_norm_wherever_it_stands():
    """In the first slice, and where the last one begins early to be whole; floats and integers."""
    z, x = drawn(network)
    total = in_slices(network, z, x, 16, Saddle(0.5, 0.5), strategy="ghost")
    floats, integers = jax.jit(total), jax.jit(functools.partial(on_grid, total))
    for place in (0, 31, 44):
        x[place] = 10 * np.ones(x.shape[1])  # above both clip norms
        without = np.where(np.arange(len(x))[:, None] == place, np.nan, x)
        for sums, loss in ((floats, 1e-12), (integers, 2e-3)):
            moved = jax.tree.map(lambda a, b: a - b, sums(z, x), sums(z, without))
            for player in moved:
                length = np.sqrt(sum(np.sum(np.square(a)) for a in jax.tree.leaves(player)))
                assert 0.5 - loss < length <= 0.5 + loss


@pytest.mark.nightly
@every_model
@pytest.mark.optimised
def test_a_compiled_sum_takes_no_more_than_its_budget(model, monkeypatch):
    """By what the compiler says; without a budget it would."""
    z, x = drawn(model, np.float32, layers=6, width=96, side=24, channels=16, records=1500)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")  # slices for memory alone
    taken = {}
    for memory in (6 * 2**20, 2**40):
        total = clipped_sum(saddle_operator(model), Saddle(1.0, 1.0), memory=memory)
        made = jax.jit(lambda z, x, total=total: total(z, x)).lower(z, x).compile()
        taken[memory] = made.memory_analysis().temp_size_in_bytes
    assert 0 < taken[6 * 2**20] <= 6 * 2**20 < taken[2**40]


@pytest.mark.slow
def test_the_budget_is_asked_before_what_a_plan_gains():
    """12 layers in a loop, 1.6 million numbers, of 512 records: their gradients are 3.2 GB."""
    z = Saddle({"layers": S((12, 256, 512), jnp.float32), "head": S((256, 64), jnp.float32)},
               S((), jnp.float32))

    def loss(w, v, x):
        h, _ = jax.lax.scan(lambda h, a: (jnp.tanh(h @ a) @ a.T, None), x, w["layers"])
        return jnp.sum(h @ w["head"]) * v

    x = S((512, 32, 256), jnp.float32)
    for strategy in ("auto", "ghost"):
        total = clipped_sum(saddle_operator(loss), Saddle(1.0, 1.0), strategy=strategy)
        chosen = total._chosen(z, x, 512)
        assert chosen.strategy == "ghost"
        assert 1 <= chosen.rows < 512
        assert chosen.need.bytes(chosen.rows) <= total._budget
        assert f"slices of {chosen.rows} rows of 512, below " in total.explain(z, x)
        assert "1,073,741,824 that are allowed" in total.explain(z, x)
        assert total.kept_bytes(z, x) <= chosen.need.bytes(chosen.rows)


def test_few_rows_are_held_at_once_and_many_as_fit_a_cache():
    def loss(w, v, x):
        return jnp.tanh(x @ w) * v

    z = Saddle(S((20,), jnp.float32), S((), jnp.float32))
    stated = [clipped_sum(saddle_operator(loss), Saddle(1.0, 1.0)).explain(
        z, S((n, 20), jnp.float32)).splitlines()[-2:] for n in (4096, 200_000)]
    assert stated[0][0].startswith("all rows at once of 4,096")
    assert stated[1][0].startswith("slices of ")
    assert stated[0][1].startswith("of the bytes that a pass moves, 100% are for the rows")


@pytest.mark.parametrize("rows", [2, 50])
def test_bytes_for_rows_and_for_sums_are_all_that_a_pass_moves(rows):
    z, x = Saddle(S((300, 20), jnp.float32), ()), S((rows, 20), jnp.float32)
    total = clipped_sum(saddle_operator(lambda w, v, x: jnp.tanh(w @ x).sum()), Saddle(1.0, None))
    need = total._chosen(z, x, rows).need
    share = rows * need.record / (rows * need.record + need.sums)
    assert f"moves, {share:.0%} are for the rows" in total.explain(z, x)
    assert 0.01 < share < 0.99


def test_whole_gradients_are_held_in_slices_earlier_than_factors_and_in_whole_blocks():
    full, factors = (planning.Need(800, 500, full=k) for k in (True, False))
    assert factors.rows(20_000, 2**30) == 20_000
    assert full.rows(20_000, 2**30) <= 2**20 // 800
    assert full.rows(20_000, 2**30) % BLOCK == 0
    assert full.rows(5_000, 2**30) == 5_000
    for record, sums, size in ((800_000, 500, 20), (160_000, 480_000, 100)):
        large = planning.Need(record, sums, full=True)
        assert large.rows(size, 2**30) == size  # slices would cut blocks


@pytest.mark.parametrize(("size", "most", "rows"), [
    (100, 100, 100), (100, 101, 100), (100, 99, 56), (100, 20, 16), (100, 7, 7), (9, 8, 8),
    (9, 1, 1), (200_000, 3000, 2944), (1000, 200, 128)])
def test_slices_are_of_equal_length(size, most, rows):
    assert planning.even(size, most) == rows <= most


@pytest.mark.parametrize("how", ["auto", "ghost"])
def test_what_does_not_fit_is_refused_before_anything_is_compiled(how):
    z, x = drawn(network)
    stated = with_strategy(saddle_operator(network), how, memory=10_000)
    with pytest.raises(ValueError, match=r"needs about [\d,]+ bytes with one example.*10,000.*"
                                         r"memory="):
        clipped_sum(stated, Saddle(1.0, 1.0)).explain(z, x)


@pytest.mark.parametrize(("how", "words"), [
    (dict(memory=0), "memory must be an integer, at least 1"),
    (dict(memory=1e9), "memory must be an integer"),
    (dict(memory=2**20, strategy="vmap"), "leave out one of them"),
    (dict(memory=2**20, strategy="microbatch"), "leave out one of them")])
def test_senseless_budgets_are_refused(how, words):
    with pytest.raises(ValueError, match=words):
        clipped_sum(saddle_operator(network), Saddle(1.0, 1.0), **how)
