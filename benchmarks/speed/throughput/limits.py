"""What the machine allows: bandwidth of a copy, rate of a product, rate of the noise generator."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.speed.throughput import models, special
from benchmarks.speed.throughput import peer_jax as plain
from benchmarks.speed.throughput.cases import Case, clock


def fastest(call: Callable[[], Any], kind: str, rounds: int = 15) -> float:
    """Seconds of a call, the fewest of some rounds, by the clock "cpu" or "wall"."""
    now = clock(kind)
    jax.block_until_ready(call())
    times = []
    for _ in range(rounds):
        began = now()
        jax.block_until_ready(call())
        times.append(now() - began)
    return min(times)


def measured(kind: str = "wall", size: int | None = None) -> dict[str, float]:
    """Bytes read and written a second, float32 operations a second, seconds of a normal number.

    Products are taken twice: with all digits of float32, as the library's sums are, and in the
    fewest digits that the device takes by default. On a CPU there is no difference.

    Args:
      kind: of clock.
      size: edge of the product; the default suits the device.
    """
    gpu = jax.default_backend() != "cpu"
    size = size or (8192 if gpu else 1024)
    many = 16 * size * size
    state = jnp.zeros(many)
    copy = jax.jit(lambda x: x + 1, donate_argnums=0)

    def copied() -> jax.Array:
        nonlocal state
        state = copy(state)
        return state

    a, b = (jax.random.normal(jax.random.key(k), (size, size)) for k in (0, 1))
    exact, rough = (jax.jit(functools.partial(jnp.matmul, precision=how))
                    for how in ("highest", "default"))
    numbers = size * size // 16

    @jax.jit
    def normals(key: jax.Array) -> jax.Array:
        def body(total: jax.Array, t: jax.Array) -> tuple[jax.Array, None]:
            words = special.draw_words(jax.random.fold_in(key, t), numbers)
            return total + special.box_muller(words, numbers), None

        return jax.lax.scan(body, jnp.zeros(numbers), jnp.arange(16))[0]

    made = fastest(lambda: normals(jax.random.key(0)), kind) / (16 * numbers)
    return {"copy_bytes_per_second": 8 * many / fastest(copied, kind),
            "matmul_flops_per_second": 2 * size**3 / fastest(lambda: exact(a, b), kind),
            "rough_matmul_flops_per_second": 2 * size**3 / fastest(lambda: rough(a, b), kind),
            "seconds_per_normal": made}


@functools.lru_cache(maxsize=64)
def operations(case: Case) -> float:
    """Float operations of the gradient of the mean loss over a batch, as the compiler counts."""
    x = jax.ShapeDtypeStruct((case.batch, case.features), jnp.float32)
    y = jax.ShapeDtypeStruct((case.batch,), jnp.float32)
    step = functools.partial(plain.open_step, case, scorers=plain.SCORERS | models.UNROLLED)
    lowered = jax.jit(step).lower(plain.point(case), jax.random.key(0), x, y, jnp.float32(0))
    return float((lowered.cost_analysis() or {}).get("flops", 0.0))


def bound(case: Case, limits: dict[str, float], *, noise: bool = True) -> float:
    """Seconds that the machine needs for a step: rows copied, products, noise."""
    return (8 * case.batch * case.features / limits["copy_bytes_per_second"]
            + operations(case) / limits["matmul_flops_per_second"]
            + noise * case.size * limits["seconds_per_normal"])
