"""`python -m benchmarks.accuracy.adaptive_floor`: the rarer class, and the floor of `AdaptiveClip`.

A logistic regression on ijcnn1, of whose rows one in ten is positive, by `sgda` on Poisson samples.
Clip norms start at ten, as if nothing were known of the gradients, and stay there, follow the
median, or follow it down to a floor; the clip norm 1, a bound for most rows, is beside them. Each
way has its step of four, by rows of further splits that are not paid for. What is measured is the
accuracy on held-out rows of the class where it is smaller. Runs that --json has are not made again.
"""

import json
import sys
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import jaxminimax as jmm
from benchmarks.common import report, verdicts
from benchmarks.data_sets import data
from jaxminimax import Saddle

FIRST, STEPS, ROUNDS, RATE = 10.0, (3.0, 30.0, 300.0, 3e3, 3e4), 400, 0.05
EPSILONS, DELTA, CHOOSING = (1.0, 4.0), 1e-6, 2  # further splits that choose a step
ASSUMED = (
    "Keys follow from the seeds so that the table can be repeated; a real run needs a secret key.",
    "Steps were chosen on splits of the same file, which is not paid for.",
    "Accuracy of held-out rows is computed without privacy.")


class Way(NamedTuple):
    """The first clip norm, and the floor under ones that follow the median; None: it stays."""

    first: float
    floor: float | None


WAYS = {"stays": Way(FIRST, None), "median": Way(FIRST, 0.0), "floor 0.03": Way(FIRST, 0.03),
        "floor 0.1": Way(FIRST, 0.1), "norm 1 stays": Way(1.0, None)}


def _loss(w: jax.Array, _: Any, record: Any) -> jax.Array:
    x, y = record
    return jax.nn.softplus((1 - 2 * y) * (x @ w))


PROBLEM = jmm.Problem(jmm.saddle_operator(_loss))


def smaller(w: np.ndarray, x: np.ndarray, y: np.ndarray) -> float:
    """The accuracy of the class where it is smaller."""
    right = (x @ w > 0) == (y > 0.5)
    return float(min(right[y > 0.5].mean(), right[y <= 0.5].mean()))


def _with_constant(x: np.ndarray) -> np.ndarray:
    return np.hstack([x, np.ones((len(x), 1))]).astype(np.float32)


def of_split(seed: int, folder: Any) -> dict[str, dict[str, list[float]]]:
    """The smaller accuracy by epsilon, way and step, on one random split."""
    rows = data.load("ijcnn1", data_dir=folder, seed=seed, split="random")
    x, held = map(_with_constant, (rows.x_train, rows.x_test))
    train = (jnp.asarray(x), jnp.asarray(rows.y_train, jnp.float32))
    start = Saddle(jnp.zeros(x.shape[1]), ())
    found: dict[str, dict[str, list[float]]] = {}
    for epsilon in EPSILONS:
        for way, (first, floor) in WAYS.items():
            adaptive = None if floor is None else jmm.AdaptiveClip(floor=floor)
            query = jmm.Query(clip=Saddle(first, None), sampling=jmm.Poisson(rate=RATE),
                              population=len(x), adaptive=adaptive)
            hypers = [jmm.calibrate(jmm.sgda, jmm.sgda.Hyper(
                query=query, step=Saddle(step, 1.0), iterations=ROUNDS,
                averaging=jmm.averaging.TAIL), epsilon, DELTA) for step in STEPS]
            hypers = [jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), h) for h in hypers]
            root = jax.random.fold_in(jax.random.key(seed), list(WAYS).index(way))
            root = jax.random.fold_in(root, round(1000 * epsilon))
            keys = jax.random.split(root, (len(STEPS), 1))
            made = jmm.sweep(keys, start, train, jmm.stack(hypers), jmm.sgda, PROBLEM, at_once=1)
            found.setdefault(f"{epsilon:g}", {})[way] = [
                smaller(w, held, rows.y_test) for w in np.asarray(made.state.average.w)[:, 0]]
    return found


def rows_of(runs: dict[str, Any], seeds: range) -> list[dict[str, Any]]:
    """Two rows for each epsilon, by steps: means, and gains over the median without a floor."""
    made = []
    names = [str(seed) for seed in seeds if str(seed) in runs]
    choosing = [run for seed, run in runs.items() if int(seed) < 0]
    for epsilon in map("{:g}".format, EPSILONS if names and choosing else ()):
        best = {way: int(np.argmax(np.mean([run[epsilon][way] for run in choosing], axis=0)))
                for way in WAYS}
        for steps, of in (("own", best), ("one", dict.fromkeys(WAYS, best["norm 1 stays"]))):
            values = {way: np.array([runs[seed][epsilon][way][of[way]] for seed in names])
                      for way in WAYS}
            row: dict[str, Any] = {
                "epsilon": float(epsilon), "steps": steps, "seeds": len(names),
                "ways": {way: {"step": STEPS[of[way]], **_mean(x)} for way, x in values.items()}}
            for way in ("floor 0.03", "floor 0.1", "stays"):
                gain = _mean(values[way] - values["median"])
                row[f"{way} over median"] = {**gain, "verdict": verdicts.verdict(
                    gain["mean"], np.inf if gain["error"] is None else gain["error"], len(names))}
            made.append(row)
    return made


def table(result: dict[str, Any]) -> str:
    """The smaller accuracy of each way, and what is gained over no floor, as Markdown."""
    def pair(one: dict[str, Any], form: str) -> str:
        error = "" if one["error"] is None else f" ± {one['error']:.3f}"
        return format(one["mean"], form) + error

    names = ("norm 1 stays", "stays", "median", "floor 0.03", "floor 0.1")
    header = ["ε", "steps", "clip norm 1, stays", "10, stays", "follows 0.5", "with `floor=0.03`",
              "with `floor=0.1`", "gain of 0.03", "gain of 0.1"]
    return report.markdown(header, [
        [f"{row['epsilon']:g}", {"own": "each its own", "one": "that of clip norm 1"}[row["steps"]],
         *(pair(row["ways"][way], ".3f") for way in names),
         *(f"{pair(one, '+.3f')}, {one['verdict']}" for one in (
             row["floor 0.03 over median"], row["floor 0.1 over median"]))]
        for row in result["rows"]])


def _mean(x: np.ndarray) -> dict[str, Any]:
    return {"mean": float(x.mean()),
            "error": float(x.std(ddof=1) / len(x)**0.5) if len(x) > 1 else None}


def main(argv: list[str] | None = None) -> int:
    """Runs the benchmark; 0, or 2 after a refusal."""
    parser = report.Parser(__file__, __doc__, "json")
    report.seed_options(parser, 10, ", a split each")
    parser.add_argument("--data-dir", help="folder of the data files (or set JAXMINIMAX_DATA)")
    args = parser.parse_args(argv)
    try:
        runs: dict[str, Any] = report.kept(args.json, "runs", {}, ()) or {}
        # splits of seeds below 0 choose the steps
        for seed in (*range(-CHOOSING, 0), *report.seeds(args)):
            if str(seed) in runs:
                continue
            runs[str(seed)] = of_split(seed + 10_000 * (seed < 0), args.data_dir)
            report.say(f"split {seed}: {json.dumps(runs[str(seed)])}")
            report.save(args, {"assumed": ASSUMED, "rows": rows_of(runs, report.seeds(args)),
                               "runs": runs}, {"delta": DELTA})
        print(table({"rows": rows_of(runs, report.seeds(args))}))
    except (ValueError, OSError) as error:
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
