"""An operator that sees other records is refused, wherever in its program it does."""


import dataclasses

import equinox
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import custom_partitioning, io_callback, pallas
from jax.experimental.buffer_callback import buffer_callback

import jaxminimax as jmm
from jaxminimax import Saddle
from jaxminimax.gradients.clipping import ClippedOperator
from jaxminimax.placement.host_data import Window
from jaxminimax.releases import groups, record_isolation, solutions, stream

N, KEY, ZERO = 50, jax.random.key(0), jnp.int32(0)
X = jnp.linspace(-1.0, 1.0, N)
POINT = Saddle(jnp.float64(1.0), ())


@jax.custom_batching.custom_vmap
def centred(y):
    return y


@centred.def_vmap
def _(size, batched, y):
    return y + 100 * jnp.sum(y), True


def on_the_host(y, method):
    return jax.pure_callback(lambda a: np.asarray(a), jax.ShapeDtypeStruct(y.shape, y.dtype), y,
                             vmap_method=method)


def summed(rows):
    return lambda y: y * jnp.sum(rows)


def over_lanes(collective):
    return lambda y: jnp.sum(collective(y, "lanes"))


def scanned(f):
    return lambda y: jax.lax.scan(lambda a, _: (f(a), None), y, None, length=2)[0]


def branched(f):
    return lambda y: jax.lax.cond(y > 0, f, lambda a: a, y)


def looped(f):
    return lambda y: jax.lax.fori_loop(0, 2, lambda _, a: f(a), y)


def ruled(f):
    made = jax.custom_jvp(f)
    made.defjvps(lambda t, out, y: t)
    return made


INSIDE = pytest.mark.parametrize(
    "inside", [lambda f: f, jax.jit, jax.checkpoint, scanned, branched, looped, ruled],
    ids=["itself", "jit", "checkpoint", "scan", "cond", "loop", "custom_jvp"])


def of(f):
    return lambda z, y: Saddle(f(y) * jnp.ones_like(z.w), None)


def go(operator, data=X, n=N, jit=False):
    query = jmm.Query(clip=Saddle(1.0, None), noise_multiplier=Saddle(1.0, None), population=n)
    hyper = jmm.sgda.Hyper(query=query, step=Saddle(1.0, 1.0), iterations=1)
    run = jax.jit(jmm.run, static_argnames=("algorithm", "problem")) if jit else jmm.run
    return run(KEY, POINT, data, hyper, jmm.sgda, jmm.Problem(operator))[0].z.w


@INSIDE
def test_a_batching_rule_is_found_wherever_it_is(inside):
    with pytest.raises(ValueError, match="custom_vmap"):
        go(of(inside(centred)))


@INSIDE
def test_closed_over_rows_are_found_wherever_they_are(inside):
    for rows in (X, np.asarray(X), np.asarray(X)[:, None] * np.ones(3), 0 * X):
        with pytest.raises(ValueError, match=r"closes over an array of shape \(50,"):
            go(of(inside(summed(rows))), jit=True)


@INSIDE
def test_collectives_are_found_wherever_they_are(inside):
    for collective in (jax.lax.psum, jax.lax.pmax, jax.lax.all_gather,
                       lambda y, axis: jax.lax.ppermute(y, axis, [(0, 1), (1, 0)]),
                       lambda y, axis: y * jax.lax.axis_index(axis)):
        f = of(inside(over_lanes(collective)))
        with pytest.raises(ValueError, match="does not make itself"):
            go(f)
        with pytest.raises(ValueError, match="collective"):  # where somebody else made the axis
            jax.vmap(lambda _, f=f: go(f), axis_name="lanes")(jnp.arange(2))


@pytest.mark.slow
@INSIDE
@pytest.mark.parametrize("key", [
    lambda y: jax.random.fold_in(jax.random.key(3, impl="rbg"), y.astype(jnp.int32)),
    lambda y: jax.random.key(y.astype(jnp.int32), impl="unsafe_rbg")])
def test_keys_that_draw_for_all_records_at_once_are_found_wherever_they_are(inside, key):
    with pytest.raises(ValueError, match="first one's key: use impl='threefry2x32'"):
        go(of(inside(lambda y: y + jax.random.normal(key(y), dtype=y.dtype))))
    at_threefry = of(inside(lambda y: y + jax.random.normal(
        jax.random.key(y.astype(jnp.int32), impl="threefry2x32"), dtype=y.dtype)))
    assert np.isfinite(go(at_threefry))


def test_a_host_that_is_handed_a_batch_is_found():
    for method in ("expand_dims", "broadcast_all", None):
        with pytest.raises(ValueError, match="vmap_method"):
            go(of(lambda y, m=method: on_the_host(y, m)))
    assert np.isfinite(go(of(lambda y: on_the_host(y, "sequential"))))


# --- nothing is told ---


def likewise(y):
    return jax.ShapeDtypeStruct(y.shape, y.dtype)


def printed(y):
    jax.debug.print("a record: {}", y)
    return y


def called_back(y):
    jax.debug.callback(print, y)
    return y


def ordered(y):
    return io_callback(lambda a: a, likewise(y), y, ordered=True)


def decided(y):
    """Nothing is handed over, and whether it happens says something."""
    return jax.lax.cond(y > 0, lambda a: (jax.debug.print("positive"), a)[1], lambda a: a, y)


def with_side_effects(y):
    return jax.ffi.ffi_call("anything", likewise(y), has_side_effect=True,
                            vmap_method="sequential")(y)


def in_a_buffer(y):
    return buffer_callback(lambda ctx, out, a: None, likewise(y), has_side_effect=True,
                           vmap_method="sequential")(y)


def raises_in_a_library(y):
    """It reads the records of the whole batch, and its error is about one of them."""
    return equinox.error_if(y, y > 0.5, "a record is large")


TELLS = {printed: "debug_print", called_back: "debug_callback", ordered: "io_callback",
         decided: "debug_print", with_side_effects: "ffi_call", in_a_buffer: "buffer_callback",
         raises_in_a_library: "pure_callback"}


@pytest.mark.parametrize("tells", TELLS, ids=lambda f: f.__name__)
def test_an_operator_that_tells_the_host_is_refused_by_every_door(tells):
    """The operation and the line are named, and nothing of a record is."""
    problem = jmm.Problem(jmm.saddle_operator(lambda w, v, y: w * jax.lax.stop_gradient(tells(y))))
    query = jmm.Query(clip=Saddle(1.0, None), noise_multiplier=Saddle(1.0, None), population=N)
    hyper = jmm.sgda.Hyper(query=query, step=Saddle(1.0, 1.0), iterations=1)
    start = POINT._replace(v=jnp.zeros(()))
    for door in (lambda: jmm.run(KEY, start, X, hyper, jmm.sgda, problem),
                 lambda: jmm.fit(KEY, start, X, hyper, jmm.sgda, problem, delta=1e-3),
                 lambda: jmm.check(problem, start, X, hyper, measure=False)):
        with pytest.raises(ValueError, match=rf"host.*\({TELLS[tells]}, .*\.py:\d+\)") as refused:
            door()
        own = f"test_record_isolation.py:{tells.__code__.co_firstlineno}"
        if tells is not raises_in_a_library:
            named = int(str(refused.value).split("test_record_isolation.py:")[1].split(")")[0])
            assert 0 < named - int(own.split(":")[1]) < 5


@INSIDE
def test_prints_are_found_wherever_they_are(inside):
    for tells in (printed, decided):
        with pytest.raises(ValueError, match="calls the host"):
            go(of(inside(tells)))


def in_a_kernel(tells):
    def kernel(x, out):
        if tells is printed:
            pallas.debug_print("a record: {}", x[0])
        else:
            tells(x[0])
        out[...] = x[...]

    return lambda y: pallas.pallas_call(
        kernel, out_shape=jax.ShapeDtypeStruct((1,), y.dtype), interpret=True)(y[None])[0]


def on_a_mesh(tells):
    mesh, whole = jax.make_mesh((1,), ("own",)), jax.sharding.PartitionSpec()
    return jax.shard_map(tells, mesh=mesh, in_specs=whole, out_specs=whole, check_vma=False)


def in_a_solver(tells):
    return lambda y: jax.lax.custom_linear_solve(
        lambda x: 2 * x, y, lambda _, b: tells(b) / 2, symmetric=True)


def in_a_solver_of_the_transpose(tells):
    return lambda y: jax.lax.custom_linear_solve(
        lambda x: 2 * x, y, lambda _, b: b / 2, lambda _, b: tells(b) / 2)


def mapped(tells):
    made = jax.custom_batching.custom_vmap(tells)
    made.def_vmap(lambda size, batched, y: (y, True))
    return made


def partitioned(tells):
    made = custom_partitioning.custom_partitioning(tells)
    made.def_partition(infer_sharding_from_operands=lambda *_: None, partition=lambda *_: None,
                       sharding_rule=" -> ")
    return made


def linear(tells):
    return lambda y: jax.custom_derivatives.linear_call(
        lambda _, x: tells(x), lambda _, d: d, (), y)


def switched(tells):
    return lambda y: jax.lax.switch(jnp.int32(y), [lambda a: a, lambda a: a, tells], y)


def as_long_as(tells):
    return lambda y: jax.lax.while_loop(lambda a: tells(a) < 0, lambda a: a + 1, y)


def reversed_by_a_rule(tells):
    """Told by the rule of a derivative, in an operator that takes it."""
    made = jax.custom_vjp(lambda y: y)
    made.defvjp(lambda y: (y, y), lambda y, d: (tells(y) * d,))
    return jax.grad(lambda y: made(y) * 1.0)


def reversed_by_a_linear_rule(tells):
    return jax.grad(lambda y: jax.custom_derivatives.linear_call(
        lambda _, x: x, lambda _, d: tells(d), (), y))


@pytest.mark.parametrize("hidden", [
    in_a_kernel, on_a_mesh, in_a_solver, in_a_solver_of_the_transpose, mapped, partitioned, linear,
    switched, as_long_as, reversed_by_a_rule, reversed_by_a_linear_rule], ids=lambda f: f.__name__)
def test_prints_are_found_in_the_programs_that_operations_hold(hidden):
    """JAX hides them in parameters of an operation, and does not hand up their effects."""
    refused = "custom_vmap" if hidden is mapped else "calls the host"
    for tells in (printed, called_back):
        with pytest.raises(ValueError, match=refused):
            record_isolation.check(of(hidden(tells)), POINT, X)
    if hidden not in (mapped, in_a_kernel):
        record_isolation.check(of(hidden(lambda y: y)), POINT, X)  # by itself it is let through


def test_a_print_in_a_loss_that_a_release_differentiates_is_found():
    """Of a certified solution of groups, whose release takes the loss and not its gradient."""
    @jax.custom_vjp
    def tells(w):
        return w

    tells.defvjp(lambda w: (w, w), lambda w, d: (d + 0 * printed(w),))
    task = jmm.problems.worst_group(
        lambda w, y: 0.01 * jnp.square(tells(w)[0] - y), jmm.problems.ball(1.0), lipschitz=1.0,
        bound=1.0, smooth=1.0, convex=True)
    solution = jmm.phased_erm.certified(jmm.mechanism.GroupSolution(
        lipschitz=1.0, bound=1.0, smooth=1.0, diameter=2.0, reg_w=1.0, reg_lam=1.0, slack=0.1,
        noise_multiplier=1.0, sizes=SIZES, phases=1))
    with pytest.raises(ValueError, match="calls the host"):
        solutions.release_group_solution(KEY, solution, ZERO, task, jnp.zeros(2), GROUPS)


def test_a_print_outside_of_the_operator_is_no_ones_record(capfd):
    """What was released may be printed: by `callback`, and by the public term."""
    problem = jmm.Problem(of(lambda y: y), public=lambda z: (
        jax.debug.print("a point"), z)[1])
    query = jmm.Query(clip=Saddle(1.0, None), noise_multiplier=Saddle(1.0, None), population=N)
    hyper = jmm.sgda.Hyper(query=query, step=Saddle(1.0, 1.0), iterations=1)
    jax.block_until_ready(jmm.run(KEY, POINT, X, hyper, jmm.sgda, problem))
    jax.effects_barrier()
    assert "a point" in capfd.readouterr().out


def test_a_program_that_is_kept_is_held_against_the_data_of_every_call():
    """Where a record's axis is as long as the data, the closed-over array's numbers tell."""
    rows = np.linspace(-1.0, 1.0, 400).reshape(20, 20)
    operator = of(lambda y: jnp.sum(y) * jnp.sum(jnp.asarray(rows)))
    assert np.isfinite(go(operator, rows + 1, n=20))
    with pytest.raises(ValueError, match=r"shape \(20, 20\), one of the data's own"):
        go(operator, rows, n=20)


def test_what_reads_its_own_record_is_let_through():
    table, public = jnp.ones((4, N)), X[None]
    for f in (lambda y: y, lambda y: y * jnp.sum(table), lambda y: y * jnp.arange(N).sum(),
              lambda y: y * jnp.sum(public[0]),
              lambda y: jnp.sum(jax.vmap(lambda a: a - jax.lax.pmean(a, "own"),
                                         axis_name="own")(y * jnp.ones(3)))):
        record_isolation.check(of(f), POINT, X)
    assert np.isfinite(go(of(lambda y: y)))
    # the library's own rule, which looks at no record
    pair = Saddle(jnp.ones(1), jnp.ones(1))
    record_isolation.check(ClippedOperator(lambda z, y: Saddle(y * z.w, z.v), 1.0), pair, X)


def test_an_axis_that_the_record_has_too_explains_the_length_but_not_the_data():
    """As many features as records: a matrix on features passes, the data do not."""
    data = jax.random.normal(KEY, (20, 20))
    matrix = jnp.eye(20)
    assert np.isfinite(go(of(lambda y: jnp.sum(matrix @ y)), data, 20))
    for own in (data, jnp.array(data), np.asarray(data)):
        with pytest.raises(ValueError, match="one of the data's own arrays"):
            go(of(lambda y, own=own: jnp.sum(own @ y)), data, 20)


def test_short_data_are_told_by_their_arrays_alone():
    few = X[:8]
    assert np.isfinite(go(of(lambda y: y * jnp.sum(jnp.ones(8))), few, 8))
    with pytest.raises(ValueError, match="own arrays"):
        go(of(lambda y: y * jnp.sum(few)), few, 8)


def test_the_message_says_how_to_pass_what_is_public():
    with pytest.raises(ValueError, match=r"array\[None\] and read \[0\]"):
        go(of(lambda y: y * jnp.sum(X)))


def test_rows_on_a_mesh_or_sent_ahead_are_counted_as_all_of_them():
    mesh = jax.make_mesh((1,), ("data",))
    sent = Window(rows=jnp.ones((2, 5)), numbers=jnp.zeros((2, 5), jnp.int32), valid=None,
                  fits=jnp.ones(2, bool), marks=jnp.zeros((2, 2), jnp.uint32),
                  first=ZERO, population=N, described=())
    for data in (jmm.placement.shard(X, mesh), sent):
        record_isolation.check(of(lambda y: y), POINT, data)
        with pytest.raises(ValueError, match="closes over"):
            record_isolation.check(of(lambda y: y * jnp.sum(X + 1)), POINT, data)


def test_an_error_of_the_operators_own_stays_what_it_is():
    def broken(z, y):
        return undefined_name  # noqa: F821

    with pytest.raises(NameError, match="undefined_name"):
        go(broken)


# --- every release ---


SIZES = (20, 30)
GROUPS = jnp.linspace(0.0, 1.0, 60).reshape(2, 30)
FLAT = jnp.linspace(0.0, 1.0, sum(SIZES))


def loss(closed):
    """Convex in w, with a look at the others."""
    return lambda w, y: 0.01 * jnp.square(w[0] - y + 0 * jnp.sum(closed))


def grouped(closed):
    domain = jmm.problems.ball(1.0)
    return jmm.problems.worst_group(loss(closed), domain, lipschitz=1.0, bound=1.0, smooth=1.0,
                                    convex=True)


def release_cases(closed):
    """Every release, with an operator or a loss that closes over something."""
    w, task = jnp.zeros(2), grouped(closed)
    single = jmm.Problem(jmm.saddle_operator(lambda w, v, y: loss(closed)(w, y)))
    query = jmm.Query(clip=Saddle(1.0, None), noise_multiplier=Saddle(1.0, None), population=N)
    point = jmm.proximal.certified(jmm.mechanism.Resolvent(
        bound=1.0, prox=1.0, lipschitz=0.0, diameter=10.0, population=N, noise_multiplier=1.0,
        assumes="lipschitz"))
    gradients = jmm.GroupGradients(clip=1.0, noise_multiplier=1.0, sizes=SIZES)
    risks = jmm.GroupLosses(bound=1.0, noise_multiplier=1.0, sizes=SIZES)
    choice = jmm.mechanism.Selection(bound=1.0, noise_multiplier=1.0, sizes=SIZES)
    solution = jmm.phased_erm.certified(jmm.mechanism.GroupSolution(
        lipschitz=1.0, bound=1.0, smooth=1.0, diameter=2.0, reg_w=1.0, reg_lam=1.0, slack=0.1,
        noise_multiplier=1.0, sizes=SIZES, phases=1))
    tree = jmm.mechanism.TreeSums(clip=1.0, noise_multiplier=1.0, leaves=9)
    one = jmm.mechanism.RecordLosses(bound=1.0, noise_multiplier=1.0, times=9)
    z, plain = Saddle(w, ()), jmm.release
    return {
        "release": lambda: plain(KEY, jmm.Repeat(query=query, times=1), ZERO, single, z, X),
        "resolvent": lambda: solutions.release_resolvent(
            KEY, jmm.Repeat(query=point, times=1), ZERO, single, z, X),
        "gradient": lambda: groups.release_group_gradient(
            KEY, jmm.Repeat(query=gradients, times=1), ZERO, task, w, GROUPS, ZERO),
        "gradient of all": lambda: groups.release_weighted_gradient(
            KEY, jmm.Repeat(query=dataclasses.replace(gradients, groups="all"), times=1), ZERO,
            task, w, GROUPS, jnp.ones(len(SIZES))),
        "losses": lambda: groups.release_group_losses(KEY, risks, ZERO, task, w, GROUPS),
        "index": lambda: groups.release_group_index(KEY, choice, ZERO, task, w, GROUPS),
        "solution": lambda: solutions.release_group_solution(
            KEY, solution, ZERO, task, w, GROUPS),
        "leaf": lambda: stream.release_leaf(KEY, tree, ZERO, single, z, X, (ZERO,)),
        "leaf of a group": lambda: stream.release_leaf(
            KEY, tree, ZERO, single, z, GROUPS, (ZERO, ZERO)),
        "loss": lambda: groups.release_loss(KEY, one, ZERO, task, w, GROUPS, (ZERO, ZERO)),
    }


@pytest.mark.parametrize("name", sorted(release_cases(X)))
def test_every_door_looks(name):
    leaf = name in ("leaf of a group", "loss")
    for closed in (X, X + 1) if name in ("release", "resolvent", "leaf") else (
            GROUPS, GROUPS + 1, GROUPS[0], GROUPS.reshape(-1), *(() if leaf else (FLAT,))):
        with pytest.raises(ValueError, match="closes over an array"):
            jax.eval_shape(release_cases(closed)[name])
    assert jax.tree.leaves(jax.eval_shape(release_cases(jnp.ones(3))[name]))


@pytest.mark.parametrize("name", ["gradient", "gradient of all", "losses", "solution", "loss"])
def test_rows_of_few_records_one_group_after_another_are_recognised(monkeypatch, name):
    """Lengths below 16 are not compared, so the numbers are."""
    sizes = (3, 5)
    rows = jnp.asarray(np.random.default_rng(0).normal(size=(2, 5, 4)))
    monkeypatch.setitem(globals(), "SIZES", sizes)
    monkeypatch.setitem(globals(), "GROUPS", rows)
    monkeypatch.setitem(globals(), "loss", lambda closed: lambda w, y: 0.01 * jnp.square(
        w[0] - y[0] + 0 * jnp.sum(closed)))
    flat = jnp.concatenate([x[:n] for x, n in zip(rows, sizes, strict=True)])
    # of one record's place the sizes of groups are unknown
    for closed in (rows, rows.reshape(-1, 4), *(() if name == "loss" else (flat,))):
        with pytest.raises(ValueError, match="one of the data's own arrays"):
            release_cases(closed)[name]()
    assert jax.tree.leaves(jax.eval_shape(release_cases(flat + 1)[name]))


def test_statements_say_what_stays_assumed():
    query = jmm.Query(clip=Saddle(1.0, None), noise_multiplier=Saddle(1.0, None), population=N)
    hyper = jmm.sgda.Hyper(query=query, step=Saddle(1.0, 1.0), iterations=1)
    stated = jmm.statement(jmm.sgda, hyper, delta=1e-6)
    assert any("read no data except the one record" in line for line in stated.assumed)
