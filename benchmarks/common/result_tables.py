"""What a results file looks like as a table of a page; one function a table.

Those of a benchmark with a file of its own for tables are there: `zoo.tables`, say.
"""

import pathlib
from collections.abc import Callable
from typing import Any

from benchmarks.accuracy import adaptive_floor, group_clips, libauc_values, more_problems, problems
from benchmarks.accuracy.worst_group import figures as group_figures
from benchmarks.accuracy.zoo import noise as zoo_noise
from benchmarks.accuracy.zoo import tables as zoo_tables
from benchmarks.code_size import kinds
from benchmarks.common import report, verdicts
from benchmarks.papers import decoupled, robust
from benchmarks.papers import page as published_report
from benchmarks.privacy import prices
from benchmarks.rates import guarantees, plans
from benchmarks.rates.variance import tables as variance_tables
from benchmarks.speed import predictions, start
from benchmarks.speed.throughput import tables as throughput_tables
from benchmarks.tables import calibration, notes, untuned_groups

_METHODS = {"nseg": "NSEG linear", "linear": "DP-SGDA linear", "mlp": "DP-SGDA MLP",
            "front end": "front end"}


def table2(result: dict[str, Any]) -> str:
    """Honest AUC at delta = 1e-6, with the published figures in brackets."""
    rows = [row for row in result["rows"]
            if row["reading"] == "honest" and row["delta"] == 1e-6]
    cells: dict[tuple[str, str], dict[float | None, str]] = {}
    for row in rows:
        cells.setdefault((row["dataset"], row["method"]), {})[row["epsilon"]] = (
            f"{row['auc_mean']:.2f} ± {report.error(row):.2f} ({row['published']:.2f})"
            + " †" * (row.get("noise") == "floating-point"))
    levels = sorted({row["epsilon"] for row in rows if row["epsilon"] is not None})
    header = ["data, model", *(f"ε = {x:g}" for x in levels), "no noise"]
    return report.markdown(header, [
        [f"{name}, {_METHODS[method]}", *(line[x] for x in (*levels, None))]
        for (name, method), line in cells.items()])


def noise(result: dict[str, Any]) -> str:
    """Nanoseconds of a normal number, on integers and on floats."""
    return report.markdown(["numbers", "bits", "time over float32 noise"],
                     [[f"{row['size']:,}", str(row["bits"]), f"{row['ratio']:.2f}"]
                      for row in result["speed"]])


def ghost_layers(result: dict[str, Any]) -> str:
    """Milliseconds and megabytes of a clipped sum, a column for every strategy."""
    cells: dict[str, dict[str, str]] = {}
    for row in result["rows"]:
        cells.setdefault(row["model"], {})[row["way"]] = (
            f"{row['cpu ms']:.1f} ms, {row['temporary bytes'] / 1e6:.1f} MB")
    ways = list(next(iter(cells.values())))
    return report.markdown(["model", *ways], [[name, *(line[way] for way in ways)]
                                              for name, line in cells.items()])


def host_data(result: dict[str, Any]) -> str:
    """Time of a round over that with rows on the device."""
    return report.markdown(["batch", "rows", "time over rows on the device", "same bits"],
                     [[f"{row['batch']:,}", f"on the {row['data']}" if row["data"] == "host"
                       else "in a memory-mapped file", f"{row['time over device']:.2f}",
                       "yes" if row["same bits"] else "no"]
                      for row in result["rows"] if row["data"] != "device"])


def whole_passes(result: dict[str, Any]) -> str:
    """Time and temporaries of a round over all records, and the time of a record."""
    return report.markdown(
        ["algorithm", "records", "features", "ms of processor a round", "ns a record",
         "temporaries over data"],
        [[f"`{row['algorithm']}`", f"{row['rows']:,}", row["way"],
          f"{row['cpu ms per round']:.2f}", f"{1e6 * row['cpu ms per round'] / row['rows']:.1f}",
          f"{row['temporaries over data']:.3f}"] for row in result["rows"]])


def poisson(result: dict[str, Any]) -> str:
    """Poisson samples over rows with replacement, before sizes were drawn and since."""
    found: dict[tuple[Any, ...], dict[str, float]] = {}
    for row in result["rows"]:
        if row["sampler"] == "Poisson" and row["what"] in ("round", "draw"):
            what = f"a {row['what']}", row["batch"], row["population"]
            found.setdefault(what, {})[row["source"]] = row["ratio"]
    return report.markdown(["of", "batch", "rows", "by gaps, before", "by size, now"], [
        [what, f"{batch:,}", f"{rows:,}", *(f"{ratio[k]:.2f}" for k in ("before", "after"))]
        for (what, batch, rows), ratio in found.items()])


def poisson_models(result: dict[str, Any]) -> str:
    """Rounds of larger models on Poisson samples over those on rows with replacement."""
    found: dict[tuple[str, int], dict[str, dict[str, Any]]] = {}
    for row in result["rows"]:
        if row["what"] not in ("round", "draw"):
            found.setdefault((row["what"], row["batch"]), {})[row["sampler"]] = row
    ways = list(dict.fromkeys(name for one in found.values() for name in one))
    return report.markdown(["model", "batch", *(f"{x}, ms" for x in ways)], [
        [f"`{model}`", f"{batch:,}", *(f"{one[x]['us'] / 1000:.3g}" for x in ways)]
        for (model, batch), one in found.items()])


def rows_on_disk(result: dict[str, Any]) -> str:
    """What a round costs the host as the rows grow beyond its memory."""
    said = {"device": "on the device", "files": "in files", "pages": "in files, read anew",
            "reader": "from a reader"}
    return report.markdown(
        ["scorer", "rows", "where", "GB", "ms of processor a round",
         "over rows on the device", "time over that", "host MB"],
        [[row["workload"], f"{row['rows']:,}", said[row["data"]], f"{row['bytes'] / 1e9:.2g}",
          f"{row['cpu ms per round']:.2f}",
          f"{row['cpu over device']:.2f}", f"{row['wall over device']:.2f}",
          f"{row['host MB']:.0f}"] for row in result["rows"]])


def big_tables(result: dict[str, Any]) -> str:
    """What training on large tables takes, next to a logistic regression on the same file."""
    names = {"csv": "CSV", "parquet": "Parquet"}
    return report.markdown(
        ["rows", "columns", "file", "rows lie", "by", "CPU-seconds", "MB", "MB without files"],
        [[f"{row['rows']:,}", str(row["columns"]), names[row["file"]],
          "in files" if row["in files"] else "in memory", row["way"], f"{row['cpu s']:.1f}",
          f"{row['MB']:,.0f}", f"{row['MB without files']:,.0f}"]
         for row in sorted(result["rows"], key=lambda row: (row["in files"], row["rows"]))])


def draws(result: dict[str, Any]) -> str:
    """What the numbers of a sample cost."""
    return report.markdown(["rows", "expected sample", "ms of processor"],
                     [[f"{row['rows']:,}", f"{row['batch']:,}", f"{row['cpu ms']:.2f}"]
                      for row in result["draws"]])


def tuning(result: dict[str, Any]) -> str:
    """AUC of settings that were guessed, searched for, and known."""
    return report.markdown(["settings", "AUC", "±", "least"],
                     [[row["settings"], *(f"{x:.3f}" for x in (
                         row["auc_mean"], report.error(row), row["auc_least"]))]
                      for row in result["rows"]])


def fair(result: dict[str, Any]) -> str:
    """Published points of a front, and the smallest error of ours at no more violation."""
    lines = []
    for row in result["published"]:
        kind = "parity" if " parity " in row["metric"] else "odds"
        at = float(row["metric"].rsplit(" ", 1)[1])
        claimed = ("no privacy" if row["epsilon"] is None
                   else f"ε = {row['epsilon']:g} claimed")
        own = ("", "") if row["ours"] is None else (
            f"{row['ours']:.4f} ± {row['ours_se']:.4f}",
            f"{row['ours_violation']:.4f} ± {row['ours_violation_se']:.4f}")
        lines.append([kind, claimed, f"{row['published']:.4f}", f"{at:.4f}",
                      f"{row['ours_epsilon']:g}", *own])
    return report.markdown(["kind", "published", "error", "violation", "our true ε", "our error",
                      "our violation"], lines)


def worst_group(result: dict[str, Any]) -> str:
    """Worst-group accuracy on groups with labels, a column for every method."""
    return group_figures.markdown(result["rows"], label=True)


def worst_group_references(result: dict[str, Any]) -> str:
    """The same without privacy, on all groups."""
    return group_figures.references(result["rows"])


def tables(result: dict[str, Any]) -> str:
    """Gaps in AUC between a regression without privacy and private scorers of whole tables."""
    found: dict[str, dict[float, Any]] = {}
    for row in result["rows"]:
        found.setdefault(row["table"], {})[row["epsilon"]] = row

    def pair(row: dict[str, Any], what: str) -> str:
        error = row[f"{what}_error"]
        return f"{row[what]:.4f}" + ("" if error is None else f" ± {error:.4f}")

    epsilons = sorted({row["epsilon"] for row in result["rows"]})
    lines = []
    for name, own in found.items():
        row = own[1.0]
        lines.append([name + " \\*" * row["found_on"], f"{row['n']:,}", str(row["d"]),
                      f"{row['prior']:.3f}", f"{row['reference']:.4f}",
                      *(pair(own[e], "gap") for e in epsilons), pair(row, "plain_gap")])
    return report.markdown(["table", "n", "d", "share of positives", "no privacy",
                      *(f"gap at ε = {e:g}" for e in epsilons), "plain, ε = 1"], lines)


def label_tables(result: dict[str, Any]) -> str:
    """Scores of private models of classes and of numbers, and of the best one without privacy."""
    names = {"macro_auc": "macro AUC", "log_loss": "log-loss", "r2": "R²",
             "mean_absolute_error": "mean absolute error"}
    found: dict[tuple[str, str], dict[float, Any]] = {}
    for row in result["rows"]:
        found.setdefault((row["table"], row["score"]), {})[row["epsilon"]] = row
    epsilons = sorted({row["epsilon"] for row in result["rows"]})
    lines = []
    for (name, score), own in found.items():
        row = own[1.0]
        without = (max if score in ("macro_auc", "r2") else min)(row["references"].values())
        lines.append([
            name + " \\*" * row["found_on"], f"{row['n']:,}", str(row["d"]),
            str(row["classes"] or "a number"), names[score], f"{without:.4g}",
            *(f"{own[e]['mean']:.4g} ± {own[e]['mean_error'] or 0:.2g}" for e in epsilons)])
    return report.markdown(["table", "n", "d", "classes", "score", "no privacy",
                            *(f"ε = {e:g}" for e in epsilons)], lines)


def tables_of_packages(result: dict[str, Any]) -> str:
    """AUC of private scorers, and of private methods as one would write them down."""
    rows = [row for row in result["rows"] if not row["found_on"]] or result["rows"]
    made = []
    for row in rows:
        others = row["others"].values()
        best = max(others, key=lambda one: one["auc"])
        made.append([row["table"], f"{row['n']:,}", str(row["d"]), f"{row['epsilon']:g}",
                     f"{row['reference']:.4f}", f"{row['auc']:.4f}",
                     *(f"{one['auc']:.4f}" for one in others),
                     f"{best['ahead']:.4f} ± {best['ahead_error'] or 0:.4f}"])
    return report.markdown(["table", "n", "d", "ε", "no privacy", "this rule", *rows[0]["others"],
                            "ahead of the best of the four"], made)


def published(result: dict[str, Any]) -> str:
    """Table 1 of PrivateDiff: ours, the published figure, and the epsilon of its noise."""
    rows = [row for row in result["rows"] if row["paper"].startswith("PrivateDiff")]
    levels = sorted({row["epsilon"] for row in rows})
    lines: dict[str, dict[float, str]] = {}
    for row in rows:
        lines.setdefault(row["data"], {})[row["epsilon"]] = (
            f"{row['ours']:.4f} ± {row['ours_se']:.4f} ({row['published']:.4f}; "
            f"{row['true_epsilon_low']:.3g} to {row['true_epsilon_high']:.3g})")
    return report.markdown(["data", *(f"ε = {x:g}" for x in levels)],
                     [[name, *(line[x] for x in levels)] for name, line in lines.items()])


def counts(result: dict[str, Any]) -> str:
    """Of every paper and model, in how many cells ours is ahead, level and behind."""
    cells: dict[tuple[str, str], list[str]] = {}
    for row in result["rows"]:
        model = "" if row["paper"].startswith("PrivateDiff") else row["model"]
        cells.setdefault((row["paper"], model), []).append(published_report.verdict(row))
    return report.markdown(
        ["paper", "model", "cells", *(f"ours {word}" for word in verdicts.WORDS)],
        [[paper, model, str(len(found)), *(str(found.count(word)) for word in verdicts.WORDS)]
         for (paper, model), found in cells.items()])


def gaps(result: dict[str, Any]) -> str:
    """Strong gaps of the algorithms on one game, with their standard errors."""
    ns = sorted({row["n"] for row in result["rows"]})
    cells: dict[str, dict[int, str]] = {}
    for row in result["rows"]:
        cells.setdefault(row["algorithm"], {})[row["n"]] = (
            f"{row['strong']:.3f} ± {row['error']:.3f}")
    return report.markdown(["strong gap", *(f"n = {n:,}" for n in ns)],
                           [[f"`{name.split(',')[0]}`{name[len(name.split(',')[0]):]}",
                             *(line[n] for n in ns)] for name, line in cells.items()])


def compared(result: dict[str, Any]) -> str:
    """Gap or AUC, and evaluations of the operator, with standard errors."""
    return report.markdown(
        ["problem", "algorithm", "ε", "", "±", "seeds", "evaluations"],
        [[row["problem"], row["algorithm"], f"{row['target_epsilon']:g}",
          f"{row['measure']} {row['value']:.4f}", f"{row['error']:.4f}",
          str(row["seeds"]), f"{row['evaluations']:,}"] for row in result["rows"]])


def stability(result: dict[str, Any]) -> str:
    """How far a record moves the output, beside the bound, at the largest n of each case."""
    last = {(row["algorithm"], row["quantity"]): row for row in result["rows"]}
    return report.markdown(
        ["algorithm", "", "n", "measured", "±", "bound"],
        [[name, quantity, f"{row['n']:,}", *(f"{row[x]:.2g}" for x in ("mean", "error", "bound"))]
         for (name, quantity), row in last.items()])


def certificates(result: dict[str, Any]) -> str:
    """Certificates of the gap by n, epsilon and share, and the smallest guarantee of a plan."""
    cells: dict[tuple[int, float], dict[float, Any]] = {}
    for row in result["rows"]:
        if row["share"] is not None:
            cells.setdefault((row["n"], row["epsilon"]), {})[row["share"]] = row
    shares = sorted({x for own in cells.values() for x in own})
    return report.markdown(
        ["n", "ε", "true gap", *(f"{100 * x:g} % held out" for x in shares), "smallest guarantee"],
        [[f"{n:,}", f"{epsilon:g}", f"{max(x['true'] for x in own.values()):.1g}",
          *(f"{own[x]['bound']:.2g}" for x in shares),
          f"{min(x['guarantee'] for x in own.values()):.2g}"]
         for (n, epsilon), own in cells.items()])


def certified_groups(result: dict[str, Any]) -> str:
    """Certificates of the worst group's risk, which is 0.4, by records held out of each group."""
    return report.markdown(
        ["groups", "held out of each", "ε", "certificate", "noise", "sampling"],
        [[row["of"].split()[0], f"{row['n']:,}", f"{row['epsilon']:g}", f"{row['bound']:.3f}",
          f"{row['noise']:.3f}", f"{row['sampling']:.3f}"] for row in result["rows"]
         if row["share"] is None])


def tuned_columns(result: dict[str, Any]) -> str:
    """AUC of columns of Table 2 by how their settings were come by."""
    cells: dict[tuple[str, float], dict[str, Any]] = {}
    for row in result["rows"]:
        cells.setdefault((row["data"], row["epsilon"]), {})[row["settings"]] = row
    ways = ("not paid for", "paid for", "nobody tuned")
    names = list(dict.fromkeys(data for data, _ in cells))
    return report.markdown(["data", "ε", *ways, "published"], [
        [data, f"{epsilon:g}", *(f"{own[way]['auc']:.2f} ± {own[way]['auc_se']:.2f}"
                                 if way in own else "" for way in ways),
         f"{own[ways[0]]['published']:.2f}"]
        for (data, epsilon), own in sorted(
            cells.items(), key=lambda cell: (names.index(cell[0][0]), cell[0][1]))])


def auc(result: dict[str, Any]) -> str:
    """AUC at every epsilon, beside the same algorithm without noise and clipping."""
    return report.markdown(["ε", "AUC", "without privacy"], [
        [f"{row['epsilon']:g}", f"{row['auc_mean']:.4f} ± {report.error(row):.4f}",
         f"{row['auc_nonprivate']:.4f}"] for row in result["rows"]])


def adaptive_clip(result: dict[str, Any]) -> str:
    """AUC with clip norms that stay, and by how much more with ones that follow a quantile."""
    def cells(row: dict[str, Any], first: str) -> list[str]:
        gains = [f"{100 * row[f'{first}{q} gain']:+.2f}" + (
            "" if row[f"{first}{q} gain_error"] is None else
            f" ± {100 * row[f'{first}{q} gain_error']:.2f}") for q in ("0.5", "0.9")]
        return [f"{100 * row[f'{first}stays']:.2f}", *gains]

    return report.markdown(
        ["data", "ε", "chosen clip norm", "follows 0.5", "follows 0.9",
         "ten times that norm", "follows 0.5", "follows 0.9"],
        [[row["data"], f"{row['epsilon']:g}", *cells(row, ""), *cells(row, "tenfold, ")]
         for row in result["rows"]])


def rates(result: dict[str, Any]) -> str:
    """Fitted slopes of gap against n with their intervals, beside the theorems' exponents."""
    return report.markdown(["algorithm", "settings", "problem", "gap", "ε", "slope in n (95 %)",
                            "theory"], [
        [f"`{row['algorithm']}`, {row['variant']}", row["settings"], row["problem"],
         row["measure"],
         f"{row['epsilon']:g}",
         f"{row['slope']:.2f} ({row['slope_low']:.2f} to {row['slope_high']:.2f})",
         f"{row['theory']:.2f}"] for row in result["rows"]])


def digits(result: dict[str, Any]) -> str:
    """Accuracy on real images of a classifier trained on generated ones."""
    return report.markdown(["ε", "accuracy", "±"], [
        ["none" if row["epsilon"] is None else f"{row['epsilon']:g}", f"{row['accuracy']:.3f}",
         f"{row['accuracy_se']:.3f}"] for row in result["rows"]])


def methods(result: dict[str, Any]) -> str:
    """Other papers' algorithms against two of the library, with the lines of their files."""
    lines = []
    for row in result["rows"]:
        own = row["module"].startswith("benchmarks.")
        file = pathlib.Path(__file__).parents[2] / (row["module"].replace(".", "/") + ".py")
        code = kinds(file.read_text(encoding="utf-8"))["code"] if own else None
        lines.append([
            row["contest"], row["method"] if own else f"`{row['method']}`",
            f"{code}" if own else "", f"{row['target']:g}", f"{row['passes']:.3g}",
            "; ".join(f"{name} {row[name]:.3f} ± {row[f'{name}_se']:.3f}"
                      for name in row["values"])])
    return report.markdown(["problem", "method", "lines of code", "ε", "passes",
                            "on the test rows"], lines)


def variance(result: dict[str, Any]) -> str:
    """Norms of gradients of variance reduction and of descent-ascent, and their slopes in n."""
    return report.markdown(*variance_tables.games(result["rows"]))


def variance_auc(result: dict[str, Any]) -> str:
    """AUC of both by the step."""
    return report.markdown(*variance_tables.ablation(result["auc"]))


TABLES: dict[str, Callable[[dict[str, Any]], str]] = {
    "table2": table2, "throughput": throughput_tables.ratios,
    "throughput_sampling": throughput_tables.sampling,
    "throughput_poisson": throughput_tables.poisson_peers, "roofline": predictions.table,
    "roofline_checked": predictions.checked, "noise": noise, "host_data": host_data,
    "ghost_layers": ghost_layers, "poisson": poisson, "poisson_models": poisson_models,
    "whole_passes": whole_passes,
    "rows_on_disk": rows_on_disk, "big_tables": big_tables, "draws": draws, "tuning": tuning,
    "methods": methods,
    "zoo": zoo_tables.games, "zoo_averages": zoo_tables.averages,
    "zoo_large": zoo_tables.large, "zoo_phases": zoo_tables.phases, "fair": fair,
    "zoo_plans": zoo_tables.plans, "zoo_noise": zoo_noise.table,
    "zoo_turns": zoo_noise.turns_table, "worst_group": worst_group,
    "worst_group_references": worst_group_references, "tables": tables,
    "calibration": calibration.table, "notes": notes.tables, "plans": plans.table,
    "plans_one_read": plans.one_read,
    "untuned_worst": untuned_groups.worst_table, "untuned_fair": untuned_groups.fair_table,
    "label_tables": label_tables, "problems": problems.ahead, "libauc": libauc_values.table,
    "tables_of_packages": tables_of_packages,
    "published": published, "counts": counts, "decoupled": decoupled.points,
    "robust": robust.printed, "programs": published_report.programs,
    "guarantees": lambda result: report.markdown(*guarantees.table(result)),
    "guarantees_runs": lambda result: report.markdown(*guarantees.runs_table(result)),
    "gaps": gaps, "certificates": certificates, "certified_groups": certified_groups,
    "compared": compared, "stability": stability,
    "tuned_columns": tuned_columns, "auc": auc, "rates": rates, "digits": digits,
    "adaptive_clip": adaptive_clip, "adaptive_floor": adaptive_floor.table,
    "more_problems": more_problems.table,
    "group_clips": group_clips.table, "variance": variance, "variance_auc": variance_auc,
    "searches": prices.searched, "ended_searches": prices.ended, "filters": prices.ledgers,
    "selection": prices.selected,
    "start": start.table, "start_imports": start.imports, "start_sizes": start.sizes,
    "start_jobs": start.job_table}
