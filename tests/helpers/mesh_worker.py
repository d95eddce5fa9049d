"""What `test_mesh` runs in processes of their own, for a process has one number of devices.

    python mesh_worker.py process OUT ID PORT 4    process ID of four, one device each
    python mesh_worker.py process OUT ID PORT 2    process ID of two, with 2 devices each
    python mesh_worker.py pair OUT ID PORT 2       the same two, for one run and its noise
    python mesh_worker.py devices OUT              one process of 8 devices
    python mesh_worker.py further OUT              another, for what is tested every night
    python mesh_worker.py planted OUT              one of 8, with planted bugs and saved states

Results go to OUT, as JSON: numbers and words by name. The last of the four is killed; of what they
have saved, a copy lies beside the OUT of the others, who go on. Groups and solutions are in
`mesh_groups`, what is spread over processes otherwise in `mesh_across`.
"""

import contextlib
import dataclasses
import functools
import json
import pathlib
import sys
import tempfile
from unittest import mock

from mesh_setup import (  # before JAX
    GAME,
    KEY,
    PROCESSES,
    SAMPLINGS,
    START,
    D,
    N,
    answers,
    apart,
    bits_of,
    dataset,
    fitted,
    forget,
    hyper,
    meshed,
    query,
    refusal,
    rows_at_once,
    stop,
)

# isort: split
import jax
import jax.numpy as jnp
import mesh_across
import mesh_groups
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import jaxminimax as jmm
from benchmarks.speed import scaling
from jaxminimax import Saddle
from jaxminimax.drivers import fingerprint
from jaxminimax.gradients import summation
from jaxminimax.gradients.integer_sums import Grid
from jaxminimax.placement import shard_sums
from jaxminimax.releases import noisy_sums, reading, release_keys

# --- one process ---


def samplings(found, names=("full", "poisson")):
    """Releases with noise and without, on one device and on eight."""
    data = dataset()
    rows = jmm.placement.shard(data, meshed(8))
    for name in names:
        settings, silent = query(SAMPLINGS[name]), query(SAMPLINGS[name], 0.0)
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


def other_samplings(found):
    samplings(found, ("fixed", "narrow", "replacement", "disjoint"))


def runs(found, count=8):
    """Whole runs, with and without noise, on that many devices."""
    data, settings, silent = dataset(), *(hyper(jmm.Poisson(rate=0.1), x) for x in (1.0, 0.0))
    one, quiet = fitted(settings, data), fitted(silent, data)
    many = fitted(settings, data, meshed(count), shards=8)
    found[f"run {count}"] = apart(one.state, many.state)
    found[f"silent run {count}"] = apart(quiet.state, fitted(
        silent, data, meshed(count), shards=8).state)
    found[f"statement {count}"] = many.statement == one.statement
    found[f"epsilon {count}"] = [one.statement.epsilon, many.statement.epsilon]
    found[f"bits {count}"] = bits_of(many.state)


def further_runs(found):
    """The same on 1 device; a run that moves from 1 to 4 to 8 devices, and one of `jmm.run`."""
    runs(found, 1)
    data, settings = dataset(), hyper(jmm.Poisson(rate=0.1))
    one = fitted(settings, data)
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
    state, _ = run(KEY, START, jmm.placement.shard(data, meshed(8)), settings, jmm.sgda, GAME)
    found["scanned"] = apart(one.state, state)


def resumed(found):
    """Goes on, on two devices and on one, from what processes have saved."""
    saved, data = pathlib.Path(sys.argv[2]).parent, dataset()
    settings = hyper(jmm.Poisson(rate=0.1))
    lost = functools.partial(fitted, settings, data, checkpoint=saved / "killed")
    found["saved of killed"] = sorted(x.name for x in (saved / "killed").iterdir())
    found["refused shards"] = [refusal(lambda n=n: lost(shards=n)) for n in (4, None)]
    found["resumed shards"] = bits_of(lost(meshed(2), shards=8).state)
    found["resumed parameters"] = apart(fitted(settings, data).state, fitted(
        settings, data, every=1, checkpoint=saved / "half").state)


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
        task = problem._replace(operator=jmm.types.with_strategy(problem.operator, strategy))
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
    rows = jmm.placement.shard(data, meshed(8))
    for name in ("full", "poisson"):
        settings = query(SAMPLINGS[name])
        one = answers(settings, data, problem)
        if name == "full":
            found["drawn full"] = apart(one, answers(settings, rows, problem))
    with rows_at_once(2):
        found["drawn in passes"] = apart(one, answers(settings, rows, problem))
    # were keys those of places in a shard of 26 rows, it would show
    attach = release_keys.with_key_data
    with mock.patch.object(release_keys, "with_key_data",
                           lambda x, rows, words: attach(x, rows % 26, words)):
        forget()
        found["bug keys of places"] = apart(one, answers(settings, rows, problem))
    forget()


def slots_of_shards(found):
    """How often two shards put their k-th row into the same slot, of samples of all rows."""
    mesh, settings = meshed(8), query(jmm.Poisson(rate=1.0))
    size, (numbers,) = 26, jmm.placement.shard((np.arange(N, dtype=np.int32),), mesh).rows
    data = dataclasses.replace(jmm.placement.shard(dataset(), mesh), rows=numbers)

    def seen(z, row, mask, _):
        return summation.Sums(z.at[row // size, jnp.arange(len(row))].set(row % size + 1.0), None)

    sums = jax.jit(lambda: shard_sums.sum_over_shards(
        seen, jnp.zeros((8, size)), data, settings, jnp.arange(N), None,
        summation.Rounding(Grid(jnp.ones(()), jnp.zeros(()), False), jnp.array(True),
                           jnp.array(True)), KEY))()
    slots = np.asarray(sums.floats)[:7]  # the last shard is not full
    found["slots"] = np.sort(slots, 1).tolist()
    found["same slots"] = max(np.mean(slots[a] == slots[b]) for a in range(7) for b in range(a))


def placements(found):
    """Rows that are on the devices already, in whatever way, count once each."""
    mesh, data = meshed(8), dataset()
    one = answers(query(jmm.Full()), data)

    everywhere = jmm.placement.shard(jax.device_put(data, NamedSharding(mesh, PartitionSpec())),
                                     mesh)
    found["placed everywhere"] = apart(one, answers(query(jmm.Full()), everywhere))
    marks = {fingerprint.hash_rows(b"secret", x) for x in (data, jmm.placement.shard(data, mesh),
                                                         jmm.placement.shard(
        data, meshed(4)), jmm.placement.shard(data, Mesh(np.array(jax.devices()[::-1]), ("data",))),
        jmm.placement.shard(data, jax.make_mesh((2, 4), ("model", "data"))))}
    found["marks"] = len(marks)
    backwards = Mesh(np.array(jax.devices()[::-1]), ("data",))
    found["placed backwards"] = apart(one, answers(query(jmm.Full()),
                                                   jmm.placement.shard(data, backwards)))


def sensitivity(found):
    """The most that one record moves the sums, over the clip norms, and what all of them add."""
    mesh = meshed(8)

    def sums(clip, data):
        g = answers(query(jmm.Full(), 0.0, clip=clip), data)
        return jax.tree.map(lambda x: N * x[0], g)

    def moved(clip):
        a, b = (np.ones((N, D)) for _ in range(2))
        most = 0.0
        before = sums(clip, jmm.placement.shard((1e6 * a, 1e6 * b), mesh))
        for row in (0, 25, 26, 130, 202):  # at ends of shards and within
            c, d = 1e6 * a, 1e6 * b
            c[row], d[row] = -1e6, -1e6
            after = sums(clip, jmm.placement.shard((c, d), mesh))
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


def described(found):
    """The noise of eight devices, and shards of which a device has several."""
    silent, data = query(jmm.Full(), 0.0), dataset()
    found["noise scale"] = noise_scale(jmm.placement.shard(data, meshed(8)))
    found["cut"] = apart(answers(silent, data), answers(silent, jmm.placement.shard(
        data, meshed(2), shards=8)))


def many_leaves(found):
    """A player of nine leaves, which are summed as one array."""
    def loss(w, v, record):
        return w["a"] * jnp.sum((record[0] - sum(w["b"])) ** 2) + v @ record[1]

    problem = jmm.Problem(jmm.types.with_strategy(jmm.saddle_operator(loss), "microbatch", 4))
    z = Saddle({"a": jnp.ones(()), "b": [0.1 * START.w] * 9}, START.v)
    data = dataset()
    one, many = (answers(query(jmm.Full()), rows, problem, z)
                 for rows in (data, jmm.placement.shard(data, meshed(8))))
    found["many leaves"] = apart(one, many)


def bugs(found):
    """Noise of every device, and what else could go wrong when sums are added up."""
    silent, data, count = query(jmm.Full(), 0.0), dataset(), 8
    one, rows = answers(silent, data), jmm.placement.shard(data, meshed(count))
    sound, noise = reading.sum_over_shards, noisy_sums.integer_noise

    def uncounted(total, z, data, *rest):
        full = jax.tree.leaves(data.rows)[0].shape[0]
        return sound(total, z, dataclasses.replace(data, population=full), *rest)

    def louder(factor):
        return lambda *args: jax.tree.map(lambda x: (factor * x).astype(jnp.int32), noise(*args))

    each, cut = shard_sums._each_shard, jmm.placement.shard(data, meshed(2), shards=count)
    planted = {
        "a shard twice": (shard_sums, "_each_shard",
                          lambda turn, own: each(lambda k: turn(jnp.minimum(k, 2)), own)),
        "no sum": (shard_sums, "add_up", lambda x, _: x),
        "sum of sums": (shard_sums, "add_up",
                        lambda x, _: jax.lax.psum(jax.lax.psum(x, "data"), "data")),
        "padding counts": (reading, "sum_over_shards", uncounted),
        "noise of every device": (noisy_sums, "integer_noise", louder(count)),
        "half of the noise": (noisy_sums, "integer_noise", louder(0.5)),
    }
    for name, (where, attribute, wrong) in planted.items():
        forget()
        with mock.patch.object(where, attribute, wrong):
            found[f"bug {name}"] = (min(abs(x - 1) for x in noise_scale(rows)) if "noise" in name
                                    else apart(one, answers(silent, cut if "shard" in name
                                                            else rows)))
    forget()


def costs(found):
    """One device's share of a release, against the model."""
    steps = [scaling.compiled(count, jmm.FixedSize(batch=400, replacement=True), population=10_000,
                              dim=512, hidden=64) for count in (2, 8)]
    found["gathered"] = [(step.gathered, step.rows) for step in steps]
    found["collectives"] = [step.collectives for step in steps]
    found["size"] = [step.size for step in steps]
    found["share"] = steps[0].flops / steps[1].flops, steps[0].rows / steps[1].rows


def refusals(found):
    mesh, data = meshed(8), dataset()
    placed = jmm.placement.shard(data, mesh)
    hosts = functools.partial(fitted, hyper(SAMPLINGS["poisson"]), jmm.placement.HostData(data))
    found["hosts"] = [refusal(call) for call in (
        lambda: hosts(mesh), lambda: hosts(mesh, shards=8), lambda: hosts(shards=8))]
    short = tuple(x[:-1] for x in data)
    wrong = {
        "must have an axis 'data'": lambda: fitted(hyper(jmm.Full()), data, jax.make_mesh(
            (8,), ("rows",))),
        "described for population=203": lambda: fitted(hyper(jmm.Full()), short, mesh),
        "to hold 203 of": lambda: jmm.placement.shard(short, mesh, population=N),
        "to hold 202 of": lambda: jmm.placement.shard(data, mesh, population=N - 1),
        "spread over a mesh already": lambda: jmm.placement.shard(placed, mesh),
        "key of threefry2x32": lambda: fitted(hyper(jmm.Full()), data, mesh,
                                              key=jax.random.key(0, impl="rbg")),
        "not over": lambda: fitted(hyper(jmm.Full()), placed, meshed(4)),
        "share two leading axes": lambda: jmm.placement.shard((np.ones((3, 5)), np.ones(3)), mesh,
                                                              grouped=True),
        "described for population=203.": lambda: fitted(hyper(jmm.Full()), mesh_groups.placed(8)),
        "share one leading axis": lambda: jmm.placement.shard((data[0], short[0]), mesh),
        "fewer than 2**31": lambda: jmm.placement.own_rows(2**31 - 4, mesh),
        "shard lays them out": lambda: answers(query(jmm.Full()), dataclasses.replace(
            placed, rows=jax.tree.map(lambda x: x[:200], placed.rows))),
        "at least 1": lambda: jmm.placement.shard((np.zeros((0, 2)),), mesh),
        "multiple of the 8 devices": lambda: jmm.placement.shard(data, mesh, shards=12),
        "shards must be": lambda: fitted(hyper(jmm.Full()), data, mesh, shards=0),
        "spread over shards=None, not over 8": lambda: fitted(hyper(jmm.Full()), placed, shards=8),
    }
    found["refused"] = {words: refusal(call) for words, call in wrong.items()}


# --- two processes ---


def together(found):
    """Each process feeds its own rows, and ends with the same state and statement."""
    mesh, data = jax.make_mesh((4,), ("data",)), dataset()
    mine = jmm.placement.own_rows(N, mesh, shards=8)
    rows = tuple(x[mine] for x in data)
    found["rows"] = mine.tolist()
    placed = jmm.placement.shard(rows, mesh, population=N, shards=8)
    settings = hyper(SAMPLINGS["poisson"])
    one = fitted(settings, data)
    many = fitted(settings, placed, mesh, callback=lambda state: None)
    found["equal"] = apart(one.state, jax.device_get(many.state))
    found["statement"] = many.statement == one.statement
    found["epsilon"] = many.statement.epsilon
    found["bytes"] = bits_of(many.state)
    return mesh, data, rows, placed, one, many


def in_processes(found):
    """What else goes on in two processes: saved runs, and refusals."""
    mesh, data, rows, placed, one, many = together(found)
    settings, spread = hyper(SAMPLINGS["poisson"]), NamedSharding(mesh, PartitionSpec("data"))
    padded = tuple(np.pad(x, ((0, 104 - len(x)), (0, 0))) for x in rows)
    handed = jmm.placement.shard(tuple(jax.make_array_from_process_local_data(spread,
                                                                              x) for x in padded),
                                 mesh, population=N, shards=8)
    found["marks"] = len({fingerprint.hash_rows(b"secret", x) for x in (data, placed, handed)})
    found["resumed shards"] = bits_of(fitted(
        settings, placed, checkpoint=pathlib.Path(sys.argv[2]).parent / "killed").state)
    found["equal handed"] = apart(many.state, fitted(settings, handed, mesh).state)
    # a fresh key of one process, and a folder that both see: the second run finds the first's end
    words = multihost_utils.broadcast_one_to_all(jax.random.key_data(jmm.noise.secret_key()))
    secret = functools.partial(fitted, settings, placed, key=jax.random.wrap_key_data(words),
                               checkpoint=pathlib.Path(sys.argv[2]).parent / "saved")
    ends = [jax.device_get(secret().state) for _ in range(2)]
    found["saved"] = apart(*ends)
    found["secret"] = np.asarray(ends[0].z.w).tobytes().hex()
    mesh_across.across(found, one)
    me = jax.process_index()
    wrong = {
        "key must be equal": lambda: fitted(settings, placed, key=jax.random.key(me)),
        "settings must be equal": lambda: fitted(hyper(jmm.Poisson(rate=0.1), 1.0 + me), placed),
        "z must be equal": lambda: fitted(settings, placed, z=Saddle(START.w + me, START.v)),
        "the saved state must be equal": lambda: jmm.placement.agree(
            mesh, **{"the saved state": jnp.int32(me)}),
        "population must be given": lambda: fitted(settings, data, mesh),
        "this process is to hold": lambda: jmm.placement.shard(data, mesh, population=N, shards=8),
        "population and mesh must": lambda: jmm.placement.shard(
            rows, mesh, population=N, shards=4 + 4 * me),
        "Global arrays must have": lambda: jmm.placement.shard(
            jax.make_array_from_process_local_data(spread, np.zeros((104, D))), mesh,
            population=N),  # not cut into 8
        # or a row would be held, and counted, by both
        "population and mesh must be equal": lambda: jmm.placement.shard(
            rows, mesh, population=N + me, shards=8),
        "population and mesh": lambda: jmm.placement.shard(
            rows, Mesh(mesh.devices[::1 - 2 * me], ("data",)), population=N, shards=8),
    }
    found["refused"] = {words: refusal(call) for words, call in wrong.items()}


def main():
    actual, checks = {}, {
        "devices": (runs, samplings, sensitivity, described, many_leaves, refusals,
                    mesh_groups.releases, mesh_groups.clips, mesh_groups.streams),
        "further": (further_runs, other_samplings, keys_of_rows, slots_of_shards, algorithms,
                    placements, other_meshes, costs, mesh_groups.certified, mesh_groups.runs),
        "planted": (resumed, bugs, mesh_groups.planted, mesh_groups.planted_solutions),
        "pair": (together,),
        "process": (mesh_across.killed,) if PROCESSES == 4 else (in_processes,
                                                                 mesh_groups.together)}
    for check in checks[sys.argv[1]]:
        check(actual)
    pathlib.Path(sys.argv[2]).write_text(json.dumps(actual))


if __name__ == "__main__":
    main()
