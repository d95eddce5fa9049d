"""Algorithms of other papers against `sgda` and `spider`, at one epsilon and as many passes.

    python -m benchmarks.examples.methods [--only CONTEST] [--epsilon 1]
        [--json results.json]

Settings are chosen for every method among three candidates, by two runs of each on rows that are
held out, which is not paid for. Six runs at other keys are reported, on the test rows. A cell is a
method in a contest; the file is written after each, and cells that it has are not run again.
"""

import json
import sys
import time
import zlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxminimax as jmm
from benchmarks.common import report
from benchmarks.examples import runs
from benchmarks.examples.methods import contests
from jaxminimax import Saddle

DELTA, EACH = 1e-6, 2  # runs of a setting


def measured(contest: contests.Contest, algorithm: Any, hypers: list[Any], keys: jax.Array,
             rows: Any) -> list[dict[str, list[float]]]:
    """Every setting with every key: each measure of each run."""
    states = jmm.sweep(keys, contest.start, contest.rows, jmm.stack(hypers), algorithm,
                       contest.problem, at_once=1).state
    average: Saddle = jax.device_get(states.average)
    result = []
    for i in range(len(hypers)):
        each = [contest.measures(jax.tree.map(lambda x, i=i, j=j: jnp.asarray(x[i, j]), average),
                                 rows) for j in range(keys.shape[1])]
        result.append({name: [one[name] for one in each] for name in each[0]})
    return result


def cell(contest: contests.Contest, name: str, epsilon: float) -> dict[str, Any]:
    """One method at one budget: chooses its settings, and measures them on the test rows."""
    algorithm, candidates = contest.candidates[name]
    clock = time.process_time()
    hypers = [jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), jmm.calibrate(
        algorithm, hyper, epsilon, DELTA)) for hyper in candidates]
    root = jax.random.fold_in(jax.random.key(zlib.crc32(f"{contest.title} {name}".encode())),
                              round(1000 * epsilon))
    # one shape for both, so one program
    choosing, own = (jax.random.split(jax.random.fold_in(root, use), (len(hypers), EACH))
                     for use in (1, 2))
    held_out = measured(contest, algorithm, hypers, choosing, contest.held_out)
    chooses = next(iter(held_out[0]))
    means = [float(np.nan_to_num(np.mean(one[chooses]), nan=-1.0)) for one in held_out]
    best = int(np.argmax(means))
    rows = measured(contest, algorithm, hypers[best:best + 1] * len(hypers), own, contest.test)
    values = {k: [x for row in rows for x in row[k]] for k in rows[0]}
    described = algorithm.mechanism(hypers[best])
    spread = {f"{k}_se": float(np.std(v, ddof=1) / len(v) ** 0.5) for k, v in values.items()}
    query: Any = hypers[best].query
    rate = float(getattr(query, "anchor", query).sampling.rate)
    return {"contest": contest.title, "method": name, "module": algorithm.__name__,
            "epsilon": jmm.epsilon(described, DELTA), "target": epsilon, "delta": DELTA,
            **{k: float(np.mean(v)) for k, v in values.items()}, **spread,
            "values": values, "held out, by candidate": means, "chosen": best,
            "records": described.records(), "releases": jmm.mechanism.releases(described),
            "passes": rate * jmm.mechanism.releases(described), "seeds": own.size,
            "unit": contest.unit, "cpu_seconds": time.process_time() - clock}


def show(rows: list[dict[str, Any]]) -> str:
    """A table for each contest."""
    texts = []
    for title in dict.fromkeys(row["contest"] for row in rows):
        own = [row for row in rows if row["contest"] == title]
        names = list(own[0]["values"])
        lines = [(row["method"], f"{row['epsilon']:.4g}", f"{row['passes']:g}",
                  *(f"{row[k]:.4f} +- {row[k + '_se']:.4f}" for k in names)) for row in own]
        texts.append(f"{title}\n" + report.table(("method", "epsilon", "passes", *names), lines))
    return "\n\n".join(texts)


def parser() -> report.Parser:
    p = report.Parser(__file__, __doc__, "json")
    p.add_argument("--only", choices=contests.CONTESTS, action="append",
                   help="run only this contest; may be repeated")
    p.add_argument("--epsilon", type=report.number(0, 1e6), nargs="+", default=[1.0])
    p.add_argument("--data-dir", type=runs.folder,
                   help="folder of the data files (or set JAXMINIMAX_DATA)")
    p.add_argument("--quick", action="store_true", help="few records and rounds")
    return p


def main(argv: list[str] | None = None) -> int:
    """Runs the cells that are not in the file yet; 0, or 2 after a refusal."""
    p = parser()
    args = p.parse_args(argv)
    rows = (json.loads(args.json.read_text(encoding="utf-8"))["rows"]
            if args.json and args.json.exists() else [])
    done = {(row["contest"], row["method"], row["target"]) for row in rows}
    try:
        for make in (contests.CONTESTS[name] for name in args.only or contests.CONTESTS):
            contest = make(args.quick, args.data_dir)
            for name in contest.candidates:
                for epsilon in args.epsilon:
                    if (contest.title, name, epsilon) in done:
                        continue
                    rows.append(cell(contest, name, epsilon))
                    print(show(rows[-1:]), file=sys.stderr)
                    if args.json:
                        report.write_json(args.json, {
                            "environment": report.environment(), "assumed": runs.ASSUMED,
                            "rows": rows})
    except (ValueError, OSError) as error:
        p.error(str(error))
    print(show(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
