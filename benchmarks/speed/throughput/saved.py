"""What the file of a benchmark of steps holds, what is still to be measured, and who takes part."""

import argparse
import json
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.common import report
from benchmarks.speed.throughput import report as reported
from benchmarks.speed.throughput.cases import WORKLOADS, Case, Skipped
from benchmarks.speed.throughput.report import ALGORITHMS, OURS, PEERS, SPECIAL

ALGORITHMS_ON = ("linear 22", 256)
# on models that are no linear or MLP scorer; the deeper ones have no specialised scan either
EVERYWHERE = (OURS, "ours, Poisson", "ours, Poisson again", "ours, Poisson alone", SPECIAL,
              "plain vmap, scan", "plain vmap, loop", "not private, scan", "jax_privacy",
              "jax_privacy microbatched", "jax_privacy, Poisson",
              "jax_privacy, Poisson, microbatched", "Opacus hooks", "Opacus ghost")
DEEP = ("rnn", "lora", "resnet")
GROWTH = "growth"
_SAME = ("rows", "rounds", "seconds", "budget", "longest", "cores", "clock")


def peers_of(workload: str, batch: int) -> list[str]:
    """Who takes part."""
    if workload.split()[0] not in ("linear", "mlp"):
        return [p for p in EVERYWHERE if p != SPECIAL or workload not in DEEP]
    return [*PEERS, *(ALGORITHMS if (workload, batch) == ALGORITHMS_ON else ())]


def expected(case: Case, peer: str, record: dict[str, Any]) -> float | None:
    """Seconds of a step, by the largest of the smaller batches that were measured.

    Raises:
      Skipped: where one of them was not run for its cost.
    """
    smaller = [r for r in record["not_run"] if (r["workload"], r["peer"]) == (case.workload, peer)
               and r["batch"] < case.batch and r["why"].startswith("would")]
    if smaller:
        raise Skipped(f"would take more than at batch {smaller[-1]['batch']}, which was not run")
    done = [(r["batch"], r["steps_per_second"]) for r in record["rows"] if r["batch"] < case.batch
            and (r["workload"], r["peer"]) == (case.workload, peer)]
    return case.batch / max(done)[0] / max(done)[1] if done else None


def started(args: argparse.Namespace) -> dict[str, Any]:
    """What a file holds already, or nothing yet.

    Raises:
      ValueError: for a file with results of other arguments.
    """
    import jax

    if args.clock is None:
        args.clock = "cpu" if jax.default_backend() == "cpu" else "wall"
    arguments = {name: getattr(args, name) for name in _SAME}
    empty = {"arguments": arguments, "limits": {}, "rows": [], "not_run": [], GROWTH: []}
    if report.kept(args.json, "rows", arguments, _SAME) is None:
        return empty
    return empty | json.loads(args.json.read_text(encoding="utf-8"))


def cells(args: argparse.Namespace, record: dict[str, Any], missing: dict[str, str]
          ) -> Iterator[tuple[Case, list[str]]]:
    """What is to be measured: a case, and the peers that it wants beside the library."""
    done = set() if args.again else {
        (r["workload"], r["batch"], r["peer"]) for r in (*record["rows"], *record["not_run"])}
    for workload in args.only:
        for batch in sorted(args.batches) if workload != GROWTH else ():
            names = [n for n in peers_of(workload, batch)
                     if (workload, batch, n) not in done and n != OURS
                     and (args.peers is None or n in args.peers)
                     and PEERS.get(n, "here") not in missing]
            if names or (workload, batch, OURS) not in done:
                yield Case(workload, batch, args.rows), [OURS, *names]


def unmeasured(record: dict[str, Any], batches: Sequence[int]) -> list[str]:
    """A line for every case that no run came to yet, and who is missing in it."""
    done = {(r["workload"], r["batch"], r["peer"]) for r in (*record["rows"], *record["not_run"])}
    lines = []
    for workload in WORKLOADS:
        for batch in batches:
            peers = peers_of(workload, batch)
            left = [p for p in peers if (workload, batch, p) not in done]
            if left:
                who = "all peers" if len(left) == len(peers) else "; ".join(left)
                lines.append(f"{workload}, batch {batch}: not measured yet: {who}")
    return lines


def merged(record: dict[str, Any], made: list[dict[str, Any]], skipped: list[dict[str, Any]],
           chosen: list[str] | None) -> None:
    """Puts new rows in the place of old ones.

    Where peers were chosen, the library was only measured beside them: its old row stays.
    """
    def of(r: dict[str, Any]) -> tuple[str, int, str]:
        return r["workload"], r["batch"], r["peer"]

    old = {of(r) for r in record["rows"]}
    fresh = [r for r in made if not (chosen and r["peer"] == OURS and of(r) in old)]
    new = {of(r) for r in (*fresh, *skipped)}
    for part, more in (("rows", fresh), ("not_run", skipped)):
        kept = [r for r in record[part] if of(r) not in new]
        record[part] = sorted([*kept, *more], key=reported.place)
