"""Deeper models of the benchmark of steps, in plain JAX, as a user writes them: one row's score.

A network that goes over a sequence, a transformer whose layers are scanned and whose base is frozen
beneath adapters of low rank, and convolutions with residuals and group norms; of larger pictures,
plain convolutions and a vision transformer, trained whole or by adapters.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.speed.throughput import cases
from benchmarks.speed.throughput.cases import GROUPS, HEADS, LAYERS, PLACES, STAGES, STEPS, VIEWS


def rnn(theta: dict[str, Any], x: jax.Array, unroll: bool = False) -> jax.Array:
    """A simple recurrent network over the lines of a 28 x 28 picture."""
    def cell(h: jax.Array, line: jax.Array) -> tuple[jax.Array, None]:
        return jnp.tanh(line @ theta["U"] + h @ theta["V"]), None

    start = jnp.zeros(theta["V"].shape[0], x.dtype)
    return jax.lax.scan(cell, start, x.reshape(STEPS, -1), unroll=unroll)[0] @ theta["W2"]


def normed(h: jax.Array) -> jax.Array:
    """Layer norm without parameters."""
    h = h - jnp.mean(h, -1, keepdims=True)
    return h * jax.lax.rsqrt(jnp.mean(h * h, -1, keepdims=True) + 1e-5)


def lora(theta: dict[str, Any], x: jax.Array, unroll: bool = False) -> jax.Array:
    """Four layers of a frozen transformer over 64 tokens; adapters of rank 8 on the attention."""
    base = {k: jnp.asarray(a) for k, a in cases.frozen().items()}
    h = cases.tokens(x) @ base["E"] + base["P"]
    adapters = {k: a for k, a in theta.items() if k != "W2"}

    def layer(h: jax.Array, both: tuple[dict[str, Any], dict[str, Any]]) -> tuple[jax.Array, None]:
        own, low = both

        def mapped(name: str, u: jax.Array) -> jax.Array:
            return u @ own[name] + (u @ low[f"A{name}"]) @ low[f"B{name}"]

        u = normed(h)
        q, k, v = (mapped(name, u).reshape(len(h), HEADS, -1) for name in "qkv")
        scores = jnp.einsum("ihd,jhd->hij", q, k) * q.shape[-1] ** -0.5
        mixed = jnp.einsum("hij,jhd->ihd", jax.nn.softmax(scores), v).reshape(h.shape)
        h = h + mapped("o", mixed)
        return h + jax.nn.relu(normed(h) @ own["up"]) @ own["down"], None

    stacked = {k: base[k] for k in ("q", "k", "v", "o", "up", "down")}
    h, _ = jax.lax.scan(layer, h, (stacked, adapters), length=LAYERS, unroll=unroll)
    return jnp.mean(normed(h), 0) @ theta["W2"]


def resnet(theta: dict[str, Any], x: jax.Array) -> jax.Array:
    """Nine convolutions in three residual blocks, with group norms, on a 28 x 28 picture."""
    def convolved(h: jax.Array, name: str, stride: int = 1) -> jax.Array:
        kernel = theta[f"K{name}"]
        edge = (kernel.shape[0] - 1) // 2
        return jax.lax.conv_general_dilated(
            h[None], kernel, (stride, stride), ((edge, edge), (edge, edge)),
            dimension_numbers=("NHWC", "HWIO", "NHWC"))[0]

    def grouped(h: jax.Array, name: str) -> jax.Array:
        parts = h.reshape(-1, GROUPS, h.shape[-1] // GROUPS)
        parts = parts - jnp.mean(parts, (0, 2), keepdims=True)
        parts = parts * jax.lax.rsqrt(jnp.mean(parts * parts, (0, 2), keepdims=True) + 1e-5)
        return parts.reshape(h.shape) * theta[f"g{name}"] + theta[f"h{name}"]

    h = jax.nn.relu(grouped(convolved(x.reshape(28, 28, 1), "0"), "0"))
    for i, (inputs, channels, stride) in enumerate(STAGES, 1):
        inner = jax.nn.relu(grouped(convolved(h, f"{i}a", stride), f"{i}a"))
        inner = grouped(convolved(inner, f"{i}b"), f"{i}b")
        short = h if inputs == channels else convolved(h, f"{i}s", stride)
        h = jax.nn.relu(inner + short)
    return jnp.mean(h, (0, 1)) @ theta["W2"]


def cifar(theta: dict[str, Any], x: jax.Array) -> jax.Array:
    """Six convolutions of 3 x 3 on a picture of 32 x 32 x 3, halved thrice, and two layers."""
    h = x.reshape(32, 32, 3)
    for i in range(6):
        h = jnp.tanh(jax.lax.conv_general_dilated(
            h[None], theta[f"K{i}"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))[0])
        if i % 2 == 1:  # the mean of 2 x 2 pixels
            h = jnp.mean(h.reshape(len(h) // 2, 2, len(h) // 2, 2, -1), (1, 3))
    return jnp.tanh(h.reshape(-1) @ theta["W1"] + theta["b1"]) @ theta["W2"]


def vit(theta: dict[str, Any], x: jax.Array) -> jax.Array:
    """ViT-tiny on 64 patches of a picture of 32 x 32 x 3; with adapters, its base is frozen."""
    adapted = "Aq" in theta
    base = {k: jnp.asarray(a) for k, a in cases.frozen_vit().items()} if adapted else theta
    patches = x.reshape(8, 4, 8, 4, 3).transpose(0, 2, 1, 3, 4).reshape(PLACES, -1)
    adapters = {k: a for k, a in theta.items() if k[0] in "AB"}

    def layer(h: jax.Array, both: tuple[dict[str, Any], dict[str, Any]]) -> tuple[jax.Array, None]:
        own, low = both
        u = normed(h)
        q, k, v = ((u @ own[name] + ((u @ low[f"A{name}"]) @ low[f"B{name}"] if adapted else 0.0)
                    ).reshape(PLACES, VIEWS, -1) for name in "qkv")
        scores = jnp.einsum("ihd,jhd->hij", q, k) * q.shape[-1] ** -0.5
        mixed = jnp.einsum("hij,jhd->ihd", jax.nn.softmax(scores), v)
        h = h + mixed.reshape(h.shape) @ own["o"]
        return h + jax.nn.gelu(normed(h) @ own["up"]) @ own["down"], None

    stacked = {k: base[k] for k in ("q", "k", "v", "o", "up", "down")}
    h, _ = jax.lax.scan(layer, patches @ base["E"] + base["P"], (stacked, adapters))
    return jnp.mean(normed(h), 0) @ theta["W2"]


SCORERS: dict[str, Callable[..., jax.Array]] = {
    "rnn": rnn, "lora": lora, "resnet": resnet, "cifar": cifar, "vit": vit, "vit-lora": vit}
# a compiler counts the operations of a loop's body once
UNROLLED = {name: functools.partial(SCORERS[name], unroll=True) for name in ("rnn", "lora")}
