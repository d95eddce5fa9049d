"""jax_privacy in an environment of its own: answers `benchmarks.speed.throughput` in JSON.

`jax_privacy.clipped_grad`, once for each player, and its Gaussian privatizer, in a jitted step that
a Python loop calls, as its users write it; "scan" puts the same step in a scan.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import jax_privacy
from jax_privacy import noise_addition

from benchmarks.speed.throughput import cases
from benchmarks.speed.throughput import peer_jax as plain
from benchmarks.speed.throughput.cases import CLIP, NOISE, Arrays, Case, Entry, Skipped

MICROBATCH = 8


def step(case: Case, microbatch: int | None, z: Arrays, key: jax.Array, x: jax.Array, y: jax.Array,
         scale: jax.Array) -> Arrays:
    """One step; `scale` is 0 for one without noise."""
    def loss(w: Arrays, v: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
        return plain.loss(case, w, v, x, y)

    players, g = plain.split(z), []
    for p, k in zip((0, 1), jax.random.split(key), strict=True):
        clipped = jax_privacy.clipped_grad(loss, p, l2_clip_norm=CLIP[p], batch_argnums=(2, 3),
                                           keep_batch_dim=False, microbatch_size=microbatch)
        total = clipped(*players, x, y)
        privatizer = noise_addition.gaussian_privatizer(stddev=CLIP[p] * NOISE[p], prng_key=k)
        noisy, _ = privatizer.update(total, privatizer.init(total))
        g.append(jax.tree.map(lambda a, b: jnp.where(scale > 0, b, a) / len(y), total, noisy))
    return plain.move(z, {**g[0], "v": -g[1]})


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
    "jax_privacy, scan": (None, plain.scanned),
    "jax_privacy microbatched, scan": (MICROBATCH, plain.scanned),
}

if __name__ == "__main__":
    cases.serve(make)
