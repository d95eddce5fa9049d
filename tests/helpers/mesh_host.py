"""Data on the hosts of a mesh, for `mesh_worker`: the run of the mesh in memory, bit for bit."""

import dataclasses
import functools
import tempfile
from unittest import mock

from mesh_setup import (  # before JAX
    KEY,
    ROUNDS,
    SAMPLINGS,
    N,
    answers,
    apart,
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
import numpy as np
from jax.sharding import Mesh

import jaxminimax as jmm
from jaxminimax.drivers import fingerprint
from jaxminimax.drivers.long_runs import Supply, _draw
from jaxminimax.placement.sent_rows import HostShards, on_mesh
from jaxminimax.releases import release_keys


class Records:
    """The rows one by one, and no array."""

    def __init__(self, columns):
        self.columns = columns

    def __len__(self):
        return len(self.columns[0])

    def __getitem__(self, number):
        return tuple(x[number] for x in self.columns)


def ahead(settings, data, mesh):
    """What is sent for three releases."""
    mechanism = jmm.mechanism.Repeat(query=settings, times=3)
    with Supply(KEY, mechanism, on_mesh(data, mesh), [3], 0, 3) as supply:
        ((window, count),) = supply.piece(3)
    assert count == 3
    return window


def moved(window, change):
    """With the numbers that each shard was sent changed, where they are."""
    numbers = jax.device_put(change(np.array(window.numbers)), window.numbers.sharding)
    return dataclasses.replace(window, numbers=numbers)


def last_of_last_shard(numbers):
    """One row of the last shard is another one."""
    (at,) = np.nonzero(numbers[1, -1] >= 0)
    numbers[1, -1, at[-1]] -= 1
    return numbers


def missing(released):
    """Which releases are NaN, all of them or in part."""
    g = np.concatenate([np.asarray(x) for x in released], 1)
    assert (np.isnan(g).all(1) == np.isnan(g).any(1)).all()
    return np.isnan(g).all(1).tolist()


def sampling(found, name, mesh, in_memory):
    """Releases of data on the host, for a sampling whose releases in memory are known."""
    window = ahead(query(SAMPLINGS[name]), jmm.placement.HostData(dataset()), mesh)
    found[f"host {name}"] = apart(in_memory, answers(query(SAMPLINGS[name]), window))


def planted(found, mesh, silent_in_memory):
    """What shards are sent is not what they read, or more than one pass reads."""
    settings, silent = query(SAMPLINGS["poisson"]), query(SAMPLINGS["poisson"], 0.0)
    held, last = jmm.placement.HostData(dataset()), list(range(mesh.size))[::-1]
    window = ahead(settings, held, mesh)
    found["host sound"] = missing(answers(settings, window))
    wrong = moved(window, last_of_last_shard)
    found["host wrong row"] = missing(answers(settings, wrong))
    swapped = dataclasses.replace(moved(window, lambda x: x[:, last]), rows=jax.tree.map(
        lambda x: jax.device_put(np.asarray(x)[:, last], x.sharding), window.rows))
    found["host swapped shards"] = missing(answers(settings, swapped))
    later = dataclasses.replace(window, first=window.first + 1)
    found["host other releases"] = missing(answers(settings, later))
    found["host refused"] = refusal(lambda: answers(query(jmm.Disjoint(batch=7)), window))
    with rows_at_once(2):  # several passes, of which some shards need more than others
        more = ahead(silent, held, mesh)
        found["host passes"] = apart(silent_in_memory, answers(silent, more))
    # were samples not marked by their release and key, another's rows would be released
    with mock.patch.object(release_keys.Keys, "ahead", return_value=jnp.zeros(2, jnp.uint32)):
        forget()
        _draw.clear_cache()
        window = ahead(settings, held, mesh)
        later = dataclasses.replace(window, first=window.first + 1)
        found["bug one mark"] = missing(answers(settings, later))
    forget()
    _draw.clear_cache()


def runs(found):
    """A run of rows that come one by one, and one that goes on in memory on more devices."""
    data, mesh = dataset(), meshed(4)
    go = functools.partial(fitted, hyper(SAMPLINGS["poisson"]), every=1, shards=8)
    many = go(data, mesh)
    sent = go(jmm.placement.HostData(Records(data)), mesh)
    found["host run"] = apart(many.state, sent.state)
    found["host statement"] = many.statement == sent.statement
    with tempfile.TemporaryDirectory() as folder:
        go = functools.partial(go, checkpoint=folder)
        try:
            go(jmm.placement.HostData(data), mesh, callback=stop(ROUNDS // 2))
        except KeyboardInterrupt:
            found["host resumed"] = apart(many.state, go(data, meshed(8)).state)


def together(found, rows, mesh, many, mark):
    """Two processes, each with its own rows on its host."""
    settings, me = hyper(SAMPLINGS["poisson"]), jax.process_index()
    held, cut = jmm.placement.HostData(rows, population=N), functools.partial(fitted, shards=8)
    sent = cut(settings, held, mesh)
    found["host equal"] = apart(many.state, sent.state)
    found["host statement"] = sent.statement == many.statement
    found["host mark"] = fingerprint.of_rows(b"secret", on_mesh(held, mesh, 8)) == mark
    gather = HostShards.gather

    def wrong(self, *args):
        numbers, read = gather(self, *args)
        return last_of_last_shard(numbers) if me == 1 else numbers, read

    with mock.patch.object(HostShards, "gather", wrong):  # process 1 holds the last shard
        state = cut(settings, held, mesh).state
    found["host wrong row"] = bool(jnp.isnan(state.z.w).all() & jnp.isnan(state.z.v).all())
    other = Mesh(mesh.devices[::1 - 2 * me], ("data",))
    refused = {
        "population and mesh must be equal": lambda: cut(settings, jmm.placement.HostData(
            rows, population=N + 2 * me), mesh),
        "population and mesh must": lambda: cut(settings, held, other),
        "rounds, shapes and dtypes of HostData must be equal": lambda: cut(
            settings, jmm.placement.HostData(rows, population=N, rounds=1 + me), mesh),
        "whether a process holds the rows": lambda: cut(settings, jmm.placement.HostData(
            tuple(x[:len(x) - me] for x in rows), population=N), mesh),
        "key must be equal": lambda: cut(settings, held, mesh, key=jax.random.key(me)),
    }
    found["host refused"] = {words: refusal(call) for words, call in refused.items()}
