"""What Poisson samples cost over rows drawn with replacement: whole rounds, and draws alone.

`--models` times rounds of larger models, by `again`, and of rows one by one without empty slots.

Interleaved, in processor time on one core. `--json` keeps rows of an earlier `--source`, so that
two sources are compared in one file.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.common import report
from benchmarks.speed.throughput import cases as throughput_cases
from benchmarks.speed.throughput import growth as throughput_growth
from benchmarks.speed.throughput import ours as throughput_ours
from benchmarks.speed.throughput.cases import Case, Entry
from benchmarks.speed.throughput.machine import pin

SAMPLERS = {"with replacement": "ours", "Poisson": "ours, Poisson"}
# of larger models, and the rounds of a timed run
MODELS = {("lora", 16): 3, ("cnn", 16): 60, ("cnn", 64): 20, ("mlp", 16): 120, ("mlp", 64): 60}
WAYS = {**SAMPLERS, "Poisson, again=0.2": "ours, Poisson again",
        "Poisson, again=0.2, row by row": "ours, Poisson alone"}
BATCHES, POPULATION, DRAWN = (64, 256, 1024), 60_000, (10**4, 10**5, 10**6, 10**7, 10**8)


def timed(what: str, entries: dict[str, Entry], repeats: int, **more: Any) -> list[dict[str, Any]]:
    """A row for each sampler; ratios are medians of pairs."""
    for entry in entries.values():
        entry.advance()
    times = np.array([[throughput_cases.seconds(entry, "cpu") for entry in entries.values()]
                      for _ in range(repeats)])
    return [{"what": what, **more, "sampler": name, "us": 1e6 * float(np.median(mine)),
             "ratio": float(np.median(mine / times[:, 0]))}
            for name, mine in zip(entries, times.T, strict=True)]


def main(argv: list[str] | None = None) -> int:
    """Times all of it."""
    made = report.Parser(__file__, __doc__, "json")
    made.add_argument("--source", default="this", help="what the timed source is called")
    made.add_argument("--repeats", type=report.count, default=31)
    made.add_argument("--steps", type=report.count, default=2000, help="rounds of a timed run")
    made.add_argument("--batches", type=report.count, nargs="+", default=BATCHES)
    made.add_argument("--drawn", type=report.count, nargs="*", default=DRAWN,
                      help="populations that samples alone are drawn of, at batch 256")
    made.add_argument("--models", action="store_true", help="time larger models too")
    args = made.parse_args(argv)
    result: list[dict[str, Any]] = []
    for batch in args.batches:
        case = Case("linear 22", batch, POPULATION)
        data = tuple(map(jnp.asarray, throughput_cases.rows(case)))
        result += timed("round", {name: throughput_ours.make(peer, case, data, args.steps)
                                  for name, peer in SAMPLERS.items()}, args.repeats,
                        batch=batch, population=POPULATION)
    for population in args.drawn:
        result += timed("draw", {name: throughput_growth.sampling(name, population)
                                 for name in SAMPLERS}, args.repeats,
                        batch=throughput_growth.BATCH, population=population)
    for (workload, batch), steps in MODELS.items() if args.models else ():
        case = Case(workload, batch, 20 * batch)
        data = tuple(map(jnp.asarray, throughput_cases.rows(case)))
        result += timed(workload, {name: throughput_ours.make(peer, case, data, steps)
                                   for name, peer in WAYS.items()}, args.repeats,
                        batch=batch, population=case.n)
    for row in result:
        row["source"] = args.source
        print("{source}: a {what}, batch {batch} of {population:,d}, {sampler}: {us:.2f} us, "
              "{ratio:.2f} of rows with replacement".format(**row), flush=True)
    if args.json is not None:
        same = ("repeats", "steps", "batches", "drawn")
        arguments = {k: list(v) if isinstance(v, tuple) else v for k, v in vars(args).items()
                     if k != "json"}
        old = report.kept(args.json, "rows", arguments, same) or []
        report.write_json(args.json, {
            "environment": report.environment(), "device": jax.devices()[0].device_kind,
            "arguments": arguments,
            "rows": [row for row in old if row["source"] != args.source] + result})
    return 0


if __name__ == "__main__":
    pin(1, "benchmarks.speed.poisson")
    raise SystemExit(main())
