"""`python -m benchmarks.speed.big_tables`: `train` on large tables in files, and scikit-learn.

Whole processes take turns: `python -m jaxminimax train`, and pandas with a `LogisticRegression` on
the same file. Each figure is a median over turns: seconds of processor time, with compiled programs
on disk; the most memory of the process; and the most without pages of files. Where the rows are "in
files", they lie there whatever memory there is, as they do where they are too large for it; such a
table is trained on once, and compiles. A table whose results are in the file of --json is left out.
"""

import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any, NamedTuple

import numpy as np

from benchmarks.common import report

OURS = ("import sys\nfrom jaxminimax.apps.tables import records\nrecords.MAPPED = {}\n"
        "from jaxminimax.__main__ import main\n"
        "main(sys.argv[1:])")
PLAIN = ("import pandas\nfrom sklearn.linear_model import LogisticRegression\n"
         "t = pandas.read_{}({!r})\nLogisticRegression().fit(t.drop(columns='y').to_numpy(), t.y)")
_STEP = 10**6  # rows that are made at a time


class Table(NamedTuple):
    """A table of normal numbers, whole ones in a Parquet file, and a label."""

    rows: int
    columns: int
    kind: str = "csv"
    mapped: bool = False
    plain: bool = True  # whether scikit-learn can have it in memory


TABLES = {"small": (Table(2_000, 3), Table(2_000, 3, "parquet", mapped=True)),
          "full": (Table(1_000_000, 30), Table(1_000_000, 30, "parquet"), Table(20_000, 200),
                   *(Table(n, 10, "parquet", mapped=True, plain=False)
                     for n in (10**6, 10**7, 10**8)))}


def make(table: Table, folder: pathlib.Path) -> pathlib.Path:
    """Writes a table and its schema, piece by piece; returns the table's path."""
    import pandas as pd
    import pyarrow
    import pyarrow.parquet

    path = folder / f"{table.rows}x{table.columns}.{table.kind}"
    names = [f"c{k}" for k in range(table.columns)]
    path.with_suffix(".toml").write_text("[label]\nname = 'y'\npositive = 1\n" + "".join(
        f"[columns.{name}]\nrange = [-128, 127]\n" for name in names), encoding="utf-8")
    rng = np.random.default_rng(0)
    weights = rng.normal(size=table.columns) / np.sqrt(table.columns)
    writer = None
    for first in range(0, table.rows, _STEP):
        x = 32 * rng.standard_normal((min(_STEP, table.rows - first), table.columns), np.float32)
        x = np.clip(x.round(2 if table.kind == "csv" else 0), -128, 127)
        frame = pd.DataFrame(x if table.kind == "csv" else x.astype(np.int8), columns=names)
        frame["y"] = (x @ weights / 32 + rng.logistic(size=len(x)) > 0).astype(np.int8)
        if table.kind == "csv":
            frame.to_csv(path, index=False, header=not first, mode="a")
            continue
        rows = pyarrow.Table.from_pandas(frame, preserve_index=False)
        writer = writer or pyarrow.parquet.ParquetWriter(path, rows.schema)
        writer.write_table(rows)
    if writer is not None:
        writer.close()
    return path


def spent(words: list[str], folder: pathlib.Path) -> tuple[float, float, float]:
    """Runs Python with these words; returns seconds of processor and megabytes, as documented."""
    kept = {"JAX_COMPILATION_CACHE_DIR": str(folder / "programs"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    with subprocess.Popen([sys.executable, *words], env=os.environ | kept,
                          stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        own, most = pathlib.Path(f"/proc/{process.pid}/status"), {"VmHWM:": 0.0, "RssAnon:": 0.0}
        while True:  # the system's own maximum would count what this process had before
            for line in own.read_text(encoding="utf-8").splitlines():
                name, number = (*line.split(), "")[:2]
                if name in most:
                    most[name] = max(most[name], int(number) / 1e3)
            done, status, used = os.wait4(process.pid, os.WNOHANG)
            if done:
                break
            time.sleep(0.05)
        if status:
            raise RuntimeError(process.stderr.read() if process.stderr else words)
    return used.ru_utime + used.ru_stime, most["VmHWM:"], most["RssAnon:"]


def measured(table: Table, repeats: int, folder: pathlib.Path) -> list[dict[str, Any]]:
    """Measures both ways on one table, in turns."""
    path = make(table, folder)
    ways = {"this library": ["-c", OURS.format(0 if table.mapped else 0.3), "train", str(path),
                             "--schema", str(path.with_suffix(".toml")), "--epsilon", "1",
                             "--delta", str(table.rows**-1.5), "--quiet"]}
    if table.plain:
        ways["scikit-learn"] = ["-c", PLAIN.format(table.kind, str(path))]
    if table.plain:
        spent(ways["this library"], folder)  # compiles
    taken: dict[str, list[tuple[float, float, float]]] = {way: [] for way in ways}
    for _ in range(repeats if table.plain else 1):
        for way, words in ways.items():
            taken[way].append(spent(words, folder))
    path.unlink()
    return [{"rows": table.rows, "columns": table.columns, "file": table.kind,
             "in files": table.mapped, "way": way, **{
                 name: round(statistics.median(x), 2) for name, x in zip(
                     ("cpu s", "MB", "MB without files"), zip(*turns, strict=True), strict=True)}}
            for way, turns in taken.items()]


def main(argv: list[str] | None = None) -> int:
    """Measures the tables of a set that the results file does not have."""
    p = report.Parser(__file__, __doc__, "json", compiles=True)
    p.add_argument("--tables", choices=TABLES, default="full")
    p.add_argument("--repeats", type=report.count, default=3)
    args = p.parse_args(argv)
    arguments = {k: v for k, v in vars(args).items() if k != "json"}
    result = report.kept(args.json, "rows", arguments, ("tables", "repeats")) or []
    done = {(row["rows"], row["columns"], row["file"], row["in files"]) for row in result}
    with tempfile.TemporaryDirectory() as place:
        for one in TABLES[args.tables]:
            if one[:4] in done:
                continue
            result += (rows := measured(one, args.repeats, pathlib.Path(place)))
            for row in rows:
                report.say("{rows:,} x {columns}, {file}: {way} {cpu s} s, {MB:,.0f} MB, "
                           "{MB without files:,.0f} MB without pages of files".format(**row))
            report.save(args, {"rows": result}, arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
