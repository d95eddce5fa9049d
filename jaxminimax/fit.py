"""Long runs on the host's clock: progress, callbacks, checkpoints, exact resume."""

import functools
import importlib.util
import os
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax import _bar, _check, _valid
from jaxminimax import mechanism as words
from jaxminimax._types import Algorithm, Problem, Saddle, Tree
from jaxminimax.accounting import Statement, statement
from jaxminimax.mechanism import Mechanism
from jaxminimax.prefetch import Supply


class Fit(NamedTuple):
    """What `fit` returns: the last state and what it cost."""

    state: Any
    statement: Statement


@functools.partial(jax.jit, static_argnames=("algorithm", "problem"), donate_argnames="state")
def _advance(state: Any, key: jax.Array, data: Tree, hyper: Any, rounds: jax.Array,
             algorithm: Algorithm, problem: Problem) -> Any:
    def step(_: jax.Array, state: Any) -> Any:
        return algorithm.update(key, state, data, hyper, problem)

    return jax.lax.fori_loop(0, rounds, step, state)


def fit(key: jax.Array, z: Saddle, data: Tree, hyper: Any, algorithm: Algorithm, problem: Problem,
        *, delta: float, neighbours: str = "replace_one", alongside: tuple[Mechanism, ...] = (),
        unit: str = "one record", checkpoint: str | os.PathLike | None = None,
        every: int | None = None, callback: Callable[[Any], None] | None = None,
        progress: bool = True) -> Fit:
    """A run in jitted pieces of `every` rounds, the same run as `drivers.run`.

    With `checkpoint`, the state is saved after every piece, and a run that finds a saved state goes
    on from it. Release k is a function of the key and k alone, so rounds that were lost between the
    last save and a crash are repeated exactly, not released a second time with other noise; a
    resumed run ends bit for bit where an uninterrupted one does. The key is never saved. A folder
    that belongs to another key, mechanism or algorithm is refused: going on would spend a budget
    that is not in the books.

    Args:
      key: root key of the run, a secret.
      z: initial point; must not depend on the data.
      data: leaves `[n, ...]`, or `HostData` of them if they are larger than the device's memory:
        the same run, with the rows of every release sent ahead.
      hyper: the algorithm's `Hyper`, calibrated.
      algorithm: a module such as `sgda`.
      problem: operator, public terms, projection.
      delta: for the statement.
      neighbours: for the statement.
      alongside: for the statement: other mechanisms run on the same data.
      unit: for the statement: what one record is.
      checkpoint: folder for the saved states; needs orbax-checkpoint.
      every: rounds in a piece; None for a hundredth of the run.
      callback: called with a host copy of the state after every piece; never sees the data.
      progress: whether to show a progress bar, if tqdm is installed.

    Returns:
      The last state, and the privacy statement for what was spent.

    Raises:
      ValueError: for a description that is not valid or does not fit the data, a folder of
        another run, or `HostData` for an algorithm that reads all records, or chooses them.
      ImportError: if `checkpoint` is given and orbax-checkpoint is not installed.
    """
    described = algorithm.mechanism(hyper)
    _valid.check(described)
    total = hyper.iterations
    every = max(1, total // 100) if every is None else every
    _check.count("every", every)
    # a copy: the state is donated to each piece, and the caller's z must outlive that
    state = jax.tree.map(lambda x: jnp.array(x, copy=True), algorithm.init(z, hyper))
    per_round = words.releases(described) // total
    with _Folder(checkpoint, _promise(key, described, hyper, algorithm)) as folder:
        state = folder.latest(state)
        done = int(state.spent) // per_round
        pieces = [min(every, total - start) for start in range(done, total, every)]
        with (_bar.Bar(total, done, progress) as bar,
              Supply(key, described, data, pieces, done, total) as supply):
            for rounds in pieces:
                for share, count in supply.piece(rounds):
                    supply.wait(state)
                    state = _advance(state, key, share, hyper, jnp.int32(count), algorithm, problem)
                done += rounds
                folder.save(done, state)
                bar.update(rounds)
                if callback is not None:
                    callback(jax.device_get(state))
    return Fit(state, statement(algorithm, hyper, state, delta=delta, neighbours=neighbours,
                                alongside=alongside, unit=unit))


def _promise(key: jax.Array, described: Mechanism, hyper: Any,
             algorithm: Algorithm) -> dict[str, Any]:
    """What must be equal for a saved state to be gone on from; never enough to recover the key."""
    numbers = [np.asarray(x, np.float64).tolist() for x in jax.tree.leaves(hyper)]
    # 16 bits that only the key's owner can compute: another key is caught all but always
    mark = int(jax.random.bits(jax.random.fold_in(key, 2**31 - 1), (), jnp.uint16))
    name = getattr(algorithm, "__name__", type(algorithm).__name__)
    # a function prints its address, which is another one in every process
    told = re.sub(r"<function (\S+) at 0x[0-9a-f]+>", r"\1", repr(described))
    return {"algorithm": name, "mechanism": told, "numbers": numbers, "key mark": mark}


class _Folder:
    """Saved states in a folder, by orbax; nothing at all without one."""

    def __init__(self, path: str | os.PathLike | None, promise: dict[str, Any]) -> None:
        self._promise = promise
        self._manager: Any = None
        if path is None:
            return
        if importlib.util.find_spec("orbax") is None:
            raise ImportError("checkpoint=... needs orbax-checkpoint: pip install jaxminimax[fit]")
        import orbax.checkpoint as ocp

        self._args = ocp.args
        self._manager = ocp.CheckpointManager(
            os.path.abspath(path),
            options=ocp.CheckpointManagerOptions(max_to_keep=2, enable_async_checkpointing=False),
        )

    def __enter__(self) -> "_Folder":
        return self

    def __exit__(self, *_: object) -> None:
        if self._manager is not None:
            self._manager.close()

    def latest(self, state: Any) -> Any:
        """The newest saved state, or `state` if there is none."""
        if self._manager is None or self._manager.latest_step() is None:
            return state
        step = self._manager.latest_step()
        saved = self._manager.restore(
            step, args=self._args.Composite(promise=self._args.JsonRestore())).promise
        for name, value in self._promise.items():
            if saved.get(name) != value:
                raise ValueError(f"The checkpoint is of a run with another {name}: use its own "
                                 "key and settings to go on, or an empty folder to start anew.")
        return self._manager.restore(
            step, args=self._args.Composite(state=self._args.StandardRestore(state))).state

    def save(self, step: int, state: Any) -> None:
        """Saves `state` and waits until it is on disk."""
        if self._manager is None:
            return
        self._manager.save(step, args=self._args.Composite(
            state=self._args.StandardSave(state), promise=self._args.JsonSave(self._promise)))
        self._manager.wait_until_finished()
