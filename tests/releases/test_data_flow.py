"""Rounds that read rows or the key past their releases, and rounds that do not.

Every leak is a round that all other checks let pass: it releases what is charged, and does
something else besides. A round is checked while it is traced, so `jmm.round` on shapes shows it.
"""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.experimental import io_callback
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import PartitionSpec

import jaxminimax as jmm
from jaxminimax import Saddle
from jaxminimax.algorithms import descent
from jaxminimax.releases import opening
from jaxminimax.releases.sums import noisy_operator
from tests import golden

N = 40
GAME = jmm.problems.quadratic_game(modulus=1.0, coupling=0.5, radius=Saddle(2.0, 2.0))
DATA = tuple(jnp.linspace(a, 1.0, 2 * N).reshape(N, 2) for a in (-1.0, 0.5))
Z = Saddle(jnp.zeros(2), jnp.zeros(2))


def hyper_of(sampling=None, iterations=10):
    query = jmm.Query(clip=Saddle(1.0, 1.0), sampling=sampling or jmm.Poisson(rate=0.25),
                      population=N, noise_multiplier=Saddle(2.0, 2.0))
    return jmm.sgda.Hyper(query=query, step=Saddle(0.1, 0.1), iterations=iterations)


# a check does not look into a release, which is traced in three fifths of the time without samples
HYPER, SAMPLED = hyper_of(jmm.Full()), hyper_of()


def mechanism(hyper):
    return jmm.Repeat(query=hyper.query, times=hyper.iterations)


def algorithm(update, init=jmm.sgda.init):
    module = types.SimpleNamespace(Hyper=jmm.sgda.Hyper, State=descent.State, init=init,
                                   mechanism=mechanism, update=update)
    module.__name__ = update.__name__
    return module


def released(key, state, data, hyper, problem, z=None, number=None):
    """The release of a round."""
    return noisy_operator(key, mechanism(hyper), state.spent if number is None else number,
                          problem, state.z if z is None else z, data)


def moved(state, g, scale=1.0, count=1):
    """The next state, after a step along what was released."""
    z = jax.tree.map(lambda a, b: a - 0.1 * scale * b, state.z, g)
    return state._replace(z=z, spent=state.spent + count)


def honest(key, state, data, hyper, problem, scale=1.0):
    """A round that reads rows through its release only."""
    return moved(state, released(key, state, data, hyper, problem), scale)


def scaled_by(number):
    """A round whose step is scaled by a number of its arguments."""
    return lambda key, state, data, hyper, problem: honest(
        key, state, data, hyper, problem, 1 + number(key, state, data))


def besides(act):
    """A round that does something else besides."""
    def update(key, state, data, hyper, problem):
        act(key, state, data)
        return honest(key, state, data, hyper, problem)
    return update


def at(point):
    """A round whose release is at another point."""
    return lambda key, state, data, hyper, problem: moved(
        state, released(key, state, data, hyper, problem, z=point(state, data, problem)))


def of(rows):
    """A round whose release gets other rows."""
    return lambda key, state, data, hyper, problem: moved(
        state, released(key, state, rows(data), hyper, problem))


# --- what is refused, and what the message says ---


def raw_gradient(problem, z, data):
    return jax.tree.map(lambda x: x.mean(0), jax.vmap(problem.operator, (None, 0))(z, data))


def only_in_round_seven(key, state, data, hyper, problem):
    new = honest(key, state, data, hyper, problem)
    w = jax.lax.cond(state.spent == 6, lambda: data[0][3], lambda: new.z.w)
    return new._replace(z=Saddle(w, new.z.v))


def optimiser_that_closes_over_rows(key, state, data, hyper, problem):
    mean = data[0].mean(0)
    rule = optax.chain(optax.scale(-0.1), optax.GradientTransformation(
        lambda z: (), lambda g, past, z=None: (jax.tree.map(lambda x: x * mean, g), past)))
    change, _ = rule.update(released(key, state, data, hyper, problem), rule.init(state.z))
    return state._replace(z=optax.apply_updates(state.z, change), spent=state.spent + 1)


def operator_that_closes_over_a_mean(key, state, data, hyper, problem):
    mean = data[0].mean(0)
    centred = problem._replace(operator=lambda z, x: problem.operator(z, (x[0] - mean, x[1])))
    return honest(key, state, data, hyper, centred)


def run_inside(key, state, data, hyper, problem):
    inner = algorithm(scaled_by(lambda key, state, data: data[0][0, 0]))
    z = jmm.run(key, state.z, data, hyper, inner, problem).state.z
    return state._replace(z=z, spent=state.spent + hyper.iterations)


def derivative(key, state, data, hyper, problem):
    def squared(z):
        g = released(key, state, data, hyper, problem, z=z)
        return sum(jnp.vdot(x, x) for x in jax.tree.leaves(g))

    return moved(state, jax.grad(squared)(state.z))


def rows_in_a_scan(key, state, data, hyper, problem):
    def body(_, rows):
        return None, noisy_operator(key, mechanism(hyper), state.spent, problem, state.z, rows)

    g = jax.lax.scan(body, None, jax.tree.map(lambda x: x[None], data))[1]
    return moved(state, jax.tree.map(lambda x: x[0], g))


@jax.jit
def traced_before(z, data):
    return jax.tree.map(lambda x: x - 0.1 * data[0].mean(0), z)


def rows_as_the_point(key, state, data, hyper, problem):
    own = problem._replace(operator=lambda z, x: jax.tree.map(
        lambda a, b: 0 * a + jnp.broadcast_to(b, a.shape), z, Saddle(*x)))
    g = released(key, state, data, hyper, own, z=Saddle(*data))
    return moved(state, jax.tree.map(lambda x: x[0], g))


def release_key_of_rows(key, state, data, hyper, problem):
    return honest(jax.random.fold_in(key, (data[0] > 0).sum()), state, data, hyper, problem)


def another_key(key, state, data, hyper, problem):
    return honest(jax.random.key(0), state, data, hyper, problem)


def chained(loop):
    """Rows reach one carry in the first iteration, and the next one in the second."""
    def number(key, state, data):
        def body(t, carry):
            return carry[1], carry[2], data[0][0, 0]

        zeros = (jnp.zeros_like(data[0][0, 0]),) * 3
        if loop == "scan":
            return jax.lax.fori_loop(0, 4, body, zeros)[0]
        return jax.lax.while_loop(lambda c: c[1] < state.spent + 4,
                                  lambda c: (body(c[1], c[0]), c[1] + 1), (zeros, 0))[0][0]
    return number


def under_rows(key, state, data, hyper, problem):
    g = jax.lax.cond(data[0].mean() > 0, lambda: released(key, state, data, hyper, problem),
                     lambda: state.z)
    return moved(state, g)


def sample_of_the_round(key, state, data, hyper, problem):
    """The row numbers of its sample, in the state: they void the amplification."""
    opened = opening.open_release(key, mechanism(hyper), state.spent, state.z, data)
    new = honest(key, state, data, hyper, problem)
    return new._replace(z=jax.tree.map(
        lambda x: x + jax.random.key_data(opened.keys.sample).sum(), new.z))


def in_a_ref(key, state, data):
    ref = jax.new_ref(jnp.zeros(2))
    ref[...] = data[0].mean(0)


def spy(x):
    jax.debug.callback(lambda x: None, x)
    return x


def host(x):
    return jax.pure_callback(lambda x: x, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def in_shard_map(act):
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    return lambda key, state, data: jax.shard_map(
        act, mesh=mesh, in_specs=PartitionSpec(), out_specs=PartitionSpec(),
        check_vma=False)(data[0])


def in_a_solve(act):
    return lambda key, state, data: jax.lax.custom_linear_solve(
        lambda x: x, data[0].mean(0), lambda _, b: act(b), symmetric=True)


def in_custom_vmap(act):
    function = jax.custom_batching.custom_vmap(act)
    function.def_vmap(lambda *_: None)
    return lambda key, state, data: function(data[0])


def in_custom_partitioning(key, state, data):
    function = custom_partitioning(spy)
    function.def_partition(partition=lambda *_: None, sharding_rule="i j -> i j",
                           infer_sharding_from_operands=lambda *_: None)
    function(data[0])


def in_linear_call(key, state, data):
    def double(rows, x):
        return 2 * x + 0 * spy(rows).sum()

    jax.custom_derivatives.linear_call(double, double, data[0], state.z.w)


def in_a_kernel(kernel, rows=True):
    def act(key, state, data):
        from jax.experimental import pallas

        pallas.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct((1,), jnp.float32),
                           interpret=True)(data[0] if rows else state.z.w)
    return act


@jax.custom_jvp
def tangent_of_rows(w, rows):
    return w


tangent_of_rows.defjvp(lambda x, t: (x[0], 0 * t[0] + x[1][0]))


@jax.custom_vjp
def backward_that_tells(w, rows):
    return w


backward_that_tells.defvjp(lambda w, rows: (w, rows), lambda rows, g: (g, 0 * spy(rows)))


def operator_that_reads_the_key(key, state, data, hyper, problem):
    """It could take the noise of its release from what is summed."""
    def operator(z, x):
        own = jax.random.fold_in(key, jnp.uint32(2**31) + state.spent.astype(jnp.uint32))
        return jax.tree.map(lambda a: a - jax.random.normal(own), problem.operator(z, x))
    return honest(key, state, data, hyper, problem._replace(operator=operator))


def in_shard_map_of_key(key, number):
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    return jax.shard_map(
        lambda key, t: jax.random.fold_in(key, jnp.uint32(2**31) + t.astype(jnp.uint32)), mesh=mesh,
        in_specs=PartitionSpec(), out_specs=PartitionSpec(), check_vma=False)(key, number)


def printing(x, out):
    jax.debug.callback(lambda x: None, x[...])
    out[...] = jnp.zeros_like(out)


def noise_again(key, state, data):
    """Words of the noise of the release, drawn again."""
    for number in (jnp.uint32(2**31) + state.spent.astype(jnp.uint32), 1, 0):
        key = jax.random.fold_in(key, number)
    return jax.random.normal(key)


def telling_in_both_branches(key, state, data, hyper, problem):
    def at(shift):
        return lambda: jax.tree.map(spy, released(
            key, state, data, hyper, problem, z=jax.tree.map(lambda x: x + shift, state.z)))
    return moved(state, jax.lax.cond(state.z.w.sum() >= 0, at(0.0), at(0.1)))


def telling_in_a_loop(key, state, data, hyper, problem):
    def body(carry):
        g = released(key, state, data, hyper, problem, z=carry[0], number=carry[1])
        return jax.tree.map(spy, g), carry[1] + 1

    z, spent = jax.lax.while_loop(
        lambda c: (c[1] < state.spent + 3) & (c[0].w.sum() < 1), body, (state.z, state.spent))
    return state._replace(z=z, spent=spent)


PAST, TOLD, GETS, ROWS = (
    r"update returns data past a release: state\.", "update tells the host, or writes to, what is",
    r"A release \(test_data_flow\.py:\d+\) gets what is", "gets rows that are")
FOLDED = "whose noise it may draw again"
LEAKS = {
    "a look ahead along the raw gradient": (at(lambda s, d, p: jax.tree.map(
        lambda a, b: a - 0.1 * b, s.z, raw_gradient(p, s.z, d))), GETS),
    "a step by a raw loss, by cond": (scaled_by(lambda k, s, d: jax.lax.cond(
        d[0].mean() > 0.1, lambda: 1.0, lambda: 0.5)), PAST),
    "a step by a raw loss, by where": (scaled_by(lambda k, s, d: jnp.where(
        d[0].mean() > 0.1, 1.0, 0.5)), PAST),
    "a loop that stops by a raw loss": (scaled_by(lambda k, s, d: jax.lax.while_loop(
        lambda c: (c[0] < 5) & (d[0].mean() > 0.1), lambda c: (c[0] + 1, 0.9 * c[1]),
        (0, 1.0))[1]), PAST),
    "a step by a metric of the rows": (lambda key, s, d, h, p: honest(
        key, s, d, h, p, jmm.metrics.natural_residual(p, s.z, d)), PAST),
    "a clipped sum without noise": (lambda key, s, d, h, p: moved(s, jax.tree.map(
        jnp.add, released(key, s, d, h, p), jmm.clipped_sum(
            p.operator, Saddle(1.0, 1.0))(s.z, d))), PAST),
    "a record in the state": (lambda key, s, d, h, p: honest(key, s, d, h, p)._replace(
        memory=d[0][0]), PAST),
    "in round seven alone": (only_in_round_seven, PAST),
    "an index that rows decide": (scaled_by(lambda k, s, d: jnp.linspace(0.5, 1.0, N)[
        jnp.argmax(d[0][:, 0])]), PAST),
    "a draw under a key of rows": (scaled_by(lambda k, s, d: jax.random.normal(jax.random.fold_in(
        k, (d[0] > 0.5).sum()))), PAST),
    "a release under a key of rows": (release_key_of_rows, GETS),
    "a release under another key": (another_key, "not derived from the run's"),
    "an optimiser that closes over rows": (optimiser_that_closes_over_rows, PAST),
    "an operator that closes over a mean": (operator_that_closes_over_a_mean, GETS),
    "a run inside a round": (run_inside, PAST),
    "a derivative through a release": (derivative, "takes a derivative through a release"),
    "a record at a callback": (besides(lambda k, s, d: spy(d[1][7])), TOLD),
    "a mean that is printed": (besides(lambda k, s, d: jax.debug.print("{}", d[0].mean())), TOLD),
    "an ordered print": (besides(lambda k, s, d: jax.debug.print(
        "{}", d[0][0], ordered=True)), TOLD),
    "a record at an io_callback": (besides(lambda k, s, d: io_callback(
        lambda x: x, jax.ShapeDtypeStruct((2,), d[0].dtype), d[0][0])), TOLD),
    "a record at a pure_callback": (scaled_by(lambda k, s, d: host(d[0][0]).sum()), TOLD),
    "a print of the key": (besides(lambda k, s, d: spy(jax.random.key_data(k))), TOLD),
    "a print under a raw predicate": (besides(lambda k, s, d: jax.lax.cond(
        d[0].mean() > 0, lambda: jax.debug.print("yes"), lambda: None)), TOLD),
    "rows as the point": (rows_as_the_point, GETS),
    "rows in a scan": (rows_in_a_scan, ROWS),
    "centred rows": (of(lambda d: (d[0] - d[0].mean(), d[1])), ROWS),
    "rows in an order of their content": (of(lambda d: jax.tree.map(
        lambda x: x[jnp.argsort(d[0][:, 0])], d)), ROWS),
    "leaves in another order": (of(lambda d: (d[1], d[0])), ROWS),
    "one leaf twice": (of(lambda d: (d[0], d[0])), ROWS),
    "rows that are not the data's": (of(lambda d: jax.tree.map(jnp.zeros_like, d)), ROWS),
    "a jit that was traced before": (at(lambda s, d, p: traced_before(s.z, d)), GETS),
    "the key in the state": (scaled_by(lambda k, s, d: jax.random.key_data(k)[0] * 1e-9), PAST),
    "the key of the sample in the state": (sample_of_the_round, PAST),
    "rows that loops hand on, by scan": (scaled_by(chained("scan")), PAST),
    "rows that loops hand on, by while": (scaled_by(chained("while")), PAST),
    "what a scan stacks": (scaled_by(lambda k, s, d: jax.lax.scan(
        lambda c, x: (c, x.sum()), 0.0, d[0])[1][3]), PAST),
    "a release under a raw predicate": (under_rows, "whether it makes a release"),
    "a custom derivative": (scaled_by(lambda k, s, d: jax.grad(_ruled(d))(s.z.w).sum()), PAST),
    "a Ref": (besides(in_a_ref), TOLD),
    "a callback in shard_map": (besides(in_shard_map(spy)), TOLD),
    "a pure_callback in shard_map": (besides(in_shard_map(host)), TOLD),
    "a callback in a linear solve": (besides(in_a_solve(spy)), TOLD),
    "a pure_callback in a linear solve": (besides(in_a_solve(host)), TOLD),
    "a callback in custom_vmap": (besides(in_custom_vmap(spy)), TOLD),
    "a pure_callback in custom_vmap": (besides(in_custom_vmap(host)), TOLD),
    "a callback in custom_partitioning": (besides(in_custom_partitioning), TOLD),
    "a callback in linear_call": (besides(in_linear_call), TOLD),
    "a callback in a kernel": (besides(in_a_kernel(printing)), "pallas_call outside of a release"),
    "a kernel that writes nothing": (besides(in_a_kernel(lambda x, out: None, rows=False)),
                                     "memory that nobody wrote"),
    "the noise, drawn again": (scaled_by(noise_again), "whose noise it may draw again"),
    "a print in both branches": (telling_in_both_branches, "tells the host of a release inside"),
    "a print in a loop that may end": (telling_in_a_loop, "tells the host of a release inside"),
    "a Ref that nobody wrote": (scaled_by(lambda k, s, d: jax.empty_ref(
        jax.typeof(s.z.w))[...].sum()), "memory that nobody wrote"),
    "a rule for derivatives": (lambda key, s, d, h, p: honest(key, s, d, h, p)._replace(
        memory=tangent_of_rows(s.z.w, d[0])), PAST),
    "a backward rule that tells": (lambda key, s, d, h, p: honest(key, s, d, h, p)._replace(
        memory=backward_that_tells(s.z.w, d[0])), PAST),
    "an operator that reads the key": (operator_that_reads_the_key, GETS),
    "the noise from round 1 on": (scaled_by(lambda k, s, d: jax.random.normal(jax.random.fold_in(
        k, jnp.uint32(2**31) * (s.spent > 0)))), FOLDED),
    "the noise in an iteration": (scaled_by(lambda k, s, d: jax.lax.scan(
        lambda c, t: (c, jax.random.normal(jax.random.fold_in(
            k, jnp.uint32(2**31) * (t == 1).astype(jnp.uint32)))), None, jnp.arange(2))[1][1]),
                                  FOLDED),
    "the noise in a while loop": (scaled_by(lambda k, s, d: jax.lax.while_loop(
        lambda c: c[0] < s.spent + 2, lambda c: (c[0] + 1, jax.random.normal(jax.random.fold_in(
            k, jnp.uint32(2**31) * (c[0] == 1).astype(jnp.uint32)))), (0, 0.0))[1]), FOLDED),
    "the noise by a number that was released": (scaled_by(lambda k, s, d: jax.random.normal(
        jax.random.fold_in(k, jnp.uint32(2**31) + (0 * s.z.w[0]).astype(jnp.uint32)))), FOLDED),
    "the noise by a copy of the key": (scaled_by(lambda k, s, d: jax.random.normal(
        jax.random.fold_in(jax.random.clone(k), (1e9 * s.z.w[0]).astype(jnp.uint32)))), FOLDED),
    "the noise by more keys than releases": (scaled_by(lambda k, s, d: jax.random.normal(
        jax.random.split(k, (2**16, 2**16))[2**15, s.spent])), FOLDED),
    "a key that shard_map hands out": (scaled_by(lambda k, s, d: jax.random.normal(
        in_shard_map_of_key(k, s.spent))), PAST),
    "memory that nobody wrote": (scaled_by(lambda k, s, d: jax.lax.empty(
        (2,), jnp.float32).sum()), "memory that nobody wrote"),
}


def _ruled(data):
    function = jax.custom_jvp(lambda z: z.sum())
    function.defjvp(lambda x, t: (x[0].sum(), t[0].sum() * data[0][0, 0]))
    return function


def traced(update, hyper=HYPER):
    """Traces one round, and runs nothing."""
    module = algorithm(update)
    state = jmm.sgda.init(Z, hyper)
    return jax.eval_shape(lambda key, state, data: jmm.round(
        key, state, data, hyper, module, GAME), jax.random.key(1), state, DATA)


@pytest.mark.parametrize("name", LEAKS)
def test_a_round_that_reads_rows_past_its_releases_is_refused(name):
    update, message = LEAKS[name]
    with pytest.raises(ValueError, match=message):
        traced(update, SAMPLED if update is sample_of_the_round else HYPER)


def test_the_message_names_the_leaf_of_the_state_that_of_the_data_and_the_line():
    with pytest.raises(ValueError, match=(
            r"state\.z\.w is computed from data\[0\] \(slice, test_data_flow\.py:\d+\)")):
        traced(only_in_round_seven)


DOORS = {
    "run": lambda module: jmm.run(jmm.noise.secret_key(), Z, DATA, HYPER, module, GAME),
    "fit": lambda module: jmm.fit(jmm.noise.secret_key(), Z, DATA, HYPER, module, GAME,
                                  delta=1e-4, progress=False),
    "sweep": lambda module: jmm.sweep(jax.random.split(jmm.noise.secret_key(), (1, 2)), Z, DATA,
                                      jmm.stack([HYPER]), module, GAME),
    "tune": lambda module: jmm.tune(
        jmm.noise.secret_key(), Z, DATA, [HYPER], module, GAME, score=lambda z, x: 0 * x[0].sum(),
        score_range=(-1.0, 1.0), epsilon=1.0, delta=1e-3, point=lambda state: state.z),
    "check": lambda module: jmm.check(GAME, Z, DATA, HYPER, module, delta=1e-4),
    "a jit around it": lambda module: jax.jit(
        lambda key, data: jmm.run(key, Z, data, HYPER, module, GAME).state)(
            jax.random.key(1), DATA),
    "a round by itself": lambda module: jmm.round(
        jax.random.key(1), jmm.sgda.init(Z, HYPER), DATA, HYPER, module, GAME),
}


@pytest.mark.parametrize("door", [
    pytest.param(x, marks=pytest.mark.slow) if x in ("tune", "check") else x for x in DOORS])
@pytest.mark.parametrize("name", ["in round seven alone", "a look ahead along the raw gradient",
                                  "a record at a callback"])
def test_every_driver_refuses_it(name, door):
    update, message = LEAKS[name]
    with pytest.raises(ValueError, match=message):
        DOORS[door](algorithm(update))


def test_on_a_mesh_it_is_refused_too():
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    update = scaled_by(lambda key, state, data: data.rows[0].mean())
    with pytest.raises(ValueError, match=PAST):
        jmm.fit(jmm.noise.secret_key(), Z, DATA, HYPER, algorithm(update), GAME, delta=1e-4,
                progress=False, mesh=mesh)


# --- one noise, twice ---


def at_two_points_by_vmap(key, state, data, hyper, problem):
    points = jax.tree.map(lambda x: jnp.stack([x, x + 0.1]), state.z)
    g = jax.vmap(lambda z: released(key, state, data, hyper, problem, z=z))(points)
    return moved(state, jax.tree.map(lambda x: x[0] - x[1], g))


def at_two_points_by_scan(key, state, data, hyper, problem):
    points = jax.tree.map(lambda x: jnp.stack([x, x + 0.1]), state.z)
    g = jax.lax.scan(lambda c, z: (c, released(key, state, data, hyper, problem, z=z)),
                     None, points)[1]
    return moved(state, jax.tree.map(lambda x: x[0] - x[1], g))


def numbered(number):
    return lambda key, state, data, hyper, problem: moved(state, released(
        key, state, data, hyper, problem, number=number(state.spent)))


def in_turn_by_cond(key, state, data, hyper, problem):
    def at(shift):
        return lambda: released(key, state, data, hyper, problem, number=state.spent // 2,
                                z=jax.tree.map(lambda x: x + shift, state.z))
    return moved(state, jax.lax.cond(state.spent % 2 == 0, at(0.0), at(0.1)))


def two_runs_inside(keys):
    def update(key, state, data, hyper, problem):
        module = algorithm(honest)
        for part in keys(key, state.spent):
            state = state._replace(z=jmm.run(part, state.z, data, hyper, module, problem).state.z)
        return state._replace(spent=state.spent + 2 * hyper.iterations)
    return update


def twice_in_a_jit(key, state, data, hyper, problem):
    g = jax.jit(lambda z: released(key, state, data, hyper, problem, z=z))
    return moved(state, jax.tree.map(jnp.subtract, g(state.z), g(
        jax.tree.map(lambda x: x + 0.1, state.z))))


def nearby(state, t=1.0):
    return jax.tree.map(lambda x: x + 0.1 * t, state.z)


def in_lanes(number=lambda state: state.spent + jnp.arange(2), key=lambda key: key, count=1):
    """Two points in lanes of a vmap, with numbers or keys of their own."""
    def update(run_key, state, data, hyper, problem):
        keys = jnp.broadcast_to(key(run_key), (2,))
        g = jax.vmap(lambda one, t, n: released(
            one, state, data, hyper, problem, number=n, z=nearby(state, t)))(
                keys, jnp.arange(2.0), number(state))
        return moved(state, jax.tree.map(lambda x: x[0] - x[1], g), count=count)
    return update


def at_two_clip_norms(key, state, data, hyper, problem):
    def one(norm):
        query = dataclasses.replace(hyper.query, clip=Saddle(norm, norm))
        return released(key, state, data, dataclasses.replace(hyper, query=query), problem)

    g = jax.vmap(one)(jnp.array([1.0, 2.0]))
    return moved(state, jax.tree.map(lambda x: x[1] - 2 * x[0], g))


def in_a_loop_of(body, length=2, count=1):
    """A round whose release is made in a loop, by `body(t, at)`."""
    def update(key, state, data, hyper, problem):
        def at(t, number):
            return released(key, state, data, hyper, problem, z=nearby(state, t), number=number)

        g = jax.lax.fori_loop(0, length, lambda t, g: body(t, g, state, at), state.z)
        return moved(state, g, count=count)
    return update


def before_a_loop_and_in_it(key, state, data, hyper, problem):
    g = released(key, state, data, hyper, problem)
    return in_a_loop_of(lambda t, g, state, at: at(t + 1, state.spent + t), count=3)(
        key, moved(state, g, count=0), data, hyper, problem)


def under_keys(*derived):
    """Releases of one number at two points, under keys that are derived in two ways."""
    def update(key, state, data, hyper, problem):
        parts = [released(derive(key, state.spent), state, data, hyper, problem,
                          z=nearby(state, k), number=0) for k, derive in enumerate(derived)]
        return moved(state, jax.tree.map(lambda *x: sum(x), *parts))
    return update


def by_what_was_released(key, state, data, hyper, problem):
    return moved(state, jax.lax.cond(state.z.w.sum() >= 0, lambda: released(
        key, state, data, hyper, problem, number=0), lambda: state.z))


def told_by_the_host(key, state, data, hyper, problem):
    @jax.jit
    def release(w):
        return released(key, state, data, hyper, problem, z=Saddle(host(w), state.z.v))

    return moved(state, jax.tree.map(jnp.subtract, release(state.z.w), release(state.z.w)))


def counted_by(count, number=lambda state: state.spent % 5):
    """A round whose number begins anew, and whose count is hidden from the program."""
    return lambda key, s, d, h, p: (lambda new: new._replace(spent=count(s, new)))(moved(
        s, released(key, s, d, h, p, number=number(s))))


TWICE = {
    "a count that is hidden": counted_by(
        lambda s, new: s.spent + 1 + (0 * new.z.w[0]).astype(jnp.int32)),
    "a loop of unknown length": lambda key, s, d, h, p: s._replace(spent=s.spent + 3, z=(
        jax.lax.while_loop(lambda c: c[0] < 3 + 0 * s.spent, lambda c: (c[0] + 1, released(
            key, s, d, h, p, number=s.spent + c[0] // 2, z=c[1])), (0, s.z))[1])),
    "a count that begins anew": counted_by(lambda s, new: jnp.where(s.spent > 3, 0, s.spent + 1),
                                           lambda s: s.spent),
    "a count that something released holds up": counted_by(lambda s, new: jnp.where(
        new.z.w[0] > 9, s.spent, s.spent + 1)),
    "a number of another leaf": lambda key, s, d, h, p: honest(key, s._replace(
        spent=s.average.w.shape[0] + (s.z.w[0] > 9)), d, h, p),
    "a number that something released moves": lambda key, s, d, h, p: moved(s, jax.tree.map(
        jnp.subtract, released(key, s, d, h, p), released(
            key, s, d, h, p, number=s.spent + (s.z.w[0] > 9), z=nearby(s))), count=2),
    "modulo 5, where something released decides": lambda key, s, d, h, p: moved(s, jax.lax.cond(
        s.z.w[0] > -9, lambda: released(key, s, d, h, p, number=s.spent % 5), lambda: s.z)),
    "keys of a draw": under_keys(
        lambda key, t: jax.random.fold_in(key, (jax.random.uniform(key) < 2).astype(int))),
    "points by vmap": at_two_points_by_vmap,
    "points by scan": at_two_points_by_scan,
    "number 0 in every round": numbered(lambda t: 0),
    "a number times 0": numbered(lambda t: 0 * t),
    "half the number": numbered(lambda t: t // 2),
    "a number modulo 3": numbered(lambda t: t % 3),
    "two points in turn": in_turn_by_cond,
    "two runs inside with one key": two_runs_inside(lambda key, t: (key, key)),
    "two runs inside with one key of the round": two_runs_inside(
        lambda key, t: (jax.random.fold_in(key, t),) * 2),
    "twice in a jit": twice_in_a_jit,
    "lanes that overlap those of the next round": in_lanes(),
    "lanes with one number": in_lanes(lambda state: state.spent + jnp.zeros(2, int)),
    "lanes with one key": in_lanes(lambda state: jnp.stack([state.spent] * 2),
                                   lambda key: jnp.stack([key, key])),
    "lanes with two clip norms": at_two_clip_norms,
    "a loop that overlaps the next round": in_a_loop_of(
        lambda t, g, state, at: at(t, state.spent + t), length=3),
    "a number before a loop and in it": before_a_loop_and_in_it,
    "two points by a loop's counter": in_a_loop_of(lambda t, g, state, at: jax.lax.cond(
        t == 0, lambda: at(0, state.spent), lambda: at(1, state.spent))),
    "some iterations of a loop": in_a_loop_of(lambda t, g, state, at: jax.lax.cond(
        t > 0, lambda: at(t, state.spent), lambda: g), length=3),
    "a number in reverse and in order": lambda key, s, d, h, p: moved(s, jax.tree.map(
        lambda x: x.sum(0), jax.lax.scan(lambda c, t: (c, jax.tree.map(
            jnp.add, released(key, s, d, h, p, number=t[0]),
            released(key, s, d, h, p, number=t[1], z=nearby(s)))), None,
            (s.spent + jnp.arange(2), s.spent + 1 - jnp.arange(2)), reverse=True)[1]), count=2),
    "number 0, where something released decides": by_what_was_released,
    "half the number, by floats": numbered(lambda t: (t / 2).astype(jnp.int32)),
    "half the number, by a shift": numbered(lambda t: t >> 1),
    "half the number, of a table": numbered(lambda t: (jnp.arange(20) // 2)[t]),
    "half the number, in both branches": numbered(
        lambda t: jax.lax.cond(t % 2 == 0, lambda: t // 2, lambda: t // 2)),
    "whether the number is 0": numbered(lambda t: jax.lax.convert_element_type(
        jax.lax.convert_element_type(t, bool), jnp.int32)),
    "keys of half the number": under_keys(lambda key, t: jax.random.fold_in(key, t // 2)),
    "keys of a number times 0": under_keys(lambda key, t: jax.random.fold_in(key, 0 * t)),
    "keys modulo 3": under_keys(lambda key, t: jax.random.split(key, 3)[t % 3]),
    "one key, split and folded": under_keys(
        lambda key, t: jax.random.split(jax.random.fold_in(key, t))[1],
        lambda key, t: jax.random.fold_in(jax.random.fold_in(key, t), 1)),
    "points that the host tells a jit": told_by_the_host,
}


def test_a_number_that_begins_anew_after_many_rounds_is_refused():
    """As that of a step within an epoch."""
    update = numbered(lambda t: t % 100)
    traced(update, hyper_of(iterations=100))
    with pytest.raises(ValueError, match="one noise"):
        traced(update, hyper_of(iterations=120))


@pytest.mark.parametrize("count", [1, 2])
def test_a_loop_of_ones_own_is_refused_whose_rounds_have_one_number(count):
    with pytest.raises(ValueError, match="one noise"):
        traced(numbered(lambda t: 0), hyper_of(iterations=count))


def test_parts_that_are_charged_as_if_each_read_other_rows_are_refused():
    def update(key, state, data, hyper, problem):
        g, h = (noisy_operator(key, part, state.spent // 2, problem, state.z, data)
                for part in apart(hyper).parts)
        return moved(state, jax.tree.map(jnp.add, g, h), count=2)

    def apart(hyper):
        return jmm.Parallel(parts=(mechanism(hyper),) * 2, in_turn=True)

    module = algorithm(update)
    module.mechanism = apart
    with pytest.raises(ValueError, match="make it a Sequence"):
        jax.eval_shape(lambda key: jmm.round(
            key, jmm.sgda.init(Z, HYPER), DATA, HYPER, module, GAME), jax.random.key(1))


@pytest.mark.parametrize("name", TWICE)
def test_a_round_that_uses_one_noise_twice_is_refused(name):
    with pytest.raises(ValueError, match="one noise"):
        traced(TWICE[name])


@pytest.mark.parametrize("update", [
    two_runs_inside(lambda key, t: jax.random.split(jax.random.fold_in(key, t))),
    lambda key, s, d, h, p: moved(s, jax.tree.map(lambda *x: sum(x), *(released(
        jax.random.fold_in(key, k), s, d, h, p) for k in range(3)))),
    in_lanes(lambda state: jnp.stack([state.spent] * 2), jax.random.split),
    lambda key, s, d, h, p: moved(s, jax.tree.map(jnp.add, *(released(
        key, s, d, h, p, number=2 * s.spent + k) for k in range(2)))),
], ids=["runs inside", "three keys", "keys of lanes", "two numbers"])
def test_a_round_with_more_releases_than_are_charged_is_refused(update):
    with pytest.raises(ValueError, match="is charged for"):
        traced(update)


def with_noise(hyper, z):
    return dataclasses.replace(hyper, query=dataclasses.replace(
        hyper.query, noise_multiplier=Saddle(z, z)))


QUIET = jax.jit(lambda key, t, z, data: noisy_operator(
    key, mechanism(with_noise(HYPER, 1e-3)), t, GAME, z, data))


@pytest.mark.parametrize("update", [
    lambda key, s, d, h, p: jax.jit(lambda z: honest(key, s, d, with_noise(h, z), p))(1e-6),
    lambda key, s, d, h, p: jax.jit(lambda z: honest(key, s, d, with_noise(h, z), p))(
        jnp.where(s.spent > 3, 1e-6, 2.0)),
    lambda key, s, d, h, p: jax.lax.cond(s.spent >= 0, lambda z: honest(
        key, s, d, with_noise(h, z), p), lambda z: s, jnp.float32(1e-6)),
    lambda key, s, d, h, p: jax.lax.fori_loop(0, 1, lambda t, s: honest(
        key, s, d, with_noise(h, 2.0 - 1.9 * (t + 1)), p), s),
    lambda key, s, d, h, p: moved(s, QUIET(key, s.spent, s.z, d)),
], ids=["jit", "from round 4 on", "branch", "loop", "a jit that was traced before"])
def test_a_release_of_less_noise_in_a_program_inside_is_refused(update):
    QUIET.trace(jax.random.key(0), jnp.int32(0), Z, DATA)
    with pytest.raises(ValueError, match="so that nothing charges it"):
        traced(update)


def test_a_release_of_every_record_by_vmap_is_refused():
    def update(key, state, data, hyper, problem):
        single = jmm.Repeat(query=jmm.Query(clip=Saddle(1.0, 1.0), population=2,
                                            noise_multiplier=Saddle(2.0, 2.0)), times=10)
        module.mechanism = lambda hyper: single
        operator = problem._replace(operator=lambda z, x: Saddle(0 * z.w + x[0], 0 * z.v + x[1]))
        g = jax.vmap(lambda *rows: noisy_operator(
            key, single, state.spent, operator, state.z, rows))(*data)
        return moved(state, jax.tree.map(lambda x: x[3] - x[7], g))

    module = algorithm(update)
    module.mechanism = lambda hyper: jmm.Repeat(query=jmm.Query(
        clip=Saddle(1.0, 1.0), population=2, noise_multiplier=Saddle(2.0, 2.0)), times=10)
    with pytest.raises(ValueError, match="mapped over by vmap"):
        jax.eval_shape(lambda key, data: jmm.round(
            key, jmm.sgda.init(Z, HYPER), data, HYPER, module, GAME), jax.random.key(1), DATA)


# --- what is not refused ---


@jax.jit
def before(key, described, t, z, data):
    return noisy_operator(key, described, t, GAME, z, data)


def in_a_jit_that_was_traced_before(key, state, data, hyper, problem):
    return moved(state, before(key, mechanism(hyper), state.spent, state.z, data))


def in_a_branch(key, state, data, hyper, problem):
    g = jax.lax.cond(
        state.spent % 2 == 0, lambda: released(key, state, data, hyper, problem),
        lambda: released(key, state, data, hyper, problem, z=jax.tree.map(
            lambda x: 0.5 * x, state.z)))
    return moved(state, g)


def in_a_checkpoint(key, state, data, hyper, problem):
    g = jax.checkpoint(lambda z, data: released(key, state, data, hyper, problem, z=z))
    return moved(state, g(state.z, data))


def in_a_checkpoint_under_grad(key, state, data, hyper, problem):
    """Autodiff computes the release again for the derivative of what is computed of it."""
    def value(w):
        def inner(w):
            z = Saddle(jax.lax.stop_gradient(w), state.z.v)
            g = released(key, state, data, hyper, problem, z=z)
            return (jnp.sin(w) * jax.lax.stop_gradient(g.w)).sum()
        return jax.checkpoint(inner)(w)

    w = state.z.w - 0.1 * jax.grad(value)(state.z.w)
    return state._replace(z=Saddle(w, state.z.v), spent=state.spent + 1)


def in_a_loop(key, state, data, hyper, problem):
    g = jax.lax.fori_loop(0, 2, lambda t, g: released(
        key, state, data, hyper, problem, number=state.spent + t), state.z)
    return moved(state, g, count=2)


def lanes_with_numbers(key, state, data, hyper, problem):
    g = jax.vmap(lambda t: released(key, state, data, hyper, problem, number=state.spent + t))(
        jnp.arange(2))
    return moved(state, jax.tree.map(lambda x: x.mean(0), g), count=2)


def unused_reads(key, state, data, hyper, problem):
    mean = data[0].mean()
    jax.lax.while_loop(lambda c: c[0] < state.spent, lambda c: (c[0] + 1, c[1] + mean), (0, 0.0))
    return honest(key, state, data, hyper, problem)


def accumulated(loop):
    """A mean of releases of three numbers, in an order that the loop decides."""
    def update(key, state, data, hyper, problem):
        g = loop(lambda t: released(key, state, data, hyper, problem, number=t),
                 state.spent + jnp.arange(3))
        return moved(state, jax.tree.map(lambda x: x.mean(0), g), count=3)
    return update


def numbers_in_a_carry(key, state, data, hyper, problem):
    def body(carry, _):
        g = released(key, state, data, hyper, problem, z=carry[0], number=carry[1])
        return (jax.tree.map(lambda a, b: a - 0.1 * b, carry[0], g), carry[1] + 1), None

    (z, spent), _ = jax.lax.scan(body, (state.z, state.spent), length=3)
    return state._replace(z=z, spent=spent)


HONEST = {
    "a map over numbers": accumulated(jax.lax.map),
    "a scan in reverse": accumulated(lambda f, x: jax.lax.scan(
        lambda c, t: (c, f(t)), None, x, reverse=True)[1]),
    "numbers in a carry": numbers_in_a_carry,
    "lanes that count": in_lanes(count=2),
    "lanes with keys": in_lanes(lambda state: jnp.stack([state.spent] * 2), jax.random.split,
                                count=2),
    "keys of the number": under_keys(lambda key, t: jax.random.fold_in(key, t)),
    "rows that are the same behind a barrier": of(lambda d: jax.lax.optimization_barrier(d)),
    "rows without derivatives": of(jax.lax.stop_gradient),
    "rows on the device": of(jax.device_put),
    "a loop that the number decides": scaled_by(lambda k, s, d: jax.lax.while_loop(
        lambda c: s.spent < 0, lambda c: c + 1.0, 0.0)),
    "gamma draws": scaled_by(lambda k, s, d: jax.random.gamma(k, 2.0)),
    "Adam": lambda key, s, d, h, p: s._replace(spent=s.spent + 1, z=optax.apply_updates(
        s.z, (rule := optax.adam(0.1)).update(released(key, s, d, h, p), rule.init(s.z))[0])),
    "plain": honest,
    "a jit that was traced before": in_a_jit_that_was_traced_before,
    "a branch": in_a_branch,
    "a checkpoint": in_a_checkpoint,
    "a checkpoint under grad": in_a_checkpoint_under_grad,
    "a name": lambda key, s, d, h, p: moved(s, jax.named_call(
        lambda z, d: released(key, s, d, h, p, z=z), name="x")(s.z, d)),
    "a loop": in_a_loop,
    "lanes with numbers of their own": lanes_with_numbers,
    "reads that nothing uses": unused_reads,
    "shapes": scaled_by(lambda k, s, d: 1 / len(d[0]) + jnp.zeros(d[1].shape).sum()
                        + jnp.zeros_like(d[0])[0, 0]),
    "a print of the state": besides(lambda k, s, d: spy(s.z.w)),
    "draws of the key": scaled_by(lambda k, s, d: jax.random.normal(
        jax.random.fold_in(k, s.spent))),
    "counts of a loop, in the state": lambda key, s, d, h, p: numbers_in_a_carry(key, s, d, h, p),
    "a key apart, folded by what was released": scaled_by(lambda k, s, d: jax.random.normal(
        jax.random.fold_in(jax.random.fold_in(k, 1), s.z.w[0].astype(jnp.int32)))),
    "a number of a table": numbered(lambda t: jnp.arange(10)[t]),
    "a description as an argument of a jit": lambda key, s, d, h, p: moved(s, jax.jit(
        lambda m: noisy_operator(key, m, s.spent, p, s.z, d))(mechanism(h))),
    "two descriptions in branches": lambda key, s, d, h, p: moved(s, jax.lax.cond(
        s.z.w[0] > 0, lambda: released(key, s, d, h, p), lambda: released(
            key, s, d, h, p, z=nearby(s)))),
}


def test_a_run_inside_a_round_is_not_refused_if_it_is_charged():
    """Of two rounds, under a key of each round: ten rounds make twenty releases."""
    described = jmm.Repeat(query=HYPER.query, times=20)

    def inner(key, state, data, hyper, problem):
        return moved(state, noisy_operator(key, described, state.spent, problem, state.z, data))

    def outer(key, state, data, hyper, problem):
        done = jmm.run(jax.random.fold_in(key, state.spent), state.z, data, hyper_of(iterations=2),
                       modules[0], problem).state
        return state._replace(z=done.z, spent=state.spent + done.spent)

    modules = [algorithm(inner), algorithm(outer)]
    for module in modules:
        module.mechanism = lambda hyper: described
    jax.eval_shape(lambda key: jmm.round(
        key, jmm.sgda.init(Z, HYPER), DATA, HYPER, modules[1], GAME), jax.random.key(1))


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_round_is_not_refused(name):
    assert traced(HONEST[name], SAMPLED if name == "plain" else HYPER).z.w.shape == (2,)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain", "a checkpoint under grad", "a loop"])
def test_the_check_leaves_what_a_round_computes(name):
    """To the bit, of the round by itself."""
    state, key = jmm.sgda.init(Z, HYPER), jax.random.key(1)
    module = algorithm(HONEST[name])
    bare = jax.jit(lambda key, state: HONEST[name](key, state, DATA, SAMPLED, GAME))(key, state)
    checked = jax.jit(lambda key, state: jmm.round(
        key, state, DATA, SAMPLED, module, GAME))(key, state)
    for a, b in zip(jax.tree.leaves(bare), jax.tree.leaves(checked), strict=True):
        np.testing.assert_array_equal(a, b)


# --- what a round closes over ---


@pytest.mark.parametrize("door", ["run", "fit", "sweep", "check", "a round by itself",
                                  "a jit around it"])
def test_a_round_that_closes_over_the_rows_is_refused(door):
    update = scaled_by(lambda key, state, data: DATA[0].mean())
    with pytest.raises(ValueError, match=r"closes over an array|closed over by update"):
        DOORS[door](algorithm(update))


def test_fit_refuses_a_round_that_closes_over_rows_on_the_host():
    held = tuple(np.asarray(x) for x in DATA)
    update = scaled_by(lambda key, state, data: jnp.asarray(held[0]).mean())
    with pytest.raises(ValueError, match="closes over an array"):
        jmm.fit(jax.random.key(1), Z, jmm.placement.HostData(held), SAMPLED, algorithm(update),
                GAME, delta=1e-4, progress=False)


def test_a_round_that_closes_over_traced_rows_is_refused():

    def own(key, rows):
        update = scaled_by(lambda key, state, data: rows[0].mean())
        return jmm.run(key, Z, rows, HYPER, algorithm(update), GAME).state.z

    with pytest.raises(ValueError, match="closed over by update"):
        jax.jit(own)(jax.random.key(1), DATA)


@pytest.mark.parametrize("door", ["run", "a jit around it"])
def test_an_observation_or_a_start_that_closes_over_the_rows_is_refused(door):
    def called(key, data, rows, name):
        module = algorithm(honest, init=jmm.sgda.init if name == "observe" else (
            lambda z, hyper: jmm.sgda.init(Saddle(z.w + rows[0][0], z.v), hyper)))
        observe = {"observe": (lambda state: state.z.w + rows[0].mean())} if (
            name == "observe") else {}
        return jmm.run(key, Z, data, HYPER, module, GAME, **observe).state

    for name in ("observe", "init"):
        with pytest.raises(ValueError, match=f"{name} closes over an array"):
            if door == "run":
                called(jax.random.key(1), DATA, DATA, name)
            else:
                jax.jit(lambda key, data, name=name: called(key, data, data, name))(
                    jax.random.key(1), DATA)


@pytest.mark.slow
@pytest.mark.parametrize("name", [
    pytest.param(name, marks=() if name in golden.QUICK else pytest.mark.nightly)
    for name in golden.CASES if "random" not in name])
def test_no_leaf_of_any_algorithms_state_may_hold_what_is_read(name):
    """Every description and sampling of the library, groups and solutions included."""
    algorithm, hyper, problem, start, data = golden.CASES[name]
    fields = [field for field, leaves in zip(algorithm.State._fields, jax.eval_shape(
        lambda: algorithm.init(start, hyper)), strict=True) if jax.tree.leaves(leaves)]
    assert fields
    for field in fields:
        def update(key, state, data, hyper, problem, field=field):
            new = algorithm.update(key, state, data, hyper, problem)
            read = jnp.sum(jax.tree.leaves(data)[0]) > 0
            return new._replace(**{field: jax.tree.map(
                lambda x: x + read.astype(x.dtype), getattr(new, field))})

        own = types.SimpleNamespace(**{**vars(algorithm), "__name__": "leak", "update": update})
        with pytest.raises(ValueError, match=rf"past a release: state\.{field}"):
            jax.eval_shape(lambda data, own=own: jmm.run(
                jax.random.key(1), start, data, hyper, own, problem), data)
