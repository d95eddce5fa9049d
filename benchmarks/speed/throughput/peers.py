"""Peers here and in other environments, behind one face: made, timed, checked, dropped."""

import contextlib
import gc
import itertools
import json
import os
import pathlib
import subprocess
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.speed.throughput import cases
from benchmarks.speed.throughput.cases import Case, Entry, Skipped

VARIABLES = {"privacy": "JAXMINIMAX_PEER_JAX_PRIVACY", "torch": "JAXMINIMAX_PEER_TORCH"}
_MODULES = {"privacy": "benchmarks.speed.throughput.peer_jax_privacy",
            "torch": "benchmarks.speed.throughput.peer_torch"}
_VERSIONS = {"privacy": ("jax", "jax-privacy"), "torch": ("torch", "opacus", "numpy")}
_ROOT = pathlib.Path(__file__).parents[3]
CHECKED_ROWS, TOLERANCE = 32, 2e-5


class Here:
    """An entry of this process."""

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.steps, self.compile_seconds = entry.steps, entry.compile_seconds

    def time(self, clock: str) -> float:
        """Seconds a step."""
        return cases.seconds(self.entry, clock)

    def peak(self) -> int | None:
        """Bytes."""
        return cases.peak_bytes(self.entry)

    def once(self, x: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
        """Parameters after a noise-free step."""
        return self.entry.once(x, y)

    def drop(self) -> None:
        """Frees it."""
        del self.entry
        gc.collect()


class There:
    """An entry of another process."""

    def __init__(self, fleet: "Fleet", home: str, number: int, made: dict[str, Any]) -> None:
        self.ask: Callable[..., Any] = lambda do, **more: fleet.ask(home, do=do, id=number, **more)
        self.steps, self.compile_seconds = made["steps"], made["compile_seconds"]

    def time(self, clock: str) -> float:
        """Seconds a step."""
        return float(self.ask("time", clock=clock)["seconds"])

    def peak(self) -> int | None:
        """Bytes."""
        return self.ask("peak")["bytes"]

    def once(self, x: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
        """Parameters after a noise-free step."""
        with tempfile.TemporaryDirectory() as folder:
            given, answer = (os.path.join(folder, f"{name}.npz") for name in ("rows", "answer"))
            np.savez(given, x=x, y=y)
            self.ask("once", rows=given, answer=answer)
            with np.load(answer) as made:
                return dict(made)

    def drop(self) -> None:
        """Frees it."""
        with contextlib.suppress(Skipped):
            self.ask("drop")


class Fleet(contextlib.ExitStack):
    """The process at hand and those of the environments that variables name.

    Attributes:
      missing: why an environment is not there, by its name.
      versions: of the others' packages.
    """

    def __init__(self) -> None:
        super().__init__()
        self.missing: dict[str, str] = {}
        self.versions: dict[str, str] = {}
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self._numbers = itertools.count()
        self._data: tuple[tuple[int, int], tuple[Any, ...]] | None = None
        self._own: dict[str, dict[str, np.ndarray]] = {}  # the library's step, by workload
        self._checked: set[tuple[str, str]] = set()  # workloads and peers
        for home, variable in VARIABLES.items():
            python = os.environ.get(variable)
            if not python:
                self.missing[home] = f"{variable} is not set: name a Python that has it"
            elif not os.access(python, os.X_OK):
                self.missing[home] = f"{variable}={python} is not a program"
            else:
                self._start(home, python)

    def _start(self, home: str, python: str) -> None:
        process = subprocess.Popen(
            [python, "-m", _MODULES[home]], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            cwd=_ROOT, env={**os.environ, "PYTHONPATH": str(_ROOT)}, text=True)
        self._processes[home] = process
        self.callback(self._stop, process)
        try:
            self.ask(home, do="nothing")
            script = "import importlib.metadata as m; print(*map(m.version, {}))"
            found = subprocess.run([python, "-c", script.format(_VERSIONS[home])], text=True,
                                   check=True, capture_output=True).stdout.split()
            self.versions |= {f"{home}: {name}": version for name, version
                              in zip(_VERSIONS[home], found, strict=True)}
        except (Skipped, subprocess.CalledProcessError) as reason:
            self.missing[home] = f"{python} did not start: {reason}"

    @staticmethod
    def _stop(process: subprocess.Popen[str]) -> None:
        with contextlib.suppress(OSError):
            if process.stdin is not None:
                process.stdin.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()

    def ask(self, home: str, **question: Any) -> dict[str, Any]:
        """One line to another process, and its answer.

        Raises:
          Skipped: where it has no answer.
        """
        process = self._processes[home]
        assert process.stdout is not None, "it was started with a pipe"
        try:
            print(json.dumps(question), file=process.stdin, flush=True)
            line = process.stdout.readline()
        except OSError:
            line = ""
        if not line:
            raise Skipped(f"its process ended with {process.poll()}")
        said = json.loads(line)
        if "skipped" in said:
            raise Skipped(said["skipped"])
        return said

    def make(self, name: str, home: str, case: Case, steps: int) -> Here | There:
        """A peer on a case.

        Raises:
          Skipped: where it does not do this case.
        """
        if home != "here":
            number = next(self._numbers)
            return There(self, home, number, self.ask(
                home, do="make", id=number, peer=name, workload=case.workload, batch=case.batch,
                n=case.n, steps=steps))
        return Here(_here(name, case, self.data(case), steps))

    def data(self, case: Case) -> tuple[Any, ...]:
        """The resident rows, in NumPy and in JAX."""
        import jax.numpy as jnp

        if self._data is None or self._data[0] != case.resident:
            rows = cases.rows(case)
            self._data = case.resident, (rows, tuple(map(jnp.asarray, rows)))
        return self._data[1]

    def check(self, workload: str, name: str, ours: Here | There, other: Here | There) -> None:
        """Holds a noise-free step of a peer against the library's, once for a workload.

        Raises:
          Skipped: where they differ.
        """
        if (workload, name) in self._checked or self._data is None:
            return
        x, y = (a[:CHECKED_ROWS] for a in self._data[1][0])
        if workload not in self._own:
            self._own[workload] = ours.once(x, y)
        wanted, got = self._own[workload], other.once(x, y)
        if set(wanted) != set(got):
            raise Skipped(f"has parameters {sorted(got)}, not {sorted(wanted)}")
        apart = max(float(np.max(np.abs(wanted[k] - got[k]))) for k in wanted)
        if not apart <= TOLERANCE:
            raise Skipped(f"its step without noise is {apart:.1e} away from the library's")
        self._checked.add((workload, name))


def _here(name: str, case: Case, data: tuple[Any, ...], steps: int) -> Entry:
    from benchmarks.speed.throughput import ours as throughput_ours
    from benchmarks.speed.throughput import peer_jax, peer_numpy, special

    arrays, on_device = data
    norms = "resident norms" in name
    if name.startswith("ours"):
        return throughput_ours.make(name, case, on_device, steps)
    if name.startswith("specialised"):
        words = "long" if "long" in name else "short"
        return special.make(case, on_device, steps, words, norms)
    if name.startswith("NumPy"):
        return peer_numpy.make(case, arrays, steps, norms)
    return peer_jax.make(name, case, on_device, steps)
