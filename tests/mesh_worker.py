"""What `test_mesh` runs in processes of their own, for a process has one number of devices.

    python mesh_worker.py devices OUT            one process of 8 devices
    python mesh_worker.py process OUT ID PORT    process ID of two, with 2 devices each

Results go to OUT, as JSON: numbers and words by name.
"""

# ruff: noqa: E402  (JAX is imported when its flags are set)

import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import sys
import tempfile
from unittest import mock

ALONE = sys.argv[1] == "devices"
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = (f"--xla_force_host_platform_device_count={8 if ALONE else 2} "
                           "--xla_backend_optimization_level=0 "
                           "--xla_cpu_parallel_codegen_split_count=1 "
                           "--xla_cpu_use_fusion_emitters=false")
sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import jaxminimax as jmm
from benchmarks import scaling
from jaxminimax import Saddle
from jaxminimax.door import noising, operator_keys, samples, stream, sums
from jaxminimax.door.groups import release_group_gradient
from jaxminimax.door.losses import release_group_index, release_group_losses
from jaxminimax.drivers import fingerprint, long_runs
from jaxminimax.placement import shard_sums

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")
if not ALONE:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{sys.argv[4]}", 2, int(sys.argv[3]))

N, D, ROUNDS, DELTA = 203, 4, 6, 1e-5  # 203 is no multiple of 2
KEY = jax.random.key(3)
START = Saddle(jnp.ones(D), jnp.full(D, 0.5))
GAME = jmm.problems.quadratic_game(modulus=1.0, coupling=0.5, radius=Saddle(2.0, 2.0))
# a disjoint batch leaves most shards without a record
SAMPLINGS = {
    "full": jmm.Full(),
    "poisson": jmm.Poisson(rate=0.1),
    "fixed": jmm.FixedSize(batch=40),
    "overflow": jmm.Poisson(rate=0.1, capacity=22),
    "replacement": jmm.FixedSize(batch=40, replacement=True),
    "disjoint": jmm.Disjoint(batch=30),
}


def dataset():
    """Records far above the clip norms, tiny and not finite, in different shards."""
    a, b = (np.array(3 * jax.random.normal(k, (N, D))) for k in jax.random.split(
        jax.random.key(1)))
    a[17], b[101], a[60:63], b[180] = np.nan, np.inf, 1e9, 1e-9
    return a, b


def query(sampling, noise=1.0, **values):
    return jmm.Query(**{"clip": Saddle(2.0, 1.0), "noise_multiplier": Saddle(noise, noise),
                        "sampling": sampling, "population": N, **values})


def hyper(sampling, noise=1.0, **values):
    return jmm.sgda.Hyper(query=query(sampling, noise), step=Saddle(0.2, 0.2), iterations=ROUNDS,
                          **values)


def fitted(settings, data, mesh=None, key=KEY, z=START, algorithm=jmm.sgda, problem=GAME, **how):
    return jmm.fit(key, z, data, settings, algorithm, problem, delta=DELTA, mesh=mesh,
                   **{"every": ROUNDS, "progress": False, **how})


def apart(one, other):
    """The largest difference of two trees; where one is NaN, the other must be."""
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    gaps = [0.0 if np.array_equal(a, b, equal_nan=True) else float(np.nanmax(np.abs(a - b)))
            if np.array_equal(np.isnan(a), np.isnan(b)) else np.inf
            for a, b in (map(np.asarray, pair) for pair in pairs)]
    return max(gaps)


def meshed(count):
    return jax.make_mesh((count,), ("data",), devices=jax.devices()[:count])


def refusal(what):
    """The first words of the ValueError that `what()` raises."""
    try:
        what()
    except ValueError as error:
        return str(error)
    return "no refusal"


# --- one process ---


@functools.partial(jax.jit, static_argnames="problem")
def answers(settings, data, problem=GAME, z=START):
    """What is released of the data, four times."""
    mechanism = jmm.mechanism.Repeat(query=settings, times=3)  # so the last one is refused
    return jax.lax.map(lambda k: jmm.release(KEY, mechanism, k, problem, z, data), jnp.arange(4))


def samplings(found):
    """Releases with noise and without, on one device and on eight."""
    data = dataset()
    rows = jmm.shard(data, meshed(8))
    for name, sampling in SAMPLINGS.items():
        settings, silent = query(sampling), query(sampling, 0.0)
        one = answers(settings, data), answers(silent, data)
        many = answers(settings, rows), answers(silent, rows)
        found[f"refused {name}"] = np.isnan(one[0].w).all(1).tolist()
        found[f"equal {name}"], found[f"silent {name}"] = map(apart, one, many)
        if name == "poisson":
            # a sample that takes several passes, more in some shards than in others
            with rows_at_once(2):
                found[f"passes {name}"] = apart(one, (answers(settings, rows),
                                                      answers(silent, rows)))
            # were there one pass only, it would show
            with rows_at_once(2), mock.patch.object(shard_sums, "_most_rows", return_value=2):
                found["bug one pass"] = apart(one[1], answers(silent, rows))


def runs(found):
    """Whole runs, with and without noise, on 1 and 8 devices; one moves from 1 to 4 to 8."""
    data, settings, silent = dataset(), *(hyper(jmm.Poisson(rate=0.1), x) for x in (1.0, 0.0))
    one, quiet = fitted(settings, data), fitted(silent, data)
    for count in (1, 8):
        many = fitted(settings, data, meshed(count))
        found[f"run {count}"] = apart(one.state, many.state)
        found[f"silent run {count}"] = apart(quiet.state,
                                             fitted(silent, data, meshed(count)).state)
        found[f"statement {count}"] = many.statement == one.statement
        found[f"epsilon {count}"] = [one.statement.epsilon, many.statement.epsilon]
    # two rounds on one device, the third on four and the rest on eight
    with tempfile.TemporaryDirectory() as folder:
        go = functools.partial(fitted, settings, data, every=1, checkpoint=folder)
        for mesh, at in ((None, 2), (meshed(4), 3)):
            with contextlib.suppress(KeyboardInterrupt):
                go(mesh, callback=stop(at))
        last = go(meshed(8))
    found["resumed"] = apart(one.state, last.state)
    found["resumed statement"] = last.statement == one.statement
    run = jax.jit(jmm.run, static_argnames=("algorithm", "problem"))
    state, _ = run(KEY, START, jmm.shard(data, meshed(8)), settings, jmm.sgda, GAME)
    found["scanned"] = apart(one.state, state)


def stop(at):
    def callback(state):
        if state.spent == at:
            raise KeyboardInterrupt

    return callback


def forget():
    """So that what is patched is traced again."""
    answers.clear_cache()
    long_runs._advance.clear_cache()


@contextlib.contextmanager
def rows_at_once(count):
    forget()
    with mock.patch.object(shard_sums, "pass_rows", return_value=count):
        yield
    forget()


def algorithms(found):
    data = dataset()
    cases = {
        "extragradient": (jmm.extragradient, jmm.extragradient.Hyper(
            query=query(jmm.Poisson(rate=0.1)), step=Saddle(0.2, 0.2), iterations=3)),
        "recursive_sgda": (jmm.recursive_sgda, jmm.recursive_sgda.Hyper(
            query=query(jmm.Full(), population=N // 2), base=0.1, diameter=4.0, rounds=2,
            inner=3)),
    }
    for name, (algorithm, settings) in cases.items():
        one, many = (fitted(settings, data, mesh, algorithm=algorithm)
                     for mesh in (None, meshed(8)))
        found[f"algorithm {name}"] = apart(one.state, many.state)
        found[f"algorithm statement {name}"] = one.statement == many.statement


def network(w, v, record):
    x, y = record
    hidden = jnp.tanh(jnp.tanh(x @ w["a"]) @ w["b"])
    return jnp.where(y[0] > 0, 1.0, -1.0) * (hidden @ v) - 0.5 * v @ v


def other_meshes(found):
    """A second axis, with parameters on every device or spread over it; other strategies."""
    k = jax.random.split(jax.random.key(7))
    z = Saddle({"a": jax.random.normal(k[0], (D, 8)), "b": jax.random.normal(k[1], (8, D))},
               jnp.ones(D))
    problem, data = jmm.Problem(jmm.saddle_operator(network)), dataset()

    def go(z, mesh, strategy):
        task = problem._replace(operator=jmm.with_strategy(problem.operator, strategy))
        return fitted(hyper(SAMPLINGS["poisson"]), data, mesh, z=z, problem=task).state

    one = go(z, None, "ghost")
    mesh = jax.make_mesh((2, 4), ("model", "data"))
    found["two axes"] = apart(one, go(z, mesh, "ghost"))
    automatic = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    places = {"a": PartitionSpec(None, "model"), "b": PartitionSpec("model")}
    over = z._replace(w={name: jax.device_put(x, NamedSharding(automatic, places[name]))
                         for name, x in z.w.items()})
    with rows_at_once(4):
        many = go(over, automatic, "ghost")
    found["parameters spread"] = apart(one, many)
    found["still spread"] = all(many.z.w[name].sharding.spec == places[name] for name in places)
    wrong = z._replace(v=jax.device_put(z.v, NamedSharding(automatic, PartitionSpec("data"))))
    found["refused parameters over data"] = refusal(lambda: go(wrong, automatic, "ghost"))


def drawn(z, record, key):
    """Signs over 8: sums of them are exact, so that only other keys could move a release."""
    signs = jax.random.rademacher(key, (2 * D,), record[0].dtype) / 8
    return Saddle(signs[:D], signs[D:])


def keys_of_rows(found):
    """Operators that draw: a row's key is its number's, in whatever shard it lies."""
    data, problem = dataset(), jmm.Problem(drawn, random=True)
    rows = jmm.shard(data, meshed(8))
    for name in ("full", "poisson"):
        settings = query(SAMPLINGS[name])
        one = answers(settings, data, problem)
        found[f"drawn {name}"] = apart(one, answers(settings, rows, problem))
    with rows_at_once(2):
        found["drawn in passes"] = apart(one, answers(settings, rows, problem))
    # were keys those of places in a shard of 26 rows, it would show
    attach = operator_keys.with_words
    with mock.patch.object(operator_keys, "with_words",
                           lambda x, rows, words: attach(x, rows % 26, words)):
        jax.clear_caches()
        found["bug keys of places"] = apart(one, answers(settings, rows, problem))
    jax.clear_caches()


def placements(found):
    """Rows that are on the devices already, in whatever way, count once each."""
    mesh, data = meshed(8), dataset()
    one = answers(query(jmm.Full()), data)

    everywhere = jmm.shard(jax.device_put(data, NamedSharding(mesh, PartitionSpec())), mesh)
    found["placed everywhere"] = apart(one, answers(query(jmm.Full()), everywhere))
    marks = {fingerprint.of_rows(b"secret", x) for x in (data, jmm.shard(data, mesh), jmm.shard(
        data, meshed(4)), jmm.shard(data, Mesh(np.array(jax.devices()[::-1]), ("data",))),
        jmm.shard(data, jax.make_mesh((2, 4), ("model", "data"))))}
    found["marks"] = len(marks)
    backwards = Mesh(np.array(jax.devices()[::-1]), ("data",))
    found["placed backwards"] = apart(one, answers(query(jmm.Full()), jmm.shard(data, backwards)))


def sensitivity(found):
    """The most that one record moves the sums, over the clip norms, and what all of them add."""
    mesh = meshed(8)

    def sums(clip, data):
        g = answers(query(jmm.Full(), 0.0, clip=clip), data)
        return jax.tree.map(lambda x: N * x[0], g)

    def moved(clip):
        a, b = (np.ones((N, D)) for _ in range(2))
        most = 0.0
        before = sums(clip, jmm.shard((1e6 * a, 1e6 * b), mesh))
        for row in (0, 25, 26, 130, 202):  # at ends of shards and within
            c, d = 1e6 * a, 1e6 * b
            c[row], d[row] = -1e6, -1e6
            after = sums(clip, jmm.shard((c, d), mesh))
            most = max([most, *(float(jnp.linalg.norm(x - y)) / bound for x, y, bound in zip(
                before, after, (2.0, 1.0), strict=True))])
        return most, [float(jnp.linalg.norm(x)) / bound
                      for x, bound in zip(before, (2.0, 1.0), strict=True)]

    found["moved"], found["all"] = moved(Saddle(2.0, 1.0))
    found["moved unclipped"], _ = moved(Saddle(np.inf, np.inf))


def nothing(z, _):
    return jax.tree.map(jnp.zeros_like, z)


def noise_scale(data):
    """Standard deviation of what is released of no gradient, over the described one."""
    wide, settings = Saddle(jnp.zeros(3000), jnp.zeros(3000)), query(jmm.Full(), 1.5)
    released = answers(settings, data, jmm.Problem(nothing), wide)
    return [float(jnp.std(g[0])) * N / (1.5 * clip)
            for g, clip in zip(released, settings.clip, strict=True)]


def bugs(found):
    """Noise of every device, and what else could go wrong when sums are added up."""
    silent, data, count = query(jmm.Full(), 0.0), dataset(), 8
    one, rows = answers(silent, data), jmm.shard(data, meshed(count))
    found["noise scale"] = noise_scale(rows)
    sound, noise = sums.sum_over_shards, noising.integer_noise

    def uncounted(total, z, data, *rest):
        whole = jax.tree.leaves(data.rows)[0].shape[0]
        return sound(total, z, dataclasses.replace(data, population=whole), *rest)

    def louder(factor):
        return lambda *args: jax.tree.map(lambda x: (factor * x).astype(jnp.int32), noise(*args))

    planted = {
        "no sum": (shard_sums, "_add_up", lambda x, _: x),
        "sum of sums": (shard_sums, "_add_up",
                        lambda x, _: jax.lax.psum(jax.lax.psum(x, "data"), "data")),
        "padding counts": (sums, "sum_over_shards", uncounted),
        "noise of every device": (noising, "integer_noise", louder(count)),
        "half of the noise": (noising, "integer_noise", louder(0.5)),
    }
    for name, (where, attribute, wrong) in planted.items():
        forget()
        with mock.patch.object(where, attribute, wrong):
            found[f"bug {name}"] = (min(abs(x - 1) for x in noise_scale(rows)) if "noise" in name
                                    else apart(one, answers(silent, rows)))
    forget()


def costs(found):
    """One device's share of a release, against the model."""
    steps = [scaling.compiled(count, population=10_000, batch=400, dim=512, hidden=64)
             for count in (2, 8)]
    found["collectives"] = [step.collectives for step in steps]
    found["size"] = [step.size for step in steps]
    found["share"] = steps[0].flops / steps[1].flops, steps[0].rows / steps[1].rows


def refusals(found):
    mesh, data = meshed(8), dataset()
    placed = jmm.shard(data, mesh)
    point = jmm.Resolvent(bound=1.0, prox=1.0, lipschitz=0.0, diameter=10.0, population=N,
                          noise_multiplier=1.0, assumes="lipschitz")
    settings = jmm.proximal.Hyper(query=jmm.proximal.certified(point), iterations=1)
    groups = jmm.mechanism.Repeat(query=jmm.GroupGradients(
        clip=1.0, noise_multiplier=1.0, sizes=(N,)), times=1)
    losses = jmm.mechanism.GroupLosses(bound=1.0, noise_multiplier=1.0, sizes=(N,), times=1)
    choice = jmm.Selection(bound=1.0, noise_multiplier=1.0, sizes=(N,))
    zero = jnp.int32(0)
    grouped = jmm.GroupProblem(None, None, None, 1.0, 1.0, 1.0)
    unlike = {
        "resolvent": lambda: fitted(settings, data, mesh, algorithm=jmm.proximal),
        "group gradient": lambda: release_group_gradient(
            KEY, groups, zero, grouped, START, placed, zero),
        "group losses": lambda: release_group_losses(
            KEY, losses, zero, grouped, START, placed),
        "group index": lambda: release_group_index(
            KEY, choice, zero, grouped, START, placed),
        "record": lambda: samples.record_at(placed, (zero,)),
        "pair": lambda: stream.next_pair(jnp.zeros(1, int), zero, (N,), placed),
    }
    found["unlike"] = {name: refusal(call) for name, call in unlike.items()}
    short = tuple(x[:-1] for x in data)
    wrong = {
        "must have an axis 'data'": lambda: fitted(hyper(jmm.Full()), data, jax.make_mesh(
            (8,), ("rows",))),
        "described for population=203": lambda: fitted(hyper(jmm.Full()), short, mesh),
        "to hold 203 of": lambda: jmm.shard(short, mesh, population=N),
        "to hold 202 of": lambda: jmm.shard(data, mesh, population=N - 1),
        "spread over a mesh already": lambda: jmm.shard(placed, mesh),
        "key of threefry2x32": lambda: fitted(hyper(jmm.Full()), data, mesh,
                                              key=jax.random.key(0, impl="rbg")),
        "not over": lambda: fitted(hyper(jmm.Full()), placed, meshed(4)),
        "share one leading axis": lambda: jmm.shard((data[0], short[0]), mesh),
        "fewer than 2**31": lambda: jmm.placement.own_rows(2**31 - 4, mesh),
        "shard lays them out": lambda: answers(query(jmm.Full()), dataclasses.replace(
            placed, rows=jax.tree.map(lambda x: x[:200], placed.rows))),
        "at least 1": lambda: jmm.shard((np.zeros((0, 2)),), mesh),
    }
    found["refused"] = {words: refusal(call) for words, call in wrong.items()}


# --- two processes ---


def together(found):
    """Each process feeds its own rows, and ends with the same state and statement."""
    mesh, data = jax.make_mesh((4,), ("data",)), dataset()
    mine = jmm.placement.own_rows(N, mesh)
    rows = tuple(x[mine] for x in data)
    found["rows"] = mine.tolist()
    placed = jmm.shard(rows, mesh, population=N)
    spread = NamedSharding(mesh, PartitionSpec("data"))
    padded = tuple(np.pad(x, ((0, 102 - len(x)), (0, 0))) for x in rows)
    handed = jmm.shard(tuple(jax.make_array_from_process_local_data(spread, x) for x in padded),
                       mesh, population=N)
    found["marks"] = len({fingerprint.of_rows(b"secret", x) for x in (data, placed, handed)})
    settings = hyper(SAMPLINGS["poisson"])
    one = fitted(settings, data)
    many = fitted(settings, placed, mesh, callback=lambda state: None)
    found["equal"] = apart(one.state, jax.device_get(many.state))
    found["statement"] = many.statement == one.statement
    found["epsilon"] = many.statement.epsilon
    found["bytes"] = b"".join(np.asarray(x).tobytes() for x in jax.tree.leaves(many.state)).hex()
    found["equal handed"] = apart(many.state, fitted(settings, handed, mesh).state)
    # a fresh key of one process, and a folder that both see: the second run finds the first's end
    words = multihost_utils.broadcast_one_to_all(jax.random.key_data(jmm.secret_key()))
    secret = functools.partial(fitted, settings, placed, key=jax.random.wrap_key_data(words),
                               checkpoint=pathlib.Path(sys.argv[2]).parent / "saved")
    ends = [jax.device_get(secret().state) for _ in range(2)]
    found["saved"] = apart(*ends)
    found["secret"] = np.asarray(ends[0].z.w).tobytes().hex()
    me = jax.process_index()
    across = jax.make_mesh((2, 2), ("model", "data"))
    wrong = {
        "key must be equal": lambda: fitted(settings, placed, key=jax.random.key(me)),
        "settings must be equal": lambda: fitted(hyper(jmm.Poisson(rate=0.1), 1.0 + me), placed),
        "z must be equal": lambda: fitted(settings, placed, z=Saddle(START.w + me, START.v)),
        "the saved state must be equal": lambda: jmm.placement.agree(
            mesh, **{"the saved state": jnp.int32(me)}),
        "population must be given": lambda: fitted(settings, data, mesh),
        "this process is to hold": lambda: jmm.shard(data, mesh, population=N),
        "Each row must be held by one process": lambda: jmm.shard(rows, across, population=N),
        "Global arrays must have": lambda: jmm.shard(jax.make_array_from_process_local_data(
            spread, np.zeros((104, D))), mesh, population=N),
        # or a row would be held, and counted, by both
        "population and mesh must be equal": lambda: jmm.shard(rows, mesh, population=N + me),
        "population and mesh": lambda: jmm.shard(
            rows, Mesh(mesh.devices[::1 - 2 * me], ("data",)), population=N),
    }
    found["refused"] = {words: refusal(call) for words, call in wrong.items()}


def main():
    found = {}
    for check in (runs, samplings, keys_of_rows, algorithms, placements, sensitivity, other_meshes,
                  bugs, costs, refusals) if ALONE else (together,):
        check(found)
    pathlib.Path(sys.argv[2]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
