"""How a run of `fit` is charged to a ledger, once, however often it goes on after a crash.

A run is known again by two marks that only the owner of its key can make: of the key, and of the
key with everything that decides what is released, but for the data. The charge is on disk before
data are read. Then, before the first release, keyed hashes of the rows, the problem and the initial
point are written down too. A run that goes on must agree with all of them, so that it repeats what
it had released, bit for bit, also where its checkpoint was lost: nothing new is released, and
nothing is charged. Another device, mesh, strategy or version of JAX rounds otherwise, so a run may
go on there from the last state that was shown, but not from an earlier one, nor begin anew: equal
noise at other points would give the data away.
Without a checkpoint the rows are not hashed, and a key is good for one start.
"""

import contextlib
import functools
import importlib.metadata
import json
import os
import pathlib
import platform
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxminimax.accounting import Entry, Ledger, RunMark
from jaxminimax.base.types import GroupProblem, Problem, PyTree
from jaxminimax.drivers import fingerprint
from jaxminimax.mechanism.description import Mechanism

# that compilers read
_VARIABLES = ("XLA_FLAGS", "LIBTPU_INIT_ARGS", "JAX_DISABLE_MOST_OPTIMIZATIONS", "NPROC")


@functools.cache
def _instructions() -> tuple[str, str]:
    """What a processor can do: compilers round as its instructions do."""
    try:
        told = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        told = ""
    return platform.machine(), next((line for line in told.splitlines()
                                     if line.lower().startswith(("flags", "features"))), "")


class Booking:
    """A run in a ledger, as a context: closed at its end, cancelled if it was refused before.

    An exception of another kind leaves it charged: it might have been made by what records contain.

    Args:
      ledger: None: no ledger, and nothing is done.
      key: root key of the run.
      described: its description.
      promise: what decides what is released, but the data.
      name: of the run.
      resumable: whether it has a checkpoint.
      delta: of the statement of `fit`.
      **stated: unit, neighbours and people of that statement.

    Raises:
      ValueError: if the ledger refuses it, or is for another unit, other neighbours or people;
        where several processes run.
    """

    def __init__(self, ledger: Ledger | None, key: jax.Array, described: Mechanism,
                 promise: dict[str, Any], name: str | None, resumable: bool,
                 delta: float, **stated: Any) -> None:
        self._entry: Entry | None = None
        self._key, self._begun = key, False
        if ledger is None:
            if name is not None:
                raise ValueError(f"name = {name!r} is that of a run in a ledger: give ledger=... "
                                 "too.")
            return
        ledger.check_same("The run", **stated)
        if jax.process_count() > 1:
            raise ValueError("Several processes would each charge the run: reserve it in one of "
                             "them before, by ledger.reserve(algorithm, hyper, name=...), and "
                             "leave out ledger=... here.")
        own = fingerprint.secret(key)
        marks = RunMark(
            key=fingerprint.mark(own, b"a key in a ledger"),
            run=fingerprint.mark(own, b"a run in a ledger", json.dumps(promise).encode()),
            resumable=resumable)
        own_delta = ledger.filter == "basic" and delta < ledger.delta
        self._entry = ledger.reserve(described, name=name, run=marks,
                                     delta=delta if own_delta else None)

    def bind(self, z: PyTree, marks: dict[str, str], problem: Problem | GroupProblem,
             mesh: Mesh | None = None) -> None:
        """Writes down what a run reads and computes, or compares it with what it began with.

        Args:
          z: initial point.
          marks: of `fingerprint.of_run`.
          problem: how its sums are computed.
          mesh: where it runs.

        Raises:
          ValueError: naming what is another one.
        """
        if self._entry is None:
            return
        start = [np.asarray(x) for x in jax.tree.leaves(z)]
        told = [part for x in start for part in (repr((x.shape, x.dtype.name)).encode(),
                                                 x.tobytes())]
        self._entry.ledger.bind(self._entry, {**marks, "initial point": fingerprint.mark(
            fingerprint.secret(self._key), *told)}, self._place(problem, mesh))

    def bind_place(self, done: int, problem: Problem | GroupProblem, mesh: Mesh | None) -> None:
        """Compares where a run goes on with where it began, if it repeats what was shown before.

        A run that went on elsewhere repeats nothing any more.

        Raises:
          ValueError: if it is another place.
        """
        if self._entry is not None:
            ledger, place = self._entry.ledger, self._place(problem, mesh)
            anew = not done or done < ledger.shown(self._entry, done)
            ledger.bind(self._entry, place, several=not anew)

    def _place(self, problem: Problem | GroupProblem, mesh: Mesh | None) -> dict[str, str]:
        """What decides how numbers are rounded."""
        # where arrays are made that nobody placed
        device = min(jnp.zeros(()).devices(), key=lambda one: one.id) if mesh is None else (
            mesh.devices.flat[0])
        widest = jnp.result_type(float).name
        how = [getattr(problem.operator, name, None)
               for name in ("strategy", "microbatch", "memory", "precision")]
        told = (jax.__version__, importlib.metadata.version("jaxlib"), device.platform,
                device.device_kind, widest, None if mesh is None else dict(mesh.shape), how,
                [os.environ.get(name) or "" for name in _VARIABLES],
                _instructions() if device.platform == "cpu" else None)
        return {"device, mesh, strategy or version of JAX": fingerprint.mark(
            fingerprint.secret(self._key), repr(told).encode())}

    def begin(self, done: int) -> None:
        """From here on others may see the state after so many rounds."""
        self._begun = True
        if self._entry is not None:
            self._entry.ledger.shown(self._entry, done)

    def __enter__(self) -> "Booking":
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        if self._entry is None:
            return
        if kind is None:
            self._entry.close()
        elif self._entry.fresh and not self._begun and issubclass(kind, ValueError | TypeError):
            # shapes, descriptions or settings do not fit, and nobody has seen a state; where
            # another process goes on with the run, it stays charged
            with contextlib.suppress(ValueError):
                self._entry.cancel()
