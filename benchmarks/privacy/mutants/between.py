"""Planted bugs at boundaries between parts, and what finds them.

Names and rows of persons, counts of both players, shards of one sample, records of one person in
samples of parts in turn, a run's ledger and what a training promised. None is a factor of two.
"""

import contextlib
import math
import pathlib
import tempfile
import warnings
import zlib
from collections.abc import Callable
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

import jaxminimax as jmm
from benchmarks.privacy.mutants.detectors import KEY, Finding
from jaxminimax import Saddle, sgda
from jaxminimax.accounting import curve
from jaxminimax.apps.tables import Charged, NoteWarning, Schema, statistics, train, unfinished
from jaxminimax.base import identity
from jaxminimax.drivers import saved_runs
from jaxminimax.gradients.summation import Rounding, Sums
from jaxminimax.mechanism import CyclicPoisson
from jaxminimax.placement import shard_sums, sharding
from jaxminimax.releases import sums

AIMS: dict[str, tuple[Any, str]] = {
    "name of a person": (identity, "_name"),
    "noise of counts": (sums, "floored_normal"),
    "keys of slots": (shard_sums, "fold_in"),
    "directions": (curve, "_directions"),
    "state that is shown": (saved_runs.Booking, "begin"),
    "promise of a training": (unfinished.Unfinished, "promise"),
}
# names with one hash: of a CRC, of Adler's sum, and Python's of integers, a rest by 2^61 - 1
COLLIDING: dict[str, tuple[Callable[[str], int], list[tuple[str, str]]]] = {
    "crc32": (lambda name: zlib.crc32(name.encode()), [
        ("ezlydttmodth", "ffrejfwtpwrj"), ("kxqigeaagfdb", "jhdgvxtrmpkj"),
        ("viemdntxbjvt", "iwmkeanjprku")]),
    "adler32": (lambda name: zlib.adler32(name.encode()), [
        (f"p{k}", f"p{k + 81}") for k in range(120, 128)]),
    "integers": (lambda name: hash(int(name)), [
        *((str(n), str(n + 2**61 - 1)) for n in (0, 7, 2**60, 17 * 10**17)), ("-1", "-2")]),
}


# --- bugs ---


def by_crc(name: Any) -> Any:
    """A person's name is the first one that was read with its hash of 32 bits."""
    first: dict[int, str] = {}

    def changed(cell: Any, where: str) -> str:
        text: str = name(cell, where)
        return first.setdefault(zlib.crc32(text.encode("utf-8", "surrogatepass")), text)

    return changed


def one_for_all(drawn: Any) -> Any:
    """All numbers of a draw are its first one."""
    return lambda key, count, bits: jnp.broadcast_to(drawn(key, 1, bits), (count,))


def as_one_record(directions: Any) -> Any:
    """Sampled releases are charged for one record of several."""
    return lambda cost, neighbours, people: directions(cost, neighbours, 1)


def without_charged_columns(promise: Any) -> Any:
    """The fifth part of what a training reads, its charged columns, is not compared."""
    return lambda self, rows, settings, **given: promise(self, (*rows[:4], *rows[5:]), settings,
                                                         **given)


# --- detectors ---


def persons_lost() -> Finding:
    """Persons of one hash that are counted as one."""
    lost = 0
    for _, pairs in COLLIDING.values():
        names = [name for pair in pairs for name in pair]
        lost += len(names) - len(identity.persons(names)[0])
    return Finding(float(lost), 0.0)


def shared_noise(runs: int = 3000) -> Finding:
    """Correlation of the noise in the counts that both players' clip norms follow."""
    clip, zero = Saddle(0.1, 100.0), Saddle(jnp.int32(0), jnp.int32(0))
    query = jmm.Query(clip=clip, noise_multiplier=Saddle(3.0, 4.0), population=300,
                      adaptive=jmm.AdaptiveClip(share=0.1, rate=0.4))
    moved = jax.jit(jax.vmap(lambda key: sums.next_clip(key, query, clip, zero)))(
        jax.random.split(KEY, runs))
    logs = np.log([np.asarray(norm) for norm in moved])
    return Finding(float(abs(np.corrcoef(logs)[0, 1])), 5 / math.sqrt(runs))


def slots_of_shards(runs: int = 3) -> list[str]:
    """The order in which a sample's rows come to lie in each of two shards, a run after the other.

    A digit is the place of a row, which the sum of places times powers of ten tells.
    """
    rows = np.zeros((12, 2), np.float32)
    rows[:6, 0] = rows[6:, 1] = 10.0 ** np.arange(6)  # of each shard in a column of its own
    query = jmm.Query(clip=Saddle(1.0, None), population=12, sampling=jmm.Poisson(rate=0.9))
    placed = sharding.shard(rows, jax.make_mesh((1,), ("data",)), shards=2)

    def by_slots(z: Saddle, examples: Any, mask: Any, rounding: Any) -> Sums:
        slots = 1.0 + jnp.arange(len(examples))
        digits = jnp.where(mask[:, None], slots[:, None] * examples, 0)
        return Sums(Saddle(jnp.sum(digits, 0).astype(jnp.float32), ()), Saddle((), ()))

    @jax.jit
    def orders(key: jax.Array) -> jax.Array:
        added = shard_sums.sum_over_shards(
            by_slots, Saddle(jnp.zeros(2, jnp.float32), ()), placed, query, jnp.arange(12), None,
            Rounding(None, jnp.array(True), jnp.array(True)), key)  # type: ignore[arg-type]
        return jnp.asarray(added.floats.w)

    keys = jax.random.split(jax.random.key(0, impl="threefry2x32"), runs)
    return [f"{int(x):06d}" for key in keys for x in orders(key)]


def equal_orders() -> Finding:
    """Runs in which both shards put their rows into slots in one order."""
    found = slots_of_shards()
    return Finding(float(sum(a == b for a, b in zip(found[::2], found[1::2], strict=True))), 0.0)


def delta_of_two_windows(epsilon: float, people: int, rate: float, sigma: float) -> float:
    """H of products of two mixtures: j of k coins move a sum by j, or by -j, in each window."""
    x, step = np.linspace(-people - 9 * sigma, people + 9 * sigma, 3001, retstep=True)
    hits = np.arange(people + 1)
    p = stats.binom.pmf(hits, people, rate) @ stats.norm.pdf(x, hits[:, None], sigma)
    p *= step
    return float(np.maximum(np.outer(p, p) - math.exp(epsilon) * np.outer(p[::-1], p[::-1]),
                            0).sum())


def in_turn(times: int = 5) -> tuple[jmm.Repeat, float]:
    """Releases on samples of four parts in turn, the second window begun, and sigma over clip.

    A sum enters the draws by the coefficients of (1 - x)^(-1/2), those of the block that it begins.
    """
    query = jmm.Query(clip=Saddle(1.0, None), noise_multiplier=Saddle(3.0, None), population=40,
                      bands=4, sampling=CyclicPoisson(rate=0.5, parts=4), parameters=1)
    return (jmm.Repeat(query=query, times=times),
            3.0 / float(np.linalg.norm([1, 1 / 2, 3 / 8, 5 / 16])))


def two_records_in_turn(delta: float = 1e-3) -> Finding:
    """True delta of two records at the claimed epsilon, over the claimed."""
    steps, sigma = in_turn()
    claimed = jmm.epsilon(steps, delta, people=2)
    return Finding(delta_of_two_windows(claimed, 2, 0.5, sigma) / delta, 1.0 + 1e-6)


def free_runs() -> Finding:
    """Runs that fail after a state was shown, and are not charged."""
    query = jmm.Query(clip=Saddle(1.0, 1.0), noise_multiplier=Saddle(90.0, 90.0), population=30)
    hyper = sgda.Hyper(query=query, step=Saddle(0.1, 0.1), iterations=4)
    with tempfile.TemporaryDirectory() as folder:
        ledger = jmm.accounting.Ledger(pathlib.Path(folder) / "books", epsilon=9.0, delta=1e-6)
        with contextlib.suppress(ValueError), saved_runs.Booking(
                ledger, KEY, sgda.mechanism(hyper), {}, None, False, delta=1e-6) as booking:
            booking.begin(2)
            raise ValueError
        return Finding(1.0 - len(ledger.statement().runs), 0.0)


class _StoppedError(Exception):
    pass


def _stop(*_: Any) -> None:
    raise _StoppedError


def goes_on_with_others() -> Finding:
    """Trainings that go on with another cell of a charged column."""
    table = {"a": np.linspace(1, 9, 40), "y": np.arange(40) % 2}
    schema, accepted = Schema({"a": Charged()}, "y", "1"), -1
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(
            statistics, "release_ranges", _stop), warnings.catch_warnings():
        warnings.simplefilter("ignore", NoteWarning)
        for rows in (table, table | {"a": table["a"] + np.eye(40)[5]}):
            try:
                train(rows, schema, epsilon=2.0, delta=1e-3, folder=pathlib.Path(folder) / "run")
            except _StoppedError:  # it was about to release
                accepted += 1
            except ValueError:
                pass
    return Finding(float(accepted), 0.0)


BUGS: tuple[tuple[str, str, str, Callable[[Any], Any], Callable[[], Finding], str], ...] = (
    ("names of persons by 32 bits", "records: who a row is of", "name of a person", by_crc,
     persons_lost, "persons of one hash that are lost"),
    ("counts of both players with one noise", "independence of noise", "noise of counts",
     one_for_all, shared_noise, "correlation of noise"),
    ("slots of all shards in one order", "sensitivity: the slots of others", "keys of slots",
     lambda _: lambda key, number: key, equal_orders, "runs with one order"),
    ("several records on parts in turn charged as one", "accountant: records of a person",
     "directions", as_one_record, two_records_in_turn, "true delta over the claimed one"),
    ("a run that was shown and fails is free", "the ledger: what may have been released",
     "state that is shown", lambda _: lambda self, done: None, free_runs, "runs not charged"),
    ("a training goes on with other charged columns", "one noise at one point",
     "promise of a training", without_charged_columns, goes_on_with_others, "trainings that go on"),
)
