"""Private variance reduction: how its error falls with n beside that of descent-ascent.

    python -m benchmarks.rates.variance [--json FILE] [--markdown FILE] [--plot FILE]
        [--only games|auc]

Two problems that are not convex in w and strongly concave in v, f_i = s_i <v, h(w)> - |v|^2 / 2
with s_i in {0, 2} of mean 1 and a public quadratic, so that the primal function is |h(w)|^2 / 2 and
its gradient is known: "sines", h(w) = D sin(w) with D = diag(1, 1/2, ..., 1/50), and "fit", h(w) =
B (w + 2/5 sin(2 w)) with singular values j^(-1/2) and random singular vectors; coordinates are held
in [-4, 4], and w starts at 2. Full batches; the measure is the mean norm of the gradient over the
last half of a run. Every record is one of two, so the program reads these two, with the noise that
n records have: the same law.

Both methods have the best settings in hindsight: of four steps for w and, on "sines", of numbers of
rounds; `spider` of two lengths of windows too, with half of the budget for anchors. Intervals of
slopes are of 1000 resamplings of the runs at these settings.

Then an ablation: AUC maximisation by an MLP on ijcnn1, Poisson samples, 100 rounds.
"""

import dataclasses
import functools
import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxminimax as jmm
from benchmarks.common import report
from benchmarks.examples.methods import spider
from benchmarks.examples.methods.windows import Windows
from benchmarks.rates.variance import auc
from benchmarks.rates.variance import tables as variance_tables
from benchmarks.rates.variance.auc import DELTA
from jaxminimax import Problem, Saddle, sgda

DIM, RUNS = 50, 20
GAMES = ("sines", "fit")
SIZES = (500, 2000, 8000, 32_000, 128_000)
STEPS = (0.02, 0.05, 0.2, 0.5)
ROUNDS: dict[str, dict[Any, tuple[int, ...]]] = {
    "sines": {sgda: (300, 1000, 3000, 8000), spider: (300, 1000, 3000)},
    "fit": {sgda: (1000,), spider: (1000,)}}
WINDOWS = ((10, 0.5), (100, 0.5))  # lengths, shares of the budget for anchors
SHARES = jnp.array([0.0, 2.0])  # s_i of the two distinct records


# --- games with known gradients ---


def _matrix() -> jax.Array:
    one, two = (np.linalg.qr(np.random.default_rng(k).normal(size=(DIM, DIM)))[0] for k in (1, 2))
    return jnp.asarray(one * np.arange(1, DIM + 1) ** -0.5 @ two, jnp.float32)


@functools.cache
def game(name: str) -> tuple[Problem, Any, Saddle, float, float]:
    """The problem, its primal gradient, the start, the bound C_1 and the Lipschitz constant L."""
    if name == "sines":
        d = jnp.arange(1, DIM + 1, dtype=jnp.float32) ** -1.0
        size = float(jnp.linalg.norm(d))

        def h(w: jax.Array) -> jax.Array:
            return d * jnp.sin(w)
    else:
        b = _matrix()
        size = float(jnp.linalg.norm(b))

        def h(w: jax.Array) -> jax.Array:
            return b @ (w + 0.4 * jnp.sin(2 * w))

    start = Saddle(jnp.full(DIM, 2.0, jnp.float32), jnp.zeros(DIM, jnp.float32))
    problem = Problem(jmm.saddle_operator(lambda w, v, s: s * jnp.sum(v * h(w)), "vmap"),
                      public=lambda z: Saddle(jnp.zeros_like(z.w), z.v),
                      project=lambda z: jax.tree.map(lambda x: jnp.clip(x, -4.0, 4.0), z))
    gradient = jax.grad(lambda w: jnp.sum(h(w) ** 2) / 2)
    return problem, gradient, start, 2 * math.sqrt(2) * size, 2 * math.sqrt(2 + size**2)


@functools.cache
def calibrated(algorithm: Any, rounds: int, n: int, name: str, length: int, share: float) -> Any:
    """The description of a run at epsilon = 1."""
    *_, bound, lipschitz = game(name)
    made: Any = auc.windows(rounds, n, bound, lipschitz, length, share)
    if algorithm is sgda:
        made = dataclasses.replace(made.anchor, noise_multiplier=None)
    hyper = algorithm.Hyper(query=made, step=Saddle(0.1, 0.1), iterations=rounds)
    return jmm.calibrate(algorithm, hyper, 1.0, DELTA)


def on_two_records(described: Any, n: int) -> Any:
    """The same law on the two distinct records."""
    if isinstance(described, Windows):
        return dataclasses.replace(described, **{name: on_two_records(getattr(described, name), n)
                                                 for name in ("anchor", "difference")})
    z = jax.tree.map(lambda x: jnp.float32(x * 2 / n), described.noise_multiplier)
    return dataclasses.replace(described, population=2, noise_multiplier=z)


@functools.partial(jax.jit, static_argnames=("algorithm", "name"))
def norms(keys: jax.Array, hyper: Any, steps: jax.Array, algorithm: Any, name: str) -> jax.Array:
    """Mean gradient norms over the last half, `[steps, runs]`."""
    problem, gradient, start, *_ = game(name)

    def one(key: jax.Array, step: jax.Array) -> jax.Array:
        own = dataclasses.replace(hyper, step=Saddle(step, jnp.float32(0.5)))
        path = jmm.run(key, start, SHARES, own, algorithm, problem,
                       lambda state: jnp.linalg.norm(gradient(state.z.w)))[1]
        return jnp.mean(path[hyper.iterations // 2:])

    return jax.vmap(lambda step: jax.vmap(lambda key: one(key, step))(keys))(steps)


def best(algorithm: Any, name: str, n: int, runs: int, rounds: tuple[int, ...]) -> dict[str, Any]:
    """The settings with the smallest mean norm, and the runs at them."""
    result: list[dict[str, Any]] = []
    for count in rounds:
        for length, share in ((1, 0.5),) if algorithm is sgda else WINDOWS:
            hyper = calibrated(algorithm, count, n, name, length, share)
            epsilon = jmm.epsilon(algorithm.mechanism(hyper), DELTA)
            quick = dataclasses.replace(hyper, query=on_two_records(hyper.query, n))
            each = np.asarray(norms(jax.random.split(jax.random.key(n + count), runs), quick,
                                    jnp.array(STEPS, jnp.float32), algorithm, name), np.float64)
            result += [dict(game=name, n=n, algorithm=algorithm.__name__.rsplit(".", 1)[1],
                            rounds=count, length=length, anchors=share, step=step,
                            norm=float(x.mean()), error=float(x.std(ddof=1) / math.sqrt(runs)),
                            epsilon=epsilon, runs=[round(float(a), 6) for a in x])
                       for step, x in zip(STEPS, each, strict=True) if np.isfinite(x).all()]
    return min(result, key=lambda row: row["norm"])


def main(argv: list[str] | None = None) -> int:
    """Prints both tables."""
    parser = report.Parser(__file__, __doc__, "json", "markdown", "plot")
    parser.add_argument("--n", type=report.count, nargs="+", default=list(SIZES), help="records")
    parser.add_argument("--runs", type=report.count, default=RUNS, help="of each setting")
    parser.add_argument("--longest", type=report.count, default=8000, help="most rounds of a run")
    report.seed_options(parser, 3, ", of the ablation")
    parser.add_argument("--only", choices=("games", "auc"), help="one half of it")
    args = parser.parse_args(argv)
    rows: list[dict[str, Any]] = []
    for name, algorithm, n in itertools.product(GAMES, (sgda, spider), sorted(set(args.n))):
        if args.only == "auc":
            break
        rounds = tuple(t for t in ROUNDS[name][algorithm] if t <= args.longest)
        rows.append(best(algorithm, name, n, args.runs, rounds))
        report.say(", ".join(f"{k} {v}" for k, v in rows[-1].items() if k != "runs"))

    def keep(scores: list[dict[str, Any]]) -> None:
        report.save(args, {"rows": rows, "auc": scores})

    keep([])
    scores = [] if args.only == "games" else auc.ablation(report.seeds(args), keep)
    report.show(args, variance_tables.page(rows, scores))
    if args.plot is not None and rows:
        variance_tables.plot(args.plot, rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
