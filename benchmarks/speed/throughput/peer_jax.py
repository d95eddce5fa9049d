"""The workloads in plain JAX, without the library: models, peers, and a scan made for the workload.

The peers are what one writes without a library: per-example gradients by `vmap`, clipped and
summed, in a Python loop over a jitted step or in a scan; the differentially private aggregate of
optax; the same step without privacy.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.speed.throughput import cases, models
from benchmarks.speed.throughput.cases import (
    CLIP,
    NOISE,
    PRIOR,
    RADIUS,
    STEP,
    TOKENS,
    Arrays,
    Case,
    Entry,
)


def linear(theta: Arrays, x: jax.Array) -> jax.Array:
    """The score of one row."""
    return x @ theta["k"]


def mlp(theta: Arrays, x: jax.Array) -> jax.Array:
    """Two layers."""
    return jax.nn.relu(x @ theta["W1"] + theta["b1"]) @ theta["W2"]


def cnn(theta: Arrays, x: jax.Array) -> jax.Array:
    """Two convolutions of stride 2 on a 28 x 28 picture, and two layers."""
    def convolved(h: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
        h = jax.lax.conv_general_dilated(h[None], kernel, (2, 2), "VALID",
                                         dimension_numbers=("NHWC", "HWIO", "NHWC"))[0]
        return jax.nn.relu(h + bias)

    h = convolved(x.reshape(28, 28, 1), theta["K1"], theta["c1"])
    h = convolved(h, theta["K2"], theta["c2"]).reshape(-1)
    return jax.nn.relu(h @ theta["W1"] + theta["b1"]) @ theta["W2"]


def attention(theta: Arrays, x: jax.Array) -> jax.Array:
    """One head over 28 tokens, with a residual, averaged over the tokens."""
    h = x.reshape(TOKENS, -1) @ theta["E"]
    q, k, v = h @ theta["Q"], h @ theta["K"], h @ theta["V"]
    mixed = jax.nn.softmax(q @ k.T * q.shape[-1] ** -0.5) @ v
    return jnp.mean(jax.nn.relu(h + mixed @ theta["O"]), 0) @ theta["W2"]


SCORERS = {"linear": linear, "mlp": mlp, "cnn": cnn, "attention": attention, **models.SCORERS}


def point(case: Case) -> Arrays:
    """The starting point."""
    theta = jax.tree.map(jnp.asarray, cases.start(case))
    return {"theta": theta, **dict.fromkeys("abv", jnp.zeros((), jnp.float32))}


def loss(case: Case, w: Arrays, v: jax.Array, x: jax.Array, y: jax.Array,
         scorers: dict[str, Callable[..., Any]] = SCORERS) -> jax.Array:
    """Of one row, without the public term -v^2."""
    s = scorers[case.model](w["theta"], x)
    plus, minus = y / PRIOR, (1 - y) / (1 - PRIOR)
    squares = plus * (s - w["a"]) ** 2 + minus * (s - w["b"]) ** 2
    return squares + 2 * (1 + v) * s * (minus - plus)


def split(z: Arrays) -> tuple[Arrays, jax.Array]:
    """Both players."""
    return {k: x for k, x in z.items() if k != "v"}, z["v"]


def move(z: Arrays, g: Arrays) -> Arrays:
    """The step along the operator g, and the projections."""
    (w, v), (g_w, g_v) = split(z), split(g)
    w = jax.tree.map(lambda x, d: x - STEP[0] * d, w, g_w)
    w = optax.projections.projection_l2_ball(w, RADIUS[0])
    return {**w, "v": jnp.clip(v - STEP[1] * (g_v + 2 * v), -RADIUS[1], RADIUS[1])}


def gradients(case: Case, z: Arrays, x: jax.Array, y: jax.Array) -> tuple[Arrays, jax.Array]:
    """Per-example gradients of the loss by w and v."""
    one = jax.grad(functools.partial(loss, case), (0, 1))
    return jax.vmap(one, (None, None, 0, 0))(*split(z), x, y)


def _clipped(clip: float, g: Any) -> Any:
    square = sum(jnp.sum(jnp.square(a).reshape(a.shape[0], -1), 1) for a in jax.tree.leaves(g))
    weight = clip / jnp.maximum(jnp.sqrt(square), clip)
    return jax.tree.map(lambda a: jnp.tensordot(weight, a, 1), g)


def _add_noise(key: jax.Array, total: Any, std: jax.Array, batch: int) -> Any:
    leaves, tree = jax.tree.flatten(total)
    keys = jax.random.split(key, len(leaves))
    return jax.tree.unflatten(tree, [(a + std * jax.random.normal(k, a.shape)) / batch
                                     for k, a in zip(keys, leaves, strict=True)])


def vmap_step(case: Case, z: Arrays, key: jax.Array, x: jax.Array, y: jax.Array,
              noisy: jax.Array) -> Arrays:
    """As anyone would write it; `noisy` is 0 for a step without noise."""
    g_w, g_v = (_clipped(c, g) for c, g in zip(CLIP, gradients(case, z, x, y), strict=True))
    one, two = jax.random.split(key)
    g_w = _add_noise(one, g_w, noisy * CLIP[0] * NOISE[0], len(x))
    g_v = _add_noise(two, g_v, noisy * CLIP[1] * NOISE[1], len(x))
    return move(z, {**g_w, "v": -g_v})


def optax_step(case: Case, z: Arrays, key: jax.Array, x: jax.Array, y: jax.Array,
               noisy: jax.Array) -> Arrays:
    """One aggregator a player."""
    g = []
    for k, clip, noise, of in zip(jax.random.split(key), CLIP, NOISE, gradients(case, z, x, y),
                                  strict=True):
        tx = optax.contrib.differentially_private_aggregate(clip, noisy * noise, k)
        g.append(tx.update(of, tx.init(of))[0])
    return move(z, {**g[0], "v": -g[1]})


def open_step(case: Case, z: Arrays, key: jax.Array, x: jax.Array, y: jax.Array,
              noisy: jax.Array, scorers: dict[str, Callable[..., Any]] = SCORERS) -> Arrays:
    """Without privacy: the gradient of the mean loss."""
    del key, noisy
    of_row = functools.partial(loss, case, scorers=scorers)

    def mean(w: Arrays, v: jax.Array) -> jax.Array:
        return jnp.mean(jax.vmap(of_row, (None, None, 0, 0))(w, v, x, y))

    g_w, g_v = jax.grad(mean, (0, 1))(*split(z))
    return move(z, {**g_w, "v": -g_v})


def drawn(key: jax.Array, data: tuple[Any, ...], batch: int) -> tuple[jax.Array, ...]:
    """Rows drawn with replacement."""
    picked = jax.random.randint(key, (batch,), 0, len(data[1]))
    return tuple(a[picked] for a in data)


def compiled(function: Callable[..., Any], *given: Any) -> tuple[Callable[..., Any], float]:
    """The compiled function, and what tracing and compiling took."""
    began = cases.building()
    made = jax.jit(function).lower(*given).compile()
    return made, cases.building() - began


def allocated(function: Any) -> Callable[[], int]:
    """What a compiled program allocates, without its arguments, by its own account."""
    memory = function.memory_analysis()
    return lambda: int(memory.temp_size_in_bytes + memory.output_size_in_bytes)


def once(case: Case, step: Callable[..., Any]
         ) -> Callable[[np.ndarray, np.ndarray], dict[str, np.ndarray]]:
    """One noise-free step on given rows."""
    def run(x: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
        quiet = jnp.float32(0)
        return cases.flat(jax.jit(step)(point(case), jax.random.key(0), jnp.asarray(x),
                                        jnp.asarray(y), quiet))

    return run


def looped(case: Case, step: Callable[..., Any], data: tuple[Any, ...], steps: int) -> Entry:
    """A Python loop over a jitted step that draws its own rows."""
    def whole(z: Arrays, key: jax.Array, *data: jax.Array) -> tuple[Arrays, jax.Array]:
        key, rows, noise = jax.random.split(key, 3)
        return step(z, noise, *drawn(rows, data, case.batch), jnp.float32(1)), key

    state = (point(case), jax.random.key(0))
    function, compile_seconds = compiled(whole, *state, *data)

    def advance() -> None:
        nonlocal state
        for _ in range(steps):
            state = function(*state, *data)
        jax.block_until_ready(state)

    return Entry(advance, steps, compile_seconds, once(case, step), allocated(function))


def scanned(case: Case, step: Callable[..., Any], data: tuple[Any, ...], steps: int) -> Entry:
    """The same steps in one program."""
    def whole(z: Arrays, key: jax.Array, *data: jax.Array) -> tuple[Arrays, jax.Array]:
        def body(carry: tuple[Arrays, jax.Array], _: None) -> tuple[tuple[Arrays, jax.Array], None]:
            z, key = carry
            key, rows, noise = jax.random.split(key, 3)
            return (step(z, noise, *drawn(rows, data, case.batch), jnp.float32(1)), key), None

        return jax.lax.scan(body, (z, key), length=steps)[0]

    return program(whole, (point(case), jax.random.key(0)), data, steps, once(case, step))


def program(whole: Callable[..., Any], state: tuple[Any, ...], data: tuple[Any, ...], steps: int,
            once: Callable[..., Any]) -> Entry:
    """A compiled `state -> state` of so many steps."""
    function, compile_seconds = compiled(whole, *state, *data)

    def advance() -> None:
        nonlocal state
        state = jax.block_until_ready(function(*state, *data))

    return Entry(advance, steps, compile_seconds, once, allocated(function))


def make(peer: str, case: Case, data: tuple[Any, ...], steps: int) -> Entry:
    """A peer of this module, by its name."""
    step, how = {
        "plain vmap, loop": (vmap_step, looped),
        "plain vmap, scan": (vmap_step, scanned),
        "optax, loop": (optax_step, looped),
        "not private, scan": (open_step, scanned),
    }[peer]
    return how(case, functools.partial(step, case), data, steps)
