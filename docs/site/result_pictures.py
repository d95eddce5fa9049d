"""The pictures of results: what draws each, from which file, and its words."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib.figure import Figure

Result = Mapping[str, Any]


def rows(result: Result) -> tuple[Any, ...]:
    """What most functions draw."""
    return (result["rows"],)


def everything(result: Any) -> tuple[Any, ...]:
    """The whole file."""
    return (result,)


class Picture(NamedTuple):
    """How a picture is drawn, and its words.

    Attributes:
      draw: "module:function" of a benchmark, which takes a file and `arguments`; or a function of
        this module, which takes a figure and `arguments`.
      title: a few words.
      sentence: what it shows.
      page: the page of results that it stands on, or a document.
      result: name of the file that it is drawn from; `NAME.json` unless given.
      arguments: what is drawn, from that file's content: a result, or the first table of a page.
    """

    draw: str | Callable[..., None]
    title: str
    sentence: str
    page: str
    result: str = ""
    arguments: Callable[[Any], tuple[Any, ...]] = rows


# --- pictures that no benchmark draws ---


def dots(figure: Figure, names: Sequence[str],
         series: Mapping[str, Mapping[str, tuple[float, float]]], label: str, line: float) -> None:
    """A row a name with a dot a series: mean and standard error."""
    figure.set_size_inches(7, 1.3 + 0.32 * len(names))
    axes = figure.add_subplot(xlabel=label)
    for k, (name, points) in enumerate(series.items()):
        places = [-names.index(x) - 0.2 * (k - (len(series) - 1) / 2) for x in points]
        means, errors = zip(*points.values(), strict=True)
        axes.errorbar(means, places, xerr=errors, fmt="o", markersize=4, capsize=2, label=name)
    axes.axvline(line, color="0.6", linewidth=1, zorder=0)
    axes.set_yticks([-k for k in range(len(names))], names)
    figure.legend(loc="outside upper right", ncols=len(series))


def labels(figure: Figure, result: Sequence[Result]) -> None:
    """What privacy costs tables of classes and of numbers."""
    shown = [row for row in result if row["score"] in ("macro_auc", "r2")]
    scores = {"macro_auc": "AUC", "r2": "R²"}
    names = [f"{row['table']}, {scores[row['score']]}" for row in shown]
    series: dict[str, dict[str, tuple[float, float]]] = {}
    for name, row in zip(names, shown, strict=True):
        points = series.setdefault(f"ε = {row['epsilon']:g}", {})
        points[name] = row["gap"], row["gap_error"]
    dots(figure, list(dict.fromkeys(names)), series,
         "score without privacy, less the private score", 0.0)


def plans(figure: Figure, result: Sequence[Result]) -> None:
    """The gap of default plans over that of the best alternative."""
    shown = [row for row in result
             if row["epsilon"] == 1.0 and " over " not in row["algorithm"]]  # of two plans' gaps
    names = list(dict.fromkeys(row["algorithm"] for row in shown))
    series = {f"n = {n:,}": {row["algorithm"]: (row["ratio"], row["ratio_error"])
                             for row in shown if row["n"] == n}
              for n in sorted({row["n"] for row in shown})}
    dots(figure, names, series,
         "gap of the default plan over that of the best alternative, ε = 1", 1.0)


def variance_auc(figure: Figure, result: Sequence[Result]) -> None:
    """AUC of an MLP by step, with and without variance reduction."""
    steps = sorted({row["step"] for row in result})
    kinds = list(dict.fromkeys((row["algorithm"], row["lipschitz"]) for row in result))
    dots(figure, [f"step {step:g}" for step in steps], {
        algorithm + ("" if bound is None else f", L = {bound:g}"): {
            f"step {row['step']:g}": (row["auc"], row["error"]) for row in result
            if (row["algorithm"], row["lipschitz"]) == (algorithm, bound)}
        for algorithm, bound in kinds}, "AUC on held-out rows of ijcnn1, ε = 1", 0.5)


def guarantees(figure: Figure, result: Sequence[Result]) -> None:
    """What plans guarantee on the strong gap of the population, against the records."""
    figure.set_size_inches(7, 4)
    axes = figure.add_subplot(xlabel="n, records", ylabel="guarantee on the strong gap",
                              xscale="log", yscale="log")
    for row in result:
        if (row["gap"], row["on"]) == ("strong", "population"):
            axes.plot(row["n"], row["guarantee"], marker="o", markersize=4, label=row["plan"])
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, ncols=2)


def planted(figure: Figure, table: Sequence[Mapping[str, str]]) -> None:
    """The signals of planted bugs whose limit is 1, with the bug and without."""
    figure.set_size_inches(7, 3.6)
    axes = figure.add_subplot(xlabel="planted bugs, in the order of their signals",
                              ylabel="signal", yscale="log", ylim=(0.1, 1e4))
    for column in ("with the bug", "without"):
        signals = sorted(float(row[column]) for row in table if row["limit"] == "1")
        axes.plot(signals, "o", markersize=3, label=column)
    axes.axhline(1.0, color="0.5", linewidth=1)
    axes.grid(alpha=0.3)
    axes.legend()


def devices(figure: Figure, table: Sequence[Mapping[str, str]]) -> None:
    """Rows that each device computes, against the number of devices."""
    figure.set_size_inches(7, 3.6)
    count, computed = ([float(row[x].replace(",", "")) for row in table]
                       for x in ("devices D", "rows a device"))
    axes = figure.add_subplot(xlabel="devices", ylabel="rows of one device", xscale="log",
                              yscale="log")
    axes.plot(count, computed, marker="o", label="with room for a sample that is uneven")
    axes.plot(count, [2048 / x for x in count], "--", label="expected rows, b / D")
    axes.set_xticks(count, [f"{x:g}" for x in count])
    axes.set_yticks(computed, [f"{x:,.0f}" for x in computed])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend()


# --- what there is ---

PICTURES = {
    "tables": Picture(
        "benchmarks.tables.scorers:plot", "Private scorers of tables",
        "How far the AUC of a private scorer lies below that of a logistic regression without "
        "privacy, on twenty tables.", "tables"),
    "label_tables": Picture(
        labels, "Classes and numbers as labels",
        "What privacy costs where the label has several classes or is a number.", "label_tables"),
    "auc_ijcnn1": Picture(
        "benchmarks.common.report:plot_auc", "AUC of a linear scorer",
        "The AUC of a private linear scorer on ijcnn1 against ε.", "reproductions.md",
        arguments=lambda result: (result["rows"], "ijcnn1, linear scorer")),
    "worst_group": Picture(
        "benchmarks.accuracy.worst_group.figures:plot", "The worst group",
        "The accuracy in the worst group of seven private methods, and of two regressions without "
        "privacy.", "worst_group"),
    "fair": Picture(
        "benchmarks.accuracy.fair.__main__:plot", "Fairness with private groups",
        "Violation against error on Adult at a true ε, and published fronts at the ε that they "
        "claim.", "fair"),
    "compare": Picture(
        "benchmarks.accuracy.compare:plot", "The algorithms at equal privacy",
        "What each algorithm reaches at one ε, against the operator evaluations that it takes.",
        "compare"),
    "plans": Picture(
        plans, "Default plans",
        "The gap of default plans over that of the best alternative: at 1 nothing is left to gain.",
        "plans"),
    "gaps": Picture(
        "benchmarks.rates.gaps:plot", "Gaps on a bilinear game",
        "The strong gap against the number of records, and against the evaluations that it took.",
        "gaps"),
    "guarantees": Picture(
        guarantees, "Guarantees",
        "What plans guarantee on the strong gap of the population at ε = 1, before data are read.",
        "guarantees", arguments=lambda result: (result["by_n"],)),
    "rates": Picture(
        "benchmarks.rates.__main__:plot", "Rates",
        "Measured gaps against the number of records, with the rate of each theorem (dashed) and "
        "the order of the lower bound (dotted).", "rates",
        arguments=lambda result: (result["rows"], result["points"])),
    "stability": Picture(
        "benchmarks.rates.stability:plot", "Stability and generalisation",
        "Runs on neighbouring data stay closer than the bounds say, and generalise better.",
        "stability"),
    "zoo": Picture(
        "benchmarks.accuracy.zoo.plot:plot", "Monotone games",
        "The strong gap against releases on one game, and the best of the methods on five.",
        "zoo", arguments=everything),
    "zoo_noise": Picture(
        "benchmarks.accuracy.zoo.noise:plot", "Correlated noise and Poisson samples",
        "Poisson samples have the smallest gap at small ε, and correlated noise at large ε.",
        "zoo", result="zoo.json", arguments=everything),
    "variance": Picture(
        "benchmarks.rates.variance.tables:plot", "Variance reduction",
        "Variance reduction (`spider`) is behind `sgda` for few records, and ahead for many.",
        "variance"),
    "variance_auc": Picture(
        variance_auc, "Variance reduction for AUC",
        "On AUC maximisation variance reduction gains nothing, and breaks at the largest step.",
        "variance_auc", arguments=lambda result: (result["auc"],)),
    "table2": Picture(
        "benchmarks.papers.table2.claims:plot", "A published table, with honest noise",
        "AUC against the claimed ε: as published, with honest noise, and by printed settings.",
        "table2"),
    "published": Picture(
        "benchmarks.papers.page:plot", "The published record at a true ε",
        "Our AUC at a true ε with the published one, and the ε that the published noise has.",
        "published"),
    "figures_noise": Picture(
        "benchmarks.papers.table2.verdicts:plot", "The noise of two published methods",
        "The noise of NSEG and of DP-SGDA against ε, for three data sets and three δ.",
        "reproductions.md"),
    "figures_ijcnn1": Picture(
        "benchmarks.papers.table2.verdicts:plot", "Units and batches, ijcnn1",
        "The AUC on ijcnn1 against hidden units and against the batch.", "reproductions.md"),
    "figures_images": Picture(
        "benchmarks.papers.table2.verdicts:plot", "Units and batches, images",
        "The AUC on MNIST and Fashion-MNIST against hidden units and against the batch.",
        "reproductions.md"),
    "throughput": Picture(
        "benchmarks.speed.throughput.plot:plot", "Examples a second",
        "Examples a second against the batch for eight models: this library (black) and peers.",
        "throughput", arguments=everything),
    "throughput_ratios": Picture(
        "benchmarks.speed.throughput.plot:ratios", "This library over its peers",
        "How many times as fast as a peer the library is. In the shaded part the peer is faster.",
        "throughput", result="throughput.json", arguments=everything),
    "throughput_growth": Picture(
        "benchmarks.speed.throughput.plot:growth", "How time grows",
        "The time of a step against resident rows, hidden units and rounds.", "throughput",
        result="throughput.json", arguments=everything),
    "scaling": Picture(
        devices, "A release on several devices",
        "Each device computes fewer rows, and keeps room for a sample that is uneven.", "scaling",
        result="scaling.md",
        arguments=everything),
    "mutants": Picture(
        planted, "Planted bugs",
        "The signals of planted bugs whose limit is 1, with the bug and without it.",
        "mutants", result="mutants.md",
        arguments=everything),
}
SENTENCES = {  # of pages of results without a picture
    "accountant": "What the accountant answers in settings far outside ordinary use, with exact "
                  "values and other accountants.",
    "problems": "Problems that maximise a measure itself, compared with a regression and the AUC.",
}
# of pages that have none
TITLES = {"label_tables": "Tables of classes and numbers", "problems": "Problems by their measure",
          "tables": "Tables"}
# drawn from trained models, of which no file holds what is drawn: they stand in the repository
STORED = {
    "gan": ("A private GAN", "Samples of a generator whose discriminator saw the records."),
    "gan_mnist": ("A private GAN on digits", "The same on MNIST's images."),
    "digits_mnist": ("Digits from one release", "Records, and images made from one release."),
    "mdp": ("A private policy", "A policy learnt from private transitions, next to the best one."),
    "dro": ("The worst tenth", "Regression for the worst tenth of the records."),
}
