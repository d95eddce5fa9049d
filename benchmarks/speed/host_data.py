"""`python -m benchmarks.speed.host_data`: rounds a second, data on the device or the host.

The same private run, three ways: rows on the device, NumPy rows on the host (`HostData`), and rows
in a memory-mapped file. Where the device is the host's own processor, the last two show what
drawing, gathering and sending cost beside the rounds themselves.
"""

import pathlib
import statistics
import tempfile
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxminimax as jmm
from benchmarks.common import report
from jaxminimax import Saddle


def seconds(data: Any, hyper: Any, problem: jmm.Problem, features: int) -> tuple[float, float, Any]:
    """Time on the wall, time of the processors, and the last state of a run."""
    start = jmm.problems.auc_start(jnp.zeros(features, jnp.float32))
    wall, cpu = time.perf_counter(), time.process_time()
    state = jmm.fit(jax.random.key(0), start, data, hyper, jmm.sgda, problem, delta=1e-6,
                    every=hyper.iterations // 4 or 1, progress=False).state
    jax.block_until_ready(state)
    return time.perf_counter() - wall, time.process_time() - cpu, state


def main(argv: list[str] | None = None) -> int:
    """Runs the pairs; 1 if where the data are changed the result."""
    p = report.Parser(__file__, __doc__, "json")
    p.add_argument("--rows", type=report.count, default=1_000_000)
    p.add_argument("--features", type=report.count, default=64)
    p.add_argument("--batch", type=report.count, nargs="+", default=[256, 4096],
                   help="expected records of a release")
    p.add_argument("--iterations", type=report.count, default=400)
    p.add_argument("--repeats", type=report.count, default=5)
    args = p.parse_args(argv)
    rng, found = np.random.default_rng(0), []
    y = (rng.random(args.rows) < 0.3).astype(np.float32)
    x = rng.standard_normal((args.rows, args.features), np.float32)
    x += 0.3 * y[:, None]
    problem = jmm.problems.auc(jmm.problems.linear_scorer, prior=0.3, radius=Saddle(10.0, 10.0))
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "x.npy"
        np.save(path, x)
        ways = {"device": (jnp.asarray(x), jnp.asarray(y)), "host": jmm.placement.HostData((x, y)),
                "file": jmm.placement.HostData((np.load(path, mmap_mode="r"), y))}
        for batch in args.batch:
            query = jmm.Query(clip=Saddle(1.0, None), noise_multiplier=Saddle(1.0, None),
                              population=args.rows, sampling=jmm.Poisson(rate=batch / args.rows))
            hyper = jmm.sgda.Hyper(query=query, step=Saddle(0.1, 0.1), iterations=args.iterations)
            first = {way: seconds(data, hyper, problem, args.features)[2]
                     for way, data in ways.items()}  # compiles
            same = all(jax.tree.all(jax.tree.map(lambda a, b: bool(jnp.array_equal(a, b)),
                                                 first["device"], state))
                       for state in first.values())
            times: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
            for _ in range(args.repeats):  # in turn, so that a busy machine is busy for all
                for way, data in ways.items():
                    times[way].append(seconds(data, hyper, problem, args.features)[:2])
            for way in ways:
                wall = [w for w, _ in times[way]]
                found.append({
                    "batch": batch, "data": way, "same bits": same,
                    "rounds per second": args.iterations / statistics.median(wall),
                    "cpu ms per round": 1e3 * statistics.median(c for _, c in times[way])
                    / args.iterations,
                    "time over device": statistics.median(
                        w / d for w, (d, _) in zip(wall, times["device"], strict=True))})
                print("batch {batch:5d}  {data:6s}  {rounds per second:8.0f} rounds/s  "
                      "{time over device:5.2f} of the device's time  same bits: {same bits}"
                      .format(**found[-1]))
    report.save(args, {"rows": found})
    return 0 if all(row["same bits"] for row in found) else 1


if __name__ == "__main__":
    raise SystemExit(main())
