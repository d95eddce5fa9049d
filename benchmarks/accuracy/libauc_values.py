"""`python -m benchmarks.accuracy.libauc_values`: ranking problems beside LibAUC's losses.

Both are computed without privacy, at the same scores: those of linear scorers on synthetic records
of four classes, small enough that no pair exceeds the margin 1 of the squared surrogate. There
LibAUC's CVaR over pairs keeps the records that `partial_auc` keeps by their own terms. The
library's value is that of the problem at the best a, b, thresholds and v, plus 1.

    JAXMINIMAX_PEER_TORCH=/path/to/python python -m benchmarks.accuracy.libauc_values --json FILE

names a Python that has torch and LibAUC.
"""

import json
import os
import pathlib
import subprocess
import tempfile
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.common import report
from jaxminimax import Saddle, problems

VARIABLE = "JAXMINIMAX_PEER_TORCH"
MAX_FPR, TWO_WAY = 0.1, (0.3, 0.5)
_SIZES, _WIDE, _PENALTY = (40, 60, 40, 20), Saddle(1e3, 1e3), 1e-9
LOSSES = {"AUC": "AUCMLoss, version 1, over p (1 - p)", "AUC, version 2": "AUCMLoss, version 2",
          "one-versus-rest AUC": "MultiLabelAUCMLoss, version 2",
          "Hand and Till": "AUCMLoss, version 1, over p (1 - p), of pairs of classes",
          "one-way AUC": "pAUC_CVaR_Loss", "two-way AUC": "tpAUC_CVaR_loss"}


def records(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Records `[n, 3]`, classes `[n]` and a scorer `[3, 4]`, whose scores are .45 at most."""
    rng = np.random.default_rng(seed)
    y, theta = np.repeat(np.arange(4), _SIZES), rng.normal(size=(3, 4))
    x = rng.normal(size=(len(y), 3)) + 0.7 * theta.T[y]
    return x, y, 0.45 * theta / np.abs(x @ theta).max(0)


def _several(x: np.ndarray, y: np.ndarray, theta: np.ndarray, form: str) -> float:
    """Computes `multiclass_auc`."""
    s, k = x @ theta, theta.shape[1]
    means = np.array([s[y == i].mean(0) for i in range(k)])
    if form == "macro":
        own, others = np.diag(means), np.array([s[y != i, i].mean() for i in range(k)])
        a, b = own[:, None], others[:, None]
    else:
        a, b = np.repeat(np.diag(means)[:, None], k, 1), means.T
    problem = problems.multiclass_auc(problems.linear_scorer, shares=np.bincount(y) / len(y),
                                      form=form, radius=_WIDE)
    z = Saddle({"theta": theta, "a": a, "b": b}, b - a)
    return _value(problem, z, x, y)


def _part(x: np.ndarray, positive: np.ndarray, theta: np.ndarray, max_fpr: float,
          min_tpr: float | None) -> float:
    """Computes `partial_auc`; thresholds are between the last record kept and the next."""
    s = x @ theta
    plus, minus = np.sort(s[positive]), np.sort(s[~positive])[::-1]
    kept = (len(plus) if min_tpr is None else round((1 - min_tpr) * len(plus)),
            round(max_fpr * len(minus)))
    a, b = plus[:kept[0]].mean(), minus[:kept[1]].mean()
    last_plus, last_minus = (np.mean(one[k - 1:k + 1])
                             for one, k in zip((plus, minus), kept, strict=True))
    w = {"theta": theta, "a": a, "b": b, "eta_minus": (last_minus - b)**2
         + 2 * (1 + b - a) * last_minus}
    if min_tpr is not None:
        w["eta_plus"] = (last_plus - a)**2 - 2 * (1 + b - a) * last_plus
    problem = problems.partial_auc(
        problems.linear_scorer, prior=float(positive.mean()), max_fpr=max_fpr, min_tpr=min_tpr,
        penalty=_PENALTY, radius=_WIDE)
    return _value(problem, Saddle(w, b - a), x, positive)


def _value(problem: Any, z: Saddle, x: np.ndarray, y: np.ndarray) -> float:
    return 1 + float(problem.value(jax.tree.map(jnp.asarray, z), (jnp.asarray(x), jnp.asarray(y))))


def ours(x: np.ndarray, y: np.ndarray, theta: np.ndarray) -> dict[str, float]:
    """The library's values, by what they measure."""
    one, positive = theta[:, 0], y == 0
    a, b = ((x @ one)[of].mean() for of in (positive, ~positive))
    auc = _value(problems.auc(problems.linear_scorer, prior=float(positive.mean()), radius=_WIDE),
                 Saddle({"theta": one, "a": a, "b": b}, b - a), x, positive)
    return {"AUC": auc, "AUC, version 2": auc,
            "one-versus-rest AUC": _several(x, y, theta, "macro"),
            "Hand and Till": _several(x, y, theta, "hand_till"),
            "one-way AUC": _part(x, positive, one, MAX_FPR, None),
            "two-way AUC": _part(x, positive, one, *TWO_WAY)}


def theirs(python: str, scores: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    """What `peer_libauc` prints, run by another Python."""
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "scores.npz")
        np.savez(file, scores=scores, y=y, max_fpr=MAX_FPR, two_way=TWO_WAY)
        done = subprocess.run([python, "-m", "benchmarks.accuracy.peer_libauc", file], text=True,
                              cwd=report.ROOT, capture_output=True, check=True)
    return dict(json.loads(done.stdout))


def table(result: dict[str, Any]) -> str:
    """The first scorer's values, and the largest difference over all scorers."""
    lines = []
    for name, loss in LOSSES.items():
        pairs = [(run["ours"][name], run["theirs"][name]) for run in result["runs"]]
        apart = max(abs(a - b) for a, b in pairs)
        lines.append([name.partition(",")[0], loss, *(f"{x:.6f}" for x in pairs[0]),
                      f"{apart:.1e}"])
    return report.markdown(["", "LibAUC's loss", "the problem's value + 1", "LibAUC's value",
                            "largest difference"], lines)


def main(argv: list[str] | None = None) -> int:
    """Runs the comparison."""
    parser = report.Parser(__file__, __doc__, "json")
    report.seed_options(parser, 10, ", of records and scorers")
    args = parser.parse_args(argv)
    python, runs = os.environ.get(VARIABLE), []
    if not python or not pathlib.Path(python).exists():
        parser.error(f"{VARIABLE} is {python!r}: name a Python that has torch and libauc")
    for seed in report.seeds(args):
        x, y, theta = records(seed)
        try:
            other = theirs(python, x @ theta, y)
        except subprocess.CalledProcessError as error:
            parser.error(f"{python} did not compute LibAUC's losses: {error.stderr[-500:]}")
        with jax.enable_x64(True):
            runs.append({"seed": seed, "ours": ours(x, y, theta), "theirs": other["values"]})
        report.say(f"seed {seed}: {json.dumps(runs[-1])}")
    result = {"libauc": other["version"], "runs": runs}
    report.save(args, result)
    print(table(result))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
