"""The accountant in extreme settings: long runs, small delta, large and tiny epsilon, little noise.

    python -m benchmarks.privacy.accountant [--json FILE] [--markdown FILE] [--quick]

The column `before` has the answers of this accountant at commit 336f9dc, and `now` has its present
answers with their processor time. A number in the column `edge` marks a setting outside ordinary
use, and stands for what went wrong at that commit. 1: rounding lost the amplification of fixed-size
samples. 2: the law of the samplers set a ceiling on epsilon. 7: long runs were charged by Renyi
divergences. 9: the grid was too wide for a tiny epsilon. 10: little noise gave an infinite epsilon.
Other columns have the privacy loss distributions (PLD) and Renyi divergences (RDP) of
dp-accounting, and the accountant of Opacus. They are empty if the library does not cover the
mechanism, and the last line names libraries that are not installed. The column `exact` comes from a
closed form or a contour integral of the moment generating function, without a grid of losses.
"""

import importlib
import pathlib
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import dp_accounting
from dp_accounting import pld, rdp

import jaxminimax as jmm
from benchmarks.common import report
from benchmarks.privacy import bought
from jaxminimax import Saddle
from jaxminimax.accounting import curve
from jaxminimax.mechanism.costs import Charge, PrivacyLoss

RESULT = pathlib.Path(__file__).parent / "results/accountant.md"
RO, AR = "replace_one", "add_or_remove_one"
_PATIENCE = 2000  # releases, or rate times releases, that other libraries are asked for


class Case(NamedTuple):
    """One number.

    Attributes:
      edge: which kind.
      name: the setting.
      cost: what is charged, samplers and noise taken as exact.
      delta: of the question.
      neighbours: the relation.
      before: at commit 336f9dc.
      exact: None if not known.
    """

    edge: int
    name: str
    cost: Charge
    delta: float
    neighbours: str
    before: str
    exact: float | None


def poisson(rate: float, z: float, times: int) -> Charge:
    """Poisson samples; z is noise over clip norm."""
    return Charge(losses=((PrivacyLoss("poisson", z, rate), times),))


def fixed(n: int, m: int, z: float, times: int, replacement: bool = False) -> Charge:
    """Samples of a fixed size; z is noise over clip norm."""
    loss = PrivacyLoss("replacement" if replacement else "fixed", z,
                       1 / n if replacement else m / n, n, m)
    return Charge(losses=((loss, times),))


CASES = (
    Case(1, "without replacement n=1e5 m=500 z=30 T=1e6", fixed(10**5, 500, 30.0, 10**6), 1e-10,
         RO, "inf", 2.07603),
    Case(1, "the same, T=1000", fixed(10**5, 500, 30.0, 1000), 1e-12, RO, "16.7", 0.0659568),
    Case(2, "Poisson q=1e-3 z=.8626 T=1e6", poisson(1e-3, 0.8626, 10**6), 1e-10, RO,
         "at most 19.2, then inf", 19.9949),
    Case(2, "with replacement n=1e9 m=1000 z=.7 T=1e4", fixed(10**9, 1000, 0.7, 10**4, True),
         1e-10, RO, "inf", None),
    Case(7, "Poisson q=1e-3 z=.8 T=1e5", poisson(1e-3, 0.8, 10**5), 1e-10, RO, "5.3 % above",
         6.21765),
    Case(7, "the same", poisson(1e-3, 0.8, 10**5), 1e-10, AR, "4.631", 4.06917),
    Case(9, "Poisson q=1e-6 z=1 T=1e6", poisson(1e-6, 1.0, 10**6), 1e-6, RO, "2.1 % above",
         0.0063902),
    Case(9, "the same", poisson(1e-6, 1.0, 10**6), 1e-6, AR, "6.2 % above", 0.0036819),
    Case(9, "Poisson q=1e-3 z=30 T=100", poisson(1e-3, 30.0, 100), 1e-12, RO, "2.6 % above",
         0.00375469),
    Case(9, "the same", poisson(1e-3, 30.0, 100), 1e-12, AR, "8.6 % above", 0.00185609),
    Case(10, "Poisson q=.1 z=.1 T=1", poisson(0.1, 0.1, 1), 1e-8, RO, "inf", None),
    Case(10, "without replacement n=1000 m=50 z=.5 T=200", fixed(1000, 50, 0.5, 200), 1e-6, RO,
         "inf", None),
    Case(10, "with replacement n=1e4 m=100 z=.3 T=1", fixed(10**4, 100, 0.3, 1, True), 1e-6, RO,
         "inf", None),
    Case(0, "Poisson q=64/39992 z=1.34254 T=9373", poisson(64 / 39992, 1.34254, 9373), 1e-6, RO,
         "1.0000", 0.999789),
    Case(0, "Poisson q=.01 z=1 T=1000", poisson(0.01, 1.0, 1000), 1e-5, AR, "", None),
)

# edge, setting, sampling, n, T, epsilon, delta, noise multiplier before
CALIBRATED = (
    (1, "without replacement n=1e5 m=500", jmm.FixedSize(batch=500), 10**5, 10**6, 1.0, 1e-10,
     "11,794"),
    (1, "without replacement n=1e5 m=500", jmm.FixedSize(batch=500), 10**5, 1000, 1.0, 1e-12,
     "414.9"),
    (1, "with replacement n=1e5 m=500", jmm.FixedSize(batch=500, replacement=True), 10**5, 1000,
     1.0, 1e-12, "refused"),
    (2, "Poisson n=1e6 q=1e-3", jmm.Poisson(rate=1e-3), 10**6, 10**6, 20.0, 1e-10, "missed: 17.20"),
    (2, "with replacement n=1e6 m=1000", jmm.FixedSize(batch=1000, replacement=True), 10**6, 10**4,
     20.0, 1e-8, "missed: 17.26, 82 s"),
    (0, "Poisson n=39992 q=64/39992", jmm.Poisson(rate=64 / 39992), 39992, 9373, 1.0, 1e-6,
     "1.3426"),
)


def _timed(answer: Callable[[], float | None]) -> tuple[float | None, float]:
    began = time.process_time()
    value = answer()
    return value, time.process_time() - began


def _asked(case: Case) -> tuple[float, float, int] | None:
    """Rate, noise and releases of a question that other libraries can be asked."""
    (loss, times), = case.cost.losses
    if loss.kind != "poisson" or times > _PATIENCE * 10 or loss.z < 0.3:
        return None
    return loss.rate, loss.z, times


def by_pld(case: Case) -> float | None:
    """Privacy loss distributions of dp-accounting."""
    asked = _asked(case)
    if asked is None:
        return None
    rate, z, times = asked
    made = pld.privacy_loss_distribution.from_gaussian_mechanism(
        z, sampling_prob=rate,
        neighboring_relation=dp_accounting.NeighboringRelation[case.neighbours.upper()])
    return float(made.self_compose(times).get_epsilon_for_delta(case.delta))


def by_rdp(case: Case) -> float | None:
    """Renyi divergences of dp-accounting, which knows one relation."""
    asked = _asked(case)
    if asked is None or case.neighbours != AR:
        return None
    rate, z, times = asked
    event = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(z))
    return float(rdp.RdpAccountant().compose(event, times).get_epsilon(case.delta))


def by_prv(case: Case) -> float | None:
    """Opacus, which knows one relation."""
    asked = _asked(case)
    if asked is None or case.neighbours != AR:
        return None
    rate, z, times = asked
    accountant = importlib.import_module("opacus.accountants").PRVAccountant()
    accountant.history = [(z, rate, times)]
    return float(accountant.get_epsilon(case.delta))


def _installed(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ImportError:
        return False
    return True


def epsilons(quick: bool) -> list[dict[str, Any]]:
    """The table of epsilon at given noise."""
    opacus, rows = _installed("opacus"), []
    for case in CASES:
        curve.named_epsilon.cache_clear()
        now, seconds = _timed(lambda case=case: curve.charge_epsilon(  # type: ignore[misc]
            case.cost, case.delta, case.neighbours))
        others = {} if quick else {
            "dp-accounting PLD": _timed(lambda case=case: by_pld(case)),  # type: ignore[misc]
            "dp-accounting RDP": _timed(lambda case=case: by_rdp(case)),  # type: ignore[misc]
            **({"Opacus PRV": _timed(lambda case=case: by_prv(case))}  # type: ignore[misc]
               if opacus else {})}
        rows.append({"edge": case.edge, "setting": case.name, "delta": case.delta,
                     "neighbours": case.neighbours, "before": case.before, "now": now,
                     "seconds": seconds, "exact": case.exact,
                     **{name: value for name, (value, _) in others.items()},
                     **{f"{name} seconds": spent for name, (value, spent) in others.items()
                        if value is not None}})
    return rows


def calibrations() -> list[dict[str, Any]]:
    """The table of noise at given epsilon."""
    rows = []
    for edge, name, sampling, n, times, epsilon, delta, before in CALIBRATED:
        query = jmm.Query(clip=Saddle(1.0, None), sampling=sampling, population=n)
        curve.named_epsilon.cache_clear()
        began = time.process_time()
        made = jmm.accounting.calibrate_noise(jmm.Repeat(query=query, times=times), epsilon, delta)
        rows.append({"edge": edge, "setting": f"{name} T={times:g}", "epsilon": epsilon,
                     "delta": delta, "before": before,
                     "noise_multiplier": float(made.query.noise_multiplier.w),
                     "seconds": time.process_time() - began,
                     "reached": jmm.epsilon(made, delta)})
    return rows


def _number(value: Any, digits: str = ".6g") -> str:
    return "" if value is None else format(value, digits)


def words(rows: list[dict[str, Any]], noise: list[dict[str, Any]],
          settings: list[dict[str, Any]]) -> str:
    """The three tables."""
    names = [name for name in ("dp-accounting PLD", "dp-accounting RDP", "Opacus PRV")
             if any(name in row for row in rows)]
    first = report.table(
        ("edge", "setting", "delta", "relation", "before", "now", "CPU s", "exact",
         "now / exact", *(x for name in names for x in (name, "CPU s"))),
        [(str(r["edge"] or ""), r["setting"], f"{r['delta']:g}",
          "replace" if r["neighbours"] == RO else "add or remove", r["before"], _number(r["now"]),
          f"{r['seconds']:.2f}", _number(r["exact"]),
          _number(r["now"] / r["exact"], ".5f") if r["exact"] else "",
          *(x for name in names for x in (_number(r.get(name)),
                                          _number(r.get(f"{name} seconds"), ".2f"))))
         for r in rows])
    second = report.table(
        ("edge", "setting", "epsilon", "delta", "noise before", "noise now", "CPU s",
         "epsilon reached"),
        [(str(r["edge"] or ""), r["setting"], f"{r['epsilon']:g}", f"{r['delta']:g}",
          r["before"], f"{r['noise_multiplier']:.6g}", f"{r['seconds']:.2f}",
          f"{r['reached']:.6g}") for r in noise])
    third = report.table(
        ("setting", "noise", "epsilon", "before", "now", "before / now"),
        [(r["setting"], r["noise"], f"{r['epsilon']:g}", _number(r["before"], ".5g"),
          _number(r["now"], ".5g"),
          _number(r["before"] / r["now"], ".3f") if r["before"] else "") for r in settings])
    missing = [name for name in ("opacus", "riskcal") if not _installed(name)]
    return "\n\n".join((
        "# The accountant in extreme settings\n\n"
        "The command `python -m benchmarks.privacy.accountant` made the tables. "
        + " ".join((__doc__ or "").split("\n\n")[2].split()),
        "## Epsilon of a noise multiplier, with ideal samplers and noise\n\n" + first,
        "## Noise for a target epsilon, with all costs charged\n\n" + second,
        "## Noise before and now in common settings, at delta = 1e-6\n\n" + third,
        f"Not installed here: {', '.join(missing) or 'nothing'}.")) + "\n"


def main(argv: list[str] | None = None) -> int:
    """Runs the benchmark; 0, unless an answer is below an exact value."""
    p = report.Parser(__file__, __doc__)
    p.add_argument("--json", type=report.output(".json"), metavar="FILE",
                   default=RESULT.with_suffix(".json"), help="write the rows")
    p.add_argument("--markdown", type=report.output(".md"), metavar="FILE", default=RESULT,
                   help="write the tables")
    p.add_argument("--quick", action="store_true", help="without other libraries")
    args = p.parse_args(argv)
    rows, noise, settings = epsilons(args.quick), calibrations(), bought.rows()
    text = words(rows, noise, settings)
    print(text)
    pathlib.Path(args.markdown).write_text(text)
    report.write_json(args.json, {
        "environment": report.environment(),
        "arguments": {k: v.name if isinstance(v, pathlib.Path) else v
                      for k, v in vars(args).items()},
        "rows": rows, "calibrated": noise, "settings": settings, "statements": []})
    return int(any(r["exact"] and r["now"] < r["exact"] * (1 - 1e-4) for r in rows))


if __name__ == "__main__":
    raise SystemExit(main())
