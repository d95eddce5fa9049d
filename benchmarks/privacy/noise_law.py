"""The law of the integer noise by brute force, and its speed beside that of float noise.

    python -m benchmarks.privacy.noise_law [--draws 1e8] [--quick] [--json FILE]

Three parts. Counts of `draws` integers against exact probabilities (chi-square), for a few bits a
standard deviation, and of the lowest byte of the finest ones. The first stage's interval for every
one of its 2^31 words (the sign aside), held against the next stage at both ends of what later bits
may be: a number is right for all numbers of bits if it is between the interval's ends; `wrong` must
be 0. Nanoseconds a number of integer and of float32 noise, medians over rounds in which they
take turns, in process time, within a program that draws many times.
"""

import functools
import statistics
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from benchmarks.common import report
from benchmarks.speed.throughput import cases as throughput_cases
from jaxminimax.noise import _sampler, _tables, floats, floored_normal

_BLOCK = 2**20
_BLOCKS = 64  # of a call
_CACHED = 2**13
_WORDS = 2**31
_SPEED = ((201_220, 18), (201_220, 20), (201_220, 22), (25, 18))


@functools.partial(jax.jit, static_argnames=("cell", "cells", "blocks"))
def _counted(key: jax.Array, bits: jax.Array, cell: Callable[[jax.Array], jax.Array], cells: int,
             blocks: int) -> jax.Array:
    def more(total: jax.Array, key: jax.Array) -> tuple[jax.Array, None]:
        count = jnp.bincount(cell(floored_normal(key, _BLOCK, bits)), length=cells)
        return total + count.astype(jnp.int32), None

    return jax.lax.scan(more, jnp.zeros(cells, jnp.int32), jax.random.split(key, blocks))[0]


def counts(key: jax.Array, draws: int, bits: int, cell: Callable[[jax.Array], jax.Array],
           cells: int) -> np.ndarray:
    """Returns how many of at least `draws` integers are in each cell, counted where they are drawn.

    Args:
      key: of all of them.
      draws: their number, rounded up to whole blocks.
      bits: of a standard deviation.
      cell: of an integer, from 0 to `cells` - 1.
      cells: their number.
    """
    blocks = -(-draws // _BLOCK)
    calls = -(-blocks // _BLOCKS)  # no count of a call passes 32 bits
    total = np.zeros(cells, np.int64)
    for k in jax.random.split(key, calls):
        total += np.asarray(_counted(k, jnp.int32(bits), cell, cells, -(-blocks // calls)))
    return total


def chi_square(draws: int, bits: int) -> dict[str, Any]:
    """Counts against the normal law; cells with fewer than 20 expected are taken together."""
    reach = 8 * 2**bits
    at = np.arange(-reach, reach)
    *drawn, beyond = counts(jax.random.key(bits), draws, bits, lambda x: jnp.where(
        (x >= -reach) & (x < reach), x + reach, 2 * reach), 2 * reach + 1)
    seen_at = np.array(drawn)
    if beyond:
        raise ValueError(f"{beyond} of {draws} integers are beyond 8 standard deviations")
    ends = np.append(at, reach) / 2.0**bits
    # from the nearer tail, for no difference of numbers next to 1
    share = np.where(ends[:-1] < 0, np.diff(stats.norm.cdf(ends)), -np.diff(stats.norm.sf(ends)))
    expected = share * seen_at.sum()
    rare = expected < 20
    seen = np.append(seen_at[~rare], seen_at[rare].sum())
    due = np.append(expected[~rare], expected[rare].sum())
    result = stats.chisquare(seen, due * seen.sum() / due.sum())
    return {"bits": bits, "draws": int(seen_at.sum()), "cells": len(seen),
            "chi_square": float(result.statistic), "p": float(result.pvalue)}


def lowest_byte(draws: int) -> dict[str, Any]:
    """Of the finest integers; uniform but for less than e^(-2 pi^2 2^28)."""
    seen = counts(jax.random.key(99), draws, 22, lambda x: x & 255, 256)
    result = stats.chisquare(seen)
    return {"bits": "lowest 8 of 22", "draws": int(seen.sum()), "cells": 256,
            "chi_square": float(result.statistic), "p": float(result.pvalue)}


def every_word(words: int = _WORDS) -> dict[str, Any]:
    """How many of the first stage's intervals miss the number that they are to hold.

    floor(2^22 q) falls in u; its largest value for word m is at u = m / 2^31, and its smallest is
    at the next word's u, both from the middle stage. Where that is in doubt itself (or m is small,
    and everything is) nothing is compared: these are counted.
    """
    def some(start: jax.Array) -> jax.Array:
        word = start + jnp.arange(_CACHED + 1, dtype=jnp.uint32)
        rest = jnp.zeros_like(word)
        value, unknown = _tables.middle(word, rest, rest, jnp.int32(0))
        below, above, small = (x[:-1] for x in _sampler.enclosed(word))
        # the word after the last is the sign's: u = 1, q = 0
        value = jnp.where(word >= np.uint32(2**31), 0, value)
        unknown = unknown & (word < np.uint32(2**31))
        wrong = ~small & ((~unknown[:-1] & (value[:-1] > above))
                          | (~unknown[1:] & (value[1:] < below)))
        spread = [(((below ^ above) >> k != 0) | small).sum(dtype=jnp.int32) for k in (0, 2, 4)]
        missing = (~small & (unknown[:-1] | unknown[1:])).sum(dtype=jnp.int32)
        return jnp.stack([wrong.sum(dtype=jnp.int32), missing, *spread])

    @jax.jit
    def interval(start: jax.Array) -> jax.Array:
        starts = start + _CACHED * jnp.arange(_BLOCK // _CACHED, dtype=jnp.uint32)
        return jax.lax.map(some, starts).sum(0)

    total = np.zeros(5, np.int64)
    for start in range(0, words, _BLOCK):
        total += np.asarray(interval(jnp.uint32(start)))
    wrong, missing, *spread = total.tolist()
    return {"words": words, "wrong": wrong, "not_compared": missing,
            **{f"in_doubt_at_{bits}_bits": n / words
               for bits, n in zip((22, 20, 18), spread, strict=True)}}


def speed(size: int, bits: int, rounds: int = 15, clock: str = "cpu") -> dict[str, Any]:
    """Medians of both, and of the ratios of rounds; many draws in one program, added up.

    Args:
      size: numbers of a draw.
      bits: of the integer noise.
      rounds: in which the two take turns.
      clock: "cpu", or "wall" where the numbers are drawn by another device.
    """
    now = throughput_cases.clock(clock)
    keys = jax.random.split(jax.random.key(1), 20 * max(1, 10_000 // size))

    def program(draw: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
        return jax.jit(lambda keys, bits: jax.lax.scan(
            lambda total, key: (total + draw(key, bits).astype(jnp.float32), None),
            jnp.zeros(size, jnp.float32), keys)[0])

    ours = program(lambda k, b: floored_normal(k, size, b))
    float32 = program(lambda k, b: floats.standard_normal(k, (size,), jnp.float32))

    def once(f: Callable[..., jax.Array]) -> float:
        begin = now()
        jax.block_until_ready(f(keys, bits))
        return (now() - begin) / len(keys) / size * 1e9

    pairs = [(once(ours), once(float32)) for _ in range(rounds + 1)][1:]
    return {"size": size, "bits": bits,
            "integer_ns": statistics.median(a for a, _ in pairs),
            "float32_ns": statistics.median(b for _, b in pairs),
            "ratio": statistics.median(a / b for a, b in pairs)}


def parser() -> report.Parser:
    """The arguments."""
    p = report.Parser(__file__, __doc__, "json")
    p.add_argument("--draws", type=report.number(1e4, 1e12), default=1e8,
                   help="integers a chi-square (default 1e8)")
    p.add_argument("--quick", action="store_true",
                   help="2^22 words of the first stage instead of all 2^31")
    return p


def main(arguments: list[str] | None = None) -> None:
    """Runs and prints all parts."""
    options = parser().parse_args(arguments)
    draws = int(options.draws)
    record: dict[str, Any] = {"environment": report.environment()}

    def keep(name: str, value: Any) -> None:
        record[name] = value
        if options.json:
            report.write_json(options.json, record)

    laws = [chi_square(draws, bits) for bits in (0, 2, 5, 9)] + [lowest_byte(draws)]
    keep("law", laws)
    print(report.table(("bits", "draws", "cells", "chi-square", "p"), [
        (str(r["bits"]), str(r["draws"]), str(r["cells"]), f"{r['chi_square']:.1f}",
         f"{r['p']:.3f}") for r in laws]), end="\n\n", flush=True)
    times = [speed(*case) for case in _SPEED]
    keep("speed", times)
    print(report.table(("numbers", "bits", "integer ns", "float32 ns", "ratio"), [
        (str(r["size"]), str(r["bits"]), f"{r['integer_ns']:.2f}", f"{r['float32_ns']:.2f}",
         f"{r['ratio']:.2f}") for r in times]), end="\n\n", flush=True)
    words = every_word(2**22 if options.quick else _WORDS)
    keep("first_stage", words)
    print("\n".join(f"{name}: {value}" for name, value in words.items()))


if __name__ == "__main__":
    main()
