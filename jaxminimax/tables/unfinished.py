"""A run that may be stopped at any moment, and go on: its folder holds all that it needs for that.

A key that is drawn anew at every start would make a second release of a run that was stopped, and
spend its budget twice. So the key is saved, for as long as the run is not finished, in a folder
that only its owner may read: whoever has it can subtract the noise. Beside it stand what the run
promised (its schema, epsilon, delta, all settings, versions and device, and a keyed fingerprint of
its rows), what it released before training (ranges, means), and the state of the training. All
draws are functions of the key, so what was lost between two saved states is repeated, and not
released anew. A folder of another run is refused, as its noise would stand on other numbers: equal
noise at another point, or times another factor, gives the data away. So are other settings by the
same arguments, of a later version or on a mesh.
"""

import importlib.metadata
import json
import os
import pathlib
import shutil
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax.base.types import PyTree
from jaxminimax.door import core
from jaxminimax.drivers import fingerprint
from jaxminimax.noise import secret_key

_KEY, _PROMISE, _ROUNDS = "key", "promise.json", "rounds"
_PACKAGES = ("jax", "jaxlib", "numpy", "optax")  # that round what a round begins at
LONG = 3e9  # numbers read by a run, from which on its state is saved on the way
_SAVES = 20


class Unfinished:
    """The folder of one run, or without a folder nothing but its key.

    Attributes:
      key: root key of the run, a secret.
      going_on: whether the folder had been begun before.

    Args:
      folder: made if it is not there; None: nothing is saved.
      key: of the run; None: that of the folder, or one drawn from the system's entropy.

    Raises:
      ValueError: for a folder of a run with another key, or one that cannot be written.
    """

    def __init__(self, folder: Any, key: jax.Array | None = None) -> None:
        self._folder = None if folder is None else pathlib.Path(folder)
        self.going_on = self._folder is not None and (self._folder / _KEY).is_file()
        if self._folder is None:
            self.key = secret_key() if key is None else key
            return
        if not self.going_on:
            self.key = secret_key() if key is None else key
            try:
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._write(_KEY, json.dumps(_words(self.key)))
            except OSError as error:
                raise ValueError(f"{self._folder} cannot be written: {error}") from error
            return
        words = json.loads(self._read(_KEY))
        if key is not None and _words(key) != words:
            self._refuse("seed or key")
        self.key = jax.random.wrap_key_data(jnp.array(words[1:], jnp.uint32), impl=words[0])

    def promise(self, rows: PyTree, settings: str, **given: Any) -> None:
        """Writes down what the run is of, or compares it with what was.

        Args:
          rows: everything that it reads of the data.
          settings: in words that are the same in every process, all that follows from `given`.
          **given: plain values that decide what is released.

        Raises:
          ValueError: naming what is another one.
        """
        if self._folder is None:
            return
        device = jax.devices()[0]
        made = json.loads(json.dumps(given | {
            "version of a package, or device": [
                *map(importlib.metadata.version, _PACKAGES), core.SCHEME, device.platform,
                device.device_kind, jnp.result_type(float).name],
            "table, or order of its rows": fingerprint.of_rows(
                fingerprint.secret(self.key), rows),
            "setting": settings}))
        if not (self._folder / _PROMISE).is_file():
            self._write(_PROMISE, json.dumps(made))
            return
        saved = json.loads(self._read(_PROMISE))
        for name in made | saved:
            if made.get(name) != saved.get(name):
                self._refuse(name)

    def once(self, name: str, make: Callable[[], PyTree]) -> PyTree:
        """What `make` releases, as plain numbers and lists; of a run that goes on, what it had.

        Args:
          name: of the release.
          make: called unless it was released before.
        """
        if self._folder is not None and (self._folder / name).is_file():
            return json.loads(self._read(name))
        made = make()
        if self._folder is not None:
            self._write(name, json.dumps(made))
        return made

    def driver(self, size: float, rounds: int) -> dict[str, Any]:
        """What `fit` is told, to save its state in the folder; nothing for a run that is short.

        Args:
          size: numbers that a round reads.
          rounds: of the run.
        """
        if self._folder is None or size * rounds < LONG or not _can_save():
            return {}
        return {"checkpoint": self._folder / _ROUNDS, "every": max(1, rounds // _SAVES)}

    def finish(self) -> None:
        """Removes the folder, the key first: its results stand elsewhere."""
        if self._folder is not None:
            (self._folder / _KEY).unlink(missing_ok=True)
            shutil.rmtree(self._folder, ignore_errors=True)

    def _read(self, name: str) -> str:
        assert self._folder is not None
        return (self._folder / name).read_text(encoding="utf-8")

    def _write(self, name: str, text: str) -> None:
        """All of it or nothing, for the owner's eyes only."""
        assert self._folder is not None
        part = self._folder / f"{name}.part"
        part.unlink(missing_ok=True)
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w",
                  encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, self._folder / name)

    def _refuse(self, name: str) -> None:
        raise ValueError(f"{self._folder} is of a run that was stopped, with another {name}: "
                         "repeat its own command to go on with it. To give it up, and begin "
                         "another one, delete that folder; what anybody saw of it stays spent.")


def _words(key: jax.Array) -> list[Any]:
    return [str(jax.random.key_impl(key)), *np.asarray(jax.random.key_data(key)).tolist()]


def _can_save() -> bool:
    import importlib.util

    return importlib.util.find_spec("orbax") is not None
