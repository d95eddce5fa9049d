"""Clipped sums of random models: factors give what whole gradients give, and no record escapes.

    python -m benchmarks.privacy.random_models --models 200 [--json FILE]

A model is a few layers drawn from a list: dense, scaled by constants, stacked in a scan, recurrent,
both, per-head and per-expert weights, static slices, convolutions in groups, norms, positions,
products and sums of parameters, low rank, weight norm, standardised kernels, spectral scaling,
tables, tied tables, and uses that are not understood. Its parameters belong to one player or the
other at random. The records' features and losses have magnitudes from 1e-30 to 1e30, and the clip
norms lie among the gradients' norms. Functions between the layers are smooth at every magnitude: a
sine of 1e28 would be another one after a single rounding. Two statements are checked for each
model:

* in float64, every record's own clipped gradient, and the sum, differ between the strategies
  "ghost" and "vmap" by rounding;
* in float64 and float32, no record's clipped gradient is longer than its clip norm.
"""

import functools
import itertools
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.common import report
from jaxminimax import Saddle, clipped_sum, saddle_operator
from jaxminimax.gradients.ghost import planning

RECORDS = 6
TABLE = 20  # rows
CLOSE = 1e-9  # of the clip norm, in float64

Array = Any


class Layer(NamedTuple):
    """A layer of activations `[t, c]`.

    Attributes:
      shapes: of its parameters, by t and c.
      apply: `(parameters, activations, row numbers [t]) -> activations`.
    """

    shapes: Callable[[int, int], dict[str, tuple[int, ...]]]
    apply: Callable[[dict[str, Array], Array, Array], Array]


def _dense(p: dict[str, Any], h: Array, ids: Array) -> Array:
    return jnp.tanh(h @ p["m"] + p["b"])


def _scaled(p: dict[str, Any], h: Array, ids: Array) -> Array:
    return h @ (0.3 * p["m"]) + h @ (p["m"] / jnp.sqrt(h.shape[1]))


def _stacked(p: dict[str, Any], h: Array, ids: Array, **how: Any) -> Array:
    return jax.lax.scan(lambda h, q: (h + jnp.tanh(h @ q["m"] + q["b"]), None), h, p, **how)[0]


def _rematerialised(p: dict[str, Any], h: Array, ids: Array) -> Array:
    body = jax.checkpoint(lambda h, m: (h + jnp.arcsinh(h @ (2.0 * m)), jnp.sum(h)))
    h, sums = jax.lax.scan(body, h, p["m"])
    return h + jnp.sum(sums)


def _recurrent(p: dict[str, Any], h: Array, ids: Array) -> Array:
    def cell(state: Array, row: Array) -> tuple[Array, Array]:
        state = jnp.tanh(row @ p["in"] + state @ p["loop"] + p["b"])
        return state, state + row

    return jax.lax.scan(cell, jnp.zeros_like(h[0]), h)[1]


def _deep(p: dict[str, Any], h: Array, ids: Array) -> Array:
    def layer(h: Array, m: Array) -> tuple[Array, None]:
        return jax.lax.scan(lambda s, row: (jnp.tanh(s @ m + row),) * 2, h[0], h)[1], None

    return jax.lax.scan(layer, h, p["m"])[0]


def _heads(p: dict[str, Any], h: Array, ids: Array) -> Array:
    mixed = jnp.einsum("tc,hcd->htd", h, p["in"])
    return jnp.einsum("htd,hdc->tc", jnp.tanh(mixed), p["out"])


def _experts(p: dict[str, Any], h: Array, ids: Array) -> Array:
    parts = jnp.arcsinh(h).reshape(h.shape[0], 2, -1)
    return jax.vmap(jnp.matmul, (1, 0), 1)(parts, p["m"]).reshape(h.shape)


def _sliced(p: dict[str, Any], h: Array, ids: Array) -> Array:
    m = p["m"]
    return jnp.tanh(h @ m[0]) @ m[-1] + jnp.tanh(h) @ m[0].T + jnp.sum(h @ m[1, :, ::2])


def _overlapping(p: dict[str, Any], h: Array, ids: Array) -> Array:
    parts = [jnp.einsum("tc,gcd->tgd", jnp.arcsinh(h), p["m"][i: i + 2]) for i in (0, 1)]
    return h + jnp.sum(jnp.tanh(parts[0]) * parts[1], 1)


def _convolution(p: dict[str, Any], h: Array, ids: Array) -> Array:
    return jax.lax.conv_general_dilated(
        jnp.tanh(h)[None], p["k"], (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"),
        feature_group_count=h.shape[1] // p["k"].shape[1])[0]


def _normed(p: dict[str, Any], h: Array, ids: Array) -> Array:
    h = jnp.tanh(h) + p["position"]
    return (h - jnp.mean(h, 1, keepdims=True)) / jnp.sqrt(1 + jnp.var(h, 1, keepdims=True)
                                                           ) * p["scale"] + p["shift"]


def _chain(p: dict[str, Any], h: Array, ids: Array) -> Array:
    return jnp.einsum("tc,cd,de->te", h, p["a"], p["b"])


def _low_rank(p: dict[str, Any], h: Array, ids: Array) -> Array:
    frozen = jax.lax.stop_gradient(p["m"])
    return jnp.tanh(h @ frozen + 0.5 * (h @ p["a"]) @ p["b"])


def _low_rank_sum(p: dict[str, Any], h: Array, ids: Array) -> Array:
    def layer(h: Array, q: dict[str, Any]) -> tuple[Array, None]:
        return h + jnp.tanh(h @ (q["m"] + 0.5 * q["a"] @ q["b"])), None

    return jax.lax.scan(layer, h, p)[0]


def _even(p: dict[str, Any], h: Array, ids: Array) -> Array:
    return h @ (p["m"] + p["m"].T - p["a"] @ p["m"] @ p["b"])


def _weight_normed(p: dict[str, Any], h: Array, ids: Array) -> Array:
    m = p["g"] * p["m"] / jnp.sqrt(1e-6 + jnp.sum(p["m"] ** 2, 0))
    return jax.lax.scan(lambda s, row: (jnp.tanh(s @ m + row),) * 2, h[0], h)[1]


def _standardised(p: dict[str, Any], h: Array, ids: Array) -> Array:
    k = (p["k"] - jnp.mean(p["k"], (0, 1))) / jnp.sqrt(0.1 + jnp.var(p["k"], (0, 1)))
    return _convolution({"k": k}, h, ids) + h @ (p["m"] * np.tri(h.shape[1], dtype=np.float32))


def _spectral(p: dict[str, Any], h: Array, ids: Array) -> Array:
    m = p["m"] / jnp.sqrt(0.1 + jnp.sum(p["m"] ** 2))
    return h @ m + jnp.arcsinh(h) @ m.T + jnp.tanh(h @ p["m"])


def _table(p: dict[str, Any], h: Array, ids: Array) -> Array:
    return h * 0.1 + p["table"][ids]


def _table_in_loop(p: dict[str, Any], h: Array, ids: Array) -> Array:
    return jax.lax.scan(lambda s, i: (jnp.tanh(s + p["table"][i]),) * 2, h[0], ids)[1]


def _tied(p: dict[str, Any], h: Array, ids: Array) -> Array:
    scores = jnp.arcsinh(h + p["table"][ids]) @ p["table"].T
    return jax.nn.softmax(scores) @ p["table"]


def _tied_logits(p: dict[str, Any], h: Array, ids: Array) -> Array:
    table = p["table"]
    rows = jnp.arcsinh(h) + table[3 * ids] - table[3 * ids[:1]]
    return h + (rows @ table.T)[:, :h.shape[1]]


def _unknown(p: dict[str, Any], h: Array, ids: Array) -> Array:
    h = jax.lax.cond(jnp.sum(h) > 0, lambda: h @ p["branch"], lambda: h)
    (h, _), _ = jax.lax.scan(lambda c, _: ((jnp.arcsinh(c[0] @ c[1]), -c[1]), None),
                             (h, p["carry"]), None, length=2)
    lower = np.tri(h.shape[1], dtype=np.float32)
    return h * jnp.linalg.norm(p["masked"]) + h @ (p["masked"] * lower)


LAYERS = {
    "dense": Layer(lambda t, c: {"m": (c, c), "b": (c,)}, _dense),
    "scaled": Layer(lambda t, c: {"m": (c, c)}, _scaled),
    "stacked": Layer(lambda t, c: {"m": (3, c, c), "b": (3, c)}, _stacked),
    "stacked, reverse": Layer(lambda t, c: {"m": (3, c, c), "b": (3, c)},
                              functools.partial(_stacked, reverse=True, unroll=2)),
    "rematerialised": Layer(lambda t, c: {"m": (2, c, c)}, _rematerialised),
    "recurrent": Layer(lambda t, c: {"in": (c, c), "loop": (c, c), "b": (c,)}, _recurrent),
    "deep recurrent": Layer(lambda t, c: {"m": (2, c, c)}, _deep),
    "heads": Layer(lambda t, c: {"in": (2, c, c), "out": (2, c, c)}, _heads),
    "experts": Layer(lambda t, c: {"m": (2, c // 2, c // 2)}, _experts),
    "sliced": Layer(lambda t, c: {"m": (3, c, c)}, _sliced),
    "overlapping": Layer(lambda t, c: {"m": (3, c, c)}, _overlapping),
    "convolution in groups": Layer(lambda t, c: {"k": (2, c // 2, c)}, _convolution),
    "depthwise convolution": Layer(lambda t, c: {"k": (3, 1, c)}, _convolution),
    "normed": Layer(lambda t, c: {"position": (t, c), "scale": (c,), "shift": (c,)}, _normed),
    "chain": Layer(lambda t, c: {"a": (c, 2), "b": (2, c)}, _chain),
    "low rank": Layer(lambda t, c: {"m": (c, c), "a": (c, 2), "b": (2, c)}, _low_rank),
    "sum of low rank": Layer(lambda t, c: {"m": (2, c, c), "a": (2, c, 2), "b": (2, 2, c)},
                             _low_rank_sum),
    "even": Layer(lambda t, c: {"m": (c, c), "a": (c, c), "b": (c, c)}, _even),
    "weight norm": Layer(lambda t, c: {"m": (c, c), "g": (c,)}, _weight_normed),
    "standardised": Layer(lambda t, c: {"k": (2, c // 2, c), "m": (c, c)}, _standardised),
    "spectral": Layer(lambda t, c: {"m": (c, c)}, _spectral),
    "table": Layer(lambda t, c: {"table": (TABLE, c)}, _table),
    "table in a loop": Layer(lambda t, c: {"table": (TABLE, c)}, _table_in_loop),
    "tied": Layer(lambda t, c: {"table": (TABLE, c)}, _tied),
    "tied, large": Layer(lambda t, c: {"table": (5 * TABLE, c)}, _tied_logits),
    "unknown": Layer(lambda t, c: {"branch": (c, c), "carry": (c, c), "masked": (c, c)}, _unknown),
}


class Model(NamedTuple):
    """A model and its records.

    Attributes:
      names: of its layers.
      loss: `(w, v, record) -> []`.
      z: the point.
      records: leaves `[RECORDS, ...]`.
    """

    names: tuple[str, ...]
    loss: Callable[..., Any]
    z: Saddle
    records: dict[str, np.ndarray]


def _begun(seed: int) -> tuple[np.random.Generator, int, int, tuple[str, ...]]:
    """What goes on to draw, t, c, and the names of two to four layers."""
    rng = np.random.default_rng(seed)
    t, c = int(rng.choice([1, 3])), int(rng.choice([4, 12]))
    # every layer comes round, whatever the others are
    first = list(LAYERS)[seed % len(LAYERS)]
    names = (first, *rng.choice(list(LAYERS), rng.integers(1, 4)))
    return rng, t, c, tuple(str(name) for name in rng.permutation(names))


def covering(seeds: Iterable[int]) -> list[int]:
    """Few of the seeds, such that every layer is in one of their models."""
    names = {seed: set(_begun(seed)[-1]) for seed in seeds}
    left, chosen = set(LAYERS), []
    while left:
        chosen.append(max(names, key=lambda seed: len(names[seed] & left)))
        left -= names[chosen[-1]]
    return chosen


def draw(seed: int, dtype: Any) -> Model:
    """A random model of two to four layers."""
    rng, t, c, names = _begun(seed)
    players: tuple[dict[str, Any], dict[str, Any]] = {}, {}
    owner = {}
    for place, name in enumerate(names):
        for leaf, shape in LAYERS[name].shapes(t, c).items():
            owner[place, leaf] = int(rng.integers(2))
            players[owner[place, leaf]][f"{place} {leaf}"] = jnp.asarray(
                rng.normal(size=shape) / np.sqrt(c), dtype)
    linear = rng.random(len(names)) < 0.5

    def loss(w: dict[str, Any], v: dict[str, Any], x: dict[str, Any]) -> jax.Array:
        h = x["features"]
        for place, name in enumerate(names):
            p = {leaf: (w, v)[who][f"{at} {leaf}"] for (at, leaf), who in owner.items()
                 if at == place}
            out = LAYERS[name].apply(p, h, x["ids"])
            h = h + out if linear[place] else out
        return x["size"] * jnp.sum(jnp.arcsinh(h) if len(names) % 2 else h * h[..., ::-1])

    features, size = (10.0 ** rng.uniform(-30, 30, RECORDS) for _ in range(2))
    features[: RECORDS // 2], size[:2] = 1.0, 1.0
    return Model(names, loss, Saddle(*players), {
        "features": np.asarray(rng.normal(size=(RECORDS, t, c)) * features[:, None, None], dtype),
        "size": np.asarray(size, dtype), "ids": rng.integers(0, TABLE, (RECORDS, t))})


def _lengths(tree: Any) -> np.ndarray:
    """Norms of the rows of all leaves together, `[n]`, without overflow."""
    leaves = [np.asarray(x, np.float64).reshape(RECORDS, -1) for x in jax.tree.leaves(tree)]
    if not leaves:
        return np.zeros(RECORDS)
    rows = np.concatenate(leaves, 1)
    top = np.maximum(np.abs(rows).max(1), 1e-300)
    return top * np.linalg.norm(rows / top[:, None], axis=1)


class Found(NamedTuple):
    """What a model shows.

    Attributes:
      difference: largest one between the strategies, beyond four times what a rounding of the
        parameters changes, in clip norms; 0 in float32.
      longest: largest clipped norm of a record, in clip norms.
      kinds: of the treatments of its parameters.
    """

    difference: float
    longest: float
    kinds: tuple[str, ...]


def examine(model: Model) -> Found:
    """Each record's own clipped gradient by both strategies."""
    wide = next(iter(model.records.values())).dtype == np.float64
    clip = Saddle(0.3, 2.0)

    @functools.partial(jax.jit, static_argnums=0)
    def apart(strategy: str, masks: Array, z: Saddle, records: dict[str, Any]) -> Saddle:
        total = clipped_sum(saddle_operator(model.loss), clip, strategy=strategy)
        return jax.vmap(total, (None, None, 0))(z, records, masks)

    masks = jnp.eye(RECORDS, dtype=bool).at[-1].set(True)  # the last one is the sum
    result = [apart(strategy, masks, model.z, model.records)
              for strategy in ("ghost", "vmap")[: 1 + wide]]
    longest = max(float(np.max(_lengths(x)[:-1] / c))
                  for x, c in zip(result[0], clip, strict=True))
    difference = 0.0
    if wide:
        # by how much a rounding of every parameter moves the clipped gradients
        rng = np.random.default_rng(0)
        near = jax.tree.map(lambda x: x * (1 + 2e-16 * rng.choice([-1, 1], x.shape)), model.z)
        moved = apart("vmap", masks, near, model.records)
        difference = max(0.0, *(
            float(np.max((_lengths(jax.tree.map(jnp.subtract, a, b))
                          - 4 * _lengths(jax.tree.map(jnp.subtract, b, d))) / c))
            for a, b, d, c in zip(*result, moved, clip, strict=True)))
    plan = planning.plan(model.loss, model.z, jax.tree.map(lambda a: a[0], model.records),
                      Saddle(True, True))
    assert plan is not None
    return Found(difference, longest, tuple(t.kind for t in plan.treatments if t is not None))


def main(argv: list[str] | None = None) -> int:
    """Prints what was found; 1 if a statement failed."""
    p = report.Parser(__file__, __doc__, "json")
    p.add_argument("--models", type=report.count, default=200)
    p.add_argument("--seed", type=int, default=0, help="of the first model")
    args = p.parse_args(argv)
    jax.config.update("jax_enable_x64", True)
    began, rows, failed = time.process_time(), [], []
    for seed in range(args.seed, args.seed + args.models):
        dtype = np.float32 if seed % 3 == 2 else np.float64
        model = draw(seed, dtype)
        result = examine(model)
        rows.append(result)
        if not (result.difference <= CLOSE and result.longest <= 1 + 1e-6):
            failed.append({"seed": seed, "layers": model.names, **result._asdict()})
            print("FAILED", failed[-1], flush=True)
    kinds = list(itertools.chain.from_iterable(row.kinds for row in rows))
    said = {
        "models": len(rows), "failed": failed,
        "largest difference, clip norms": max(row.difference for row in rows),
        "longest record, clip norms": max(row.longest for row in rows),
        "parameters": {kind: kinds.count(kind) for kind in sorted(set(kinds))},
        "cpu_seconds": round(time.process_time() - began, 1)}
    for name, value in said.items():
        print(f"{name}: {value}")
    report.save(args, said)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
