"""`python -m benchmarks.speed.ghost_layers`: clipped sums of models with layers that are not plain.

Each model's clipped sum by "ghost", by "vmap" and by "microbatch" of 8, and its gradient without
clipping, in turn, so that a busy machine is busy for all. Temporaries are those of the program, by
the compiler; times are of the processor.
"""

import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.common import report
from jaxminimax import Saddle, clipped_sum, saddle_operator

Array = jax.Array
WAYS = ("ghost", "vmap", "microbatch 8", "not private")


class Model(NamedTuple):
    """A loss of parameters and a record, at a point, on a batch of records."""

    loss: Callable[[Any, Any, Any], Array]
    w: Any
    records: Any


def _normal(rng: np.random.Generator, *shape: int) -> Array:
    scale = shape[-2] if len(shape) > 1 else 1
    return jnp.asarray(rng.normal(size=shape) / np.sqrt(scale), jnp.float32)


def tied(rng: np.random.Generator) -> Model:
    """A language model of one hidden layer whose table is looked up and gives the logits."""
    table, t, o, batch = 1000, 64, 128, 32
    ids = rng.integers(0, table, (batch, t + 1)).astype(np.int32)

    def loss(w: dict[str, Any], v: tuple[Any, ...], x: Array) -> Array:
        h = jnp.tanh(w["table"][x[:-1]] @ w["hidden"])
        logits = h @ w["table"].T
        return jnp.mean(jax.nn.logsumexp(logits, 1) - jnp.take_along_axis(
            logits, x[1:, None], 1)[:, 0])

    return Model(loss, {"table": _normal(rng, table, o), "hidden": _normal(rng, o, o)}, ids)


def wide_tied(rng: np.random.Generator) -> Model:
    """The same with 4,000 rows and sequences of 32."""
    made = tied(rng)
    ids = rng.integers(0, 4000, (32, 33)).astype(np.int32)
    return made._replace(w={**made.w, "table": _normal(rng, 4000, 128)}, records=ids)


def weight_normed(rng: np.random.Generator) -> Model:
    """A perceptron 784-256-256-10 whose matrices have columns of length g."""
    def layer(p: dict[str, Any], h: Array) -> Array:
        return h @ (p["g"] * p["m"] / jnp.linalg.norm(p["m"], axis=0))

    def loss(w: list[Any], v: tuple[Any, ...], x: Array) -> Array:
        for p in w[:-1]:
            x = jax.nn.relu(layer(p, x))
        return jnp.sum(jnp.tanh(layer(w[-1], x)))

    widths = (784, 256, 256, 10)
    w = [{"m": _normal(rng, k, o), "g": jnp.ones(o)}
         for k, o in itertools.pairwise(widths)]
    return Model(loss, w, rng.normal(size=(64, 784)).astype(np.float32))


def weight_normed_recurrent(rng: np.random.Generator) -> Model:
    """A recurrent network of 128 over 64 steps, both of its matrices of weight norm."""
    def loss(w: dict[str, Any], v: tuple[Any, ...], x: Array) -> Array:
        a, b = (p["g"] * p["m"] / jnp.linalg.norm(p["m"], axis=0) for p in (w["in"], w["loop"]))
        last, _ = jax.lax.scan(lambda s, row: (jnp.tanh(row @ a + s @ b), None),
                               jnp.zeros(128), x)
        return jnp.sum(last)

    w = {name: {"m": _normal(rng, 128, 128), "g": jnp.ones(128)} for name in ("in", "loop")}
    return Model(loss, w, rng.normal(size=(32, 64, 128)).astype(np.float32))


def standardised(rng: np.random.Generator) -> Model:
    """Four convolutions of 32 features, 3 x 3, with standardised kernels, on 16 x 16 pixels."""
    def loss(w: list[Any], v: tuple[Any, ...], x: Array) -> Array:
        for k in w:
            k = (k - jnp.mean(k, (0, 1, 2))) / jnp.sqrt(1e-4 + jnp.var(k, (0, 1, 2))) / 17
            x = jax.nn.relu(jax.lax.conv_general_dilated(
                x[None], k, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))[0])
        return jnp.sum(jnp.tanh(x))

    w = [_normal(rng, 3, 3, n, 32) for n in (3, 32, 32, 32)]
    return Model(loss, w, rng.normal(size=(32, 16, 16, 3)).astype(np.float32))


def low_rank(rng: np.random.Generator, merged: bool = False) -> Model:
    """Updates of rank 8 of a frozen transformer: 4 layers of width 128 in a scan, 64 positions."""
    layers, c, rank = 4, 128, 8
    shapes = {"q": (c, c), "k": (c, c), "u": (c, c), "o": (c, c), "up": (c, 4 * c),
              "down": (4 * c, c)}
    frozen = {name: _normal(rng, layers, *shape) for name, shape in shapes.items()}
    w = {name: {"a": _normal(rng, layers, k, rank), "b": _normal(rng, layers, rank, o)}
         for name, (k, o) in shapes.items()}

    def times(h: Array, m: Array, p: dict[str, Any]) -> Array:
        if merged:
            return h @ (m + 0.5 * p["a"] @ p["b"])
        return h @ m + 0.5 * (h @ p["a"]) @ p["b"]

    def layer(h: Array, both: tuple[dict[str, Any], dict[str, Any]]) -> tuple[Array, None]:
        m, p = both
        n = h / jnp.sqrt(1e-6 + jnp.mean(h**2, 1, keepdims=True))
        q, k, u = (times(n, m[i], p[i]).reshape(-1, 4, c // 4) for i in ("q", "k", "u"))
        mixed = jax.nn.softmax(jnp.einsum("the,she->hts", q, k) / 6)
        h = h + times(jnp.einsum("hts,she->the", mixed, u).reshape(-1, c), m["o"], p["o"])
        return h + times(jax.nn.gelu(times(h, m["up"], p["up"])), m["down"], p["down"]), None

    def loss(w: dict[str, Any], v: tuple[Any, ...], x: Array) -> Array:
        return jnp.mean(jnp.tanh(jax.lax.scan(layer, x, (frozen, w))[0]))

    return Model(loss, w, rng.normal(size=(32, 64, c)).astype(np.float32))


def low_rank_merged(rng: np.random.Generator) -> Model:
    """The same, written as x (W + A B)."""
    return low_rank(rng, merged=True)


MODELS = {"tied embedding, 1,000 rows": tied, "tied embedding, 4,000 rows": wide_tied,
          "weight-normed perceptron": weight_normed,
          "weight-normed recurrent network": weight_normed_recurrent,
          "standardised convolutions": standardised,
          "low rank, (x A) B": low_rank, "low rank, x (W + A B)": low_rank_merged}


def compiled(way: str, model: Model) -> Any:
    """A program `(w, records) -> sum`."""
    def plain(w: Any, records: Any) -> Any:
        return jax.grad(lambda w: jnp.sum(jax.vmap(lambda x: model.loss(w, (), x))(records)))(w)

    def clipped(w: Any, records: Any) -> Any:
        size: dict[str, Any] = {"microbatch": 8} if way.startswith("microbatch") else {}
        return clipped_sum(saddle_operator(model.loss), Saddle(1.0, None),
                           strategy=way.split(" ")[0], **size)(Saddle(w, ()), records).w

    return jax.jit(plain if way == "not private" else clipped).lower(
        model.w, model.records).compile()


def rows(name: str, repeats: int) -> list[dict[str, Any]]:
    """One model, all ways."""
    model = MODELS[name](np.random.default_rng(0))
    runs = {way: compiled(way, model) for way in WAYS}
    times: dict[str, list[float]] = {way: [] for way in runs}
    for _ in range(repeats + 1):  # the first warms up
        for way, run in runs.items():
            begun = time.process_time()
            jax.block_until_ready(run(model.w, model.records))
            times[way].append(time.process_time() - begun)
    how = clipped_sum(saddle_operator(model.loss), Saddle(1.0, None), strategy="ghost")
    return [{"model": name, "way": way, "cpu ms": 1e3 * statistics.median(times[way][1:]),
             "temporary bytes": run.memory_analysis().temp_size_in_bytes,
             "explained": how.explain(Saddle(model.w, ()), model.records).splitlines()
             if way == "ghost" else []} for way, run in runs.items()]


def main(argv: list[str] | None = None) -> int:
    """Times the models."""
    p = report.Parser(__file__, __doc__, "json")
    p.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    p.add_argument("--repeats", type=report.count, default=9)
    args = p.parse_args(argv)
    result = []
    for name in args.models:
        for row in rows(name, args.repeats):
            result.append(row)
            report.say(f"{row['model']}, {row['way']}: {row['cpu ms']:.1f} ms, "
                       f"{row['temporary bytes'] / 1e6:.1f} MB")
    report.save(args, {"rows": result}, {"repeats": args.repeats})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
