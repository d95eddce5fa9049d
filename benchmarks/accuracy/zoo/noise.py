"""When correlated noise is better than Poisson samples: a bilinear game read in few passes.

Poisson samples with independent noise, disjoint batches with independent noise, and disjoint
batches whose noise is correlated by 8, by 32 and by the planned number of bands
(`jmm.mechanism.planned_bands`), at the same expected batch, the same passes and the same epsilon.
The game is the bilinear one of `games` with n distinct records, (b, c) + N(0, I / 40) around
their mean, in another order for every seed. No record reaches the clip norm.

`turns` compares plain Poisson samples with samples of 8 and 32 parts in turn, whose noise has as
many bands and begins anew after so many releases (`CyclicPoisson`).

Every row is the best of eight steps, chosen by the gaps themselves on the same seeds and unpaid,
for every kind of release alike ("oracle"); the table takes the better batch and algorithm of each.
"""

import dataclasses
import functools
import math
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxminimax as jmm
from benchmarks.accuracy.zoo import games
from benchmarks.accuracy.zoo.games import DELTA
from benchmarks.common import report
from jaxminimax import Disjoint, Poisson, Problem, Saddle, metrics, problems
from jaxminimax.mechanism import CyclicPoisson

N, D, CLIP = 20_000, 10, 4.0
EPSILONS = (0.1, 1.0, 8.0, 32.0)
BATCHES = {1: (40, 200, 1000), 8: (200, 1000)}  # by the number of passes
MULTIPLES = tuple(0.5 * 2.0**k for k in range(8))
KINDS = ("Poisson", "disjoint", "8 bands", "32 bands", "planned bands")
TURNS = ("Poisson", "8 parts", "32 parts")
TURNS_BATCHES, TURNS_EPSILONS = {1: (40,), 8: (200,)}, (1.0, 8.0)
_METHODS: dict[str, Any] = {"sgda": jmm.sgda, "optimistic": jmm.optimistic}
_BANDS = (1, 8, 32)

# Gaps of simulations of the same law made without this library, at epsilon .1, 1, 8, 32.
ELSEWHERE: dict[tuple[int, str], tuple[float, ...]] = {
    (1, "Poisson"): (0.078, 0.019, 0.0123, 0.0091),
    (1, "disjoint"): (0.351, 0.093, 0.022, 0.0107),
    (1, "8 bands"): (0.212, 0.048, 0.0124, 0.0051),
    (1, "32 bands"): (0.217, 0.049, 0.0112, 0.0048),
    (8, "Poisson"): (0.078, 0.0095, 0.0034, 0.0028),
    (8, "disjoint"): (0.331, 0.040, 0.0137, 0.0048),
    (8, "8 bands"): (0.151, 0.019, 0.0049, 0.0019),
    (8, "32 bands"): (0.145, 0.024, 0.0042, 0.0017),
}

_A, _B, _C = games.affine(0.0, D)
_BALLS = problems.product(problems.ball(1.0), problems.ball(1.0))
_MEAN = jnp.asarray(np.concatenate([_B, _C])[None], jnp.float32)
_START = Saddle(jnp.zeros(D, jnp.float32), jnp.zeros(D, jnp.float32))


def _operator(z: Saddle, q: jax.Array) -> Saddle:
    a = jnp.asarray(_A, z.w.dtype)
    return Saddle(a @ z.v + q[:D], -(a.T @ z.w) + q[D:])


GAME = Problem(operator=_operator, project=_BALLS.project, support=_BALLS.support)


def records(n: int = N) -> jax.Array:
    """Records of mean (b, c), `[n, 2 D]`."""
    x = np.random.default_rng(1).normal(size=(n, 2 * D)) * 0.5 / math.sqrt(D)
    return jnp.asarray(x - x.mean(0), jnp.float32) + _MEAN


def queries(n: int, batch: int, passes: int) -> dict[tuple[str, int], jmm.Query]:
    """The releases by sampling and bands, not calibrated."""
    disjoint = jmm.Query(clip=Saddle(CLIP, CLIP), joint=True, population=n,
                         sampling=Disjoint(batch=batch))
    result = {("Poisson", 1): dataclasses.replace(disjoint, sampling=Poisson(rate=batch / n))}
    for bands in sorted({*_BANDS, planned(n, batch, passes)}):  # 32 of 20 releases are all of them
        result["disjoint", bands] = dataclasses.replace(disjoint, bands=bands)
    return result


def queries_in_turn(n: int, batch: int, passes: int) -> dict[tuple[str, int], jmm.Query]:
    """Poisson samples of all records and of parts in turn, not calibrated."""
    plain = queries(n, batch, passes)["Poisson", 1]
    return {("Poisson", 1): plain, **{("in turn", p): dataclasses.replace(
        plain, bands=p, sampling=CyclicPoisson(rate=min(1.0, batch * p / n), parts=p))
        for p in (8, 32)}}


def planned(n: int, batch: int, passes: int) -> int:
    """Bands by the numbers of the run."""
    return jmm.mechanism.planned_bands(passes * (n // batch), n // batch, 2 * D)


def base_step(query: jmm.Query, batch: int, times: int) -> float:
    """R / (T (9 + V))^(1/2), V the variance of the noise of one release."""
    assert query.noise_multiplier is not None
    each = float(query.noise_multiplier.w) * CLIP / batch
    grown = 1 + sum(r * r for r in _series(query.bands))
    return math.sqrt(2 / (times * (9 + 2 * D * each**2 * grown)))


def _series(bands: int) -> list[float]:
    """r_1, ..., of the inverse square root."""
    r, result = 1.0, []
    for k in range(1, bands):
        r *= (k - 1.5) / k
        result.append(r)
    return result


@functools.partial(jax.jit, static_argnames="method")
def _gaps(keys: jax.Array, data: jax.Array, hypers: Any, method: str) -> jax.Array:
    """Gaps `[seeds, settings]`; all settings of a seed have its order, samples and draws."""
    def one(key: jax.Array) -> jax.Array:
        order, run = jax.random.split(key)
        mine = jax.random.permutation(order, data)

        def gap(run: jax.Array, hyper: Any) -> jax.Array:
            state = jmm.run(run, _START, mine, hyper, _METHODS[method], GAME)[0]
            return metrics.vi_gap_bound(GAME, state.average, _MEAN)

        count = len(jax.tree.leaves(hypers)[0])
        return jax.vmap(gap)(jnp.broadcast_to(run, count), hypers)

    return jax.lax.map(one, keys)


def rows_of(n: int, passes: int, batch: int, epsilons: Sequence[float], seeds: int, *,
            methods: Sequence[str] = tuple(_METHODS), exact: bool = False,
            kinds: Callable[..., dict[tuple[str, int], jmm.Query]] = queries,
            ) -> list[dict[str, Any]]:
    """A row for each kind of release, epsilon and algorithm.

    Args:
      n: records.
      passes: of all of them.
      batch: expected size.
      epsilons: of the runs.
      seeds: runs of each setting.
      methods: of the algorithms.
      exact: whether the noise is on integers.
      kinds: the releases, of n, batch and passes.
    """
    times, data, made = passes * (n // batch), records(n), []
    keys = jax.random.split(jax.random.key(passes * batch), seeds)
    for (kind, bands), query in kinds(n, batch, passes).items():
        known = [jmm.accounting.calibrate_noise(jmm.Repeat(query=query, times=times), e,
                                                DELTA).query
                 for e in epsilons]
        for method in methods:
            hypers = [_METHODS[method].Hyper(
                query=dataclasses.replace(q, exact=exact), iterations=times,
                step=Saddle(*(min(1.0, m * base_step(q, batch, times)),) * 2))
                for q in known for m in MULTIPLES]
            result = np.asarray(_gaps(keys, data, jmm.stack(hypers), method))
            result = result.reshape(seeds, len(epsilons), len(MULTIPLES))
            for i, (epsilon, q) in enumerate(zip(epsilons, known, strict=True)):
                best = int(np.argmin(result[:, i].mean(0)))
                mine = result[:, i, best]
                made.append({
                    "passes": passes, "epsilon": epsilon, "sampling": kind, "bands": bands,
                    "planned": bands == planned(n, batch, passes), "batch": batch, "n": n,
                    "method": method, "step": "oracle", "multiple": MULTIPLES[best],
                    "gap": round(float(mine.mean()), 6),
                    "se": round(float(mine.std(ddof=1)) / math.sqrt(seeds), 6), "seeds": seeds,
                    "noise_multiplier": jmm.accounting.effective_noise_multiplier(q)})
    return made


def rows(quick: bool, seeds: int, part: Callable[..., Any], *,
         in_turn: bool = False) -> list[dict[str, Any]]:
    """All rows, of `KINDS` or `TURNS`; `part(name, make)` keeps what is finished."""
    made: list[dict[str, Any]] = []
    name, kinds = ("turns", queries_in_turn) if in_turn else ("noise", queries)
    for passes, batches in (TURNS_BATCHES if in_turn else BATCHES).items():
        if quick and passes > 1:
            break
        for batch in batches[-1:] if quick else batches:
            made += part(f"{name}: {passes} passes, batches of {batch}", functools.partial(
                rows_of, N, passes, batch, TURNS_EPSILONS if quick or in_turn else EPSILONS, seeds,
                kinds=kinds, methods=("sgda",) if in_turn else tuple(_METHODS)))
    return made


def least(found: Sequence[dict[str, Any]], passes: int, epsilon: float,
          kind: str) -> dict[str, Any] | None:
    """The row of the better batch and algorithm."""
    def fits(r: dict[str, Any]) -> bool:
        if kind == "planned bands":
            return r["sampling"] == "disjoint" and r["planned"]
        if kind.endswith(" parts"):
            return r["sampling"] == "in turn" and f"{r['bands']} parts" == kind
        if kind.endswith(" bands"):
            return r["sampling"] == "disjoint" and f"{r['bands']} bands" == kind
        return (r["sampling"], r["bands"]) == (kind, 1)

    return min((r for r in found if (r["passes"], r["epsilon"]) == (passes, epsilon) and fits(r)),
               key=lambda r: r["gap"], default=None)


def table(result: dict[str, Any]) -> str:
    """Gaps by passes and epsilon, a column for each kind of release."""
    found, lines = result["noise"]["rows"], []
    for passes, epsilon in sorted({(r["passes"], r["epsilon"]) for r in found}):
        cells = [least(found, passes, epsilon, kind) for kind in KINDS]
        said = [("" if r is None else f"{r['gap']:.4f} ± {r['se']:.4f}") for r in cells]
        last = cells[-1]
        said[-1] += "" if last is None else f" (p = {last['bands']})"
        lines.append([str(passes), f"{epsilon:g}", *said])
    return report.markdown(["passes", "ε", *(k + ", oracle" for k in KINDS)], lines)


def turns_table(result: dict[str, Any]) -> str:
    """Gaps of samples of all records and of parts in turn, and the least gap over the first."""
    lines, all_rows = [], result["turns"]["rows"]
    for passes, batch, epsilon in sorted({(r["passes"], r["batch"], r["epsilon"])
                                          for r in all_rows}):
        own = [r for r in all_rows if r["batch"] == batch]
        cells = [least(own, passes, epsilon, kind) for kind in TURNS]
        kept = [r for r in cells if r is not None]
        lines.append([str(passes), str(batch), f"{epsilon:g}",
                      *(f"{r['gap']:.4f} ± {r['se']:.4f}" for r in kept),
                      f"{min(r['gap'] for r in kept[1:]) / kept[0]['gap']:.2f}"])
    return report.markdown(["passes", "batch", "ε", *(k + ", oracle" for k in TURNS),
                            "parts over Poisson"], lines)


def caption(part: dict[str, Any]) -> str:
    """The text above the table: what its cells are."""
    row = part["rows"][0]
    several = len({r["method"] for r in part["rows"]}) > 1
    of = ", all batch sizes, and `sgda` and `optimistic`" if several else ", of `sgda`"
    return (f"A cell has the mean strong gap ± its standard error over {row['seeds']} seeds, for "
            f"n = {row['n']:,} records. It is the least over {len(MULTIPLES)} steps{of}. The "
            "command "
            f"`{part['environment']['command']}` made it with jax {part['environment']['jax']}.\n")


def plot(path: pathlib.Path, result: dict[str, Any]) -> None:
    """Gap against epsilon, a panel for each number of passes."""
    from matplotlib.figure import Figure

    found = result["noise"]["rows"]
    panels = sorted({r["passes"] for r in found})
    figure = Figure(figsize=(4.2 * len(panels), 3.6), layout="constrained")
    for axes, passes in zip(figure.subplots(1, len(panels), squeeze=False, sharey=True)[0], panels,
                            strict=True):
        epsilons = sorted({r["epsilon"] for r in found if r["passes"] == passes})
        for i, kind in enumerate(KINDS):
            mine = [r for e in epsilons if (r := least(found, passes, e, kind)) is not None]
            axes.errorbar([r["epsilon"] for r in mine], [r["gap"] for r in mine],
                          [2 * r["se"] for r in mine], marker="o", markersize=3, capsize=2,
                          color=f"C{i}", label=kind, linestyle="--" if i == 4 else "-")
        axes.set(xscale="log", yscale="log", xlabel="ε", ylabel="strong gap",
                 title=f"{passes} pass{'es' * (passes > 1)}; bars: two standard errors")
        axes.title.set_fontsize(9)
        axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
    figure.savefig(path, dpi=150)
