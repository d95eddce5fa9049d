"""How fast a step is, beside what else a user would take, and beside what the machine allows.

    python -m benchmarks.speed.throughput --json --markdown --plot

Every workload and batch size runs in rounds in which the peers take turns, and a row holds medians
over the rounds. `ratio` is the library's steps per second over the peer's, the median of the
ratios within rounds, with their quartiles: above 1 the library is faster. `compile_seconds`, of
processor time, is apart. `peak_bytes` is
what a program of JAX allocates by its own account, and for others how far the resident set grows in
the first run (a lower limit: memory that the allocator kept is missed).
`fraction_of_limit` is the time that the machine needs for the rows (at the bandwidth of a copy),
the products (at the rate of a large one) and the noise (at the rate of the generator), over the
time that was taken. Before it is timed, a peer's step without noise is held against the library's.

What the JSON file holds already is kept, so that a run that was stopped goes on; `--only` chooses
workloads (or the curves of growth), `--peers` and `--batches` rows, and `--again` measures what is
chosen anew. What is not run is in the file with its reason.

Peers with an environment of their own are started with the Python that a variable names, and are
skipped where it is not set:

    JAXMINIMAX_PEER_JAX_PRIVACY=/path/to/python   # with jax_privacy 2.0
    JAXMINIMAX_PEER_TORCH=/path/to/python         # with torch and opacus 1.6
"""

import argparse
import functools
import pathlib
import statistics
from typing import Any

from benchmarks.common import report
from benchmarks.speed.throughput import cases, machine, saved
from benchmarks.speed.throughput import report as reported
from benchmarks.speed.throughput.cases import Case, Skipped
from benchmarks.speed.throughput.peers import Fleet
from benchmarks.speed.throughput.report import NOT_A_RIVAL, OURS, PEERS, SPECIAL
from benchmarks.speed.throughput.saved import GROWTH

BATCHES = (64, 256, 1024, 4096)
MANY = 4e9  # bytes of per-example gradients above which a peer that holds them is not started
LEAST = 3  # rounds of a peer that is slow


def heavy(peer: str) -> bool:
    """Whether a peer holds the gradient of every row."""
    return any(word in peer for word in ("vmap", "optax", "jax_privacy", "hooks", "functorch")
               ) and "microbatched" not in peer


def steps_for(peer: str, case: Case, bound: float, bandwidth: float, wanted: float) -> int:
    """How many steps take about `wanted` seconds, guessed from below."""
    guess = (3 if case.model in ("linear", "mlp") else 30) * bound + 1e-5
    if peer == "ours, gda":
        guess *= case.n / case.batch
    if "loop" in peer or PEERS.get(peer) == "torch" or "jax_privacy" in peer:
        guess += 1e-4
    if heavy(peer) or "jax_privacy" in peer:
        guess += case.batch * case.size * 80 / bandwidth
    return max(1, min(4000, int(wanted / guess)))


def one_case(fleet: Fleet, case: Case, names: list[str], args: argparse.Namespace,
             record: dict[str, Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The rows of a case, and why peers are missing."""
    from benchmarks.speed.throughput import limits as throughput_limits

    limits = record["limits"]
    bound = throughput_limits.bound(case, limits)
    entries: dict[str, Any] = {}
    peaks: dict[str, int | None] = {}
    skipped: list[dict[str, Any]] = []
    for name in names:
        try:
            if OURS not in entries and name != OURS:
                raise Skipped(f"would have no comparison: the library's step {skipped[0]['why']}")
            if heavy(name) and 8 * case.batch * case.size > MANY:
                raise Skipped(f"would hold {case.batch} gradients of {case.size} numbers")
            before = saved.expected(case, name, record)
            if before and before > args.longest:
                raise Skipped(f"would take about {before:.1f} s")
            steps = (max(1, min(4000, int(args.seconds / before))) if before else steps_for(
                name, case, bound, limits["copy_bytes_per_second"], args.seconds))
            entries[name] = fleet.make(name, PEERS.get(name, "here"), case, steps)
            if name not in NOT_A_RIVAL or name.startswith((SPECIAL, "jax_privacy")):
                fleet.check(case.workload, name, entries[OURS], entries[name])
            peaks[name] = entries[name].peak()  # its first run, which warms it too
        except Skipped as reason:
            entries.pop(name, None)
            skipped.append({"workload": case.workload, "batch": case.batch, "peer": name,
                            "why": str(reason)})
            report.say(f"{case.workload}, batch {case.batch}: {name} not run: {reason}")
    times: dict[str, list[float]] = {name: [] for name in entries}
    for _ in range(args.rounds):
        for name, entry in entries.items():
            if len(times[name]) < LEAST or sum(times[name]) * entry.steps < args.budget:
                times[name].append(entry.time(args.clock))
    quiet = throughput_limits.bound(case, limits, noise=False)  # of the step without privacy
    made = [row(case, name, entries[name], peaks[name], times,
                quiet if name.startswith("not private") else bound) for name in entries]
    for entry in entries.values():
        entry.drop()
    return made, skipped


@functools.cache
def commit() -> str | None:
    """Of the source as it was when the first row was made."""
    return report.commit()


def row(case: Case, name: str, entry: Any, peak: int | None, times: dict[str, list[float]],
        bound: float) -> dict[str, Any]:
    """One line of the results."""
    own, step = times[OURS], statistics.median(times[name])
    ratios = sorted(t / o for t, o in zip(times[name], own, strict=False))
    low, _, high = statistics.quantiles(ratios * (1 if len(ratios) > 1 else 2), n=4,
                                        method="inclusive")
    return {
        "workload": case.workload, "batch": case.batch, "peer": name,
        "steps_per_second": 1 / step, "examples_per_second": case.batch / step,
        "ratio": statistics.median(ratios), "ratio_low": low, "ratio_high": high,
        "peak_bytes": peak, "compile_seconds": round(entry.compile_seconds, 3),
        "fraction_of_limit": bound / step, "rounds": len(times[name]), "steps": entry.steps,
        "fastest_seconds": min(times[name]), "slowest_seconds": max(times[name]),
        "commit": commit(),
    }


def parser() -> report.Parser:
    """The command line."""
    p = report.Parser(__file__, __doc__, compiles=True)
    p.add_argument("--json", type=report.output(".json"), nargs="?", metavar="FILE",
                   const=pathlib.Path("throughput.json"), help="write the rows (throughput.json)")
    p.add_argument("--markdown", type=report.output(".md"), nargs="?", metavar="FILE",
                   const=pathlib.Path("throughput.md"), help="and tables (throughput.md)")
    p.add_argument("--plot", type=report.output(".png", ".pdf"), nargs="?", metavar="FILE",
                   const=pathlib.Path("throughput.png"),
                   help="draw them (throughput.png; _ratios.png and _growth.png beside it)")
    p.add_argument("--only", nargs="+", choices=(*cases.WORKLOADS, GROWTH), default=None,
                   help="of these; default all; linear 22 and mlp with --quick")
    p.add_argument("--batches", nargs="+", type=report.count, default=None,
                   help=f"default {', '.join(map(str, BATCHES))}; 256 with --quick")
    p.add_argument("--peers", nargs="+", choices=[p for p in PEERS if p != OURS], metavar="PEER",
                   help="default all: " + "; ".join(p for p in PEERS if p != OURS))
    p.add_argument("--again", action="store_true", help="also what the JSON file holds already")
    p.add_argument("--rounds", type=report.count, default=None, help="default 7; 3 with --quick")
    p.add_argument("--seconds", type=report.number(0, 60), default=None,
                   help="of a peer in a round, default 0.5; 0.1 with --quick")
    p.add_argument("--budget", type=report.number(0, 3600), default=2.5,
                   help=f"seconds after which a peer leaves the rounds, after {LEAST} at least")
    p.add_argument("--longest", type=report.number(0, 3600), default=1.5,
                   help="seconds: peers whose step would take longer, by that of a smaller batch, "
                        "are not run")
    p.add_argument("--rows", type=report.count, default=cases.N, help="resident rows")
    p.add_argument("--cores", type=int, choices=range(0, 257), default=1, metavar="CORES",
                   help="cores to stay on, 0 for all; default 1")
    p.add_argument("--clock", choices=("wall", "cpu"), default=None,
                   help="cpu: processor time, for a machine that is shared; default on a CPU")
    p.add_argument("--quick", action="store_true",
                   help="under five minutes: one batch size, two workloads, no growth")
    return p


def filled(args: argparse.Namespace) -> argparse.Namespace:
    """The arguments with what `--quick` stands for."""
    quick = {"only": ["linear 22", "mlp"], "batches": [256], "rounds": 3, "seconds": 0.1}
    full = {"only": [*cases.WORKLOADS, GROWTH], "batches": list(BATCHES), "rounds": 7,
            "seconds": 0.5}
    for name, value in (quick if args.quick else full).items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    if max(args.batches) > args.rows:
        raise ValueError(f"got batches up to {max(args.batches)} of {args.rows} rows")
    return args


def main(argv: list[str] | None = None) -> int:
    """Runs the benchmark."""
    p = parser()
    args = p.parse_args(argv)
    try:
        filled(args)
        if args.cores:
            machine.pin(args.cores)
        record = saved.started(args)
    except ValueError as error:
        p.error(str(error))
    return run(args, record)


def run(args: argparse.Namespace, record: dict[str, Any]) -> int:
    """The benchmark, once the process has its cores."""
    from benchmarks.speed.throughput import growth
    from benchmarks.speed.throughput import limits as throughput_limits

    def write() -> None:
        record["targets"] = reported.targets(record["rows"])
        record["unmeasured"] = saved.unmeasured(record, BATCHES)
        if args.json:
            report.write_json(args.json, record)

    record["limits"] = record["limits"] or throughput_limits.measured(args.clock)
    report.say("limits: " + ", ".join(f"{k} {v:.3g}" for k, v in record["limits"].items()))
    with Fleet() as fleet:
        record["skipped"] = [f"{home}: skipped: {why}" for home, why in fleet.missing.items()]
        for line in record["skipped"]:
            report.say(line)
        record["environment"] = {**record.get("environment", {}), **report.environment(),
                                 **fleet.versions, "processor": machine.processor()}
        for case, names in saved.cells(args, record, fleet.missing):
            made, skipped = one_case(fleet, case, names, args, record)
            saved.merged(record, made, skipped, args.peers)
            write()
            for r in made:
                report.say(f"{case.workload}, batch {case.batch}: {r['peer']}: "
                           f"{1e6 / r['steps_per_second']:.1f} us, ratio {r['ratio']:.2f}")
    if GROWTH in args.only and (args.again or not record[GROWTH]):
        record[GROWTH] = growth.rows(args)
    write()
    print(reported.text(record))
    if args.markdown:
        args.markdown.write_text(reported.markdown(record), encoding="utf-8")
    if args.plot:
        from benchmarks.speed.throughput import plot

        plot.plot(args.plot, record)
        plot.ratios(args.plot.with_stem(f"{args.plot.stem}_ratios"), record)
        plot.growth(args.plot.with_stem(f"{args.plot.stem}_growth"), record)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
