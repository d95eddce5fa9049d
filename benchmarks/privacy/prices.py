"""`python -m benchmarks.privacy.prices --json`: figures of the accountant that documents print.

The run that is charged is that of the first page of reproductions: Poisson samples of 64 of 39,992
records, 9,373 rounds, delta = 1e-6. What it costs to search with it, to repeat it under each filter
of a ledger, and to stop it early; what rounding to the grid is charged; and the noise on the losses
of the worst group.
"""

import dataclasses
import pathlib
import tempfile
import warnings
from typing import Any

import jax.numpy as jnp
import numpy as np
from scipy import optimize

import jaxminimax as jmm
from benchmarks.common import report
from benchmarks.privacy import selection_noise
from jaxminimax import Saddle

_DELTA, _ROUNDS = 1e-6, 9373
_QUERY = jmm.Query(clip=Saddle(1.0, None), population=39_992,
                   sampling=jmm.Poisson(rate=64 / 39_992))
_SEARCHES = ((10, 0.0, None), (30, 0.0, None), (100, 0.0, None),
             *((10, 0.0, most) for most in (50, 60, 80, 100, 600)),
             *((10, 1.0, most) for most in (20, 25, 30, 40, 100)))
_RUNS = (1, 2, 4, 10)
_ENDS = (1000, 3000, 5000)
_MULTIPLIERS = (1.0, 3.0, 10.0, 30.0, 100.0)


def run(noise: float | None = None, times: int = _ROUNDS) -> jmm.Repeat:
    """The rounds of a run; without noise it is calibrated to epsilon = 1."""
    if noise is None:
        return jmm.accounting.calibrate_noise(jmm.Repeat(query=_QUERY, times=times), 1.0, _DELTA)
    return jmm.Repeat(query=_with(noise), times=times)


def _with(noise: float) -> jmm.Query:
    return dataclasses.replace(_QUERY, noise_multiplier=Saddle(noise, None))


def _noise(described: jmm.Repeat) -> float:
    return float(described.query.noise_multiplier.w)


def searches(one: jmm.Repeat) -> list[dict[str, Any]]:
    """Total epsilon of a search with runs of epsilon = 1, and the noise for a total of 1."""
    result = []
    for expected, eta, most in _SEARCHES:
        law = jmm.mechanism.Repetitions(expected=expected, eta=eta, most=most)
        ratio = None
        if most is None:
            noise = optimize.brentq(
                lambda z, law=law: jmm.accounting.tuned_epsilon(run(z), _DELTA, law) - 1.0,
                _noise(one), 3 * _noise(one), rtol=1e-4)
            ratio = noise / _noise(one)
        result.append({"expected": expected, "eta": eta, "most": most, "noise_ratio": ratio,
                       "total": jmm.accounting.tuned_epsilon(one, _DELTA, law)})
    return result


def filters(one: jmm.Repeat) -> list[dict[str, Any]]:
    """The noise of k equal runs that fill a ledger of epsilon = 1, over that of one run alone."""
    hyper = jmm.sgda.Hyper(query=_with(1.0), step=Saddle(0.1, 0.1), iterations=_ROUNDS)
    result = []
    for runs in _RUNS:
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder)
            for name in ("renyi", "basic"):
                ledger = jmm.accounting.Ledger(path / name, epsilon=1.0, delta=_DELTA, filter=name)
                own = {"delta": _DELTA / runs} if name == "basic" else {}
                made = ledger.calibrate(jmm.sgda, hyper, share=1 / runs, **own)
                result.append({"filter": name, "runs": runs,
                               "ratio": float(made.query.noise_multiplier.w) / _noise(one)})
        result.append({"filter": "none", "runs": runs,
                       "ratio": _noise(run(times=runs * _ROUNDS)) / _noise(one)})
    return result


def odometer(one: jmm.Repeat) -> list[dict[str, Any]]:
    """Epsilon of a run that ended early, by looking and by a number fixed beforehand."""
    hyper = jmm.sgda.Hyper(query=one.query, step=Saddle(0.1, 0.1), iterations=_ROUNDS)
    state = jmm.sgda.init(Saddle(np.zeros(1), np.zeros(1)), hyper)
    result = []
    for end in _ENDS:
        stopped = state._replace(spent=jnp.int32(end))
        said = jmm.statement(jmm.sgda, hyper, stopped, delta=_DELTA)
        result.append({"end": end, "looking": said.epsilon_if_stopped_by_looking,
                       "fixed": said.epsilon_spent_if_fixed})
    return result


def rounding() -> list[dict[str, Any]]:
    """By how much noise multipliers are read as smaller because releases are rounded to a grid."""
    return [{"sampling": type(sampling).__name__, "noise_multiplier": z,
             "share": 1 - jmm.Repeat(query=dataclasses.replace(_with(z), sampling=sampling),
                                     times=1).effective_noise_multiplier("replace_one") / z}
            for sampling in (jmm.Full(), _QUERY.sampling) for z in _MULTIPLIERS]


def selection() -> list[dict[str, Any]]:
    """Deviations of noise for the worst group's losses, as `benchmarks.privacy.selection_noise`."""
    return [{"releases": times, **dict(zip(
                ("gumbel", "gaussian", "laplace"),
                selection_noise.deviations(times, 1.0, _DELTA), strict=True))}
            for times in (10, 30, 300, 3000)]


def searched(result: dict[str, Any]) -> str:
    """What a search costs by its expected number of runs."""
    return report.markdown(
        ["expected runs", "a run of ε = 1, searched over",
         "noise for ε = 1 in all, over that of one run"],
        [[str(row["expected"]), f"{row['total']:.3f}", f"{row['noise_ratio']:.2f}"]
         for row in result["searches"] if row["most"] is None])


def ended(result: dict[str, Any]) -> str:
    """The same of ten expected runs by the shape of their law and its end."""
    return report.markdown(
        ["η", "at most", "total of a run of ε = 1"],
        [[f"{row['eta']:g}", str(row["most"]), f"{row['total']:.3f}"]
         for row in result["searches"] if row["most"] is not None])


_WORDS = {
    "renyi": ('`"renyi"` (default if runs share)', "runs chosen one after another: Rényi "
              "divergences at one order (Feldman and Zrnic, 2021)"),
    "basic": ('`"basic"` (default for a run with all of it)', "the same, by ε and δ of the runs "
              "(Rogers et al., 2016)"),
    "none": ("no ledger", "runs that are all fixed beforehand, by `calibrate(..., alongside=)`: "
             "one composition of privacy losses")}


def ledgers(result: dict[str, Any]) -> str:
    """Noise of equal runs under each filter of a ledger."""
    runs = sorted({row["runs"] for row in result["filters"]})
    found = {(row["filter"], row["runs"]): row["ratio"] for row in result["filters"]}
    return report.markdown(
        ["`filter=`", "for", *(f"k = {k}" for k in runs)],
        [[*words, *(f"{found[name, k]:.2f}" for k in runs)] for name, words in _WORDS.items()])


def selected(result: dict[str, Any]) -> str:
    """Deviations of the noise on the losses of the worst group."""
    return report.markdown(
        ["releases", "Gumbel, index alone", "Gaussian, all losses", "Laplace, all losses"],
        [[str(row["releases"]), *(f"{row[x]:.2f}" for x in ("gumbel", "gaussian", "laplace"))]
         for row in result["selection"]])


def main(argv: list[str] | None = None) -> int:
    """Computes and prints all of it."""
    parser = report.Parser(__file__, __doc__)
    parser.add_argument("--json", nargs="?", type=report.output(".json"), help="for the figures",
                        const=str(pathlib.Path(__file__).parent / "results/prices.json"))
    args = parser.parse_args(argv)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        one = run()
        result = {"searches": searches(one), "filters": filters(one), "odometer": odometer(one),
                  "rounding": rounding(), "selection": selection()}
    for name, rows in result.items():
        lines = [[str(x) for x in row.values()] for row in rows]
        print(f"{name}\n{report.table(list(rows[0]), lines)}")
    if args.json is not None:
        report.write_json(args.json, {"environment": report.environment(), **result})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
