"""Tables of the documents, written from the committed result files.

    python -m benchmarks.figures [--check]

A table stands between two lines of a page:

    <!-- table NAME of benchmarks/results/FILE.json -->
    ...
    <!-- end -->

and is what the function NAME below makes of that file. Without arguments the tables of all pages
are written anew; `--check` writes nothing, and fails where a page says something else than its
file, or no longer has a table that it had.
"""

import json
import pathlib
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks import report

ROOT = pathlib.Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
_TABLE = re.compile(r"<!-- table (.+?) of (benchmarks/results/\S+\.json) -->\n(.*?)<!-- end -->\n",
                    re.DOTALL)
_METHODS = {"nseg": "NSEG linear", "linear": "DP-SGDA linear", "mlp": "DP-SGDA MLP",
            "front end": "front end"}
_PEERS = [  # workload and peer as the file calls them, and as the page does
    ("linear 22", "jax_privacy", "linear scorer, 22 numbers", "jax_privacy"),
    ("linear 22", "plain vmap, scan", "", "plain vmap in a scan"),
    ("linear 22", "specialised scan", "", "a scan specialised by hand"),
    ("mlp", "jax_privacy microbatched", "MLP 784-256-1", "jax_privacy in microbatches"),
    ("mlp", "Opacus ghost", "", "Opacus, ghost clipping"),
    ("mlp", "PyTorch by hand, compiled", "", "compiled PyTorch by hand, closed-form norms"),
    ("mlp", "specialised scan", "", "a scan specialised by hand"),
    ("attention", "plain vmap, scan", "small attention model", "plain vmap in a scan"),
    ("cnn", "Opacus ghost", "small CNN", "Opacus, ghost clipping"),
    ("cnn", "specialised scan", "", "a scan specialised by hand"),
]


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def table2(result: dict[str, Any]) -> str:
    """Honest AUC at delta = 1e-6, with the published figures in brackets."""
    rows = [row for job in result["jobs"].values() for row in job["rows"]
            if row.get("reading") == "honest" and row["delta"] in (1e-6, None)]
    cells: dict[tuple[str, str], dict[float | None, str]] = {}
    for row in rows:
        cells.setdefault((row["dataset"], row["method"]), {})[row["epsilon"]] = (
            f"{row['auc_mean']:.2f} ± {row['auc_std']:.2f} ({row['published']:.2f})")
    levels = sorted({row["epsilon"] for row in rows if row["epsilon"] is not None})
    header = ["data, model", *(f"ε = {x:g}" for x in levels), "no noise"]
    return _markdown(header, [[f"{name}, {_METHODS[method]}", *(line[x] for x in (*levels, None))]
                              for (name, method), line in cells.items()])


def throughput(result: dict[str, Any]) -> str:
    """Library over peer, in steps a second."""
    ratios = {(r["workload"], r["peer"], r["batch"]): r["ratio"] for r in result["rows"]}

    def cell(workload: str, peer: str, batch: int) -> str:
        ratio = ratios.get((workload, peer, batch))
        return "" if ratio is None else f"{ratio:.1f}" if ratio >= 2 else f"{ratio:.2f}"

    batches = (64, 256, 1024, 4096)
    return _markdown(["workload", "peer", *(f"batch {b:,}" for b in batches)],
                     [[name, said, *(cell(workload, peer, b) for b in batches)]
                      for workload, peer, name, said in _PEERS])


def noise(result: dict[str, Any]) -> str:
    """Nanoseconds of a normal number, on integers and on floats."""
    return _markdown(["numbers", "bits", "time over float32 noise"],
                     [[f"{row['size']:,}", str(row["bits"]), f"{row['ratio']:.2f}"]
                      for row in result["speed"]])


def host_data(result: dict[str, Any]) -> str:
    """Time of a round over that with rows on the device."""
    return _markdown(["batch", "rows", "time over rows on the device", "same bits"],
                     [[f"{row['batch']:,}", f"on the {row['data']}" if row["data"] == "host"
                       else "in a memory-mapped file", f"{row['time over device']:.2f}",
                       "yes" if row["same bits"] else "no"]
                      for row in result["rows"] if row["data"] != "device"])


def tuning(result: dict[str, Any]) -> str:
    """AUC of settings that were guessed, searched for, and known."""
    return _markdown(["settings", "AUC", "±", "least"],
                     [[row["settings"], *(f"{row[x]:.3f}" for x in ("auc_mean", "auc_std",
                                                                    "auc_least"))]
                      for row in result["rows"]])


TABLES: dict[str, Callable[[dict[str, Any]], str]] = {
    "table2": table2, "throughput": throughput, "noise": noise, "host_data": host_data,
    "tuning": tuning}


def rewritten(text: str) -> str:
    """A page with its tables made anew.

    Raises:
      ValueError: for a table that no function here makes, or a file that is not there.
    """
    def made(found: re.Match) -> str:
        name, file, _ = found.groups()
        if name not in TABLES:
            raise ValueError(f"{name!r} is no table: it must be one of {', '.join(TABLES)}.")
        path = ROOT / file
        if not path.exists():
            raise ValueError(f"{file} is not there: run the command that makes it.")
        table = TABLES[name](json.loads(path.read_text(encoding="utf-8")))
        return f"<!-- table {name} of {file} -->\n{table}<!-- end -->\n"

    return _TABLE.sub(made, text)


def main(argv: list[str] | None = None) -> int:
    """Writes the tables, or checks them."""
    p = report.Parser(prog="python -m benchmarks.figures", description=__doc__.splitlines()[0])
    p.add_argument("--check", action="store_true", help="write nothing; fail where a page differs")
    args = p.parse_args(argv)
    stale, seen = [], set()
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        seen |= {found[0] for found in _TABLE.findall(text)}
        new = rewritten(text)
        if new != text:
            stale.append(page.name)
            if not args.check:
                page.write_text(new, encoding="utf-8")
    if missing := sorted(set(TABLES) - seen):
        report.say(f"no page has the table {', '.join(missing)}")
        return 1
    if args.check and stale:
        report.say(f"other figures than in benchmarks/results: {', '.join(stale)}; "
                   "python -m benchmarks.figures writes them")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
