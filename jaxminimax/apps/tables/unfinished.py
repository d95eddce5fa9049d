"""A run that may be stopped at any moment, and go on: its folder holds all that it needs for that.

A key that is drawn anew at every start would make a second release of a run that was stopped, and
spend its budget twice. So the key is saved, for as long as the run is not finished, in a folder
that only its owner may write to, in a file that only its owner may read: with the key the noise can
be subtracted. Next to it lie what the run promised (its schema, epsilon, delta, all settings,
versions and device, keyed fingerprints of its rows and of how it adds noise), what it released
before training (ranges, means), and the state of the training. All draws are functions of the key,
so what was lost between two saved states is repeated, and not released anew. A folder of another
run is refused, as its noise would stand on other numbers: equal noise at another point, or times
another factor, gives the data away. Other settings that the same arguments give, in a later version
or on a mesh, are refused for the same reason.

The promise is written before the key, the key before anything is released, and the folder is
removed as a whole. A folder with a key and no promise, or with released numbers and no key, is
refused. So is one that was replaced by another before the key was in it: nothing is released with
such a key.
"""

import contextlib
import importlib.util
import json
import os
import pathlib
import sys
from collections.abc import Callable
from typing import Any, NoReturn, Self

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax.accounting.ledger import Entry, Ledger
from jaxminimax.apps.tables.scorer import MODEL
from jaxminimax.base import own_files, saved_json, types
from jaxminimax.drivers import fingerprint
from jaxminimax.mechanism import Description
from jaxminimax.noise import secret_key
from jaxminimax.releases import release_keys

REPORT, PAGE = "report.json", "report.html"  # of a folder of results, besides the model
UNFINISHED = "unfinished"  # folders of runs, by number
_KEY, _PROMISE = "key", "promise.json"
_GIVE_UP = ("To give it up, and begin another one, delete that folder; what anybody saw of it "
             "stays spent.")
LONG = 3e9  # a run that reads at least so many numbers saves its state on the way
_SAVES = 20


class Unfinished:
    """The folder of one run, or its key alone if it has no folder; also a context.

    No other process has the folder until the context ends.

    Attributes:
      key: root key of the run, a secret.
      going_on: whether the folder had been begun before.

    Args:
      folder: made if it is not there, and removed by the caller after the run's end, by
        `own_files.remove`; None: nothing is saved.
      key: of the run; None: that of the folder, or one drawn from the system's entropy.

    Raises:
      ValueError: for a folder of a run with another key, one that another user owns or may write
        to, one that another process has, or one that cannot be written.
    """

    def __init__(self, folder: Any, key: jax.Array | None = None) -> None:
        self._folder = None if folder is None else pathlib.Path(folder)
        self._place: int | None = None  # the folder, open, whatever its name leads to later
        self.going_on, self._promised = False, b""
        with contextlib.ExitStack() as open_files:
            if self._folder is not None:
                try:
                    own_files.make(self._folder)
                    open_files.enter_context(own_files.locked(self._folder))
                    if sys.platform != "win32":
                        self._place = os.open(self._folder, os.O_RDONLY)
                        open_files.callback(os.close, self._place)
                except OSError as error:
                    raise ValueError(f"{self._folder} cannot be written: {error}") from error
                for name in (_KEY, _PROMISE):
                    own_files.sweep(self._folder / name)
                self.going_on = (self._folder / _KEY).exists()
                if self.going_on and not (self._folder / _PROMISE).exists():
                    self._refuse_as("holds a key, but nothing of the run that it is of")
            if self.going_on:
                self.key = self._saved_key(key)
            else:
                self.key = secret_key() if key is None else key
            self._lock = open_files.pop_all()  # closed if anything above was refused

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.close()

    def promise(self, rows: types.PyTree, settings: str, **plain_values: Any) -> None:
        """Writes down rows and settings of the run, or compares them with those of its first start.

        Args:
          rows: everything that it reads of the data.
          settings: in words that are the same in every process, all that follows from
            `plain_values`.
          **plain_values: plain values that decide what is released.

        Raises:
          ValueError: naming what is another one, or for a folder that was replaced by another one.
        """
        if self._folder is None:
            return
        secret = fingerprint.secret(self.key)
        promised = json.loads(json.dumps(plain_values | {
            "key scheme": release_keys.SCHEME, **fingerprint.hash_machine(secret),
            **fingerprint.hash_release(secret),
            "table, or order of its rows": fingerprint.hash_rows(secret, rows),
            "setting": settings}))
        self._promised = json.dumps(promised).encode()
        if self.going_on:
            saved = self._read(_PROMISE)
            for name in promised | saved:
                if promised.get(name) != saved.get(name):
                    self._refuse(name)
        else:
            self._write(_PROMISE, promised)
            self._write(_KEY, _words(self.key), new=True)
        if self._place is not None:
            own_files.check(self._folder, os.fstat(self._place))
            if not (own_files.is_at(self._place, self._folder) and _KEY in os.listdir(self._place)):
                self._refuse_as("was replaced by another folder before anything was released")

    def reserve(self, ledger: Ledger, described: Description, **charge_options: Any) -> Entry:
        """Charges a ledger for the run, after `promise` and before anything is released.

        A run that goes on is charged once. If a new run is refused, its folder is removed, because
        it has released nothing.

        Args:
          ledger: for the data that the run reads.
          described: all that the run releases.
          **charge_options: `name`, `delta` and `unit` of `Ledger.reserve`.

        Raises:
          ValueError: if the ledger refuses it.
        """
        try:
            return ledger.reserve(described, **charge_options, run=fingerprint.mark_of_run(
                fingerprint.secret(self.key), self._promised, resumable=self._folder is not None))
        except ValueError:
            if self._folder is not None and not self.going_on:
                own_files.remove(self._folder)
            raise

    def once(self, name: str, make: Callable[[], types.PyTree]) -> types.PyTree:
        """Returns the release of `make`, as numbers and lists; a resumed run returns the saved one.

        Args:
          name: of the release.
          make: called unless it was released before.
        """
        if self._folder is not None:
            own_files.sweep(self._folder / name)
            if self._exists(name):
                return self._read(name)
        result = make()
        self._write(name, result)
        return result

    def driver(self, size: float, rounds: int) -> dict[str, Any]:
        """Returns the arguments of `fit` that save its state in the folder; none for a short run.

        Args:
          size: numbers that a round reads.
          rounds: of the run.
        """
        if (self._folder is None or size * rounds < LONG
                or importlib.util.find_spec("orbax") is None):
            return {}
        self._exists("rounds")
        return {"checkpoint": self._folder / "rounds", "every": max(1, rounds // _SAVES)}

    def _exists(self, name: str) -> bool:
        """Returns whether the run had a file or folder before; any other one is not its own."""
        assert self._folder is not None
        exists = (self._folder / name).exists()
        if exists and not self.going_on:
            self._refuse_as(f"holds {name}, but no key of the run that it is of")
        return exists

    def _saved_key(self, caller_key: jax.Array | None) -> jax.Array:
        """Returns the key of the folder; refuses another one that was passed."""
        key = self._read(_KEY, secret=True, make=_key_of)
        if caller_key is not None and _words(caller_key) != _words(key):
            self._refuse("seed or key")
        return key

    def _read(self, name: str, secret: bool = False,
              make: Callable[[Any], Any] = lambda record: record) -> Any:
        """Returns what `make` makes of a file's record; refuses a damaged one."""
        assert self._folder is not None
        text = own_files.read_bytes(self._folder / name, secret=secret)
        with saved_json.explained(self._folder / name, "whole file of its run", _GIVE_UP):
            record = saved_json.parsed(text)
            saved_json.check(record, "run", name)
            return make(record)

    def _write(self, name: str, content: Any, new: bool = False) -> None:
        """Writes all of a file or nothing, readable for the owner alone."""
        if self._folder is not None:
            own_files.write(self._folder / name, json.dumps(content), mode=0o600, new=new)

    def _refuse(self, name: str) -> None:
        self._refuse_as(f"is of a run that was stopped, with another {name}: repeat its own "
                        "command to go on with it")

    def _refuse_as(self, problem: str) -> NoReturn:
        raise ValueError(f"{self._folder} {problem}. {_GIVE_UP}")


def _key_of(words: list[Any]) -> jax.Array:
    key = jax.random.wrap_key_data(jnp.array(np.array(words[1:], np.uint32)), impl=words[0])
    if key.shape != () or _words(key) != words:
        raise ValueError("it holds no key")
    return key


def _words(key: jax.Array) -> list[Any]:
    return [str(jax.random.key_impl(key)), *np.asarray(jax.random.key_data(key)).tolist()]


def results_locked(folder: pathlib.Path | None) -> contextlib.ExitStack:
    """Locks the folder of the results for this process, before any budget is spent."""
    with contextlib.ExitStack() as locks:
        if folder is None:
            return locks
        try:
            if not folder.exists():
                own_files.make(folder, 0o755)
            own_files.check_parent(folder)
            locks.enter_context(own_files.locked(folder / MODEL))
            locks.callback((folder / f"{MODEL}.lock").unlink, missing_ok=True)
            for name in (REPORT, PAGE, UNFINISHED):
                own_files.sweep(folder / name)
        except OSError as error:
            raise ValueError(f"--out {folder} cannot be written: {error}") from error
        if (folder / UNFINISHED).exists():
            own_files.check(folder / UNFINISHED)
        locks.callback(_drop_empty, folder / UNFINISHED)
        return locks.pop_all()


def _drop_empty(folder: pathlib.Path) -> None:
    """Removes the folder of runs if it holds none, as after a refusal."""
    with contextlib.suppress(OSError):
        folder.rmdir()
