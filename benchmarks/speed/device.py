"""What a step takes on the device at hand, in absolute terms, and where its time goes.

    python -m benchmarks.speed.device --json device.json

For every workload and batch of `benchmarks.speed.throughput`: microseconds a step, keys of threefry
and of "rbg", in rounds in which the two take turns; operations a second over the rate of a large
float32 product, and bytes of rows a second over the bandwidth of a copy, both measured here; the
share of the step that the integer noise takes, from the time of a number drawn by itself; and, from
the profiler, kernels a step and the five that take longest, with what each takes without the ones
within it. A figure of a CPU says nothing of a GPU: the file names its device.

The JSON file is written after every row, and the rows that it holds are not measured again. So a
run that was stopped goes on. Where a device is slow at loops, branches, or numbers of 64 bits,
`loops_and_branches` of a row says how many of them a step has.
"""

import argparse
import collections
import functools
import pathlib
import re
import statistics
import tempfile
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp

import jaxminimax as jmm
from benchmarks.common import report
from benchmarks.privacy import noise_law
from benchmarks.speed.throughput import cases, limits, ours
from benchmarks.speed.throughput import peer_jax as plain
from benchmarks.speed.throughput.cases import Case, Entry

GENERATORS = ("threefry2x32", "rbg")
BATCHES = (64, 1024, 4096)
_BITS = 20  # of the noise whose time is taken
_HOT = 5
# kinds of operations in the text of a program, each of which is a kernel or a trip to the host
_COUNTED = {"loops": r"stablehlo\.while\b", "branches": r"stablehlo\.(?:case|if)\b",
            "sorts": r"stablehlo\.sort\b", "scatters": r"stablehlo\.scatter\b",
            "calls of other code": r"stablehlo\.custom_call\b",
            "64-bit": r" = .*[if]64>$"}
_NO_KERNELS = ("Thunk", "Threadpool", "while", "call", "conditional")  # what only holds others


def with_replacement(case: Case) -> jmm.FixedSize:
    """The sampling whose draw costs least."""
    return jmm.FixedSize(batch=case.batch, replacement=True)


def entry(case: Case, generator: str, data: tuple[Any, ...], steps: int) -> Entry:
    """The library's steps, rows drawn with replacement, with keys of one generator."""
    query = ours.query(with_replacement(case), case.n)
    settings, problem = ours.hyper(jmm.sgda, query, steps), ours.problem(case)

    def whole(z: Any, key: jax.Array, *data: jax.Array) -> tuple[Any, jax.Array]:
        state, _ = jmm.run(key, z, data, settings, jmm.sgda, problem)
        return state.z, jax.random.fold_in(key, 1)

    start = jmm.problems.auc_start(plain.point(case)["theta"])
    return plain.program(whole, (start, jax.random.key(0, impl=generator)), data, steps,
                         lambda x, y: {})


def lowered(case: Case, sampling: Any, platform: str) -> dict[str, int]:
    """Returns how many operations of a few kinds a step has, in the program before compilation.

    Args:
      case: workload and batch.
      sampling: of the rows.
      platform: "cuda", "cpu", ...; no such device is needed.
    """
    settings, problem = ours.hyper(jmm.sgda, ours.query(sampling, case.n), 100), ours.problem(case)
    state = jmm.sgda.init(jmm.problems.auc_start(plain.point(case)["theta"]), settings)
    data = tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in (case.resident, (case.n,)))
    step = jax.jit(lambda key, state, data: jmm.sgda.update(key, state, data, settings, problem))
    return operations_in(step.trace(jax.random.key(0), state, data).lower(
        lowering_platforms=(platform,)).as_text())


def operations_in(program: str) -> dict[str, int]:
    """Returns the operations of a program by kind; those of a function count at every call."""
    functions = dict(re.findall(r"^  func\.func \w+ @([\w.]+)(.*?)^  }", program,
                                re.MULTILINE | re.DOTALL))

    @functools.cache
    def count(function: str) -> collections.Counter[str]:
        body = functions[function]
        total = collections.Counter({kind: len(re.findall(pattern, body, re.MULTILINE))
                                     for kind, pattern in _COUNTED.items()})
        for called in re.findall(r"call @([\w.]+)", body):
            total += count(called)
        return total

    return {kind: count("main")[kind] for kind in _COUNTED}


def own_times(events: Iterable[tuple[str, float, float]]) -> dict[str, float]:
    """What events take without those within them; an event is a name, a start and a duration."""
    total: dict[str, float] = collections.defaultdict(float)
    open_: list[tuple[str, float]] = []  # around the next event, with their ends
    for name, start, duration in sorted(events, key=lambda e: (e[1], -e[2])):
        while open_ and open_[-1][1] <= start:
            open_.pop()
        if open_:
            total[open_[-1][0]] -= duration
        total[name] += duration
        open_.append((name, start + duration))
    return total


def kernels(made: Entry) -> dict[str, Any]:
    """How many kernels a step runs, and the ones that take longest."""
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            made.advance()
        [result] = pathlib.Path(folder).rglob("*.xplane.pb")
        planes = list(jax.profiler.ProfileData.from_file(str(result)).planes)
        count, times = 0, collections.Counter[str]()
        for plane in planes:
            for line in plane.lines:
                if (("GPU" in plane.name and line.name.startswith("Stream"))
                        or line.name.startswith("tf_XLAPjRt")):
                    events = [(e.name, e.start_ns, e.duration_ns) for e in line.events
                              if not e.name.startswith(_NO_KERNELS)]
                    count += len(events)
                    times.update(own_times(events))
    full = sum(times.values())
    return {"kernels_a_step": count / made.steps,
            "hottest": [{"kernel": name, "share": ns / full}
                        for name, ns in times.most_common(_HOT)]}


def row(case: Case, machine: dict[str, float], ns: float, args: argparse.Namespace
        ) -> dict[str, Any]:
    """A workload at one batch size."""
    data = tuple(map(jnp.asarray, cases.rows(case)))
    steps = max(2, min(2000, int(args.seconds / (4 * limits.bound(case, machine) + 2e-5))))
    made = {g: entry(case, g, data, steps) for g in GENERATORS}
    for one in made.values():
        one.advance()
    turns = [{g: cases.seconds(one, "wall") for g, one in made.items()}
             for _ in range(args.rounds)]
    took = statistics.median(turn["threefry2x32"] for turn in turns)
    rows = 4 * case.batch * case.features
    return {
        "workload": case.workload, "batch": case.batch, "steps": steps, "rounds": args.rounds,
        "microseconds": 1e6 * took, "examples_per_second": case.batch / took,
        "rbg_over_threefry": statistics.median(t["rbg"] / t["threefry2x32"] for t in turns),
        "of_product_rate": limits.operations(case) / took / machine["matmul_flops_per_second"],
        "of_bandwidth": rows / took / machine["copy_bytes_per_second"],
        "of_noise": 1e-9 * ns * case.size / took,
        "compile_seconds": made["threefry2x32"].compile_seconds,
        "loops_and_branches": lowered(case, with_replacement(case), jax.default_backend()),
        **kernels(made["threefry2x32"]),
    }


def parser() -> report.Parser:
    """The command line."""
    p = report.Parser(__file__, __doc__, "json", compiles=True)
    p.add_argument("--workloads", nargs="+", choices=cases.WORKLOADS, default=cases.WORKLOADS)
    p.add_argument("--batches", nargs="+", type=report.count, default=BATCHES)
    p.add_argument("--rows", type=report.count, default=cases.N, help="resident rows")
    p.add_argument("--rounds", type=report.count, default=7)
    p.add_argument("--seconds", type=report.number(0, 60), default=0.5, help="of a round")
    p.add_argument("--quick", action="store_true",
                   help="two workloads, batch 64, three rounds of .05 seconds, 6,000 rows")
    return p


def main(argv: list[str] | None = None) -> int:
    """Measures, prints, writes."""
    p = parser()
    args = p.parse_args(argv)
    if args.quick:
        args.workloads, args.batches = ("linear 22", "mlp"), (64,)
        args.rounds, args.seconds, args.rows = 3, 0.05, 6000
    if max(args.batches) > args.rows:
        p.error(f"got batches up to {max(args.batches)} of {args.rows} rows")
    arguments = {name: getattr(args, name) for name in ("rows", "rounds", "seconds")}
    try:
        rows = report.kept(args.json, "rows", arguments, tuple(arguments)) or []
    except ValueError as error:
        p.error(str(error))
    machine = limits.measured("wall")
    noise = functools.cache(lambda size: noise_law.speed(size, _BITS, rounds=3, clock="wall"))
    for workload in args.workloads:
        for batch in args.batches:
            if any((r["workload"], r["batch"]) == (workload, batch) for r in rows):
                continue
            case = Case(workload, batch, args.rows)
            rows.append(row(case, machine, noise(case.size)["integer_ns"], args))
            report.say(f"{workload}, batch {batch}: {rows[-1]['microseconds']:.1f} us a step")
            report.save(args, {"limits": machine, "rows": rows}, arguments)
    print(report.table(
        ("workload", "batch", "us a step", "rbg / threefry", "of product rate", "of bandwidth",
         "of noise", "kernels", "hottest"),
        [(r["workload"], str(r["batch"]), f"{r['microseconds']:.1f}",
          f"{r['rbg_over_threefry']:.2f}", f"{r['of_product_rate']:.4f}",
          f"{r['of_bandwidth']:.4f}", f"{r['of_noise']:.2f}", f"{r['kernels_a_step']:.0f}",
          ", ".join(f"{h['kernel']} {h['share']:.2f}" for h in r["hottest"])) for r in rows]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
