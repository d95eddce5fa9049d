"""Parameters and copies of rows across processes, and one that is killed, for `mesh_worker`."""

import contextlib
import functools
import json
import os
import pathlib
import signal
import sys
from unittest import mock

from mesh_setup import (  # before JAX
    SAMPLINGS,
    START,
    N,
    apart,
    bits_of,
    dataset,
    fitted,
    hyper,
    refusal,
    stop,
)

# isort: split
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from orbax.checkpoint import checkpoint_manager

import jaxminimax as jmm
from jaxminimax import Saddle
from jaxminimax.drivers import fingerprint
from jaxminimax.placement import agreement, sharding

SETTINGS = hyper(SAMPLINGS["poisson"])


def across(found, one):
    """Two processes hold copies of all rows, and a half of w each; `one` is the run of a device."""
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2).T, ("data", "model"))
    data, me = dataset(), jax.process_index()
    halves = NamedSharding(sharding.automatic(mesh), PartitionSpec("model"))

    def spread(x):
        return jax.make_array_from_callback(x.shape, halves, np.asarray(x).__getitem__)

    z = Saddle(spread(START.w), START.v)
    assert len(jmm.placement.own_rows(N, mesh)) == N
    placed = jmm.placement.shard(data, mesh, population=N)
    found["marks across"] = [fingerprint.hash_rows(b"secret", x) for x in (data, placed)]
    go = functools.partial(fitted, SETTINGS, mesh=mesh, z=z, every=1)
    many = go(placed)
    found["across"] = apart(one.state, sharding.on_host(many.state))
    found["statement across"] = many.statement == one.statement
    found["held"] = [x.data.shape for x in many.state.z.w.addressable_shards]
    saved = pathlib.Path(sys.argv[2]).parent
    with contextlib.suppress(KeyboardInterrupt):
        go(placed, checkpoint=saved / "parameters", callback=stop(3))
    last = go(placed, checkpoint=saved / "parameters",
              callback=lambda state: found.update(seen=state.z.w.shape))
    found["resumed across"] = apart(*map(sharding.on_host, (many.state, last.state)))
    with contextlib.suppress(KeyboardInterrupt):  # to be gone on with by one process
        go(placed, checkpoint=saved / "half", callback=stop(3))
    copies(found, mesh, data)
    found["refused across"] = {words: refusal(call) for words, call in {
        "z must be equal": lambda: go(placed, z=Saddle(spread(START.w), START.v + me)),
        "the saved state must be equal": lambda: jmm.placement.agree(
            mesh, **{"the saved state": apart_along(mesh, me)}),
    }.items()}
    jmm.placement.agree(mesh, parts=spread(np.arange(4.0)))  # which differ by their places


def apart_along(mesh, me):
    """Spread over "data", of which the two processes should hold copies."""
    return jax.make_array_from_callback((4,), NamedSharding(
        sharding.automatic(mesh), PartitionSpec("data")), lambda at: np.full(4, float(me))[at])


def copies(found, mesh, rows):
    """The second process has one bit of one record that the first does not have."""
    wrong = tuple(x.copy() for x in rows)
    if jax.process_index() == 1:
        wrong[0].view(np.uint64)[77, 0] ^= 1
    found["copies"] = refusal(lambda: jmm.placement.shard(wrong, mesh, population=N))
    with mock.patch.object(agreement, "_as_neighbours", return_value=True):
        found["bug copies"] = refusal(lambda: jmm.placement.shard(wrong, mesh, population=N))


def killed(found):
    """A run of four processes; then again, until the last dies in the middle of a save.

    It does when all have written the third state, before that has its name.
    """
    mesh = jax.make_mesh((4,), ("data",))
    rows = tuple(x[jmm.placement.own_rows(N, mesh, shards=8)] for x in dataset())
    go = functools.partial(fitted, SETTINGS, jmm.placement.shard(rows, mesh, population=N,
                                                                 shards=8), mesh)
    done, out = go(), pathlib.Path(sys.argv[2])
    found["shards"] = [bits_of(done.state), done.statement.epsilon]
    out.write_text(json.dumps(found))
    save, waits, saves = checkpoint_manager.Checkpointer.save, checkpoint_manager.multihost, []
    wait = waits.sync_global_processes

    def die(name, *rest, **how):
        if len(saves) == 3 and name.startswith("Checkpointer:save") and "start" not in name:
            os.kill(os.getpid(), signal.SIGKILL)
        return wait(name, *rest, **how)

    def counted(*args, **how):
        saves.append(args)
        return save(*args, **how)

    with contextlib.ExitStack() as patches:
        if jax.process_index() == 3:
            for where, name, new in ((checkpoint_manager.Checkpointer, "save", counted),
                                     (waits, "sync_global_processes", die)):
                patches.enter_context(mock.patch.object(where, name, new))
        go(every=1, checkpoint=out.parent / "killed")
