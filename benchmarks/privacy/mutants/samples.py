"""What catches planted bugs of samples: their sizes, rows and slots, and rows sent ahead."""

import dataclasses
import math
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

import jaxminimax as jmm
from benchmarks.privacy.mutants.detectors import KEY, Finding, query
from benchmarks.privacy.narrow import Narrow
from jaxminimax import Saddle, mechanism
from jaxminimax.audit.pairs import PLAIN, PROBLEM
from jaxminimax.base.random_bits import word_pairs
from jaxminimax.drivers.long_runs import Supply
from jaxminimax.mechanism import poisson, size_law
from jaxminimax.releases import sums


def overflows() -> Finding:
    """Releases that are numbers; the limit: how many samples fit, and five deviations."""
    n, rate, count = 12, 0.5, 20_000
    described = query(Narrow(rate=rate, most=6), n, clip=Saddle(1.0, None),
                      noise_multiplier=Saddle(0.0, None))
    once = mechanism.Repeat(query=described, times=1)
    data = Saddle(jnp.eye(n, dtype=jnp.float32), jnp.zeros((n, 1), jnp.float32))
    start = Saddle(jnp.ones(n, jnp.float32), jnp.zeros(1, jnp.float32))

    def one(key: jax.Array) -> jax.Array:
        return sums.release(key, once, jnp.int32(0), PROBLEM, start, data).w

    g = np.asarray(jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(3), count)))
    fit = stats.binom.cdf(6, n, rate)
    return Finding(int(np.isfinite(g).all(1).sum()),
                   count * fit + 5 * math.sqrt(count * fit * (1 - fit)))


def sizes() -> Finding:
    """Samples whose size is not that of their words; none may be.

    The words are those of a threshold, or of one less, which has the same first word.
    """
    rate, n = 0.1, 400
    room, most = mechanism.Poisson(rate=rate)._room(n)
    first, table = size_law.limits(rate, n, most)
    # those of sizes that fit
    numbers = [t - off for t in table[: -1 : len(table) // 8] for off in (0, 1)]

    @jax.jit
    def size(words: jax.Array) -> jax.Array:
        def pairs(key: Any, shape: Any, **how: Any) -> Any:
            if shape == (3,):  # of the size
                return words[::2], words[1::2]
            return word_pairs(key, shape, **how)

        with mock.patch.object(poisson, "word_pairs", pairs):
            return jnp.sum(poisson.poisson_rows(KEY, rate, n, room, most)[1])

    def drawn(number: int) -> int:
        return int(size(jnp.asarray(np.array(
            [number >> 32 * i & 0xFFFFFFFF for i in (4, 3, 2, 1, 0, 5)], np.uint32))))

    return Finding(sum(drawn(x) != first + sum(x < t for t in table) for x in numbers), 0.0)


def cut() -> Finding:
    """Samples that fill their capacity; the limit: how many of those that fit, five deviations."""
    n, rate, most, count = 12, 0.5, 6, 2000
    room, _ = mechanism.Poisson(rate=rate, capacity=most)._room(n)
    held = jax.jit(jax.vmap(lambda key: poisson.poisson_rows(key, rate, n, room, most)[1]))(
        jax.random.split(KEY, count))
    full = stats.binom.pmf(most, n, rate) / stats.binom.cdf(most, n, rate)
    return Finding(int(jnp.sum(jnp.sum(held, 1) == most)),
                   count * full + 5 * math.sqrt(count * full * (1 - full)))


def _held(count: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the slots of so many samples of about 15 of n rows, and which are held."""
    rate = 15 / n
    room, most = mechanism.Poisson(rate=rate)._room(n)
    rows, held = jax.jit(jax.vmap(
        lambda key: poisson.poisson_rows(key, rate, n, room, most)))(jax.random.split(KEY, count))
    return np.asarray(rows), np.asarray(held)


def repeated() -> Finding:
    """Samples that hold a row twice; none may."""
    return Finding(sum(len(np.unique(row[held])) < held.sum()
                       for row, held in zip(*_held(500, 300), strict=True)), 0.0)


def slots() -> Finding:
    """Held slots of the first half less those of the second, in standard deviations."""
    held = _held(2000, 10**6)[1]
    half = held.shape[1] // 2
    more = held[:, :half].sum(1) - held[:, -half:].sum(1)
    return Finding(abs(more.mean()) / (more.std() / math.sqrt(len(more))), 5.0)


def sent_ahead() -> Finding:
    """Releases of rows sent ahead that are numbers; the limit is how many samples fit."""
    n, count = 40, 12
    described = query(Narrow(rate=0.5, most=20), n)
    made = mechanism.Repeat(query=described, times=count)
    rows = Saddle(np.ones((n, 1), np.float32), np.ones((n, 1), np.float32))
    start = Saddle(jnp.zeros(1, jnp.float32), jnp.zeros(1, jnp.float32))
    with Supply(KEY, made, jmm.placement.HostData(rows), [count], 0, count) as supply:
        shares = list(supply.piece(count))

    @jax.jit
    def finite(spent: jax.Array, data: Any) -> jax.Array:
        g = sums.release(KEY, made, spent, PLAIN, start, data)
        return jnp.isfinite(g.w[0])

    first, released = 0, 0
    for window, rounds in shares:
        released += sum(int(finite(jnp.int32(k), window)) for k in range(first, first + rounds))
        first += rounds
    fit = sum(int(finite(jnp.int32(k), jax.tree.map(jnp.asarray, rows))) for k in range(count))
    return Finding(released, fit)


def sent_for_another() -> Finding:
    """Releases of rows that were sent for the one before, or of another key, that are numbers."""
    n, count = 40, 4
    made = mechanism.Repeat(query=query(mechanism.Poisson(rate=0.5), n), times=count)
    rows = Saddle(np.ones((n, 1), np.float32), np.ones((n, 1), np.float32))
    start = Saddle(jnp.zeros(1, jnp.float32), jnp.zeros(1, jnp.float32))
    with Supply(KEY, made, jmm.placement.HostData(rows), [count], 0, count) as supply:
        ((window, _),) = supply.piece(count)
    later = dataclasses.replace(window, first=window.first + 1)
    release = jax.jit(lambda spent: sums.release(KEY, made, spent, PLAIN, start, later).w)
    return Finding(sum(int(jnp.isfinite(release(jnp.int32(k))[0])) for k in range(count)), 0.0)
