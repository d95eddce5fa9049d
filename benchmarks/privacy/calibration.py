"""How long calibration takes.

    python -m benchmarks.privacy.calibration [--json FILE] [--quick]

A row is one mechanism and target. `cold` is the first call, with the accountant's caches emptied;
the second call finds the answer among the remembered ones. `noise multiplier` is that of the first
query, noise over clip norm. The target is 2 s without sampling and 10 s with it.
"""

import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import jaxminimax as jmm
from benchmarks.common import report
from jaxminimax import Saddle
from jaxminimax.accounting import calibration, curve


class Case(NamedTuple):
    """A mechanism and its target."""

    name: str
    mechanism: Any
    releases: int
    epsilon: float
    delta: float
    limit: float = 10.0


def repeat(n: int, times: int, sampling: Any) -> jmm.Repeat:
    """Releases of one player."""
    query = jmm.Query(clip=Saddle(1.0, None), population=n, sampling=sampling)
    return jmm.Repeat(query=query, times=times)


def unsampled() -> Iterator[Case]:
    """Closed forms."""
    for epsilon in (0.1, 1.0, 10.0):
        for name, sampling in (("full", jmm.Full()), ("disjoint", jmm.Disjoint(batch=10))):
            yield Case(name, repeat(1000, 100, sampling), 100, epsilon, 1e-6, 2.0)
    yield Case("full", repeat(1000, 10**6, jmm.Full()), 10**6, 1.0, 1e-10, 2.0)
    yield Case("tree", jmm.mechanism.TreeSums(clip=1.0, leaves=4096), 4096, 1.0, 1e-6, 2.0)
    yield Case("solution", jmm.mechanism.Solution(sensitivity=1.0, because="assumed"), 1, 1.0,
               1e-6, 2.0)
    losses = jmm.GroupLosses(bound=1.0, sizes=(1000,), times=200, noise="laplace")
    yield Case("losses", losses, 200, 1.0, 1e-6, 2.0)
    both = jmm.Sequence(parts=(repeat(1000, 200, jmm.Full()), losses))
    yield Case("full and losses", both, 400, 1.0, 1e-6, 2.0)


def sampled(quick: bool) -> Iterator[Case]:
    """Poisson and fixed-size samples."""
    rate = jmm.Poisson(rate=64 / 39992)
    for epsilon in (0.1, 1.0, 10.0):
        yield Case("poisson", repeat(39992, 9373, rate), 9373, epsilon, 1e-6)
    if quick:
        return
    yield Case("poisson", repeat(39992, 10**6, rate), 10**6, 1.0, 1e-6)
    for n, m, times in ((256, 16, 64), (100, 10, 101), (900, 30, 901), (100, 1, 20_000)):
        how = jmm.FixedSize(batch=m)
        yield Case(f"fixed {n}, {m}", repeat(n, times, how), times, 1.0, 1e-5)
    for epsilon in (1.0, 4.0):
        how = jmm.FixedSize(batch=16, replacement=True)
        yield Case("replacement 256, 16", repeat(256, 64, how), 64, epsilon, 1e-5)
    how = jmm.FixedSize(batch=50, replacement=True)
    losses = jmm.GroupLosses(bound=1.0, sizes=(1000,), times=200, noise="laplace")
    both = jmm.Sequence(parts=(repeat(1000, 200, how), losses))
    yield Case("replacement 1000, 50 and losses", both, 400, 1.0, 1e-6)


def forget() -> None:
    """Empties the caches, so that a time is a cold one."""
    calibration._CACHE.clear()
    for cached in (curve.named_epsilon, curve.charge_delta):
        cached.cache_clear()


def multiplier(mechanism: Any) -> float:
    """The noise multiplier of the first query."""
    if isinstance(mechanism, jmm.Sequence):
        mechanism = mechanism.parts[0]
    z = mechanism.query.noise_multiplier.w if isinstance(mechanism, jmm.Repeat) else (
        mechanism.noise_multiplier)
    return float(z)


def rows(case: Case) -> list[dict[str, Any]]:
    """The first and the second call."""
    forget()
    made = []
    for cold in (True, False):
        began = time.perf_counter()
        answer = jmm.accounting.calibrate_noise(case.mechanism, case.epsilon, case.delta)
        made.append({"mechanism": case.name, "epsilon": case.epsilon, "delta": case.delta,
                     "releases": case.releases, "noise_multiplier": multiplier(answer),
                     "seconds": time.perf_counter() - began, "cold": cold})
    return made


def main(argv: list[str] | None = None) -> int:
    """Runs the benchmark; 0, whatever the times."""
    p = report.Parser(__file__, __doc__, "json")
    p.add_argument("--quick", action="store_true", help="without sampling, and Poisson samples")
    args = p.parse_args(argv)
    cases = [*unsampled(), *sampled(args.quick)]
    timed = [rows(case) for case in cases]
    print(report.table(
        ("mechanism", "epsilon", "delta", "releases", "noise multiplier", "cold s", "again s"),
        [(a["mechanism"], f"{a['epsilon']:g}", f"{a['delta']:g}", str(a["releases"]),
          f"{a['noise_multiplier']:.6g}", f"{a['seconds']:.2f}", f"{b['seconds']:.4f}")
         for a, b in timed]))
    slow = [case.name for case, (cold, _) in zip(cases, timed, strict=True)
            if cold["seconds"] > case.limit]
    print(f"\nOver the limit: {', '.join(slow) or 'none'}.")
    report.save(args, {"rows": [row for pair in timed for row in pair], "statements": []})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
