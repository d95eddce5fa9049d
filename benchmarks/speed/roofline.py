"""How long a step takes by its operations and bytes, predicted before a device is there.

    python -m benchmarks.speed.roofline [--measure] [--json FILE]

For every model and batch of `benchmarks.speed.throughput`: the private step (`jmm.sgda.update` on
rows drawn with replacement) in the strategy and the slices that the library chooses, the same by
whole gradients of 1,024 rows at a time, the same with 64 GiB of memory for the sum, and the step
without privacy. Each is counted in its
program before compilation (`benchmarks.speed.operations`), and no row exists. On a device of known
rates it takes

    max(products / rate + elementwise / rate, bytes / bandwidth) + kernels launch + decisions wait

where "low" has the bytes of perfect fusion, and "high" those without any. A decision is a branch or
a loop of unknown length, for which a device may ask its host. `--measure` takes the rates of the
device at hand and times the steps that take less than `--longest` by them, so that the first
minutes on a device test the predictions. On a CPU that is one core and processor time.

The JSON file is written after every row, and rows that it holds are not made again.
"""

import dataclasses
import statistics
import unittest.mock
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import jaxminimax as jmm
from benchmarks.common import report
from benchmarks.speed import predictions
from benchmarks.speed.operations import Work, work
from benchmarks.speed.throughput import cases, limits, machine, ours
from benchmarks.speed.throughput import peer_jax as plain
from benchmarks.speed.throughput.cases import Case
from jaxminimax.noise import floored_normal

WORKLOADS = (*cases.WORKLOADS, *cases.PICTURES)
BATCHES = (64, 256, 1024, 4096, 16384, 65536)
_BITS, _LINKS, _ROUNDS, _SECONDS, _ROWS = 20, 64, 5, 0.2, 8192  # the last: resident, at least


@dataclasses.dataclass(frozen=True)
class Device:
    """What a device does in a second.

    Attributes:
      exact: operations of float32 products with all digits.
      products: the same where the program leaves the digits to the device.
      floats: elementwise operations of floats.
      integers: the same of integers of 32 bits.
      bandwidth: bytes read or written.
      launch: seconds of a kernel that does nothing.
      decision: seconds until a host has decided a branch.
    """

    exact: float
    products: float
    floats: float
    integers: float
    bandwidth: float
    launch: float
    decision: float


# 132 multiprocessors of 128 lanes for floats and 64 for integers at 1.98 GHz, and tensor cores
# without sparsity: NVIDIA's white paper of the H100, which has the same processor. Memory: NVIDIA's
# data sheet of the H200. Launch and decision are assumed, to be tested first.
_H200 = Device(66.9e12, 494.7e12, 33.5e12, 16.7e12, 4.8e12, launch=2e-6, decision=10e-6)
DEVICES = {"H200, float32": dataclasses.replace(_H200, products=_H200.exact), "H200, TF32": _H200}


def at_hand(kind: str) -> Device:
    """What is here: products and copies in memory, the rest in a cache; waits as of the H200."""
    found, cpu = limits.measured(kind), jax.default_backend() == "cpu"

    def seconds(link: Callable[[Any], Any], start: Any) -> float:
        def links(x: Any, turn: None) -> tuple[Any, None]:
            for _ in range(_LINKS):
                x = link(x)
            return x, None

        run = jax.jit(lambda x: jax.lax.scan(links, x, length=_LINKS)[0])
        return limits.fastest(lambda: run(start), kind) / _LINKS**2

    x = jnp.ones(2**15 if cpu else 2**24)
    launch = seconds(lambda x: x @ x, jnp.eye(2))
    return Device(
        found["matmul_flops_per_second"], found["rough_matmul_flops_per_second"],
        2 * x.size / seconds(lambda x: jnp.abs(x * 0.9), x),
        3 * x.size / seconds(lambda x: (x ^ (x << 13)) + 7, x.astype(jnp.uint32)),
        found["copy_bytes_per_second"], launch, launch if cpu else _H200.decision)


def predicted(count: Work, device: Device) -> dict[str, Any]:
    """Seconds of a step, from below and from above, and what takes the most of it."""
    parts = {
        "products": count["exact products"] / device.exact + count["products"] / device.products,
        "elementwise": count["floats"] / device.floats + count["integers"] / device.integers,
        "bytes": count["fused bytes"] / device.bandwidth,
        "launches": count["kernels"] * device.launch + count["decisions"] * device.decision}
    busy = parts["products"] + parts["elementwise"]
    return {"low": max(busy, parts["bytes"]) + parts["launches"],
            "high": max(busy, count["bytes"] / device.bandwidth) + parts["launches"],
            "binds": max(parts, key=lambda part: parts[part])}


def counted(case: Case, platform: str) -> dict[str, Work]:
    """Work of the steps as planned for a kind of device, and of the private step's noise alone."""
    with unittest.mock.patch.object(jax, "default_backend", return_value=platform):
        return _counted(case)


def _counted(case: Case) -> dict[str, Work]:
    key, point = jax.eval_shape(lambda: (jax.random.key(0), plain.point(case)))
    data = tuple(jax.ShapeDtypeStruct(s, jnp.float32) for s in (case.resident, (case.n,)))
    query = ours.query(jmm.FixedSize(batch=case.batch, replacement=True), case.n, case.size)
    settings = ours.hyper(jmm.sgda, query, 100)
    state = jax.eval_shape(lambda theta: jmm.sgda.init(jmm.problems.auc_start(theta), settings),
                           point["theta"])

    def private(solved: jmm.Problem) -> Work:
        return work(lambda key, state, data: jmm.sgda.update(key, state, data, settings, solved),
                    key, state, data)

    def without(z: Any, key: jax.Array, *data: jax.Array) -> Any:
        x, y = plain.drawn(key, data, case.batch)
        return plain.open_step(case, z, key, x, y, jnp.float32(0))

    solved = ours.problem(case)
    roomy = jmm.types.with_strategy(solved.operator, memory=2**36)
    return {"private": private(solved), "in slices": private(ours.in_slices(solved)),
            "with memory": private(solved._replace(operator=roomy)),
            "not private": work(without, point, key, *data),
            "noise": work(lambda key: floored_normal(key, case.size, jnp.int32(_BITS)), key)}


def measured(case: Case, expected: float, kind: str) -> dict[str, float]:
    """Seconds of the steps on this device, medians over rounds in which they take turns."""
    data, steps = tuple(map(jnp.asarray, cases.rows(case))), max(2, int(_SECONDS / expected))
    found = {"private": ours.make("ours", case, data, steps),
             "in slices": ours.make("ours, slices", case, data, steps),
             "not private": plain.make("not private, scan", case, data, steps)}
    turns = [{name: cases.seconds(entry, kind) for name, entry in found.items()}
             for _ in range(_ROUNDS + 1)][1:]
    return {name: statistics.median(turn[name] for turn in turns) for name in found}


def row(case: Case, devices: dict[str, Device], longest: float, kind: str) -> dict[str, Any]:
    """A workload at one batch size, measured if it takes no longer than that on this device."""
    counts = counted(case, "gpu")
    made = {on: {name: predicted(count, device) for name, count in (
        counted(case, jax.default_backend()) if on == "this" else counts).items()}
            for on, device in devices.items()}
    slowest = max(one["high"] for one in made["this"].values()) if "this" in made else longest
    return {"workload": case.workload, "batch": case.batch, "predicted": made,
            "work": {name: dict(count) for name, count in counts.items()},
            "measured": measured(case, slowest, kind) if slowest < longest else None}


def parser() -> report.Parser:
    """The command line."""
    p = report.Parser(__file__, __doc__, "json", compiles=True)
    p.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=WORKLOADS)
    p.add_argument("--batches", nargs="+", type=report.count, default=BATCHES)
    p.add_argument("--measure", action="store_true", help="on the device at hand, too")
    p.add_argument("--longest", type=report.number(0, 600), default=0.02, help="step, in seconds")
    p.add_argument("--quick", action="store_true", help="two workloads of batch 64")
    return p


def main(argv: list[str] | None = None) -> int:
    """Counts, predicts, measures where asked to, prints, writes."""
    p = parser()
    args = p.parse_args(argv)
    if args.quick:
        args.workloads, args.batches = ("linear 22", "mlp"), (64,)
    kind = "cpu" if jax.default_backend() == "cpu" else "wall"
    if args.measure and kind == "cpu":
        machine.pin(1, "benchmarks.speed.roofline")
    try:
        rows = report.kept(args.json, "rows", vars(args), ("measure",)) or []
    except ValueError as error:
        p.error(str(error))
    devices = DEVICES | ({"this": at_hand(kind)} if args.measure else {})
    record = {"processor": machine.processor(), "rows": rows, "devices": {
        on: dataclasses.asdict(device) for on, device in devices.items()}}
    for batch in args.batches:
        for workload in args.workloads:
            if any((r["workload"], r["batch"]) == (workload, batch) for r in rows):
                continue
            rows.append(row(Case(workload, batch, max(_ROWS, batch)), devices, args.longest, kind))
            report.save(args, record, {"measure": args.measure})
            report.say(f"{workload}, batch {batch}")
    print(predictions.table(record), predictions.checked(record), sep="\n\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
