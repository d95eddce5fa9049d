"""Gradients kept as factors: the same sums as of whole gradients, and a bound nothing escapes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.privacy.mutants import operators
from jaxminimax import Saddle, clipped_sum, saddle_operator
from jaxminimax.gradients.ghost import convolution as kernels
from jaxminimax.gradients.ghost import factors, planning, search
from jaxminimax.gradients.ghost.sums import weighted_rows
from jaxminimax.types import SaddleOperator

SIZE = 6


def dense(w, v, x):
    hidden = jax.nn.relu(x["x"] @ w["in"] + w["bias"])
    return hidden @ w["out"] * v["scale"] + jnp.sum(jnp.tanh(v["turn"] @ hidden))


def shared(w, v, x):
    """As it is, transposed, reshaped, twice in one product."""
    square = jax.jit(lambda a: a.reshape(9, 9))(w["w"])
    hidden = jnp.tanh(square @ x["long"])
    hidden = jax.checkpoint(lambda h, a: jnp.tanh((a.T @ h) @ a))(hidden, square)
    return jnp.sum(hidden**2) + jnp.sum((square @ square.T)[0])


def residual(w, v, x):
    def layer(h, a):
        return h + jax.nn.softplus(h @ a)

    return jnp.sum(layer(layer(x["x"], w[0]), w[1])) * jnp.cos(v[0] @ x["long"])


def convolution(w, v, x):
    y = jax.lax.conv_general_dilated(
        x["image"][None], w["kernel"], (2, 1), ((1, 0), (2, 2)), rhs_dilation=(1, 2),
        dimension_numbers=("NHWC", "OIHW", "NCHW"))
    return jnp.sum(jnp.tanh(jax.lax.conv(jnp.tanh(y), w["next"], (1, 1), "SAME"))) * v


def long_window(w, v, x):
    """Over more pixels than are cut out one by one, of an input with gaps."""
    y = jax.lax.conv_general_dilated(
        jnp.tanh(x["signal"])[None], w, (1,), ((3, 2),), lhs_dilation=(2,),
        dimension_numbers=("NWC", "WIO", "NWC"))
    return jnp.sum(jnp.tanh(y), (0, 1)) @ v


def nothing(w, v, x):
    """Outputs without a single number."""
    y = jax.lax.conv_general_dilated(
        x["image"][None], w["kernel"], (1, 1), ((-2, -2), (-2, -2)),
        dimension_numbers=("NHWC", "HWIO", "NHWC"))
    assert not y.size
    return jnp.sum(y) + jnp.sum(x["sequence"][:0] @ w["flat"]) + jnp.tanh(x["x"] @ v)


def embedding(w, v, x):
    """Numbers below, within and beyond the table, and equal ones."""
    return (jnp.sum(jnp.tanh(w["table"][x["id"]])) + jnp.sum(jnp.sin(w["table"][x["ids"] % 5]))
            + jnp.sum(w["table"].at[x["ids"]].get(mode="clip") ** 2)
            + jnp.sum(v.at[x["ids"]].get(mode="fill", fill_value=0.5) ** 3))


def attention(w, v, x):
    q, k, u = ((x["sequence"] @ w[name]).reshape(3, 2, 8) for name in ("q", "k", "u"))
    mixed = jax.nn.softmax(jnp.einsum("the,she->hts", q, k))
    mixed = jnp.einsum("hts,she->the", mixed, u).reshape(3, 16)
    return jnp.sum(jnp.tanh(jnp.einsum("td,dhe->the", mixed, w["out"])) * v)


def unknown(w, v, x):
    """Carried, under a rule of its own, masked by a record, alone; in parts and in other rows."""
    @jax.custom_jvp
    def doubled(a, b):
        return b @ a

    doubled.defjvp(lambda p, t: (doubled(*p), 2 * (p[1] @ t[0])))
    (h, _), _ = jax.lax.scan(lambda c, _: ((jnp.tanh(c[0] @ c[1] + x["x"]), -c[1]), None),
                             (doubled(w["rule"], x["x"]), w["loop"]), None, length=3)
    rows = x["long"][:8] @ w["rows"] + (x["long"][:4] @ w["rows"].reshape(4, 6))[:3]
    return (jnp.sum(h) + jnp.sum(w["two"][x["id"]]) + jnp.sum(x["x"] @ w["two"][:, 1:])
            + jnp.sum(rows**2) + jnp.sum(x["x"][:2] @ (w["each"] * x["x"][:2, None])) + jnp.sum(v))


def unused(w, v, x):
    return jnp.sum(jnp.tanh(w["used"] @ x["x"]))


def normal(*shape):
    return lambda rng: rng.normal(size=shape)


MODELS = {
    dense: ({"in": normal(4, 5), "bias": normal(5), "out": normal(5)},
            {"scale": normal(), "turn": normal(3, 5)}),
    shared: ({"w": normal(3, 27)}, None),
    residual: ((normal(4, 4), normal(4, 4)), [normal(9)]),
    convolution: ({"kernel": normal(3, 2, 2, 2), "next": normal(2, 3, 3, 3)}, normal()),
    long_window: (normal(70, 2, 16), normal(16)),
    nothing: ({"kernel": normal(3, 3, 2, 4), "flat": normal(6, 5)}, normal(4)),
    embedding: ({"table": normal(70, 4)}, normal(40, 3)),
    attention: ({"q": normal(6, 16), "k": normal(6, 16), "u": normal(6, 16),
                 "out": normal(16, 2, 8)}, normal(3, 2, 8)),
    unknown: ({"loop": normal(4, 4), "rule": normal(4, 4), "two": normal(4, 4),
               "rows": normal(8, 3), "each": normal(2, 2)}, normal(2)),
    unused: ({"used": normal(8, 4), "not": normal(3, 3)}, {}),
}
KINDS = {
    dense: ["vmap", "rank one", "rank one", "vmap", "rank one"],  # w by name, then v
    shared: ["matrix"],
    residual: ["rank one"] * 3,
    convolution: ["matrix", "matrix", "vmap"],
    long_window: ["Gram", "rank one"],
    nothing: ["vmap", "vmap", "rank one"],
    embedding: ["rows", "rows"],
    attention: ["Gram"] * 4 + ["vmap"],
    unknown: ["vmap", "vmap", "function", "vmap", "function", "vmap"],
    unused: ["unused", "rank one"],
}
every_model = pytest.mark.parametrize("model", MODELS, ids=lambda f: f.__name__)


def point(model, rng, dtype=np.float64):
    return jax.tree.map(lambda draw: jnp.asarray(draw(rng), dtype), Saddle(*MODELS[model]))


def records(rng, dtype=np.float64):
    """Of very different sizes, so that some are clipped."""
    x = {"x": (4,), "long": (9, ), "image": (4, 5, 2), "sequence": (3, 6),
         "signal": (37, 2)}
    scale = 10 ** rng.uniform(-2, 1, SIZE)
    return {name: np.asarray(rng.normal(size=(SIZE, *s)) * scale.reshape(-1, *[1] * len(s)), dtype)
            for name, s in x.items()} | {
        "id": rng.integers(0, 4, SIZE), "ids": rng.integers(-50, 90, (SIZE, 6))}


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def summed(loss, strategy, joint, clip, z, x, mask=None):
    return clipped_sum(saddle_operator(loss), clip, strategy=strategy, joint=joint)(z, x, mask)


def assert_close(a, b, rtol):
    for p, q in zip(a, b, strict=True):
        assert jax.tree.structure(p) == jax.tree.structure(q)
        size = max((float(jnp.max(jnp.abs(y), initial=0)) for y in jax.tree.leaves(q)), default=0)
        for x, y in zip(*map(jax.tree.leaves, (p, q)), strict=True):
            assert (x.shape, x.dtype) == (y.shape, y.dtype)
            np.testing.assert_allclose(x, y, rtol=0, atol=rtol * size)


# --- the same sums ---


@pytest.mark.slow
@every_model
@pytest.mark.optimised("attention", "shared")
def test_sums_are_those_of_whole_gradients(model):
    """Clipped not at all, some, and all; with records that are absent or not finite."""
    for seed, clip in ((0, Saddle(1e9, 1e9)), (1, Saddle(0.5, 2.0)), (2, Saddle(1e-3, 1e-3))):
        rng = np.random.default_rng(seed)
        z, x, mask = point(model, rng), records(rng), rng.random(SIZE) < 0.7
        x["long"][2] = x["x"][2] = np.nan if seed == 1 else 0.0
        a, b = (summed(model, how, False, clip, z, x, mask) for how in ("ghost", "vmap"))
        assert_close(a, b, 1e-12)


@every_model
def test_every_parameter_is_treated_as_it_should_be(model):
    rng = np.random.default_rng(0)
    z, x = point(model, rng), records(rng)
    one = jax.tree.map(lambda a: a[0], x)
    plan = planning.plan(model, z, one, Saddle(True, True))
    assert [t.kind for t in plan.treatments] == KINDS[model]
    text = clipped_sum(saddle_operator(model), Saddle(1.0, 1.0), strategy="ghost").explain(z, x)
    assert text.startswith("strategy ghost\nparameter")
    for line, t in zip(text.splitlines()[2:-2], plan.treatments, strict=True):
        assert f" {t.numbers:,} " in line
        assert f" {8 * t.numbers:,} " in line  # bytes of float64
        assert str(list(t.shape)) in line
        assert ("vmap because" in line) == (t.kind == "vmap")


def test_what_is_not_understood_is_said():
    rng = np.random.default_rng(0)
    plan = planning.plan(unknown, point(unknown, rng), jax.tree.map(lambda a: a[0], records(rng)),
                      Saddle(True, False))
    assert {name: t.reason for name, t in zip(plan.names, plan.treatments, strict=True)
            if t is not None and t.kind == "vmap"} == {
        "w['each']": "used by mul", "w['loop']": "carried through a loop",
        "w['rule']": "used by custom_jvp_call"}


@pytest.mark.slow
def test_one_clip_for_both_players_and_players_alone():
    rng = np.random.default_rng(3)
    z, x = point(dense, rng), records(rng)
    for joint, clip in ((True, Saddle(0.5, 2.0)), (False, Saddle(0.5, None)),
                        (False, Saddle(None, 2.0))):
        a, b = (summed(dense, how, joint, clip, z, x) for how in ("ghost", "vmap"))
        assert_close(a, b, 1e-12)
        assert [p is None for p in a] == [c is None for c in clip]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16],
                         ids=lambda t: t.__name__)
def test_narrow_numbers_are_summed_in_float32(dtype):
    rng = np.random.default_rng(4)
    z, x = point(dense, rng, dtype), records(rng, dtype)
    a, b = (summed(dense, how, False, Saddle(0.5, 2.0), z, x) for how in ("ghost", "vmap"))
    assert_close(a, b, 40 * float(jnp.finfo(dtype).eps))


def product(w, v, x):
    """Its gradient by w is x.w^T x.v, any product of two matrices."""
    return jnp.sum((x.w @ w) * x.v) + 0.0 * v


@pytest.mark.slow
@pytest.mark.parametrize("count", [1500, 5000])
def test_long_batches_are_summed_in_blocks(count):
    rng = np.random.default_rng(5)
    for k, o in ((9, 7), (80, 1)):
        x = Saddle(*(rng.normal(size=(count, 1, n)) for n in (k, o)))
        z = Saddle(jnp.zeros((k, o)), jnp.zeros(()))
        for bad in (False, True):
            x.w[-3] = np.inf if bad else 1.0
            total = summed(product, "ghost", False, Saddle(2.0, None), z, x).w
            g = np.where(np.isfinite(x.w), x.w, 0.0).transpose(0, 2, 1) * x.v
            norm = np.sqrt((g**2).sum((1, 2), keepdims=True))
            expected = (g * np.minimum(1, 2 / np.maximum(norm, 1e-300))).sum(0)
            np.testing.assert_allclose(total, expected, rtol=0, atol=1e-10)


# --- the bound ---

FORMS = {"rank one": (1, 40, 30), "vector": (1, 70, 1), "Gram": (3, 40, 30), "matrix": (4, 5, 3)}
every_form = pytest.mark.parametrize("form", FORMS)


def contribution(x, clip, i=0):
    """What example i alone adds, `[k, o]` float64."""
    z = Saddle(jnp.zeros((x.w.shape[2], x.v.shape[2]), x.w.dtype), jnp.zeros((), x.w.dtype))
    mask = np.arange(len(x.w)) == i
    return np.asarray(summed(product, "ghost", False, Saddle(clip, None), z, x, mask).w, np.float64)


def length(x):
    """In float64 without overflow."""
    scale = np.abs(x).max()
    return 0.0 if scale == 0 else scale * np.linalg.norm(x / scale)


@pytest.mark.slow
@every_form
@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=lambda t: t.__name__)
@pytest.mark.optimised
def test_one_example_is_never_longer_than_the_clip_norm(form, dtype):
    """Magnitudes from subnormal to the largest, equal for all rows or each its own."""
    t, k, o = FORMS[form]
    rng = np.random.default_rng(6)
    top = np.log10(np.finfo(dtype).max)
    attained = 0
    for trial in range(120):
        ends = rng.uniform(-top - 6, top, (2, t if trial % 2 else 1, 1))
        if trial % 3 == 0:
            ends[1] = -ends[0] + rng.uniform(-2, 2)  # a product of ordinary size
        with np.errstate(over="ignore", under="ignore"):
            x = Saddle(*(np.asarray(rng.uniform(-1, 1, (2, t, n)) * 10.0**e, dtype)
                         for n, e in zip((k, o), ends, strict=True)))
        clip = 10 ** rng.uniform(-20, 20)
        total = contribution(x, clip)
        assert np.all(np.isfinite(total))
        assert length(total) <= clip * (1 + 1e-12)
        attained += length(total) > 0.9 * clip
    assert attained > 5


@pytest.mark.slow
@every_form
@pytest.mark.optimised
def test_rows_that_nearly_cancel_are_held_to_the_clip_norm(form):
    """In one example's norm, which rounding then hides; alone and among others."""
    t, k, o = FORMS[form]
    rng = np.random.default_rng(7)
    for size in (1.0, 1e4, 1e12, 1e18):
        for rest in (1.0, 1e-3, 1e-6, 0.0):
            x = Saddle(*(rng.normal(size=(8, t, n)).astype(np.float32) for n in (k, o)))
            x.w[0] *= np.float32(size)
            if t > 1:
                x.w[0, 1], x.v[0, 1] = -x.w[0, 0], x.v[0, 0] * np.float32(1 + rest)
                x.w[0, 2:] *= np.float32(rest / size)
            total = contribution(x, 0.7)
            assert length(total) <= 0.7 * (1 + 1e-5)
            z = Saddle(jnp.zeros((k, o), jnp.float32), jnp.zeros((), jnp.float32))
            with_it, without = (np.asarray(summed(product, "ghost", False, Saddle(0.7, None), z, x,
                                                  np.arange(8) >= first).w, np.float64)
                                for first in (0, 1))
            assert length(with_it - without) <= 0.7 * (1 + 1e-3)


@pytest.mark.slow
def test_examples_that_are_not_finite_leave_no_trace():
    for form in FORMS.values():
        t, k, o = form
        rng = np.random.default_rng(8)
        x = Saddle(*(rng.normal(size=(5, t, n)) for n in (k, o)))
        z = Saddle(jnp.zeros((k, o)), jnp.zeros(()))
        mask = np.arange(5) != 2
        clean = summed(product, "ghost", False, Saddle(0.7, None), z, x, mask)
        for player in (0, 1):
            for value in (np.nan, np.inf, -np.inf):
                y = Saddle(*(a.copy() for a in x))
                y[player][2, -1, -1] = value
                for some in (mask, np.ones(5, bool)):
                    assert_close(summed(product, "ghost", False, Saddle(0.7, None), z, y, some),
                                 clean, 1e-13)


def test_equal_rows_of_a_table_count_together():
    """A record that looks one row up six times has a gradient six times as long."""
    def loss(w, v, x):
        return jnp.sum(w[x])

    z = Saddle(jnp.zeros((50, 2)), ())
    for ids in ([[7] * 6], [[7, 7, 7, 8, 8, 9]], [[60, 7, 60, 7, -60, 7]]):
        a, b = (summed(loss, how, False, Saddle(1.0, None), z, np.array(ids))
                for how in ("ghost", "vmap"))
        assert_close(a, b, 1e-12)
        assert abs(length(a.w) - 1) < 1e-10


@pytest.mark.slow
@pytest.mark.optimised
def test_dropped_cross_terms_are_seen(monkeypatch):
    x = Saddle(np.ones((1, 3, 40)), np.ones((1, 3, 30)))
    assert length(contribution(x, 1.0)) <= 1
    gram = factors._gram
    monkeypatch.setattr(factors, "_gram", lambda a: gram(a) * jnp.eye(a.shape[1])[None])
    summed.clear_cache()
    assert length(contribution(x, 1.0)) > 1.5
    summed.clear_cache()


# --- the choice ---


def test_the_choice_is_made_by_shapes_and_use():
    def chosen(operator, z, x):
        how = clipped_sum(operator, Saddle(1.0, 1.0))
        return how.explain(z, x).splitlines()[0]

    def shape(*s):
        return jax.ShapeDtypeStruct(s, jnp.float32)

    wide = Saddle(shape(800, 30), shape())
    two, one = (Saddle(shape(n, 1, 800), shape(n, 1, 30)) for n in (2, 1))
    ghostly = saddle_operator(product)
    assert chosen(ghostly, wide, two) == "strategy ghost, chosen by auto"
    assert chosen(ghostly, wide, one) == "strategy vmap, chosen by auto"
    few = Saddle(shape(4, 3), shape())
    assert chosen(ghostly, few, Saddle(shape(9, 1, 4), shape(9, 1, 3))).startswith("strategy vmap")
    many = Saddle(shape(2**20, 1), shape(2**20, 1))
    own = Saddle(shape(2**9), shape(1))
    assert chosen(lambda z, x: z, own, many) == "strategy microbatch, chosen by auto"
    assert chosen(lambda z, x: z, own, two) == "strategy vmap, chosen by auto"


@pytest.mark.slow
def test_a_rule_that_closes_over_traced_values_is_left_alone():
    def loss(w, v, x):
        @jax.custom_jvp
        def doubled(a):
            return a @ x

        doubled.defjvp(lambda p, t: (doubled(*p), 2 * (t[0] @ x)))
        return jnp.sum(jnp.tanh(doubled(w) + w @ x))

    rng = np.random.default_rng(9)
    z, x = Saddle(jnp.asarray(rng.normal(size=(30, 20))), ()), rng.normal(size=(3, 20))
    a, b = (summed(loss, how, False, Saddle(1.0, None), z, x) for how in ("auto", "vmap"))
    assert_close(a, b, 1e-13)
    with pytest.raises(ValueError, match="closes over traced values"):
        summed(loss, "ghost", False, Saddle(1.0, None), z, x)


def cancelling(width, size):
    """Sixteen records, one of them a product minus the same product, entry by entry."""
    one = np.zeros((16, 1), np.float32)
    one[0] = 1.0
    s, t = np.float32(1.5117 * size), np.float32(1.8504)
    wide = np.repeat(one, width, 1)
    data = dict(s=s * one[:, 0], t=t * one[:, 0], c=s * wide, e=t * wide,
                u=np.zeros((16, 32), np.float32))
    z = Saddle({"W": jnp.ones((width, 4), jnp.float32), "big": jnp.ones((32, 32), jnp.float32)},
               jnp.ones(32, jnp.float32))
    return z, data


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["auto", "vmap"])
@pytest.mark.parametrize("width", [4, 8])
@pytest.mark.optimised("8-auto", "4-vmap")
def test_norm_and_sum_see_the_same_numbers_where_a_record_cancels(width, strategy):
    """A product contracted with a sum in one of them alone left 6e11 at a clip norm of 1."""
    def loss(w, v, x):
        met = x["s"] * x["t"] - x["c"] * x["e"]
        return jnp.sum(met @ w["W"]) + jnp.sum((x["u"] @ w["big"]) * v)

    for size, clip in ((2.0**60, 1.0), (2.0**24, 1e-3)):
        z, data = cancelling(width, size)
        total = jax.jit(clipped_sum(saddle_operator(loss), Saddle(clip, clip), strategy=strategy))
        norm = jnp.sqrt(sum(jnp.sum(jnp.square(x)) for x in jax.tree.leaves(total(z, data).w)))
        assert norm <= clip


@pytest.mark.slow
def test_lanes_with_their_own_points_and_masks_are_those_run_alone():
    def loss(w, v, x):
        return jnp.sum(jnp.tanh(x @ w)) * v

    keys = jax.random.split(jax.random.key(3), 3)
    w, x = jax.random.normal(keys[0], (2, 32, 16)), jax.random.normal(keys[1], (5, 32))
    mask = jnp.stack([jnp.arange(5) < 3, jnp.zeros(5, bool)])  # nobody in the second lane
    total = clipped_sum(saddle_operator(loss), Saddle(1.0, 1.0))
    many = jax.jit(jax.vmap(total, (0, None, 0)))(Saddle(w, jnp.ones(2)), x, mask)
    for k in range(2):
        one = total(Saddle(w[k], jnp.ones(())), x, mask[k])
        np.testing.assert_allclose(many.w[k], one.w, atol=1e-6)
    assert jnp.any(many.w[0] != 0)
    assert not jnp.any(many.w[1])


@pytest.mark.slow
def test_complex_numbers_get_whole_gradients():
    """Squares of a real and an imaginary part cancel; a norm must not."""
    def loss(w, v, x):
        return jnp.sum(jnp.dot(x[0] + 1j * x[1], w).real) * v

    x = jnp.zeros((1, 2, 32), jnp.float32).at[0, 0, 0].set(100.0).at[0, 1, 1].set(100.0)
    z = Saddle(jnp.zeros((32, 32), jnp.float32), jnp.ones((), jnp.float32))
    total = clipped_sum(saddle_operator(loss), Saddle(1.0, 1.0))
    assert jnp.linalg.norm(total(z, x).w) <= 1.0
    assert "complex numbers" in total.explain(z, x)


@pytest.mark.parametrize("level", [0.0199, 0.0201])
@pytest.mark.optimised
def test_one_looked_up_row_does_not_move_the_rounding_of_the_others(level):
    count = 2**18
    rows = jnp.zeros((count, 1), jnp.int32).at[0].set(7)
    d = jnp.full((count, 1, 1), level, jnp.float32)
    total = jax.jit(lambda d: weighted_rows(
        rows, d, jnp.ones(count, jnp.float32), 8, 1.0))
    before, after = total(d.at[0].set(0.0)), total(d.at[0].set(1.0))
    assert abs(float(jnp.linalg.norm(after - before)) - 1.0) < 1e-5
    exact = (count - 1) * float(np.float32(level))
    assert float(before[0, 0]) == pytest.approx(exact, rel=1e-6)


@pytest.mark.slow
@pytest.mark.optimised  # the older generator of code compares such numbers in their own type
def test_row_numbers_of_a_narrow_type():
    def loss(w, v, x):
        rows = jax.lax.gather(w, x[:, None], jax.lax.GatherDimensionNumbers(
            offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0,)), (1, 2),
            mode="fill", fill_value=0.0)
        return jnp.sum(rows**2) * v

    w = jax.random.normal(jax.random.key(0), (300, 2))
    x = jnp.array([[3, -1, 100], [-128, 127, 3]], jnp.int8)
    sums = [jax.jit(clipped_sum(saddle_operator(loss), Saddle(9.0, 9.0), strategy=s))(
        Saddle(w, jnp.ones(())), x).w for s in ("ghost", "vmap")]
    np.testing.assert_allclose(*sums, rtol=1e-6)


def test_an_operator_that_does_more_than_its_loss_is_called():
    class Pulled(SaddleOperator):
        def __call__(self, z, example):
            g = super().__call__(z, example)
            return Saddle(g.w + 10 * z.w, g.v)

    def loss(w, v, x):
        return jnp.sum(x @ w) * v

    z, x = Saddle(jnp.ones((32, 32)), jnp.ones(())), jnp.zeros((2, 32))
    auto = jax.jit(clipped_sum(Pulled(loss), Saddle(1e3, 1e3)))(z, x)
    np.testing.assert_allclose(auto.w, 20 * np.ones((32, 32)), rtol=1e-6)
    with pytest.raises(ValueError, match="looks inside a loss"):
        clipped_sum(Pulled(loss), Saddle(1.0, 1.0), strategy="ghost")


@pytest.mark.parametrize(("clip", "size"), [(1e-21, 3e17), (1e-20, 3e17), (1e-27, 1e10),
                                            (1e-15, 3e17), (1e-12, 1.0)])
def test_a_tiny_clip_norm_is_not_exceeded_by_pieces_that_cancel(clip, size):
    """Of weighted factors entries would vanish that cancel others."""
    rng, k, o, b = np.random.default_rng(0), 30, 40, 50
    x = rng.normal(size=(b, 1, k)) * 10.0 ** rng.uniform(-1, 1, (b, 1, k))
    d = rng.normal(size=(b, 1, o)) * size
    x = np.concatenate([x, x * (1 + 0.01 * rng.normal(size=(b, 1, k)))], 1)
    x /= np.linalg.norm(x, axis=-1, keepdims=True)
    records = Saddle(*(jnp.asarray(a, jnp.float32) for a in (x, np.concatenate([d, -d], 1))))
    total = clipped_sum(saddle_operator(lambda w, v, x: jnp.sum((x.w @ w) * x.v)),
                        Saddle(clip, None), strategy="ghost")
    z = Saddle(jnp.zeros((k, o), jnp.float32), jnp.zeros((), jnp.float32))
    alone = jax.jit(lambda records: jax.lax.map(lambda record: total(
        z, jax.tree.map(lambda a: a[None], record)).w, records))(records)
    longest = np.linalg.norm(np.asarray(alone, float) / clip, axis=(1, 2)).max()
    assert longest <= 1
    assert (longest > 0.1) == (size / clip < 1e26)


@pytest.mark.slow
@pytest.mark.parametrize("window", [(3, 2), (13, 5)], ids=["slices", "a convolution"])
def test_a_window_is_read_with_strides_dilations_and_padding(window):
    """As the convolution itself reads it: patches times the kernel are its output."""
    rng = np.random.default_rng(0)
    x, kernel = rng.normal(size=(2, 17, 9, 2)), rng.normal(size=(*window, 2, 3))

    def convolved(x, kernel):
        return jax.lax.conv_general_dilated(
            x, kernel, (2, 1), [(4, 1), (0, 3)], lhs_dilation=(2, 3), rhs_dilation=(2, 5),
            dimension_numbers=("NHWC", "HWIO", "NHWC"), precision="highest")

    (equation,) = jax.make_jaxpr(convolved)(x, kernel).eqns
    read = kernels.patches(equation.params, jnp.asarray(x), window)
    np.testing.assert_allclose(read @ kernel.reshape(-1, 3), convolved(x, kernel), rtol=0,
                               atol=1e-4)


def test_a_dilated_convolution_in_two_groups_has_the_sums_of_whole_gradients():
    def loss(w, v, x):
        y = jax.lax.conv_general_dilated(x[None], w, (1, 1), "VALID", rhs_dilation=(2, 1),
                                         feature_group_count=2)
        return jnp.sum(jnp.tanh(y))

    rng = np.random.default_rng(9)
    z, x = Saddle(rng.normal(size=(4, 1, 2, 3)), ()), rng.normal(size=(3, 2, 5, 4))
    (treatment,) = planning.plan(loss, z, x[0], Saddle(True, False)).treatments
    assert treatment.kind == "matrix"
    a, b = (summed(loss, how, False, Saddle(2.0, None), z, x) for how in ("ghost", "vmap"))
    assert_close(a, b, 1e-12)


@pytest.mark.slow
def test_gram_products_of_a_convolution_in_groups_are_of_all_pairs_of_pixels(monkeypatch):
    """Two pixels of the output share each matrix; products of each with itself are too few."""
    def loss(w, v, x):
        return jnp.sum(jnp.tanh(jax.lax.conv_general_dilated(
            x[None], w, (1, 1), "VALID", feature_group_count=3)))

    rng, clip = np.random.default_rng(9), 0.5
    z, x = Saddle(rng.normal(size=(24, 4, 3, 3)) / 6, ()), rng.normal(size=(3, 12, 3, 4))
    (treatment,) = planning.plan(loss, z, x[0], Saddle(True, False)).treatments
    assert treatment.kind == "Gram"

    def total(how):
        summed.clear_cache()
        return summed(loss, how, False, Saddle(clip, None), z, x)

    expected = total("vmap")
    assert length(expected.w) > clip  # of more than one record
    assert_close(total("ghost"), expected, 1e-12)
    gram = factors._gram
    monkeypatch.setattr(factors, "_gram", lambda a: gram(a) * jnp.eye(a.shape[1])[None])
    assert np.abs(total("ghost").w - expected.w).max() > 1e-3 * np.abs(expected.w).max()
    summed.clear_cache()


# --- uses that no derivative comes back from ---


WIDE, HIDDEN = 512, 256
DEAD = {"stop_gradient": jax.lax.stop_gradient, "sign": jnp.sign, "floor": jnp.floor,
        "ceil": jnp.ceil, "round": jax.lax.round}


def network(w, x):
    return jnp.sum(jnp.tanh(jnp.tanh(x @ w["in"]) @ w["out"]))


def attack(w, x, cut, way, loss=network):
    """Three steps up the loss of one record, by what `cut` leaves of the gradient."""
    def step(move):
        return jnp.clip(move + 0.05 * cut(jax.grad(lambda a: loss(w, x + a))(move)), -0.1, 0.1)

    move = jnp.zeros_like(x)
    if way == "loop":
        return jax.lax.fori_loop(0, 3, lambda _, a: step(a), move)
    if way == "scan":  # whose moves are stacked and read, too
        return jnp.sum(jax.lax.scan(lambda a, _: (step(a), step(a)), move, None, length=3)[1], 0)
    return step(step(step(move)))


every_way = pytest.mark.parametrize("way", ["unrolled", "loop", "scan"])


def attacked(cut, way):
    return lambda w, v, x: network(w, x + attack(w, x, cut, way))


def kept(loss, k=WIDE, o=HIDDEN):
    """How many numbers are kept of each matrix, for each record."""
    z = Saddle({"in": jnp.zeros((k, o)), "out": jnp.zeros((o, 3))}, ())
    plan = planning.plan(loss, z, jnp.zeros(k), Saddle(True, None))
    return {name: t.numbers for name, t in zip(plan.names, plan.treatments, strict=True)}


@every_way
def test_an_attack_on_the_record_inside_its_loss_keeps_no_more(way):
    plain = kept(lambda w, v, x: network(w, x))
    assert plain["w['in']"] == WIDE + HIDDEN  # 768, one row and its derivative
    for cut in DEAD.values():
        assert kept(attacked(cut, way)) == plain
    if way == "unrolled":  # 3 steps meet the matrix forwards and backwards: 7 rows, 5,474 numbers
        assert kept(attacked(jnp.tanh, way))["w['in']"] == 7 * (WIDE + HIDDEN) + 2 * 7**2
    else:
        assert kept(attacked(jnp.tanh, way)) != plain


def test_an_attack_inside_the_layers_of_a_loop_keeps_no_more():
    def layers(robust):
        def layer(h, a):
            moved = h + attack({"in": a, "out": a}, h, jnp.sign, "loop") if robust else h
            return jnp.tanh(moved @ a), None

        return lambda w, v, x: jnp.sum(jax.lax.scan(layer, x, w["in"].reshape(2, 20, 20))[0])

    assert kept(layers(True), 20, 40) == kept(layers(False), 20, 40)


def order(w, v, x):
    """Of (integers, floats), the floats are read."""
    return jax.lax.sort((jnp.arange(5), x @ w["in"]), num_keys=1)[1] @ v + jnp.sum(x @ w["in"])


def labels(w, v, x):
    """A label by what the weights say, which is a number without a derivative."""
    return jnp.tanh(x @ w["in"])[jnp.argmax(jnp.sin(x) @ w["in"])] * jnp.sum(v)


def beside(w, v, x):
    """A loop with one carry that is read and one that is not, which uses the weights too."""
    def step(carry, _):
        a, b = carry
        return (jnp.tanh(a @ w["in"]) @ w["in"].T, jnp.cos(b @ w["in"]) @ w["in"].T), None

    return jnp.sum(jax.lax.scan(step, (x, x), None, length=2)[0][0]) * jnp.sum(v)


def small(cut, way):
    def loss(w, x):
        return jnp.sum(jnp.tanh(jnp.tanh(x @ w["in"]) @ w["in"].T))

    return lambda w, v, x: loss(w, x + attack(w, x, cut, way, loss)) * jnp.sum(v)


UNREAD = {"order": order, "labels": labels, "beside": beside} | {
    f"{way} {name}": small(cut, way) for way in ("unrolled", "loop", "scan")
    for name, cut in (("sign", jnp.sign), ("tanh", jnp.tanh))}


@pytest.mark.slow
@pytest.mark.parametrize("name", UNREAD)
def test_sums_are_those_of_whole_gradients_whatever_no_derivative_comes_back_from(name):
    """Of live uses beside dead ones; a live one that was left out would show."""
    rng = np.random.default_rng(9)
    z = Saddle({"in": jnp.asarray(rng.normal(size=(4, 5)))}, jnp.asarray(rng.normal(size=5)))
    x = rng.normal(size=(SIZE, 4))
    a, b = (summed(UNREAD[name], how, False, Saddle(0.5, 2.0), z, x) for how in ("ghost", "vmap"))
    assert_close(a, b, 1e-12)


@pytest.mark.slow
def test_uses_behind_a_sort_and_a_live_attack_have_the_sums_of_whole_gradients():
    assert not operators.other_sums().fires


@pytest.mark.slow
def test_a_live_use_that_is_left_out_shows(monkeypatch):
    rng = np.random.default_rng(9)
    z = Saddle({"in": jnp.asarray(rng.normal(size=(4, 5)))}, jnp.asarray(rng.normal(size=5)))
    x = rng.normal(size=(SIZE, 4))
    whole = clipped_sum(saddle_operator(order), Saddle(9.0, 9.0), strategy="vmap")(z, x)
    monkeypatch.setattr(search, "_CONSTANT", {*search._CONSTANT, "sort"})
    part = clipped_sum(saddle_operator(order), Saddle(9.0, 9.0), strategy="ghost")(z, x)
    assert np.max(np.abs(part.w["in"] - whole.w["in"])) > 0.1


@pytest.mark.slow
def test_jax_has_no_derivative_where_none_is_looked_for():
    """A symbol, not a number: behind it, an infinite derivative is not met."""
    assert set(DEAD) == search._CONSTANT

    @jax.custom_vjp
    def endless(x):
        return x

    endless.defvjp(lambda x: (x, None), lambda _, d: (jnp.full_like(d, jnp.inf),))
    cuts = [*DEAD.values(), lambda x: x > 0, lambda x: jnp.argmax(x[None]),
            lambda x: x.astype(int), lambda x: 0.0]
    for cut in cuts:
        for before in (endless, lambda x: jnp.sqrt(x - 1.0)):  # of the derivative inf at 1
            def loss(w, cut=cut, before=before):
                return 3 * cut(before(w)) + 2 * w

            assert jax.grad(loss)(1.0) == 2.0
    assert not np.isfinite(jax.grad(lambda w: jnp.tanh(endless(w)) + 2 * w)(1.0))
