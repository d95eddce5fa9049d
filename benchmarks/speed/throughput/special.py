"""Scans made for one workload each: what the library's step is to come near to.

Norms in closed form from factors that are written out by hand, no `[batch, parameters]` array but
for parameters smaller than their factors, all random words of a step from one flat draw, and the
same two results as the library's run: the last iterate and the average.

"words" says how random they are. "short": 32 bits a row and a number, whose tails end at 6.7
standard deviations. "long": what the library draws, 96 bits a row and 96 bits a pair of numbers.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import threefry_2x32

from benchmarks.speed.throughput import cases, closed
from benchmarks.speed.throughput import peer_jax as plain
from benchmarks.speed.throughput.cases import CLIP, NOISE, PRIOR, Arrays, Case, Entry


def draw_words(key: jax.Array, count: int) -> jax.Array:
    """Random words by the generator itself, both halves of each block."""
    return threefry_2x32(jax.random.key_data(key), jax.lax.iota(jnp.uint32, count))


def box_muller(words: jax.Array, size: int) -> jax.Array:
    """Box-Muller, a number from each word."""
    first, turn = words.reshape(2, -1)
    return _pairs((first.astype(jnp.float32) + 0.5) * 2.0**-32, turn)[:size]


def _long_normals(words: jax.Array, size: int) -> jax.Array:
    """Box-Muller, two numbers from three words."""
    high, low, turn = words.reshape(3, -1)
    u = (high.astype(jnp.float32) * 2.0**32 + low.astype(jnp.float32) + 0.5) * 2.0**-64
    return _pairs(u, turn)[:size]


def _pairs(u: jax.Array, turn: jax.Array) -> jax.Array:
    # the two leading bits choose a quarter; the rest is an angle in [-1/8, 1/8) turns, where the
    # polynomials (Taylor's) are exact to float32
    angle = (turn << 2).astype(jnp.int32).astype(jnp.float32) * (2 * np.pi * 2.0**-34)
    square = angle * angle
    sine = angle * (1 + square * (-1 / 6 + square * (1 / 120 - square / 5040)))
    cosine = 1 + square * (-1 / 2 + square * (1 / 24 + square * (-1 / 720 + square / 40320)))
    swap, minus = (turn & (1 << 30)) > 0, turn >> 31 > 0
    radius = jnp.sqrt(-2.0 * jnp.log(jnp.minimum(u, 1.0)))
    radius = jnp.where(minus, -radius, radius)
    return jnp.concatenate([radius * jnp.where(swap, cosine, sine),
                            radius * jnp.where(swap, -sine, cosine)])


def _below(word: jax.Array, n: int, carry: Any = 0) -> jax.Array:
    """floor((word n + carry) / 2^32) for n below 2^31, in digits of 16 bits."""
    low, high = word & 0xFFFF, word >> 16
    n0, n1 = jnp.uint32(n & 0xFFFF), jnp.uint32(n >> 16)
    bottom = low * n0
    start = bottom + jnp.asarray(carry, jnp.uint32)  # may wrap around
    middle = high * n0 + (start >> 16) + ((start < bottom).astype(jnp.uint32) << 16)
    last = low * n1 + (middle & 0xFFFF)
    return high * n1 + (middle >> 16) + (last >> 16)


def _noisy(case: Case, total: Arrays, normals: jax.Array) -> Arrays:
    leaves, tree = jax.tree.flatten(total)
    stds = jax.tree.leaves({**jax.tree.map(lambda _: CLIP[0] * NOISE[0], total),
                            "v": CLIP[1] * NOISE[1]})
    ends = np.cumsum([a.size for a in leaves])
    parts = jnp.split(normals, ends[:-1])
    return jax.tree.unflatten(tree, [
        (a + std * e.reshape(a.shape)) / case.batch
        for a, std, e in zip(leaves, stds, parts, strict=True)])


def sums(case: Case, z: Arrays, x: jax.Array, y: jax.Array, square_x: jax.Array | None = None
         ) -> Arrays:
    """The clipped sums."""
    if case.model in ("linear", "mlp"):
        return closed.clipped_sums(case, jnp, z, x, y, square_x)
    return _tapped_sums(case, z, x, y)


def _tapped_cnn(theta: Arrays, taps: Arrays, x: jax.Array) -> tuple[jax.Array, Arrays]:
    """Scores `[b]`, with a zero added before every nonlinearity; what each weight met."""
    b = len(x)

    def patches(h: jax.Array, size: int) -> jax.Array:  # [b, positions, size * size * channels]
        out = (h.shape[1] - size) // 2 + 1
        cut = [h[:, i:i + 2 * out - 1:2, j:j + 2 * out - 1:2] for i in range(size)
               for j in range(size)]
        return jnp.stack(cut, 3).reshape(b, out * out, -1)

    p1 = patches(x.reshape(b, 28, 28, 1), 4)
    h = jax.nn.relu(p1 @ theta["K1"].reshape(-1, 16) + theta["c1"] + taps["1"])
    p2 = patches(h.reshape(b, 13, 13, 16), 4)
    h = jax.nn.relu(p2 @ theta["K2"].reshape(-1, 32) + theta["c2"] + taps["2"]).reshape(b, -1)
    r = jax.nn.relu(h @ theta["W1"] + theta["b1"] + taps["3"])
    return r @ theta["W2"], {"1": p1, "2": p2, "3": h, "last": r}


def _tapped_attention(theta: Arrays, taps: Arrays, x: jax.Array) -> tuple[jax.Array, Arrays]:
    tokens = x.reshape(len(x), cases.TOKENS, -1)
    h = tokens @ theta["E"] + taps["E"]
    q, k, v = (h @ theta[name] + taps[name] for name in "QKV")
    weights = jax.nn.softmax(jnp.einsum("bik,bjk->bij", q, k) * q.shape[-1] ** -0.5)
    mixed = weights @ v
    r = jnp.mean(jax.nn.relu(h + mixed @ theta["O"] + taps["O"]), 1)
    return r @ theta["W2"], {"E": tokens, "Q": h, "K": h, "V": h, "O": mixed, "last": r}


def _tapped_sums(case: Case, z: Arrays, x: jax.Array, y: jax.Array) -> Arrays:
    tapped = {"cnn": _tapped_cnn, "attention": _tapped_attention}[case.model]
    layers: dict[str, dict[str, tuple[int, ...]]] = {
        "cnn": {"1": (169, 16), "2": (25, 32), "3": (32,)},
        "attention": dict.fromkeys("EQKVO", (cases.TOKENS, cases.WIDTH))}
    shapes = layers[case.model]
    zeros = {k: jnp.zeros((len(x), *shape), x.dtype) for k, shape in shapes.items()}
    s, back, met = jax.vjp(lambda taps: tapped(z["theta"], taps, x), zeros, has_aux=True)
    plus, minus = y / PRIOR, (1 - y) / (1 - PRIOR)
    pull_a, pull_b = 2 * plus * (s - z["a"]), 2 * minus * (s - z["b"])
    slope = pull_a + pull_b + 2 * (1 + z["v"]) * (minus - plus)
    (d,) = back(slope)
    square = pull_a**2 + pull_b**2 + slope**2 * jnp.sum(met["last"] ** 2, 1)
    per_row, gradients = {}, {}
    for k, e in d.items():
        if e.ndim == 2:  # one position: rank one
            square += jnp.sum(e**2, 1) * (jnp.sum(met[k] ** 2, 1) + 1)
            continue
        per_row[k] = jnp.einsum("btk,bto->bko", met[k], e)  # smaller than its factors
        square += jnp.sum(per_row[k] ** 2, (1, 2))
        if case.model == "cnn":
            gradients[k] = jnp.sum(e, 1)  # of the bias
            square += jnp.sum(gradients[k] ** 2, 1)
    weight = CLIP[0] / jnp.maximum(jnp.sqrt(square), CLIP[0])
    full = {k: jnp.tensordot(weight, g, 1) for k, g in per_row.items()}
    theta = {"W2": (weight * slope) @ met["last"]}
    if case.model == "cnn":
        e = weight[:, None] * d["3"]
        theta |= {"K1": full["1"].reshape(4, 4, 1, 16), "K2": full["2"].reshape(4, 4, 16, 32),
                  "c1": weight @ gradients["1"], "c2": weight @ gradients["2"],
                  "W1": met["3"].T @ e, "b1": e.sum(0)}
    else:
        theta |= full
    g_v = 2 * s * (plus - minus)
    return {"theta": theta, "a": -(weight @ pull_a), "b": -(weight @ pull_b),
            "v": jnp.clip(g_v, -CLIP[1], CLIP[1]).sum()}


def make(case: Case, data: tuple[Any, ...], steps: int, words: str = "short",
         norms: bool = False) -> Entry:
    """The scan; with `norms`, the rows' squared norms are computed once and kept.

    Raises:
      Skipped: for a workload that none was written for.
    """
    if case.model not in ("linear", "mlp", "cnn", "attention"):
        raise cases.Skipped("written for the linear, MLP, CNN and attention scorers only")
    if norms:
        data = (*data, closed.squares(jnp, data[0]))
    half, long = (case.size + 1) // 2, words == "long"
    row_words = (3 if long else 1) * case.batch
    number_words = (3 if long else 2) * half

    def step(z: Arrays, key: jax.Array, data: tuple[Any, ...]) -> Arrays:
        bits = draw_words(key, row_words + number_words)
        if long:
            low, middle, high = bits[:row_words].reshape(3, -1)
            below = functools.reduce(lambda c, w: _below(w, case.n, c), (low, middle, high),
                                     jnp.uint32(0))
            picked = below.astype(jnp.int32)
        else:
            picked = _below(bits[:row_words], case.n).astype(jnp.int32)
        rows = (a.at[picked].get(mode="promise_in_bounds") for a in data)
        normals = (_long_normals if long else box_muller)(bits[row_words:], case.size)
        return plain.move(z, _noisy(case, sums(case, z, *rows), normals))

    def whole(z: Arrays, mean: Arrays, key: jax.Array, *data: jax.Array
              ) -> tuple[Arrays, Arrays, Any]:
        def body(carry: tuple[Arrays, Arrays], t: jax.Array) -> tuple[tuple[Arrays, Arrays], None]:
            z, mean = carry
            mean = jax.tree.map(lambda m, a: m + (a - m) / t.astype(a.dtype), mean, z)
            return (step(z, jax.random.fold_in(key, t), data), mean), None

        z, mean = jax.lax.scan(body, (z, mean), jnp.arange(1, steps + 1))[0]
        return z, mean, jax.random.fold_in(key, 0)

    def quiet(z: Arrays, _: jax.Array, x: jax.Array, y: jax.Array, __: jax.Array) -> Arrays:
        total = sums(case, z, x, y, closed.squares(jnp, x) if norms else None)
        return plain.move(z, jax.tree.map(lambda a: a / len(y), total))

    z = plain.point(case)
    return plain.program(whole, (z, z, jax.random.key(0)), data, steps,
                         plain.once(case, quiet))
