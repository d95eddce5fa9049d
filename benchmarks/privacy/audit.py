"""Audits the algorithms: what an attack attains of the epsilon that the accountant claims.

    python -m benchmarks.privacy.audit [--json FILE] [--markdown FILE] [--quick]
        [--only claims|wide]

Every algorithm with every way of sampling, calibrated to epsilon = 1 and 4 at delta = 0.01, run
a hundred thousand times on two neighbouring data sets; and attacks with many numbers and
many records, see `attacks.wide`, in float32 and float64. Exit status 1 if an attack attains more
than the claim, or a record moves what is released by more than is charged, in units of its noise.
With `--quick` every algorithm, with fewer ways of sampling, epsilon = 4 alone and fewer runs.
"""

import dataclasses
import math
import time
from typing import Any

import jax
import jax.numpy as jnp

import jaxminimax as jmm
from benchmarks.common import report
from benchmarks.privacy.attacks import group as group_attack
from benchmarks.privacy.attacks import stream as stream_attack
from benchmarks.privacy.attacks import wide as wide_attack
from jaxminimax import Disjoint, FixedSize, Full, GroupGradients, Poisson, Query, Saddle
from jaxminimax.algorithms import ALGORITHMS, described_by, takes
from jaxminimax.audit import Audit, audit
from jaxminimax.audit.pairs import worst_pair
from jaxminimax.mechanism import Resolvent
from jaxminimax.mechanism.composed import parts_of_data
from jaxminimax.mechanism.sampling import choices

DELTA = 1e-2  # events this rare can be counted, which an attack that proves something must do
RUNS, QUICK_RUNS = 100_000, 20_000
EPSILONS = (1.0, 4.0)
POPULATION = 20
CLIP = Saddle(0.5, 2.0)
BOTH = ("replace_one", "add_or_remove_one")
REPLACED = ("replace_one",)

RESOLVENT: dict[str, Any] = dict(bound=0.5, prox=2.0, lipschitz=0.0, diameter=10.0,
                                 population=POPULATION, assumes="lipschitz")
STREAMS = stream_attack.attacks  # and the algorithms that read a record once by these


@dataclasses.dataclass(frozen=True)
class Case:
    """One mechanism to attack.

    Attributes:
      sampling: which records a release reads.
      rounds: releases.
      relations: neighbours.
      how: strategy and microbatch of the clipped sums.
      joint: whether one clip holds both players.
      quick: whether --quick runs it.
      clips: of groups, see `GroupGradients`.
    """

    sampling: Any
    rounds: int
    relations: tuple[str, ...] = REPLACED
    how: dict[str, Any] = dataclasses.field(default_factory=dict)
    joint: bool = False
    quick: bool = False
    clips: str = "equal"

    @property
    def name(self) -> str:
        """The mechanism in words."""
        match self.sampling:
            case Poisson(rate=rate, capacity=capacity):
                how = f"Poisson, rate {rate:g}" + ("" if capacity is None else
                                                   f", capacity {capacity}")
            case Disjoint(batch=batch):
                how = f"disjoint batches of {batch}"
            case FixedSize(batch=batch, replacement=replacement):
                how = f"{batch} {'with' if replacement else 'without'} replacement"
            case Full():
                how = "full batch"
            case other:
                how = other.summary(self.rounds, POPULATION)
        strategy = f", {self.how['strategy']}" if self.how else ""
        clip = ", joint clip" if self.joint else (
            "" if self.clips == "equal" else ", clip norms by weight")
        return f"{how}, {self.rounds} round{'s' * (self.rounds > 1)}{strategy}{clip}"


_LISTED = (
    Case(Full(), 1),
    Case(Full(), 5, BOTH, quick=True),
    Case(Full(), 5, how={"strategy": "ghost"}),
    Case(Full(), 5, how={"strategy": "microbatch", "microbatch": 6}),
    Case(Full(), 5, joint=True),
    Case(Full(), 5, quick=True, clips="by_weight"),
    Case(Poisson(rate=0.25), 1, quick=True),
    Case(Poisson(rate=0.25), 5, BOTH),
    Case(Poisson(rate=0.25, capacity=12), 5),
    Case(Disjoint(batch=6), 7, quick=True),
    Case(FixedSize(batch=5), 1, quick=True),
    Case(FixedSize(batch=5), 5),
    Case(FixedSize(batch=5, replacement=True), 5),
)
# and of every other sampling of the command line whose worst pair is known
CASES = _LISTED + tuple(
    Case(other, 5, quick=True) for other in (
        choice.make(choice.batch and choice.batch(5), POPULATION) for choice in choices().values())
    if type(other) not in {type(case.sampling) for case in _LISTED}
    and other.worst_case(POPULATION) is not None)


def modules() -> dict[str, Any]:
    """Every algorithm of the package that `CASES` are for, by name; `STREAMS` attack the others.

    Raises:
      LookupError: for one that neither attacks.
    """
    known = {name: module for name, module in ALGORITHMS.items()
             if described_by(module) in (Query, Resolvent, GroupGradients)}
    left = [name for name, module in ALGORITHMS.items() if name not in known
            and module not in {attack.algorithm for attack in STREAMS()}]
    if left:
        raise LookupError(f"{left} take descriptions that no attack knows: give them one, as in "
                          "benchmarks.privacy.attacks.stream.attacks")
    return known


def grouped(module: Any) -> bool:
    """Whether an algorithm is attacked by `attacks.group`."""
    return described_by(module) is GroupGradients


def hyper_of(module: Any, case: Case) -> Any | None:
    """The `Hyper` of a case, not calibrated; None where the algorithm has no such sampling."""
    if case.clips != "equal" and module is not jmm.balanced_groups:
        return None
    if grouped(module):
        # a capacity is for the population of the other algorithms
        usual = not (case.joint or case.how or getattr(
            case.sampling, "capacity", None))
        if not usual or (module is jmm.balanced_groups and not isinstance(case.sampling, Full)):
            return None
        try:
            case.sampling.in_groups()
        except ValueError:
            return None
        return group_attack.hyper_of(module, case.sampling, case.rounds, clips=case.clips)
    if case.how and module not in (jmm.sgda, jmm.gda):  # strategies are the release's
        return None
    query: Any = jmm.Query(clip=CLIP, sampling=case.sampling, population=POPULATION,
                           joint=case.joint)
    if described_by(module) is Resolvent:
        if case.joint:
            return None
        if module is jmm.recursive and not isinstance(case.sampling, Full):
            return None
        query = Resolvent(sampling=case.sampling, **RESOLVENT)
    # of two parts, the record is in the first
    parts = {"parts": 2} if takes(module, "parts") else {}
    hyper = module.example(query, case.rounds, **parts)
    if module is jmm.recursive:
        hyper = dataclasses.replace(hyper, query=module.certified(hyper.query, case.rounds))
    elif module is jmm.proximal:
        hyper = dataclasses.replace(hyper, query=module.certified(hyper.query))
    try:
        module.mechanism(hyper)
    except ValueError:
        return None
    return hyper


def at(module: Any, hyper: Any) -> tuple[Saddle, Saddle]:
    """The worst pair of a hyper, and the point where runs start."""
    made = module.mechanism(hyper)
    data = worst_pair(hyper.query, "replace_one")
    more = (made.parts - 1) * hyper.query.population  # the record is in the first part
    data = jax.tree.map(lambda x: jnp.pad(x, ((0, 0), (0, more), (0, 0))), data)
    return data, jax.tree.map(lambda x: jnp.zeros(x.shape[2:], x.dtype), data)


def row(name: str, module: Any, case: Case, hyper: Any, epsilon: float, neighbours: str,
        runs: int, seed: int) -> tuple[dict[str, Any], Any]:
    """Calibrates and attacks one case: a row of the table, and the hyper that was run."""
    start = time.perf_counter()
    hyper = jmm.calibrate(module, hyper, epsilon, DELTA, neighbours=neighbours)
    if grouped(module):
        result = group_attack.audit(jax.random.key(seed), module, hyper, DELTA, runs=runs)
    else:
        result = audit(jax.random.key(seed), module, hyper, DELTA, runs=runs,
                       neighbours=neighbours, **case.how)
    return _line(name, case.name, result, start), hyper


def stream_row(attack: stream_attack.Attack, epsilon: float, runs: int,
               seed: int) -> tuple[dict[str, Any], Any]:
    """As `row`, for a mechanism that reads a record once."""
    start = time.perf_counter()
    hyper = jmm.calibrate(attack.algorithm, attack.hyper, epsilon, DELTA)
    result = stream_attack.audit(jax.random.key(seed), attack, hyper, DELTA, runs=runs)
    return _line(attack.algorithm.__name__.split(".")[-1], attack.name, result, start), hyper


def _line(name: str, mechanism: str, found: Audit, start: float) -> dict[str, Any]:
    return {
        "algorithm": name,
        "mechanism": mechanism,
        "neighbours": found.neighbours,
        "pair": found.pair,
        "epsilon_claimed": found.epsilon_claimed,
        "epsilon_lower": found.epsilon_lower,
        "share": found.epsilon_lower / found.epsilon_claimed,
        "violated": found.violated,
        "delta": DELTA,
        "confidence": found.confidence,
        "statistic": found.statistic,
        "signal": None if found.signal is None else _finite(dataclasses.asdict(found.signal)),
        "hits": list(found.hits),
        "trials": found.trials,
        "runs": found.runs,
        "seconds": round(time.perf_counter() - start, 2),
    }


def _finite(values: dict[str, Any]) -> dict[str, Any]:
    """Infinity has no word in JSON."""
    return {k: 1e300 if v == math.inf else v for k, v in values.items()}


def relations(module: Any, case: Case, hyper: Any) -> tuple[str, ...]:
    """The neighbouring relations of a case, where its records lie in one place: else the first."""
    several = grouped(module) or parts_of_data(module.mechanism(hyper)) > 1
    return case.relations[:1] if several else case.relations


def everything(runs: int, quick: bool) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The rows, and the privacy statement of each."""
    rows: list[dict[str, Any]] = []
    statements: list[dict[str, Any]] = []

    epsilons = EPSILONS[-1:] if quick else EPSILONS

    def keep(module: Any, one: dict[str, Any], used: Any) -> None:
        rows.append(one)
        statements.append(report.stated(jmm.statement(module, used, delta=DELTA,
                                                      neighbours=one["neighbours"])))
        report.say(f"{one['algorithm']}, {one['mechanism']}, {one['neighbours']}, {one['pair']}: "
                   f"{one['epsilon_lower']:.3f} of {one['epsilon_claimed']:.3f} "
                   f"({one['seconds']:.1f} s)")

    for name, module in modules().items():
        for case in CASES:
            hyper = hyper_of(module, case)
            if hyper is None or (quick and not case.quick):
                continue
            for neighbours in relations(module, case, hyper)[: 1 if quick else None]:
                for epsilon in epsilons:
                    keep(module, *row(name, module, case, hyper, epsilon, neighbours, runs,
                                      len(rows)))
    for attack in STREAMS():
        for epsilon in epsilons:
            keep(attack.algorithm, *stream_row(attack, epsilon, runs, len(rows)))
    return rows, statements


def claims_table(rows: list[dict[str, Any]]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Header and cells."""
    def signal(r: dict[str, Any]) -> tuple[str, str]:
        result = r["signal"]
        if result is None:
            return "-", "-"
        return f"{result['charged']:.3f}", f"{result['attained']:.3f} (>= {result['low']:.3f})"

    return (("algorithm", "mechanism", "neighbours", "pair", "claimed", "lower", "share", "runs",
             "charged signal", "signal"),
            [(r["algorithm"], r["mechanism"], r["neighbours"], r["pair"],
              f"{r['epsilon_claimed']:.3f}", f"{r['epsilon_lower']:.3f}", f"{r['share']:.2f}",
              str(r["runs"]), *signal(r)) for r in rows])


def wide_table(rows: list[dict[str, Any]]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Header and cells."""
    return (("attack", "case", "measured", "limit", "note"),
            [(r["attack"], r["case"], f"{r['measured']:.6g}", f"{r['limit']:.6g}", r["note"])
             for r in rows])


def main(argv: list[str] | None = None) -> int:
    parser = report.Parser(__file__, __doc__.split("\n")[0], "json", "markdown")
    parser.add_argument("--quick", action="store_true", help="fewer cases and runs")
    parser.add_argument("--only", choices=("claims", "wide"), help="one half of it")
    parser.add_argument("--runs", type=report.count, help="on each of the two data sets")
    args = parser.parse_args(argv)
    runs = args.runs or (QUICK_RUNS if args.quick else RUNS)
    if runs < 1000:
        parser.error(f"--runs {runs} shows nothing; give 1000 or more")
    start = time.perf_counter()
    rows, statements = ([], []) if args.only == "wide" else everything(runs, args.quick)
    wide = [] if args.only == "claims" else wide_attack.everything(args.quick)
    seconds = time.perf_counter() - start
    tables = [claims_table(rows)] * bool(rows) + [wide_table(wide)] * bool(wide)
    for header, cells in tables:
        print(report.table(header, cells), end="\n\n")
    print(f"Lower bounds on epsilon at delta = {DELTA:g} and confidence 0.999 a row; "
          f"{len(rows) + len(wide)} rows, {seconds:.0f} s.")
    report.save(args, {"seconds": round(seconds, 1), "rows": rows, "statements": statements,
                       "wide": wide})
    if args.markdown is not None:
        args.markdown.write_text(markdown(tables), encoding="utf-8")
    broken = [r for r in rows if r["violated"]]
    for r in broken:
        report.say(f"VIOLATED: {r['algorithm']}, {r['mechanism']}, {r['neighbours']}: an attack "
                   f"attains epsilon = {r['epsilon_lower']:.4g} at delta = {DELTA:g}, and the "
                   f"accountant claims {r['epsilon_claimed']:.4g}; signal "
                   f"{claims_table([r])[1][0][-1]}. Do not use this release.")
    for r in wide:
        if r["violated"]:
            broken.append(r)
            report.say(f"VIOLATED: {r['attack']}, {r['case']}: {r['measured']:.6g} of at most "
                       f"{r['limit']:.6g}. Do not use this release.")
    return 1 if broken else 0


def markdown(tables: list[tuple[tuple[str, ...], list[tuple[str, ...]]]]) -> str:
    """The tables, in Markdown."""
    text = ("# Audit\n\nWritten by `python -m benchmarks.privacy.audit --markdown FILE`. Lower "
            "bounds on "
            f"epsilon at delta = {DELTA:g}, signals in units of the noise, both at confidence "
            "0.999 a row.\n")
    for header, cells in tables:
        text += "\n" + "\n".join(f"| {' | '.join(row)} |" for row in (
            header, ("---",) * len(header), *cells)) + "\n"
    return text


if __name__ == "__main__":
    raise SystemExit(main())
