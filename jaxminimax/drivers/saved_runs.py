"""Saved states of a run in a folder, and its entry in a ledger."""

import contextlib
import importlib.util
import json
import os
import pathlib
import re
import tempfile
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxminimax.accounting.ledger import Entry, Ledger
from jaxminimax.base import checks, own_files, programs, saved_json, types
from jaxminimax.drivers import fingerprint
from jaxminimax.mechanism import Description
from jaxminimax.releases import release_keys

SHARDS = "number of shards"


def promise_of(key: jax.Array | None, described: Description, hyper: Any,
               algorithm: types.Algorithm[Any, Any], shards: int | None = None) -> dict[str, Any]:
    """Returns the settings that a resumed run must share; they never suffice to recover the key.

    Args:
      key: of the run, or those of all runs of a sweep; None for what is not stored.
      described: what is charged.
      hyper: the algorithm's `Hyper`, or several that are stacked.
      algorithm: a module such as `sgda`.
      shards: parts that the rows are summed in; None if their number is not fixed.
    """
    numbers = [np.asarray(x, np.float64).tolist() for x in jax.tree.leaves(hyper)]
    # 16 bits that only the key's owner can compute: another key is caught all but always
    mark = None if key is None else np.asarray(jnp.vectorize(
        lambda root_key: jax.random.bits(jax.random.fold_in(root_key, 2**31 - 1), (), jnp.uint16))(
            key)).tolist()
    name = getattr(algorithm, "__name__", type(algorithm).__name__)
    # a function prints its address, which is another one in every process
    words = re.sub(r"<function (\S+) at 0x[0-9a-f]+>", r"\1", repr(described))
    # part of the keys; a run whose parts are all of different kinds has nothing but zeros
    places = [leaf.place for leaf in described.answered()]
    return {"algorithm": name, "mechanism": words, "numbers": numbers, "key mark": mark,
            "key scheme": release_keys.SCHEME} | (
                {"place of a part": places} if any(places) else {}) | programs.effort() | (
                    {} if shards is None else {SHARDS: int(shards)})


def check_folder(path: str | os.PathLike[str], key: jax.Array) -> None:
    """Refuses a folder or keys that nothing can go on from, before anything is charged or run."""
    if importlib.util.find_spec("orbax") is None:
        raise ImportError("checkpoint=... needs orbax-checkpoint: pip install 'jaxminimax[fit]'")
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"checkpoint must be the path of a folder, got {checks.describe(path)}.")
    try:
        own_files.make(pathlib.Path(path))
        with tempfile.TemporaryFile(dir=os.fspath(path)):
            pass
    except OSError as error:
        raise ValueError(f"checkpoint={os.fspath(path)!r} is no folder that can be written to "
                         f"({error.strerror}): give one that can.") from None
    if jax.random.key_impl(key) != "threefry2x32":
        raise ValueError(f"A checkpoint needs a key of threefry2x32, got {jax.random.key_impl(key)}"
                         ": rounds that are repeated after a crash must repeat their noise on any "
                         "device. Use secret_key(), or no checkpoint.")


class Folder(contextlib.AbstractContextManager["Folder"]):
    """Saves states in a folder, by orbax; does nothing without a folder."""

    def __init__(self, path: str | os.PathLike[str] | None, promise: dict[str, Any],
                 keep: int | None = 2) -> None:
        self._promise = promise
        self._manager: Any = None
        if path is None:
            return
        import orbax.checkpoint as ocp

        self._args = ocp.args
        self._manager = ocp.CheckpointManager(
            os.path.abspath(path),
            options=ocp.CheckpointManagerOptions(  # what a killed process left holds a state, too
                max_to_keep=keep, enable_async_checkpointing=False, cleanup_tmp_directories=True))

    def __exit__(self, *_: object) -> None:
        if self._manager is not None:
            self._manager.close()

    def latest(self, state: Any) -> Any:
        """Returns the newest saved state, or `state` if there is none."""
        if self._manager is None or self._manager.latest_step() is None:
            return state
        return self.restored(self._manager.latest_step(), state)

    def steps(self) -> set[int]:
        """Returns the numbers of all saved states."""
        return set() if self._manager is None else set(self._manager.all_steps())

    def restored(self, step: int, state: Any) -> Any:
        """Returns the saved state of that number, in the shapes of `state`."""
        with saved_json.explained(self._manager.directory / str(step), "whole state of a run",
                                  "Restore it, or use an empty folder to start anew."):
            saved = self._manager.restore(
                step, args=self._args.Composite(promise=self._args.JsonRestore())).promise
            saved_json.check(saved, "run", "checkpoint")
        for name, value in ({SHARDS: None, programs.EFFORT: None} | self._promise).items():
            if saved.get(name) != value:
                raise ValueError(f"The checkpoint is of a run with another {name}: use its own "
                                 "key, data, problem and settings to go on, or an empty folder to "
                                 "start anew.")
        try:
            return self._manager.restore(
                step, args=self._args.Composite(state=self._args.StandardRestore(state))).state
        except ValueError as error:  # of an older version, whose states had other fields
            raise ValueError("The checkpoint is of a run with another shape of its state: go on "
                             "with the version that it began with, or with an empty folder to "
                             "start anew.") from error

    def save(self, step: int, state: Any) -> None:
        """Saves `state` and waits until it is on disk.

        Each process writes the parts of the state that are its own, or first its own. When all have
        written, one of them gives the folder its name, which is what makes it a saved state; the
        others wait for that, so that none shows a state that could be lost.
        """
        if self._manager is None:
            return
        with own_files.closed_to_writing():
            saved = self._manager.save(step, args=self._args.Composite(
                state=self._args.StandardSave(state), promise=self._args.JsonSave(self._promise)))
            self._manager.wait_until_finished()
        self._manager.reload()  # from the disk
        if not saved or step not in self._manager.all_steps():
            raise RuntimeError(f"The state after {step} rounds was not saved in "
                               f"{self._manager.directory}: the run ends before anybody sees it.")


# --- the ledger: a run is charged once, however often it goes on after a crash ---
#
# A run is recognised by two marks that only the owner of its key can make: of the key, and of the
# key with everything that decides what is released, but for the data. The charge is on disk before
# data are read; before the first release, keyed hashes of the rows, the problem and the initial
# point are, too. A run that goes on must agree with all of them, so that it repeats what it had
# released, bit for bit, also where its checkpoint was lost: nothing new is released, and nothing is
# charged. Another machine, strategy or version of JAX rounds otherwise, so a run may go on there
# from the last state that was shown, but not from an earlier one, nor begin anew: equal noise at
# other points would give the data away. Without a checkpoint a key is good for one start.


class Booking(contextlib.AbstractContextManager["Booking"]):
    """Books a run in a ledger, if there is one; a context that closes the entry at its end.

    A run that is refused is cancelled. An exception of another kind leaves it charged, because the
    content of records might have caused it.

    Raises:
      ValueError: if the ledger refuses it, or is for other units; where several processes run.
    """

    def __init__(self, ledger: Ledger | None, key: jax.Array, described: Description,
                 promise: dict[str, Any], name: str | None, resumable: bool,
                 delta: float, **stated: Any) -> None:
        self._entry: Entry | None = None
        self._own, self._begun = fingerprint.secret(key), False
        self._last: Any = None  # the state of a run that ended early
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
        marks = fingerprint.mark_of_run(self._own, json.dumps(promise).encode(),
                                        resumable=resumable)
        smaller = ledger.filter == "basic" and delta < ledger.delta
        self._entry = ledger.reserve(described, name=name, run=marks,
                                     delta=delta if smaller else None)

    def bind(self, z: types.PyTree, marks: dict[str, str], problem: types.AnyProblem,
             mesh: Mesh | None = None) -> None:
        """Records the inputs and programs of a run, or refuses others than it began with."""
        if self._entry is None:
            return
        start = [np.asarray(x) for x in jax.tree.leaves(z)]
        numbers = [content for x in start for content in (repr((x.shape, x.dtype.name)).encode(),
                                                    x.tobytes())]
        self._entry.ledger.bind(
            self._entry, {**marks, "initial point": fingerprint.mark(self._own, *numbers)},
            fingerprint.hash_machine(self._own, problem, mesh))

    def bind_place(self, completed: int, problem: types.AnyProblem, mesh: Mesh | None) -> None:
        """Refuses another machine than a run began on, if it repeats rounds that were shown before.

        A run that went on elsewhere repeats nothing any more.
        """
        if self._entry is not None:
            ledger = self._entry.ledger
            anew = not completed or completed < ledger.shown(self._entry, completed)
            ledger.bind(self._entry, fingerprint.hash_machine(self._own, problem, mesh),
                        several=not anew)

    def begin(self, completed: int) -> None:
        """Notes that others may see the state after so many rounds from here on."""
        self._begun = True
        if self._entry is not None:
            self._entry.ledger.shown(self._entry, completed)

    def end(self, state: Any) -> None:
        """Notes the last state of a run that makes no further release."""
        self._last = state

    def __exit__(self, kind: Any, *_: object) -> None:
        if self._entry is None:
            return
        if kind is None:
            self._entry.close(self._last)
        elif self._entry.fresh and not self._begun and issubclass(kind, ValueError | TypeError):
            # shapes, descriptions or settings do not fit, and nobody has seen a state; where
            # another process goes on with the run, it stays charged
            with contextlib.suppress(ValueError):
                self._entry.cancel()
