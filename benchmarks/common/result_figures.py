"""Figures in sentences of the documents: the numbers that a results file gives, in their order.

One function for each marker `<!-- figure NAME of FILE -->`. The page says how many digits it shows.
"""

from collections.abc import Callable, Iterable
from typing import Any

from benchmarks.accuracy.zoo import noise as zoo_noise
from benchmarks.common import verdicts
from benchmarks.papers.table2 import verdicts as table2_verdicts
from benchmarks.rates.variance import tables as variance_tables

Result = dict[str, Any]


def _ends(found: Iterable[float]) -> list[float]:
    """The least and the largest."""
    found = list(found)
    return [min(found), max(found)]


def _one(rows: list[Result], **wanted: Any) -> Result:
    """The row that has these values."""
    (result,) = (row for row in rows if all(row.get(k) == v for k, v in wanted.items()))
    return result


# --- certificates.md ---


def groups_below(result: Result) -> list[float]:
    """How many certificates of the worst group in a thousand are below the truth, at most."""
    return [max(1000 * row["below"] / row["runs"] for row in result["rows"]
                if row["share"] is None)]


# --- choosing.md ---


def _noise_ratios(result: Result, above: Callable[..., Any], below: Callable[..., Any],
                  epsilons: tuple[float, ...]) -> list[float]:
    rows = result["noise"]["rows"]
    kinds = {(passes, epsilon): {kind: row["gap"] for kind in zoo_noise.KINDS
                                 if (row := zoo_noise.least(rows, passes, epsilon, kind))}
             for passes in (1, 8) for epsilon in epsilons}
    return _ends(above(x) / below(x) for x in kinds.values())


def poisson_wins(result: Result) -> list[float]:
    """By what factor Poisson samples are better than the planned bands at small epsilon."""
    return _noise_ratios(result, lambda x: min(v for k, v in x.items() if k != "Poisson"),
                         lambda x: x["Poisson"], (0.1, 1.0))


def bands_win(result: Result) -> list[float]:
    """By what factor the planned bands are better than independent noise on disjoint batches."""
    epsilons = tuple({row["epsilon"] for row in result["noise"]["rows"]})
    return _noise_ratios(result, lambda x: x["disjoint"], lambda x: x["planned bands"], epsilons)


def flat_slopes(result: Result) -> list[float]:
    """By how much the slopes are flatter whose interval excludes the exponent."""
    return _ends(row["slope"] - row["theory"] for row in result["rows"]
                 if row["slope_low"] > row["theory"])


def falls(result: Result) -> list[float]:
    """Where variance reduction has not diverged: slopes on "sines", norms on "fit"."""
    def own(game: str, algorithm: str, first: int) -> list[Result]:
        return [row for row in result["rows"] if row["game"] == game
                and row["algorithm"] == algorithm and row["n"] >= first]

    slopes = [variance_tables.slope(own("sines", name, 8000))[0] for name in ("spider", "sgda")]
    return slopes + [row["norm"] for name in ("spider", "sgda")
                     for row in own("fit", name, 32_000)]


def best_steps(result: Result) -> list[float]:
    """The largest AUC of variance reduction, and of descent-ascent."""
    return [max(row["auc"] for row in result["auc"] if row["algorithm"] == name)
            for name in ("spider", "sgda")]


# --- worst_group.md ---


def _worst(result: Result, table: str, epsilon: float | None, method: str) -> float:
    return float(_one(result["rows"], case=f"{table}-label", epsilon=epsilon,
                      method=method)["worst_group_accuracy"])


_LABELLED = ("randhie", "cattaneo", "adult")
_BALANCED, _BOTH = "balanced", "balanced, then minimax"


def reference_ahead(result: Result) -> list[float]:
    """The largest distance of equal weights at epsilon 4 from a regression without privacy."""
    return [max(_worst(result, table, None, "balanced logistic regression")
                - _worst(result, table, 4.0, _BALANCED) for table in _LABELLED)]


def minimax_gains(result: Result) -> list[float]:
    """By how much minimax is above its balanced start; the last one by how much below."""
    cells = (("adult", 4.0), ("cattaneo", 4.0), ("adult", 1.0), ("randhie", 1.0), ("randhie", 4.0))
    gains = [_worst(result, *cell, _BOTH) - _worst(result, *cell, _BALANCED) for cell in cells]
    return [*gains[:-1], -gains[-1]]


def _behind_balanced(result: Result, methods: tuple[str, ...],
                     tables: tuple[str, ...]) -> list[float]:
    return _ends(_worst(result, table, epsilon, _BALANCED)
                 - _worst(result, table, epsilon, method)
                 for table in tables for epsilon in (1.0, 4.0) for method in methods)


def one_group_behind(result: Result) -> list[float]:
    """How far steps on one drawn group are below balanced ones."""
    drawn = ("group_sgd", "active_groups")
    return [*_behind_balanced(result, drawn, ("randhie", "cattaneo")),
            *_behind_balanced(result, drawn, ("adult",))]


def one_read_behind(result: Result) -> list[float]:
    """How far algorithms that read a record once are below balanced ones."""
    return [x for method in ("phased_erm", "group_oco")
            for x in _behind_balanced(result, (method,), _LABELLED)]


def clips_gain(result: Result) -> list[float]:
    """What clip norms by weight gain over one where they are ahead, and lose where behind."""
    each = [row["of minimax"] for row in result["rows"]]
    return [*_ends(x["gain"] for x in each if x["verdict"] == "ahead"),
            *_ends(-x["gain"] for x in each if x["verdict"] == "behind")]


def floor_gains(result: Result) -> list[float]:
    """What a floor of a tenth gains at one step for all, and costs where each way has its own."""
    gains = {steps: [row["floor 0.1 over median"]["mean"] for row in result["rows"]
                     if row["steps"] == steps] for steps in ("one", "own")}
    return [*_ends(gains["one"]), *_ends(-x for x in gains["own"])]


def samples_noise(result: Result) -> list[float]:
    """Noise of samples for a record that is read: the most that it is less, in per cent, and one.

    The one is that of samples of a hundredth at epsilon 4, over the noise of all records.
    """
    every = [x for row in result["rows"] for x in row["samples"].values()]
    return [100 * (1 - min(every)), next(row["samples"]["0.01"] for row in result["rows"]
                                         if row["epsilon"] == 4.0)]


# --- reproductions.md, tuning.md, fairness.md ---


def true_epsilon_of_one(result: Result) -> list[float]:
    """The true epsilon of Remark 1's noise where 1 is claimed, at delta = 1e-6."""
    return _ends(row["true_epsilon_attained"] for row in result["rows"]
                 if row["reading"] == "printed" and row["epsilon"] == 1.0
                 and row["delta"] == 1e-6)


def wider_layers(result: Result) -> list[float]:
    """AUC of 8 and of 512 units at epsilon 1, MNIST and Fashion-MNIST."""
    return [_one(result["rows"], part="hidden", dataset=name, epsilon=1.0, hidden=units)["auc_mean"]
            for name in ("mnist", "fashion_mnist") for units in (8, 512)]


def small_batches(result: Result) -> list[float]:
    """By how much batches of 64 are behind those of 1,024, where that is decided."""
    rows = [row for row in result["rows"] if row["part"] == "batch"]
    pairs = [(_one(rows, dataset=name, scorer_of=scorer, batch=64),
              _one(rows, dataset=name, scorer_of=scorer, batch=1024))
             for name, scorer in dict.fromkeys((r["dataset"], r["scorer_of"]) for r in rows)]
    return _ends(large["auc_mean"] - small["auc_mean"] for small, large in pairs
                 if table2_verdicts.compared(small, large) == verdicts.BEHIND)


def _lost(result: Result, data: str, better: str, worse: str,
          epsilons: tuple[float, ...]) -> list[float]:
    return _ends(_one(result["rows"], data=data, epsilon=e, settings=better)["auc"]
                 - _one(result["rows"], data=data, epsilon=e, settings=worse)["auc"]
                 for e in epsilons)


def search_loses(result: Result) -> list[float]:
    """Points that a search loses: both data sets at epsilon from 1 on, then at one half."""
    from_one, half = (1.0, 5.0, 10.0), (0.5,)
    names = ("ijcnn1", "fashion_mnist")
    return [x for epsilons in (from_one, half) for name in names
            for x in dict.fromkeys(_lost(result, name, "not paid for", "paid for", epsilons))]


def search_wins(result: Result) -> list[float]:
    """Points by which it beats the default for tables on ijcnn1."""
    return _lost(result, "ijcnn1", "paid for", "nobody tuned", (0.5, 1.0, 5.0, 10.0))


def search_loses_at_most(result: Result) -> list[float]:
    """The largest of the losses from epsilon 1 on, of each data set."""
    return search_loses(result)[1:4:2]


def search_noise(result: Result) -> list[float]:
    """Noise of the search over that of a single run."""
    return [result["noise_ratio"]]


def odds_reached(result: Result) -> list[float]:
    """The least violation of equalised odds in the file."""
    return [min(row["odds"] for row in result["rows"]
                if row["kind"] == "odds" and row["groups"] == "sex" and row["epsilon"])]


# --- large tables ---


def memory_of_a_row(result: Result) -> list[float]:
    """Bytes by which a row more makes the memory without files larger, of the longest table."""
    files = [row for row in result["rows"] if row["in files"]]
    short, long = (pick(files, key=lambda row: row["rows"]) for pick in (min, max))
    grown = 1e6 * (long["MB without files"] - short["MB without files"])
    return [max(0.0, grown) / (long["rows"] - short["rows"])]


# --- the accountant's ---


def rounding(result: Result) -> list[float]:
    """Per cent by which multipliers are read as smaller, the least and the largest."""
    return _ends(100 * row["share"] for row in result["rounding"])


def odometer(result: Result) -> list[float]:
    """What runs that ended early print, by looking and then with an end fixed beforehand."""
    return [row[what] for what in ("looking", "fixed") for row in result["odometer"]]


# --- performance.md ---


def _over(result: Result, workload: str, batch: int, peer: str) -> float:
    """How much longer the library takes than a peer."""
    return 1 / _one(result["rows"], workload=workload, batch=batch, peer=peer)["ratio"]


def over_numpy(result: Result) -> list[float]:
    """NumPy by hand with resident norms, and a scan specialised by hand with them."""
    return [_over(result, "linear 784", 4096, f"{peer}, resident norms")
            for peer in ("NumPy by hand", "specialised scan")]


def over_a_scan(result: Result) -> list[float]:
    """A scan specialised by hand with resident norms, at the batch where it is furthest ahead."""
    return [max(_over(result, "linear 22", row["batch"], row["peer"]) for row in result["rows"]
                if row["workload"] == "linear 22"
                and row["peer"] == "specialised scan, resident norms")]


def over_vmap(result: Result) -> list[float]:
    """Plain per-example gradients of the attention model."""
    return [_over(result, "attention", 256, "plain vmap, scan")]


def over_hooks(result: Result) -> list[float]:
    """Poisson samples of the residual network over batches of one size by Opacus with hooks."""
    ours, hooks = (_one(result["rows"], workload="resnet", batch=64, peer=peer)["steps_per_second"]
                   for peer in ("ours, Poisson", "Opacus hooks"))
    return [hooks / ours]


def memory_of_mlp(result: Result) -> list[float]:
    """Allocated bytes over those without privacy."""
    private, without = (_one(result["rows"], workload="mlp", batch=4096, peer=peer)["peak_bytes"]
                        for peer in ("ours", "not private, scan"))
    return [private / without]


FIGURES: dict[str, Callable[[Result], list[float]]] = {
    f.__name__: f for f in (
        poisson_wins, bands_win, flat_slopes, falls, best_steps, reference_ahead, minimax_gains,
        one_group_behind, one_read_behind, clips_gain, floor_gains, samples_noise,
        true_epsilon_of_one, wider_layers, small_batches,
        memory_of_a_row, search_loses, search_wins, search_loses_at_most, search_noise,
        odds_reached, rounding, odometer, over_numpy, over_a_scan,
        over_vmap, over_hooks, memory_of_mlp, groups_below)}
