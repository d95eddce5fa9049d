"""How cost grows: with the model's width, the resident rows and the rounds of a run.

(With the batch size it grows as in rows of `benchmarks.speed.throughput`.) The time to compile must
depend neither on rounds nor on rows, and a sample must not cost more when there are more rows to
sample from.
"""

import argparse
import functools
import statistics
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxminimax as jmm
from benchmarks.speed.throughput import cases, ours
from benchmarks.speed.throughput import peer_jax as plain
from benchmarks.speed.throughput.cases import Case, Entry
from jaxminimax import Saddle
from jaxminimax.mechanism.sampling import SampleKeys, draw

WIDTHS = (16, 64, 256, 1024)
ROWS = (10_000, 100_000, 1_000_000, 10_000_000)
SAMPLED = (*ROWS, 10**8, 10**9)  # that samples alone are drawn of
ITERATIONS = (10, 100, 1000, 10_000)
BATCH, SAMPLES = 256, 300


def _sampler(name: str, n: int) -> Any:
    return {"with replacement": jmm.FixedSize(batch=BATCH, replacement=True),
            "Poisson": jmm.Poisson(rate=BATCH / n),
            "fixed size": jmm.FixedSize(batch=BATCH),
            "disjoint": jmm.Disjoint(batch=BATCH)}[name]


def sampling(name: str, n: int) -> Entry:
    """Samples of one release after the other, and nothing else."""
    query = jmm.Query(clip=Saddle(1.0, None), population=n, sampling=_sampler(name, n))

    def whole(total: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        def body(total: jax.Array, t: jax.Array) -> tuple[jax.Array, None]:
            sample = draw(SampleKeys(jax.random.fold_in(key, t), key), query, t)
            assert sample.rows is not None
            rows = sample.rows if sample.valid is None else jnp.where(sample.valid, sample.rows, 0)
            return total + jnp.sum(rows, dtype=jnp.int32), None

        return jax.lax.scan(body, total, jnp.arange(SAMPLES))[0], jax.random.fold_in(key, SAMPLES)

    return plain.program(whole, (jnp.int32(0), jax.random.key(0)), (), SAMPLES, _nothing)


def step(name: str, n: int) -> Entry:
    """The whole step on rows of 22 numbers."""
    case = Case("linear 22", BATCH, n)
    data = _many(n)
    peer = {"with replacement": "ours", "Poisson": "ours, Poisson", "disjoint": "ours, disjoint"}
    return ours.make(peer[name], case, data, SAMPLES)


@functools.lru_cache(maxsize=1)
def _many(n: int) -> tuple[jax.Array, jax.Array]:
    x, y = cases.rows(Case("linear 22", BATCH, 10_000))
    x, y = (np.resize(a, (n, *a.shape[1:])) for a in (x, y))
    return jnp.asarray(x), jnp.asarray(y)


def _nothing(x: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    return {}


def _timed(what: str, over: str, made: dict[Any, Any], args: argparse.Namespace
           ) -> list[dict[str, Any]]:
    """Rows of one curve; `made` holds functions that make the entries, by the number that grows."""
    entries = {number: make() for number, make in made.items()}
    times: dict[Any, list[float]] = {number: [] for number in entries}
    for entry in entries.values():
        entry.advance()
    for _ in range(args.rounds):
        for number, entry in entries.items():
            times[number].append(cases.seconds(entry, args.clock))
    return [{"what": what, "over": over, "number": number,
             "seconds": statistics.median(times[number]),
             "compile_seconds": round(entries[number].compile_seconds, 3)} for number in entries]


def rows(args: argparse.Namespace, largest: int = 10**7) -> list[dict[str, Any]]:
    """All curves, up to so many rows."""
    sizes = [n for n in ROWS if n <= largest]
    result: list[dict[str, Any]] = []
    for name in ("with replacement", "Poisson", "fixed size", "disjoint"):
        result += _timed(f"a sample, {name}", "rows", {
            n: functools.partial(sampling, name, n)
            for n in (SAMPLED if largest == max(ROWS) else sizes)}, args)
    for name in ("with replacement", "Poisson"):
        for n in sizes:  # one at a time: rows are large
            result += _timed(f"a step of linear 22, {name}", "rows",
                             {n: functools.partial(step, name, n)}, args)
            _many.cache_clear()
    data = tuple(map(jnp.asarray, cases.rows(Case("mlp", BATCH, 10_000))))
    result += _timed(f"a step of mlp, batch {BATCH}", "width", {
        width: functools.partial(ours.make, "ours", Case(f"mlp {width}", BATCH, 10_000), data, 10)
        for width in WIDTHS}, args)
    case = Case("linear 22", 64, 10_000)
    data = tuple(map(jnp.asarray, cases.rows(case)))
    result += _timed("a step of linear 22, batch 64", "iterations", {
        steps: functools.partial(ours.make, "ours", case, data, steps) for steps in ITERATIONS},
         args)
    return result
