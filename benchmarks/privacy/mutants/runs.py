"""Planted bugs of what a run leaves on disk: its folder, its states, its entry in a ledger."""

import contextlib
import json
import pathlib
import tempfile
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import jaxminimax as jmm
from benchmarks.privacy.mutants.detectors import Finding
from jaxminimax import Saddle, sgda
from jaxminimax.accounting import ledger as ledgers
from jaxminimax.accounting.ledger import Entry, run_entry
from jaxminimax.apps.tables.unfinished import Unfinished
from jaxminimax.base import own_files
from jaxminimax.drivers import saved_runs

AIMS: dict[str, tuple[Any, str]] = {
    "saved state": (saved_runs.Folder, "latest"),
    "end of a booking": (saved_runs.Booking, "__exit__"),
    "lock": (own_files, "_lock"),
    "end of an entry": (jmm.accounting.Ledger, "_close"),
    "settings of a ledger": (jmm.accounting.Ledger, "check_same"),
    "owner of a folder": (own_files, "check"),
    "after a run with all of the budget": (ledgers, "check_shared"),
    "who may have all of the budget": (ledgers, "first_run_decides"),
}
_ROUNDS = 20
_GAME = jmm.problems.quadratic_game(modulus=1.0, coupling=0.5, radius=Saddle(2.0, 2.0))


# --- bugs ---


def a_round_late(latest: Callable[..., Any]) -> Callable[..., Any]:
    """A run that goes on leaves out the round after its saved state."""
    def changed(self: saved_runs.Folder, state: Any) -> Any:
        result = latest(self, state)
        return result._replace(spent=result.spent + (result.spent > 0))

    return changed


def a_release_short(leave: Callable[..., Any]) -> Callable[..., Any]:
    """The last release of a run is given back to the ledger."""
    def changed(self: saved_runs.Booking, kind: Any, *rest: object) -> None:
        if self._entry is not None and kind is None:
            made = jmm.mechanism.releases(self._entry.mechanism) - 1
            self._entry.ledger._close(self._entry, made)
        else:
            leave(self, kind, *rest)

    return changed


def cheaper_when_closed_again(close: Callable[..., Any]) -> Callable[..., Any]:
    """Each further close takes a twentieth off the charge."""
    def changed(self: jmm.accounting.Ledger, entry: Entry, spent: int | None) -> None:
        again = run_entry(self._read(), entry.name)["closed"] is not None
        close(self, entry, spent)
        if again:
            with self._file.locked():
                content = self._read()
                for one in content["entries"]:
                    one["charge"] = {name: 0.95 * x for name, x in one["charge"].items()}
                self._file.write(content)

    return changed


def of_any_unit(check: Callable[..., Any]) -> Callable[..., Any]:
    """The unit of a run is not compared."""
    def changed(self: jmm.accounting.Ledger, what: str, **stated: Any) -> None:
        stated.pop("unit", None)
        check(self, what, **stated)

    return changed


# --- detectors ---


def _hyper() -> Any:
    query = jmm.Query(clip=Saddle(1.0, 1.0), noise_multiplier=Saddle(90.0, 90.0), population=30)
    return sgda.Hyper(query=query, step=Saddle(0.1, 0.1), iterations=_ROUNDS)


def _fit(folder: pathlib.Path | None = None, callback: Callable[..., Any] | None = None,
         **how: Any) -> Any:
    rows = jnp.ones((30, 2), jnp.float32), jnp.zeros((30, 2), jnp.float32)
    start = Saddle(jnp.zeros(2, jnp.float32), jnp.zeros(2, jnp.float32))
    return jmm.fit(jax.random.key(5, impl="threefry2x32"), start, rows, _hyper(), sgda, _GAME,
                   delta=1e-6, progress=False, checkpoint=folder, every=10, callback=callback,
                   **how)


class _StoppedError(Exception):
    pass


def _stop(_: Any) -> None:
    raise _StoppedError


def resumed() -> Finding:
    """How far a run that was stopped half way ends from one that was not."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder)
        with contextlib.suppress(_StoppedError):
            _fit(path / "states", _stop)
        one, other = _fit(path / "states").state.z, _fit().state.z
    return Finding(float(max(jnp.max(jnp.abs(a - b)) for a, b in zip(one, other, strict=True))),
                   0.0)


def _ledger(folder: str, **settings: Any) -> jmm.accounting.Ledger:
    return jmm.accounting.Ledger(pathlib.Path(folder, "ledger.json"), epsilon=2.0, delta=1e-6,
                                 **settings)


def booked() -> Finding:
    """The charge of a description over that of a run that made all its releases."""
    with tempfile.TemporaryDirectory() as folder:
        ledger = _ledger(folder)
        _fit(ledger=ledger)
        charged = ledger.statement().spent["divergence"]
        ledger.reserve(sgda.mechanism(_hyper()))
        return Finding((ledger.statement().spent["divergence"] - charged) / charged, 1 + 1e-9)


def closed_twice() -> Finding:
    """The charge of a run that was closed over that after it was closed again."""
    with tempfile.TemporaryDirectory() as folder:
        ledger = _ledger(folder)
        entry = ledger.reserve(sgda, _hyper())
        entry.close()
        once = ledger.statement().spent["divergence"]
        entry.close()
        return Finding(once / ledger.statement().spent["divergence"], 1.0)


def other_units() -> Finding:
    """Runs on rows that a ledger of persons takes."""
    with tempfile.TemporaryDirectory() as folder:
        ledger = _ledger(folder, unit="one person")
        for begin in (lambda: _fit(ledger=ledger),
                      lambda: ledger.reserve(sgda, _hyper(), unit="one record")):
            with contextlib.suppress(ValueError):
                begin()
        return Finding(len(ledger.statement().runs), 0)


def beyond_all() -> Finding:
    """Runs that a ledger takes before or after one that asks for all of its budget."""
    whole, accepted = jmm.calibrate(sgda, _hyper(), 2.0, 1e-6), -2
    for runs in ((whole, _hyper()), (_hyper(), whole)):
        with tempfile.TemporaryDirectory() as folder:
            ledger = _ledger(folder)
            for hyper in runs:
                with contextlib.suppress(ValueError):
                    ledger.reserve(sgda, hyper)
                    accepted += 1
    return Finding(accepted, 0)


def holders() -> Finding:
    """How many hold the lock of a ledger at once."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "ledger.json")
        with own_files.locked(path):
            try:
                with own_files.locked(path):
                    return Finding(2, 1)
            except ValueError:
                return Finding(1, 1)


def planted_keys() -> Finding:
    """Runs that use a key of a folder that others may write to."""
    with tempfile.TemporaryDirectory() as made:
        folder = pathlib.Path(made)
        for name, text in (("key", json.dumps(["threefry2x32", 1, 2])), ("promise.json", "{}")):
            (folder / name).write_text(text)
        folder.chmod(0o777)
        try:
            with Unfinished(folder) as job:
                return Finding(int(job.going_on), 0)
        except ValueError:
            return Finding(0, 0)


# name, what it breaks, what is replaced and by what, detector, and what its number is
BUGS = (
    ("a run that goes on leaves out a round", "what a crash lost is repeated, bit for bit",
     "saved state", a_round_late, resumed, "distance of a resumed run's end from the other's"),
    ("a run is booked one release short", "the charge of a run in a ledger", "end of a booking",
     a_release_short, booked, "charge of the description over that of the run"),
    ("a run closed again costs a twentieth less", "the charge of a run in a ledger",
     "end of an entry", cheaper_when_closed_again, closed_twice, "charge before over charge after"),
    ("units not compared", "the unit that a ledger is for", "settings of a ledger", of_any_unit,
     other_units, "runs on rows in a ledger of persons"),
    ("a run beside one with all of the budget", "one rule for all releases",
     "after a run with all of the budget", lambda _: lambda content: None, beyond_all,
     "runs beside one with all of the budget"),
    ("a later run has all of the budget", "the rule is fixed before the first release",
     "who may have all of the budget", lambda _: lambda content: "single_run" in content,
     beyond_all, "runs beside one with all of the budget"),
    ("lock not taken", "one budget for several processes", "lock", lambda _: lambda handle: True,
     holders, "holders of a ledger's lock"),
    ("owners and modes not looked at", "secrecy of the key", "owner of a folder",
     lambda _: lambda path, *found, **how: None, planted_keys, "runs with the key of another"),
)
