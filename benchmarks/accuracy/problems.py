"""`python -m benchmarks.accuracy.problems`: problems with a measure of their own, by that measure.

Robust losses, partial AUC, average precision and the AUC of several classes are trained by `sgda`
with linear scores. Next to each stand private logistic regression and private AUC maximisation at
the same epsilon, and the same runs without noise. All have the same rounds, batches, clip norms and
steps to choose from. A choice is made for each measure at epsilon 1, by a fifth of the training
rows that no run reads, and kept for every epsilon.

ijcnn1 and Adult are as in `benchmarks.accuracy.auc`. Fashion-MNIST is long-tailed: class k of 10
keeps ratio^(-k/9) of its rows in training and test files; classes 5 to 9 are positive where a
problem has two classes. With --json, cells that the file holds are not run again.
"""

import collections
import dataclasses
import functools
import itertools
import json
import math
import statistics
import zlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.metrics import average_precision_score, roc_auc_score

import jaxminimax as jmm
from benchmarks.common import report
from benchmarks.data_sets import data, features, images
from benchmarks.examples.average_precision import average_precision, average_precision_start
from jaxminimax import Saddle, problems

DATA = {"ijcnn1": None, "adult": None, "fashion, ratio 10": 10, "fashion, ratio 100": 100}
EPSILONS = (0.5, 1.0, 4.0, math.inf)
_DELTA, _ROUNDS, _RATE, _RADIUS, _REACH = 1e-6, 150, 0.03, 20.0, 1.5
# clip norm, and step times clip norm
SETTINGS = tuple(itertools.product((0.25, 1.0, 4.0, 16.0, 64.0, 256.0), (
    0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)))
MAX_FPR, TWO_WAY, TAIL = 0.1, (0.3, 0.5), 0.1
LOSSES = ("CVaR", "chi-square")  # measures that are better if smaller
ASSUMED = (
    "Keys follow from the seeds so that the table can be repeated; a real run needs a secret key.",
    "Clip norms and steps were chosen on validation rows of the training data without paying for "
    "the choice, for every method alike. After a first table was seen, the grid was widened at its "
    "ends, and a setting is judged by four runs in place of two.",
    "Measures of held-out rows are computed without privacy. Errors are over keys; splits are "
    "fixed.")


@dataclasses.dataclass(frozen=True)
class Rows:
    """Rows to train on, to choose settings by and to test on, and the public shares of classes."""

    x: np.ndarray
    y: np.ndarray
    validation: tuple[np.ndarray, np.ndarray]
    test: tuple[np.ndarray, np.ndarray]
    shares: np.ndarray

    @property
    def prior(self) -> float:
        """The share of positives, the upper half of the classes."""
        return float(self.shares[len(self.shares) // 2:].sum())

    def positive(self, y: np.ndarray) -> np.ndarray:
        """Labels in {0, 1}."""
        return (y >= len(self.shares) // 2).astype(np.float32)


def load(name: str, data_dir: Any) -> Rows:
    """Loads a data set, with features of norm about 1 and a constant."""
    ratio = DATA[name]
    if ratio is None:
        made = data.load(name, data_dir=data_dir)
        parts = [(made.x_train, made.y_train), (made.x_test, made.y_test)]
        shares = np.array([1 - made.prior, made.prior])
        size = {"ijcnn1": 3.0, "adult": 14**0.5}[name]
    else:
        kept = np.array([ratio ** (-k / 9) for k in range(10)])
        shares, size, parts = kept / kept.sum(), 8.0, []
        for part in ("train", "t10k"):
            pixels, y = images.raw("fashion_mnist", part, data_dir)
            rows = np.sort(np.concatenate([
                np.flatnonzero(y == k)[:round(kept[k] * np.sum(y == k))] for k in range(10)]))
            rows = np.random.default_rng(0).permutation(rows)
            mean = features.PIXELS["fashion_mnist"][0]
            parts.append((features.pooled(pixels[rows], mean), y[rows]))
    (x, y), (held, held_y) = (
        (np.concatenate([x / size, np.ones((len(x), 1))], 1).astype(np.float32),
         y.astype(np.int32)) for x, y in parts)
    cut = len(y) * 4 // 5
    return Rows(x[:cut], y[:cut], (x[cut:], y[cut:]), (held, held_y), shares)


# --- methods and measures ---


@dataclasses.dataclass(frozen=True)
class Method:
    """A problem, its start, the labels that it reads, and the measures that it is judged by."""

    problem: jmm.Problem
    start: Saddle
    labels: Callable[[np.ndarray], np.ndarray]
    measures: tuple[str, ...]


def methods(rows: Rows) -> dict[str, Method]:
    """Makes all methods for a data set; the first two are for comparison."""
    d, k = rows.x.shape[1], len(rows.shares)
    theta, linear = jnp.zeros(d), problems.linear_scorer
    wide, own = Saddle(_RADIUS, 10.0), {"dual": "best_response"}
    base = problems.group_glm("logistic", feature_bound=_REACH, radius=_RADIUS)
    precision = average_precision(prior=rows.prior, feature_bound=_REACH, radius=_RADIUS)
    binary: Any = dict(prior=rows.prior, radius=wide, **own)

    def signs(y: np.ndarray) -> np.ndarray:
        return 2 * rows.positive(y) - 1

    def robust(**numbers: float) -> tuple[jmm.Problem, Saddle]:
        return (problems.dro(base, **numbers).problem,
                problems.reweighted_start(theta, "cvar", eta=0.7))

    ranks = ("one-way AUC", "two-way AUC", "average precision")
    result = {
        "logistic regression": Method(_model(lambda w, x, y: jax.nn.softplus(-y * (x @ w))),
                                      Saddle(theta, ()), signs, (*LOSSES, *ranks)),
        "AUC": Method(problems.auc(linear, **binary), problems.auc_start(theta), rows.positive,
                      ranks),
        "CVaR": Method(*robust(penalty=0.02, cap=1 / TAIL), signs, LOSSES[:1]),
        "chi-square": Method(*robust(penalty=0.5), signs, LOSSES[1:]),
        "one-way AUC": Method(
            problems.partial_auc(linear, max_fpr=MAX_FPR, penalty=0.3, **binary),
            problems.partial_auc_start(theta), rows.positive, ranks[:1]),
        "two-way AUC": Method(
            problems.partial_auc(linear, max_fpr=TWO_WAY[0], min_tpr=TWO_WAY[1], penalty=0.3,
                                 **binary),
            problems.partial_auc_start(theta, min_tpr=TWO_WAY[1]), rows.positive, ranks[1:2]),
        "average precision": Method(precision.problem, average_precision_start(theta),
                                    rows.positive, ranks[2:]),
    }
    if k > 2:
        theta = jnp.zeros((d, k))
        forms = {"macro": "one-versus-rest AUC", "hand_till": "Hand and Till"}
        result["softmax regression"] = Method(_model(
            lambda w, x, y: optax.losses.softmax_cross_entropy_with_integer_labels(x @ w, y)),
            Saddle(theta, ()), np.asarray, tuple(forms.values()))
        for form, name in forms.items():
            result[name] = Method(
                problems.multiclass_auc(linear, shares=rows.shares, form=form, radius=wide, **own),
                problems.multiclass_auc_start(theta, classes=k, form=form), np.asarray, (name,))
    return result


def _model(loss: Callable[..., jax.Array]) -> jmm.Problem:
    """Makes the problem of one player with a loss of (w, x, y)."""
    return jmm.Problem(
        operator=jmm.saddle_operator(lambda w, _, record: loss(w, *record)),
        project=lambda z: Saddle(optax.projections.projection_l2_ball(z.w, _RADIUS), ()))


def measure(name: str, scores: np.ndarray, y: np.ndarray, classes: int) -> float:
    """Judges scores of held-out rows, `[n]`, or `[n, classes]` for a measure of several classes."""
    positive = y >= classes // 2
    match name:
        case "CVaR" | "chi-square":
            losses = jnp.asarray(np.logaddexp(0, np.where(positive, -scores, scores)))
            divergence, level = ("cvar", TAIL) if name == "CVaR" else ("chi_square", 1.0)
            return float(_risk(losses, divergence=divergence, level=level))
        case "one-way AUC":
            return float(roc_auc_score(positive, scores, max_fpr=MAX_FPR))
        case "two-way AUC":
            plus, minus = np.sort(scores[positive]), np.sort(scores[~positive])
            plus = plus[:round((1 - TWO_WAY[1]) * len(plus))]
            minus = minus[-round(TWO_WAY[0] * len(minus)):]
            return float(roc_auc_score(np.repeat([1, 0], [len(plus), len(minus)]),
                                       np.concatenate([plus, minus])))
        case "average precision":
            return float(average_precision_score(positive, scores))
        case "one-versus-rest AUC":
            return statistics.fmean(roc_auc_score(y == i, scores[:, i]) for i in range(classes))
    pairs = [(i, (y == i) | (y == j)) for i, j in itertools.permutations(range(classes), 2)]
    return statistics.fmean(roc_auc_score(y[of] == i, scores[of, i]) for i, of in pairs)


_risk = jax.jit(problems.reweighted_risk, static_argnames=("divergence", "level"))


# --- runs ---


Lane = tuple[tuple[float, float], float, int]  # setting, epsilon and seed of a run


class Trainer:
    """Trains one method on one data set, in programs that are compiled once."""

    def __init__(self, name: str, rows: Rows, method: Method) -> None:
        self._start = jax.tree.map(lambda a: a.astype(jnp.float32), method.start)
        self._ascends = isinstance(self._start.w, dict) and "threshold" in self._start.w
        self._key = jax.random.key(zlib.crc32(name.encode()))
        self._data = rows.x, method.labels(rows.y)
        self._sweep = jax.jit(functools.partial(jmm.sweep, algorithm=jmm.sgda,
                                                problem=method.problem))
        self._hypers: dict[float, Any] = {}

    def _hyper(self, setting: tuple[float, float], epsilon: float) -> Any:
        """Returns calibrated settings, or without noise; only w's multiplier depends on epsilon."""
        clip, move = setting
        if epsilon not in self._hypers:
            self._hypers[epsilon] = self._calibrated(epsilon)
        hyper = self._hypers[epsilon]
        query = dataclasses.replace(
            hyper.query, clip=Saddle(clip, clip if self._ascends else None))
        return dataclasses.replace(hyper, query=query, step=Saddle(move / clip, move / clip))

    def _calibrated(self, epsilon: float) -> Any:
        second = 1.0 if self._ascends else None
        query = jmm.Query(clip=Saddle(1.0, second), joint=self._ascends,
                          population=len(self._data[1]), sampling=jmm.Poisson(rate=_RATE))
        hyper = jmm.sgda.Hyper(query=query, step=Saddle(1.0, 1.0), iterations=_ROUNDS,
                               averaging=jmm.averaging.TAIL)
        if epsilon < math.inf:
            return jmm.calibrate(jmm.sgda, hyper, epsilon, _DELTA)
        silent = Saddle(0.0, None if second is None else 0.0)
        return dataclasses.replace(hyper, query=dataclasses.replace(query,
                                                                    noise_multiplier=silent))

    def __call__(self, lanes: list[Lane]) -> np.ndarray:
        """Makes one run a lane: theta `[lanes, ...]`. No two runs have one key."""
        keys = [jax.random.fold_in(jax.random.fold_in(self._key, seed), zlib.crc32(
            repr((setting, epsilon)).encode())) for setting, epsilon, seed in lanes]
        hypers = jmm.stack([self._hyper(setting, epsilon) for setting, epsilon, _ in lanes])
        states, _ = self._sweep(jnp.stack(keys)[:, None], self._start, self._data, hypers)
        w = states.average.w
        return np.asarray(w["theta"] if isinstance(w, dict) else w)[:, 0]


def cell(name: str, rows: Rows, method: Method, seeds: range) -> dict[str, Any]:
    """Chooses settings for each measure, and measures them at every epsilon."""
    train = Trainer(name, rows, method)

    def judged(thetas: np.ndarray, what: str, held: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        x, y = held
        return np.array([measure(what, x @ theta, y, len(rows.shares)) for theta in thetas])

    lanes = list(itertools.product(EPSILONS, seeds))
    tuning = list(itertools.product(SETTINGS, (1.0,), range(seeds[-1] + 1, seeds[-1] + 5)))
    tried = np.concatenate([train(tuning[i:i + len(lanes)])  # as many at once as below
                            for i in range(0, len(tuning), len(lanes))])
    runs: dict[tuple[float, float], np.ndarray] = {}
    result = {}
    for what in method.measures:
        mean = judged(tried, what, rows.validation).reshape(len(SETTINGS), -1).mean(1)
        best = SETTINGS[int(np.argmin(mean) if what in LOSSES else np.argmax(mean))]
        if best not in runs:
            runs[best] = train([(best, epsilon, seed) for epsilon, seed in lanes])
        values = judged(runs[best], what, rows.test).reshape(len(EPSILONS), -1)
        result[what] = {"clip": best[0], "move": best[1], "values": {
            f"{epsilon:g}": one.tolist() for epsilon, one in zip(EPSILONS, values, strict=True)}}
    return result


_COLUMNS = ("its own problem", "regression", "AUC")


def _columns(result: dict[str, Any]) -> dict[tuple[str, str], dict[str, dict[str, list[float]]]]:
    """Values by data and measure, then by column and epsilon."""
    cells: dict[tuple[str, str], dict[str, Any]] = collections.defaultdict(dict)
    for name, measures in result["runs"].items():
        source, _, method = name.rpartition(", ")
        for what, one in measures.items():
            column = 0 if method == what else 2 if method == "AUC" else 1
            cells[source, what][_COLUMNS[column]] = one["values"]
    return cells


def _mean(values: list[float]) -> tuple[float, float]:
    """The mean and its standard error."""
    return statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values))


def table(result: dict[str, Any]) -> str:
    """Words every measure of every method, a line an epsilon."""
    lines = [[source, what, epsilon.replace("inf", "no noise"), *(
        "{:.4f} ± {:.4f}".format(*_mean(columns[c][epsilon])) if c in columns else ""
        for c in _COLUMNS)] for (source, what), columns in _columns(result).items()
        for epsilon in map("{:g}".format, EPSILONS)]
    return report.markdown(["data", "measure", "ε", *_COLUMNS], lines)


def ahead(result: dict[str, Any]) -> str:
    """Words by how much a problem is better by its own measure than the better comparison."""
    lines = []
    for (source, what), columns in _columns(result).items():
        sign, shown = -1 if what in LOSSES else 1, []
        for epsilon in map("{:g}".format, EPSILONS):
            own, *others = (_mean(columns[c][epsilon]) for c in _COLUMNS if c in columns)
            best = max(others, key=lambda other: sign * other[0])
            shown.append(f"{sign * (own[0] - best[0]):+.4f} ± {math.hypot(own[1], best[1]):.4f}")
        at_1 = [f"{_mean(columns[c]['1'])[0]:.4f}" if c in columns else "" for c in _COLUMNS]
        lines.append([source, what, *at_1, *shown])
    return report.markdown(["data", "measure", *(f"{c}, ε = 1" for c in _COLUMNS), *(
        f"ahead, {'no noise' if e == math.inf else f'ε = {e:g}'}" for e in EPSILONS)], lines)


def main(argv: list[str] | None = None) -> int:
    """Runs the benchmark."""
    parser = report.Parser(__file__, __doc__, "json", "markdown")
    report.seed_options(parser, 10)
    report.cell_option(parser)
    parser.add_argument("--data-dir", help="folder of the data files (or set JAXMINIMAX_DATA)")
    args = parser.parse_args(argv)
    loaded = {name: load(name, args.data_dir) for name in DATA}
    every = {f"{source}, {name}": (rows, method) for source, rows in loaded.items()
             for name, method in methods(rows).items()}
    arguments = {"seeds": args.seeds, "first_seed": args.first_seed}
    try:
        names = report.chosen(args, list(every))
        runs = report.kept(args.json, "runs", arguments, tuple(arguments)) or {}
    except ValueError as error:
        parser.error(str(error))
    for name in names:
        if name in runs:
            continue
        runs[name] = cell(name, *every[name], report.seeds(args))
        report.say(f"{name}: {json.dumps(runs[name])}")
        report.save(args, {"delta": _DELTA, "assumed": ASSUMED,
                           "runs": {x: runs[x] for x in every if x in runs}}, arguments)
    words = table({"runs": runs}) + "".join(f"\n* {x}" for x in ASSUMED) + "\n"
    report.show(args, words)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
