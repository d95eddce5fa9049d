"""jax_privacy in an environment of its own: answers `benchmarks.speed.throughput` in JSON.

`jax_privacy.clipped_grad`, once for each player, and its Gaussian privatizer, in a jitted step that
a Python loop calls, as its users write it; "scan" puts the same step in a scan. "Poisson" draws
samples by its `CyclicPoissonSampling` and pads them to a multiple of an eighth of the batch, or of
a microbatch if that is more, so that few programs are compiled.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax_privacy
import numpy as np
from jax_privacy import batch_selection, noise_addition

from benchmarks.speed.throughput import cases
from benchmarks.speed.throughput import peer_jax as plain
from benchmarks.speed.throughput.cases import CLIP, NOISE, Arrays, Case, Entry, Skipped

MICROBATCH = 8


def step(case: Case, microbatch: int | None, z: Arrays, key: jax.Array, x: jax.Array, y: jax.Array,
         scale: jax.Array, padding: jax.Array | None = None) -> Arrays:
    """One step; `scale` is 0 for one without noise, `padding` marks rows that are none."""
    count = len(y) if padding is None else case.batch
    def loss(w: Arrays, v: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
        return plain.loss(case, w, v, x, y)

    players, g = plain.split(z), []
    for p, k in zip((0, 1), jax.random.split(key), strict=True):
        clipped = jax_privacy.clipped_grad(loss, p, l2_clip_norm=CLIP[p], batch_argnums=(2, 3),
                                           keep_batch_dim=False, microbatch_size=microbatch)
        total = clipped(*players, x, y, is_padding_example=padding)
        privatizer = noise_addition.gaussian_privatizer(stddev=CLIP[p] * NOISE[p], prng_key=k)
        noisy, _ = privatizer.update(total, privatizer.init(total))
        g.append(jax.tree.map(lambda a, b: jnp.where(scale > 0, b, a) / count, total, noisy))
    return plain.move(z, {**g[0], "v": -g[1]})


def sampled(case: Case, step: Callable[..., Any], data: tuple[Any, ...], steps: int) -> Entry:
    """A Python loop over Poisson samples, with a jitted step for each padded size."""
    def whole(rows: jax.Array, z: Arrays, key: jax.Array, *data: jax.Array
              ) -> tuple[Arrays, jax.Array]:
        key, noise = jax.random.split(key)
        taken = (a[jnp.maximum(rows, 0)] for a in data)
        return step(z, noise, *taken, jnp.float32(1), rows < 0), key

    multiple = max(MICROBATCH, case.batch // 8)
    spread = 4 * case.batch**0.5
    state = (plain.point(case), jax.random.key(0))
    programs, build_seconds = {}, 0.0
    for size in range(multiple, int(case.batch + spread) + 2 * multiple, multiple):
        if size > case.batch - spread:
            programs[size], seconds = plain.compiled(whole, jnp.zeros(size, jnp.int32), *state,
                                                     *data)
            build_seconds += seconds
    rng = np.random.default_rng(0)

    def advance() -> None:
        nonlocal state
        samples = batch_selection.CyclicPoissonSampling(case.batch / case.n, steps)
        for rows in samples.batch_iterator(case.n, rng):
            padded = batch_selection.pad_to_multiple_of(rows, multiple).astype(np.int32)
            if padded.size in programs:  # all but one in 10,000
                state = programs[padded.size](padded, *state, *data)
        jax.block_until_ready(state)

    return Entry(advance, steps, build_seconds, plain.once(case, step),
                 plain.allocated(programs[max(programs)]))


def make(peer: str, case: Case, steps: int) -> Entry:
    """A peer of this module, by its name."""
    if peer not in PEERS:
        raise Skipped(f"unknown peer {peer!r}")
    microbatch, how = PEERS[peer]
    return how(case, functools.partial(step, case, microbatch), _data(*case.resident), steps)


@functools.lru_cache(maxsize=1)
def _data(n: int, features: int) -> tuple[Any, ...]:
    return tuple(map(jnp.asarray, cases.rows_like(n, features)))


PEERS = {
    "jax_privacy": (None, plain.looped),
    "jax_privacy microbatched": (MICROBATCH, plain.looped),
    "jax_privacy, Poisson": (None, sampled),
    "jax_privacy, Poisson, microbatched": (MICROBATCH, sampled),
    "jax_privacy, scan": (None, plain.scanned),
    "jax_privacy microbatched, scan": (MICROBATCH, plain.scanned),
}

if __name__ == "__main__":
    cases.serve(make)
