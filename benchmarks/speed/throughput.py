"""How fast a step is, beside what else a user would take, and beside what the machine allows.

    python -m benchmarks.throughput --json --plot

Every workload and batch size runs in rounds in which the peers take turns, and a row holds medians
over the rounds. `ratio` is the library's steps per second over the peer's, the median of the
ratios within rounds: above 1 the library is faster. `compile_seconds` is apart. `peak_bytes` is
what a program of JAX allocates by its own account, and for others how far the resident set grows in
the first run (a lower limit: memory that the allocator kept is missed).
`fraction_of_limit` is the time that the machine needs for the rows (at the bandwidth of a copy),
the products (at the rate of a large one) and the noise (at the rate of the generator), over the
time that was taken. Before it is timed, a peer's step without noise is held against the library's.

Peers with an environment of their own are started with the Python that a variable names, and are
skipped where it is not set:

    JAXMINIMAX_PEER_JAX_PRIVACY=/path/to/python   # with jax_privacy 2.0
    JAXMINIMAX_PEER_TORCH=/path/to/python         # with torch and opacus 1.6
"""

import argparse
import contextlib
import os
import pathlib
import platform
import statistics
import sys
import time
from typing import Any

from benchmarks import report
from benchmarks import throughput_cases as cases
from benchmarks.throughput_cases import Case, Skipped
from benchmarks.throughput_peers import Fleet

OURS, SPECIAL = "ours", "specialised scan"
PEERS = {
    OURS: "here", "ours, Poisson": "here", SPECIAL: "here", "specialised scan, long words": "here",
    "plain vmap, scan": "here", "plain vmap, loop": "here", "optax, loop": "here",
    "NumPy by hand": "here", "not private, scan": "here",
    "jax_privacy": "privacy", "jax_privacy microbatched": "privacy", "jax_privacy, scan": "privacy",
    "Opacus hooks": "torch", "Opacus functorch": "torch", "Opacus ghost": "torch",
    "PyTorch by hand, compiled": "torch", "torch.func vmap, compiled": "torch",
}
# on one case: what other algorithms and samples of the library cost
ALGORITHMS = ("ours, disjoint", "ours, extragradient", "ours, gda")
ALGORITHMS_ON = ("linear 22", 256)
# what is compared with the library: other work, or its own variants, is not
NOT_A_RIVAL = (OURS, "ours, Poisson", SPECIAL, "specialised scan, long words", "not private, scan",
               *ALGORITHMS)
BATCHES = (64, 256, 1024, 4096)
MANY = 6e9  # bytes of per-example gradients above which a peer that holds them is not started


def heavy(peer: str) -> bool:
    """Whether a peer holds the gradient of every row."""
    return any(word in peer for word in ("vmap", "optax", "jax_privacy", "hooks", "functorch")
               ) and "microbatched" not in peer


def steps_for(peer: str, case: Case, bound: float, bandwidth: float, wanted: float) -> int:
    """How many steps take about `wanted` seconds, guessed from below."""
    guess = 3 * bound + 1e-5
    if peer == "ours, gda":
        guess *= case.n / case.batch
    if "loop" in peer or PEERS.get(peer) == "torch" or "jax_privacy" in peer:
        guess += 1e-4
    if heavy(peer) or "jax_privacy" in peer:
        guess += case.batch * case.size * 80 / bandwidth
    return max(1, min(4000, int(wanted / guess)))


def one_case(fleet: Fleet, case: Case, names: list[str], args: argparse.Namespace,
             limits: dict[str, float]) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows of a case, and why peers are missing."""
    from benchmarks import throughput_limits

    bound = throughput_limits.bound(case, limits)
    entries: dict[str, Any] = {}
    peaks: dict[str, int | None] = {}
    spent: dict[str, float] = {}
    skipped: list[str] = []
    for name in names:
        try:
            if heavy(name) and 8 * case.batch * case.size > MANY:
                raise Skipped(f"would hold {case.batch} gradients of {case.size} numbers")
            steps = steps_for(name, case, bound, limits["copy_bytes_per_second"], args.seconds)
            entries[name] = fleet.make(name, PEERS.get(name, "here"), case, steps)
            if name not in NOT_A_RIVAL or name.startswith(SPECIAL):
                fleet.check(entries[OURS], entries[name])
            began = time.perf_counter()
            peaks[name] = entries[name].peak()  # its first run, which warms it too
            spent[name] = time.perf_counter() - began
        except Skipped as reason:
            entries.pop(name, None)
            skipped.append(f"{case.workload}, batch {case.batch}: {name} skipped: {reason}")
            report.say(skipped[-1])
    times: dict[str, list[float]] = {name: [] for name in entries}
    for _ in range(args.rounds):
        for name, entry in entries.items():
            if times[name] and spent[name] > args.budget:
                continue
            began = time.perf_counter()
            times[name].append(entry.time(args.clock))
            spent[name] += time.perf_counter() - began
    quiet = throughput_limits.bound(case, limits, noise=False)  # of the step without privacy
    made = [row(case, name, entries[name], peaks[name], times,
                quiet if name.startswith("not private") else bound) for name in entries]
    for entry in entries.values():
        entry.drop()
    return made, skipped


def row(case: Case, name: str, entry: Any, peak: int | None, times: dict[str, list[float]],
        bound: float) -> dict[str, Any]:
    """One line of the results."""
    own, step = times[OURS], statistics.median(times[name])
    ratio = statistics.median(t / o for t, o in zip(times[name], own, strict=False))
    low, *_, high = sorted(times[name]) if len(times[name]) > 1 else times[name] * 2
    return {
        "workload": case.workload, "batch": case.batch, "peer": name,
        "steps_per_second": 1 / step, "examples_per_second": case.batch / step, "ratio": ratio,
        "peak_bytes": peak, "compile_seconds": round(entry.compile_seconds, 3),
        "fraction_of_limit": bound / step, "rounds": len(times[name]), "steps": entry.steps,
        "fastest_seconds": low, "slowest_seconds": high,
    }


def targets(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the library set out to reach, and what it reached."""
    at = {(r["workload"], r["batch"], r["peer"]): r for r in rows}

    def against(peer: str, workload: str, wanted: float) -> dict[str, Any] | None:
        batches = [b for w, b, p in at if (w, p) == (workload, peer)]
        found = [at[workload, b, peer]["ratio"] for b in batches]
        return None if not found else {
            "target": f"{workload}, batch {', '.join(map(str, batches))}: at least {wanted:.3g} x "
                      f"{peer}",
            "wanted": wanted, "least": min(found), "most": max(found),
            "reached": min(found) >= wanted}

    found = [against(peer, workload, 1.0) for workload in cases.WORKLOADS
             for peer in PEERS if peer not in NOT_A_RIVAL]
    found += [against("jax_privacy microbatched", "mlp", 10.0), against("Opacus ghost", "mlp", 3.0),
              against("PyTorch by hand, compiled", "mlp", 1.2)]
    for batch in (64, 256):
        if ("linear 22", batch, "jax_privacy") in at:
            ratio = at["linear 22", batch, "jax_privacy"]["ratio"]
            found.append({"target": f"linear 22, batch {batch}: at least 10 x jax_privacy",
                          "wanted": 10.0, "least": ratio, "most": ratio, "reached": ratio >= 10})
    for workload in cases.WORKLOADS:
        for words in (SPECIAL, "specialised scan, long words"):
            found.append(against(words, workload, 1 / 1.1))
    made = [f for f in found if f is not None]
    private, open_ = (at.get(("mlp", 4096, p)) for p in (OURS, "not private, scan"))
    if private and open_ and private["peak_bytes"] and open_["peak_bytes"]:
        more = private["peak_bytes"] / open_["peak_bytes"]
        made.append({"target": "mlp, batch 4096: peak memory below 1.5 x the step without privacy",
                     "wanted": 1.5, "least": more, "most": more, "reached": more < 1.5})
    return made


def parser() -> report.Parser:
    """The command line."""
    p = report.Parser(prog="python -m benchmarks.throughput", description=__doc__,
                      formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--json", type=report.output(".json"), nargs="?", metavar="FILE",
                   const=pathlib.Path("throughput.json"), help="write the rows (throughput.json)")
    p.add_argument("--plot", type=report.output(".png", ".pdf"), nargs="?", metavar="FILE",
                   const=pathlib.Path("throughput.png"), help="draw them (throughput.png)")
    p.add_argument("--workloads", nargs="+", choices=cases.WORKLOADS, default=None,
                   help="default all; linear 22 and mlp with --quick")
    p.add_argument("--batches", nargs="+", type=report.count, default=None,
                   help=f"default {', '.join(map(str, BATCHES))}; 256 with --quick")
    p.add_argument("--peers", nargs="+", choices=[p for p in PEERS if p != OURS], metavar="PEER",
                   help="default all: " + "; ".join(p for p in PEERS if p != OURS))
    p.add_argument("--rounds", type=report.count, default=None, help="default 7; 3 with --quick")
    p.add_argument("--seconds", type=report.number(0, 60), default=None,
                   help="of a peer in a round, default 0.15; 0.05 with --quick")
    p.add_argument("--budget", type=report.number(0, 3600), default=None,
                   help="seconds after which a peer leaves the rounds, default 10; 1 with --quick")
    p.add_argument("--rows", type=report.count, default=cases.N, help="resident rows")
    p.add_argument("--cores", type=int, choices=range(0, 257), default=1, metavar="CORES",
                   help="cores to stay on, 0 for all; default 1")
    p.add_argument("--clock", choices=("wall", "cpu"), default="wall",
                   help="cpu: processor time, for a machine that is shared")
    p.add_argument("--no-growth", action="store_true",
                   help="leave out how cost grows with width, rows and iterations")
    p.add_argument("--quick", action="store_true",
                   help="under five minutes: one batch size, two workloads, no growth")
    return p


def filled(args: argparse.Namespace) -> argparse.Namespace:
    """The arguments with what `--quick` stands for."""
    quick = {"workloads": ["linear 22", "mlp"], "batches": [256], "rounds": 3, "seconds": 0.05,
             "budget": 1.0}
    full = {"workloads": list(cases.WORKLOADS), "batches": list(BATCHES), "rounds": 7,
            "seconds": 0.15, "budget": 10.0}
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
    except ValueError as error:
        p.error(str(error))
    if args.cores:
        pin(args.cores)
    return run(args)


def processor() -> str:
    """The name of what the steps run on."""
    import jax

    if jax.default_backend() != "cpu":
        return jax.devices()[0].device_kind
    with contextlib.suppress(OSError):
        for line in pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def pin(cores: int) -> None:
    """Starts the command again on so many cores, unless it is there; libraries count at loading."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    mine = sorted(os.sched_getaffinity(0))
    if len(mine) <= cores and all(os.environ.get(name) == str(cores) for name in names):
        return
    os.sched_setaffinity(0, mine[-cores:])
    more = dict.fromkeys(names, str(cores))
    if cores == 1:
        more["XLA_FLAGS"] = (os.environ.get("XLA_FLAGS", "") + " --xla_cpu_multi_thread_eigen=false"
                             " intra_op_parallelism_threads=1").strip()
    os.execve(sys.executable, [sys.executable, "-m", "benchmarks.throughput", *sys.argv[1:]],
              {**os.environ, **more})


def run(args: argparse.Namespace) -> int:
    """The benchmark, once the process has its cores."""
    from benchmarks import throughput_growth, throughput_limits

    limits = throughput_limits.measured(args.clock)
    report.say("limits: " + ", ".join(f"{k} {v:.3g}" for k, v in limits.items()))
    rows: list[dict[str, Any]] = []
    growth: list[dict[str, Any]] = []
    with Fleet() as fleet:
        skipped = [f"{home}: skipped: {why}" for home, why in fleet.missing.items()]
        for line in skipped:
            report.say(line)
        chosen = [n for n, home in PEERS.items() if (args.peers is None or n in args.peers)
                  and n != OURS and home not in fleet.missing]
        for workload in args.workloads:
            for batch in args.batches:
                case = Case(workload, batch, args.rows)
                more = list(ALGORITHMS) if (workload, batch) == ALGORITHMS_ON else []
                made, missing = one_case(fleet, case, [OURS, *chosen, *more], args, limits)
                rows += made
                skipped += missing
                for r in made:
                    report.say(f"{workload}, batch {batch}: {r['peer']}: "
                               f"{1e6 / r['steps_per_second']:.1f} us, ratio {r['ratio']:.2f}")
        record = {"environment": {**report.environment(), **fleet.versions,
                                  "processor": processor()}, "limits": limits,
                  "cores": args.cores, "clock": args.clock, "skipped": skipped, "rows": rows,
                  "targets": targets(rows), "growth": growth}
        if args.json:
            report.write_json(args.json, record)
        if not (args.no_growth or args.quick):
            growth += throughput_growth.rows(args)
    print(report.table(
        ("workload", "batch", "peer", "us a step", "examples a second", "ratio", "peak MB",
         "compile s", "of the limit"),
        [(r["workload"], str(r["batch"]), r["peer"], f"{1e6 / r['steps_per_second']:.1f}",
          f"{r['examples_per_second']:,.0f}", f"{r['ratio']:.2f}",
          "-" if r["peak_bytes"] is None else f"{r['peak_bytes'] / 1e6:.1f}",
          f"{r['compile_seconds']:.1f}", f"{r['fraction_of_limit']:.3f}") for r in rows]))
    print("\n" + "\n".join(
        f"{'reached' if t['reached'] else 'NOT reached'}: {t['target']}: "
        f"{t['least']:.2f} to {t['most']:.2f}" for t in record["targets"]))
    print("\n" + "\n".join([*skipped, *throughput_growth.lines(growth)]))
    if args.json:
        report.write_json(args.json, record)
    if args.plot:
        from benchmarks import throughput_plot

        throughput_plot.plot(args.plot, record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
