"""`python -m benchmarks.speed.start`: what a first call costs, and whole first jobs.

Processor time, each figure the median over fresh processes that take turns:

* with `--jobs`, whole processes that train or predict, once with no programs on disk (cold) and
  once with them (warm), and the same job by pandas and scikit-learn;
* `from jaxminimax import run`, which loads the library, above `import jax, optax`;
* tracing, lowering and compiling a first run of `sgda` on the linear scorer of 22 numbers, with
  each sampling, beside the same descent-ascent without privacy, written by hand in one scan, and
  beside that with clipping and JAX's own noise; and once more where the programs are on disk;
* instructions of a run, as lowered, for other rows, parameters and rounds.
"""

import itertools
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

from benchmarks.common import report

IMPORTS = {"jax and optax": "import jax, jax.numpy, optax",
           "jaxminimax": "from jaxminimax import run"}
OPEN, BY_HAND = "without privacy", "privacy by hand"
RUNS = (OPEN, BY_HAND, "with replacement", "disjoint passes", "every record", "Poisson",
        "without replacement")
BATCH, ROUNDS = 256, 200
COLUMNS = {5_000: 22, 20_000: 30}  # of the tables, by rows
# the jobs: words for Python, in a folder with `{rows}.csv`, `{rows}.toml` and a trained `model`
TRAIN = ("-m", "jaxminimax", "train", "5000.csv", "--schema", "5000.toml", "--epsilon", "1",
         "--delta", "1e-6", "--out", "model", "--quiet")
LOAD = "import pandas; t = pandas.read_csv('{}.csv'); x, y = t.drop(columns='y').to_numpy(), t.y\n"
FIT = ("from jaxminimax.estimators import PrivateAUCClassifier\n"
       "PrivateAUCClassifier(epsilon=1.0, delta=1e-6, bounds=(-1.0, 1.0)).fit(x, y)\n")
PLAIN = ("from sklearn.linear_model import LogisticRegression\n"
         "LogisticRegression().fit(x, y)")
JOBS = {
    "train on 5,000 rows": (TRAIN, ("-c", LOAD.format(5_000) + PLAIN)),
    "predict 5,000 rows": (("-m", "jaxminimax", "predict", "model", "5000.csv", "--out", "scores"),
                           ("-c", LOAD.format(5_000) + PLAIN + ".decision_function(x)")),
    "estimator on 20,000 rows": (("-c", LOAD.format(20_000) + FIT),
                                 ("-c", LOAD.format(20_000) + PLAIN)),
    "two of them in one process": (("-c", LOAD.format(20_000) + FIT + FIT.splitlines()[1]),
                                   ("-c", LOAD.format(20_000) + PLAIN))}
SIZES: dict[str, dict[str, int]] = {
    "as timed": {}, "600,000 rows": {"rows": 600_000}, "10,000 rounds": {"rounds": 10_000},
    "200 parameters": {"features": 200}, "2,000 parameters": {"features": 2_000}}


def program(name: str, rows: int = 60_000, features: int = 22, rounds: int = ROUNDS,
            ) -> tuple[Any, tuple[Any, ...]]:
    """A whole run that is still to be compiled, and its arguments; rows have shapes alone."""
    import jax
    import jax.numpy as jnp

    import jaxminimax as jmm
    from benchmarks.speed.throughput import ours
    from benchmarks.speed.throughput import peer_jax as plain
    from benchmarks.speed.throughput.cases import Case

    case = Case("linear 22", BATCH, rows)
    key, theta = jax.random.key(0), {"k": jnp.zeros(features)}
    data = (jax.ShapeDtypeStruct((rows, features), jnp.float32),
            jax.ShapeDtypeStruct((rows,), jnp.float32))
    if name in (OPEN, BY_HAND):
        move = plain.open_step if name == OPEN else plain.vmap_step

        def by_hand(z: dict[str, Any], key: jax.Array, *data: jax.Array) -> dict[str, Any]:
            def step(z: dict[str, Any], key: jax.Array) -> tuple[dict[str, Any], None]:
                drawn, noise = jax.random.split(key)
                x, y = plain.drawn(drawn, data, BATCH)
                return move(case, z, noise, x, y, jnp.float32(1)), None

            return jax.lax.scan(step, z, jax.random.split(key, rounds))[0]

        return jax.jit(by_hand), (plain.point(case) | {"theta": theta}, key, *data)
    samplings = {"with replacement": jmm.FixedSize(batch=BATCH, replacement=True),
                 "without replacement": jmm.FixedSize(batch=BATCH),
                 "disjoint passes": jmm.Disjoint(batch=BATCH), "every record": jmm.Full(),
                 "Poisson": jmm.Poisson(rate=BATCH / 60_000)}
    hyper = ours.hyper(jmm.sgda, ours.query(samplings[name], rows), rounds)
    problem = ours.problem(case)

    def private(z: Any, key: jax.Array, *data: jax.Array) -> Any:
        return jmm.run(key, z, data, hyper, jmm.sgda, problem).state

    return jax.jit(private), (jmm.problems.auc_start(theta), key, *data)


def compiled(name: str) -> dict[str, float]:
    """Processor time of each step of a compilation, in this process."""
    made, given = program(name)
    clock = [time.process_time()]

    def tick(value: Any) -> Any:
        clock.append(time.process_time())
        return value

    tick(tick(tick(made.trace(*given)).lower()).compile())
    trace, lower, xla = (after - before for before, after in itertools.pairwise(clock))
    return {"trace": trace, "lower": lower, "xla": xla}


def instructions(name: str, **sizes: int) -> int:
    """Of a run, before a compiler saw it."""
    made, given = program(name, **sizes)
    return int(made.lower(*given).as_text().count(" = "))


def _answer(*words: str, folder: str | None = None) -> Any:
    """What a fresh Python prints, as JSON; with bytecode, as where a package is installed."""
    stays = {k: x for k, x in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    kept = {"JAX_ENABLE_COMPILATION_CACHE": "false"} if folder is None else {
        "JAX_COMPILATION_CACHE_DIR": folder, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    done = subprocess.run([sys.executable, *words], check=True, text=True, stdout=subprocess.PIPE,
                          env=stays | kept)
    return json.loads(done.stdout)


def _spent(words: tuple[str, ...], folder: pathlib.Path, programs: str) -> float:
    """Returns the processor time of a process that ran with a folder for compiled programs."""
    env = {k: x for k, x in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"} | {
        "PYTHONPATH": os.getcwd(), "PYTHONPYCACHEPREFIX": str(folder / "bytecode"),
        "JAX_COMPILATION_CACHE_DIR": programs, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *words], check=True, cwd=folder, env=env,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def jobs(repeats: int) -> list[dict[str, Any]]:
    """Measures the jobs in turns: cold, warm and without privacy, one after another."""
    import numpy as np
    import pandas as pd

    with tempfile.TemporaryDirectory() as place:
        folder, rng = pathlib.Path(place), np.random.default_rng(0)
        for rows, width in COLUMNS.items():
            x = rng.uniform(-1, 1, (rows, width)).astype(np.float32)
            table = pd.DataFrame(x, columns=[f"c{k}" for k in range(width)])
            odds = x @ rng.normal(size=width) + rng.logistic(size=rows)
            table.assign(y=(odds > 0).astype(int)).to_csv(folder / f"{rows}.csv", index=False)
            (folder / f"{rows}.toml").write_text("[label]\nname = 'y'\npositive = 1\n" + "".join(
                f"[columns.c{k}]\nrange = [-1, 1]\n" for k in range(width)))
        kept = str(folder / "programs")
        for words, _ in JOBS.values():  # fills the folder, and makes the model
            _spent(words, folder, kept)
        taken: dict[str, list[tuple[float, ...]]] = {name: [] for name in JOBS}
        for number in range(repeats):
            report.say(f"jobs, turn {number + 1} of {repeats}")
            for name, (words, plain) in JOBS.items():
                taken[name].append((_spent(words, folder, str(folder / f"{name} {number}")),
                                    _spent(words, folder, kept), _spent(plain, folder, kept)))
    return [{"job": name, **{kind: round(statistics.median(x), 2) for kind, x in zip(
        ("cold", "warm", "plain"), zip(*turns, strict=True), strict=True)}}
        for name, turns in taken.items()]


def job_table(result: dict[str, Any]) -> str:
    """Returns seconds of processor time of whole processes."""
    return report.markdown(["process", "cold", "warm", "pandas and scikit-learn"], [
        [row["job"], *(f"{row[kind]:.1f} s" for kind in ("cold", "warm", "plain"))]
        for row in result["jobs"]])


def measured(repeats: int) -> dict[str, Any]:
    """All of it, in turns."""
    timed = "import json, time; t = time.process_time(); {}; print(time.process_time() - t)"
    taken: dict[str, list[Any]] = {name: [] for name in IMPORTS}
    times: dict[str, list[Any]] = {name: [] for name in RUNS}
    loaded: dict[str, list[Any]] = {name: [] for name in RUNS}
    one = ("-m", "benchmarks.speed.start", "--one")
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as bytecode:
        os.environ["PYTHONPYCACHEPREFIX"] = bytecode
        for number in range(-1, repeats):  # the first turn fills both folders
            report.say(f"turn {number + 1} of {repeats}")
            result = ({name: _answer("-c", timed.format(line)) for name, line in IMPORTS.items()},
                      {name: _answer(*one, name) for name in RUNS if number >= 0},
                      {name: _answer(*one, name, folder=folder) for name in RUNS})
            for kept, new in zip((taken, times, loaded), result, strict=True):
                for name, x in new.items() if number >= 0 else ():
                    kept[name].append(x)
    plain = statistics.median(sum(x.values()) for x in times[OPEN])
    rows = []
    for name in RUNS:
        row: dict[str, Any] = {"run": name}
        for part in times[name][0]:
            row[part] = round(statistics.median(x[part] for x in times[name]), 3)
        row["ratio"] = round(statistics.median(sum(x.values()) for x in times[name]) / plain, 2)
        row["loaded"] = round(statistics.median(sum(x.values()) for x in loaded[name]), 3)
        row["instructions"] = {size: instructions(name, **given) for size, given in SIZES.items()
                               if name not in (OPEN, BY_HAND)}
        rows.append(row)
    loads = {name: round(statistics.median(x), 3) for name, x in taken.items()}
    above = statistics.median(b - a for a, b in zip(*taken.values(), strict=True))
    return {"imports": loads | {"jaxminimax above these": round(above, 3)}, "compiled": rows}


def table(result: dict[str, Any]) -> str:
    """Seconds of processor time."""
    return report.markdown(
        ["run", "trace", "lower", "compile", "over no privacy", "from disk"],
        [[row["run"], *(f"{row[part]:.2f} s" for part in ("trace", "lower", "xla")),
          f"{row['ratio']:.2f}", f"{row['loaded']:.2f} s"] for row in result["compiled"]])


def sizes(result: dict[str, Any]) -> str:
    """Instructions of a run."""
    rows = [row for row in result["compiled"] if row["instructions"]]
    return report.markdown(["run", *rows[0]["instructions"]], [
        [row["run"], *(f"{x:,}" for x in row["instructions"].values())] for row in rows])


def imports(result: dict[str, Any]) -> str:
    """Seconds of processor time."""
    return report.markdown(["import of", "processor time"], [
        [name, f"{x:.2f} s"] for name, x in result["imports"].items()])


def main(argv: list[str] | None = None) -> int:
    """Measures, or compiles one run for a process that measures."""
    p = report.Parser(__file__, __doc__, "json", compiles=True)
    p.add_argument("--repeats", type=report.count, default=5)
    p.add_argument("--jobs", action="store_true", help="measure whole processes, and nothing else")
    p.add_argument("--one", choices=RUNS, help="compile this in the present process, once")
    args = p.parse_args(argv)
    if args.one is not None:
        print(json.dumps(compiled(args.one)))
        return 0
    result: dict[str, Any] = {
        "arguments": {"repeats": args.repeats, "batch": BATCH, "rounds": ROUNDS}}
    result |= {"jobs": jobs(args.repeats)} if args.jobs else measured(args.repeats)
    shown = (job_table,) if args.jobs else (imports, table, sizes)
    print(*(made(result) for made in shown), sep="\n")
    if args.json is not None:
        report.write_json(args.json, result | {"environment": report.environment()})
    return 0


if __name__ == "__main__":
    sys.exit(main())
