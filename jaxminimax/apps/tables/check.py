"""`python -m jaxminimax check`: what training would read of a table, before it costs anything.

Options that stand for a schema are read without a look at a cell, here and by `train`: names of
columns, and the number of rows, are public. Without a budget the command prints public facts alone:
the schema, the names of the table's columns and the number of records. With `--epsilon` and
`--delta` it makes one release, of how many cells of each column are missing, clipped or unseen, and
of the labels that are positive or missing.

**The release.** A cell has at most one of the two flaws of its column, so the vector of a record,
less 1/2 in every place, has the squared length 1/4 for every place: k places give the clip norm
sqrt(k) / 2, which never binds. Of a person with several rows it is their mean, which is no longer.
"""

import argparse
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax.accounting import Ledger, epsilon
from jaxminimax.accounting.statement_of_run import statement_for
from jaxminimax.apps.tables import files, notes, preparation, records, statistics, unfinished
from jaxminimax.apps.tables.columns import (
    Category,
    Charged,
    Column,
    Number,
    as_written,
    listed,
    record_as_header,
)
from jaxminimax.apps.tables.schema import Schema
from jaxminimax.base import checks, types
from jaxminimax.mechanism import Repeat
from jaxminimax.releases.sums import release

# --- options that stand for a schema, and what is missing ---


def add_schema(flag: Any) -> None:
    """Adds the options that stand for a schema to a command."""
    flag("--schema", help="TOML file: label, ranges and categories of the columns, owner, groups")
    flag("--label", metavar="NAME", help="the label's column, in place of --schema")
    flag("--positive", metavar="VALUE", help="its positive value; every other one is negative")
    flag("--numeric", nargs="+", default=[], metavar="NAME[=LOW:HIGH]",
         help="columns of numbers, with a public range; those without one need --ranges charged")
    flag("--categorical", nargs="+", default=[], metavar="NAME=A|B",
         help="columns of text, with their public values")
    flag("--ranges", choices=("charged",),
         help="have the ranges that are not declared released by noisy histograms, for a tenth of "
              "the budget")
    flag("--owner", metavar="NAME", help="column that says whose row it is: records are persons")
    flag("--most", type=int, default=5, metavar="K", help="rows of one owner that are read "
         "(default: 5)")
    flag("--people", type=int, default=1, metavar="K",
         help="rows that one person has, at most, in a table without a column of owners: the "
              "guarantee is for any K of them (default: 1)")


def schema_of(args: argparse.Namespace, read: Callable[[], Any]) -> Schema:
    """Reads the schema from its file, or from the options.

    Args:
      args: of the command.
      read: returns the table, for a message with the names of its columns and its number of rows.

    Raises:
      ValueError: for options that contradict each other, or naming what must be declared.
    """
    inline = [f"--{name}" for name in ("label", "positive", "numeric", "categorical", "owner")
              if getattr(args, name)]
    if args.schema is not None:
        if inline:
            raise ValueError(f"{' '.join(inline)} and --schema exclude each other: say it in the "
                             "file.")
        schema = Schema.from_toml(args.schema)
    elif args.label is None or args.positive is None or not (args.numeric or args.categorical):
        raise ValueError(needed(args, read()))
    else:
        columns = dict([*map(_numeric, args.numeric), *map(_categorical, args.categorical)])
        schema = Schema(columns, args.label, args.positive, args.owner,
                        1 if args.owner is None else args.most)
    if schema.charged and args.schema is None and args.ranges is None:
        raise ValueError(f"no range is declared of {', '.join(schema.charged)}: say NAME=LOW:HIGH "
                         f"from a codebook, or --ranges charged. {_price(args, len(read()))}")
    return schema


def _numeric(word: str) -> tuple[str, Column]:
    name, separator, ends = word.partition("=")
    if not separator:
        return name, Charged()
    try:
        low, high = map(float, ends.split(":"))
    except ValueError:
        raise ValueError(f"--numeric {word}: must be NAME, or NAME=LOW:HIGH with two "
                         "numbers.") from None
    return name, Number(low, high)


def _categorical(word: str) -> tuple[str, Column]:
    name, separator, values = word.partition("=")
    if not separator or not values:
        raise ValueError(f"--categorical {word}: must be NAME=A|B, with the values of a codebook: "
                         "values read off the table would reveal its rows.")
    return name, Category(tuple(values.split("|")))


def needed(args: argparse.Namespace, frame: Any) -> str:
    """Explains which options a table needs that declares nothing."""
    named = {word.partition("=")[0] for word in (*args.numeric, *args.categorical)} | {args.label}
    undeclared = [name for name in frame.columns if name not in named]
    hidden = record_as_header(frame.columns, named)
    doubts = {name: note for name in undeclared
              if not hidden and (note := notes.whose(name) or notes.doubt(name))}
    clear = [name for name in undeclared if name not in doubts]
    lines = ["needs --schema FILE, or as options, what is public about the table:"]
    if args.label is None or args.positive is None:
        lines.append("  --label NAME --positive VALUE: which column is predicted, and the value "
                     "that counts.")
    lines += [
        f"  of each column that is to be read, of {listed(clear, frame.columns, named)}: --numeric "
        "NAME=LOW:HIGH, or --categorical 'NAME=A|B'. A column that is not declared is not read.",
        *(f"  {note}" for note in doubts.values()),
        "  --ranges charged: for --numeric NAME whose range nobody knows. "
        + _price(args, len(frame)),
        "In a TOML file: [label] name, positive; [columns.NAME] range = [low, high], range = "
        "\"charged\" or categories = [...]."]
    return "\n".join(lines)


def _price(args: argparse.Namespace, rows: int) -> str:
    """States the price of charged ranges."""
    charged_schema = Schema({"x": Charged()}, "y", "1")
    try:
        (described,) = statistics.ranges_query(rows, charged_schema, args.epsilon, args.delta)
        alone, smallest_share = epsilon(described, args.delta), statistics.least_share(described)
    except ValueError:  # of an epsilon or a delta that is refused later, with its reason
        return "They cost a tenth of the budget."
    return (f"That takes a tenth of the budget (by itself epsilon = {alone:.3g} at delta = "
            f"{args.delta:g}), and shows what at least {smallest_share:.2g} of the {rows} "
            f"records share, times the square root of the number of such columns.")


# --- the command ---


def add(commands: Any) -> None:
    """Adds `check` to the commands of a parser."""
    text = "shows what training would read of a table, and releases nothing without a budget"
    parser = commands.add_parser("check", help=text, description=text + (
        ". With --epsilon and --delta it releases once, with noise, how many cells of each column "
        "are missing, clipped or not declared, and how many labels are positive or missing."))
    flag = parser.add_argument
    flag("table", help="CSV file with a header line, or Parquet file")
    add_schema(flag)
    flag("--epsilon", type=float, help="of the release of counts; without it there is none")
    flag("--delta", type=float, help="of (epsilon, delta); well below 1/n")
    flag("--ledger", metavar="FILE", help="ledger that is charged for the release beforehand")
    flag("--name", help="of the release in the ledger (default: run 1 and so on)")
    flag("--look", action="store_true",
         help="count without noise how cells are written, for those who may see the table: not for "
              "publication, and no part of any epsilon")
    flag("--json", action="store_true", help="print JSON only")


def check(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Returns what the command prints, with --json and without."""
    if (args.epsilon is None) != (args.delta is None):
        raise ValueError("--epsilon and --delta go together: say both for a release of counts, or "
                         "none for public facts alone.")
    if args.look and args.epsilon is not None:
        raise ValueError("--look is without noise, and --epsilon is for a release: leave one out.")
    if args.ledger is not None and args.epsilon is None:
        raise ValueError("--ledger is charged for a release: say --epsilon and --delta too.")
    if args.name is not None and args.ledger is None:
        raise ValueError(f"--name {args.name} is that of a release in a ledger: say --ledger FILE.")
    frame = files.read(args.table)
    schema = schema_of(args, lambda: frame)
    files.Frames(args.table, schema.numeric, ())  # refuses types of columns that hold no numbers
    preparation.check_people(args.people, schema.owner is not None)
    rows_per_owner = None if schema.owner is None else schema.most
    rows = records.records(*_flaws(schema, frame), records.by_person(
        len(frame), schema.owners(frame), schema.most))
    population = len(rows.x)
    noted = notes.before(schema, population, frame.columns, owned=args.people > 1)
    record: dict[str, Any] = {
        "records": population, "unit": preparation.unit_of(rows_per_owner, args.people),
        "features": schema.width, "label": schema.to_dict()["label"],
        "columns": {name: _read_as(kind) for name, kind in schema.columns.items()},
        "notes": [note.to_json() for note in noted], "counts": None, "statement": None}
    lines = [f"{population} records ({record['unit']}), {schema.width} features.",
             *map(str, noted), *(f"{name}: {words}." for name, words in record["columns"].items())]
    if args.look:
        heading = "NOT FOR PUBLICATION"
        record[heading] = {name: as_written(kind, schema.cells(frame, name))
                           for name, kind in schema.columns.items()}
        lines += [f"{heading}, as counted without noise:", *(
            f"  {name}: {', '.join(f'{n} {flaw}' for flaw, n in counts.items()) or 'as declared'}."
            for name, counts in record[heading].items())]
    if args.epsilon is None:
        return record, "\n".join((*lines, "Nothing was released: " + (
            "keep what is not for publication to yourself." if args.look else
            "these are public facts.")))
    notes.check_delta(args.delta, population, False)
    described = counts_query(population, rows.x.shape[-1], args.epsilon, args.delta, args.people)
    ledger = None if args.ledger is None else Ledger(args.ledger)
    with unfinished.Unfinished(None) as job:
        entry = preparation.charge(job, ledger, described, unit=None, people=args.people,
                                   rows_per_owner=rows_per_owner, delta=args.delta, name=args.name,
                                   parts=("counts of cells that are not as declared",))
        counts = release_counts(job.key, described, rows)
        if entry is not None:
            entry.close()
    stated = statement_for(described, lambda _: described, args.delta, spent=1, allowed=1,
                           unit=record["unit"], assumed=(preparation.PUBLIC,),
                           people=args.people, attack_bounds=True)
    query = described.query
    deviation = float(query.clip.w * query.noise_multiplier.w)
    named = iter(counts.tolist())
    record |= {"counts": {name: {flaw: next(named) for flaw in flaws}
                          for name, flaws in _places(schema).items()},
               "standard_deviation": deviation, "statement": stated.to_json()}
    lines += ["", f"Released counts, each with noise of standard deviation {deviation:.3g}:",
              *(f"{name}: " + ", ".join(f"{n:.0f} {flaw}" for flaw, n in flaws.items()) + "."
                for name, flaws in record["counts"].items()), "", str(stated)]
    return record, "\n".join(lines)


def _read_as(kind: Column) -> str:
    """Says how a column is read."""
    if isinstance(kind, Category):
        return f"one of {', '.join(kind.values)}; other cells count as none of them"
    range_in_words = (f"[{kind.low:g}, {kind.high:g}], and cells outside are clipped"
                      if isinstance(kind, Number) else "a range that training releases")
    flag = ", with a feature that marks them" if kind.missing else ""
    return f"a number in {range_in_words}; missing cells are the middle{flag}"


# --- the release ---


def _places(schema: Schema) -> dict[str, tuple[str, ...]]:
    """Names the counts of each column, and of the label."""
    columns = {name: tuple(kind.odd([])) for name, kind in schema.columns.items()}
    return columns | {schema.label: ("positive", "missing") if schema.target is None
                      else tuple(schema.target.odd([]))}


def _flaws(schema: Schema, frame: Any) -> tuple[np.ndarray, np.ndarray]:
    """Returns for each row and count whether the row counts, `[rows, k]`; and zeros, `[rows]`."""
    flaws = [x for flags_of_column in schema.odd(frame).values() for x in flags_of_column.values()]
    y = schema.labels(frame)
    flaws += ([y > 0.5, np.isnan(y)] if schema.target is None else
              schema.target.odd(schema.cells(frame, schema.label)).values())
    x = np.stack(flaws, 1).astype(np.float32)
    return x, np.zeros(len(x), np.float32)


def counts_query(population: int, places: int, epsilon: float, delta: float,
                 people: int = 1) -> Repeat:
    """Describes one release of so many counts, for all of (epsilon, delta).

    Args:
      population: n, records.
      places: k, counts.
      epsilon: of the release.
      delta: in (0, 1).
      people: k, if any k records of one person may differ.

    Raises:
      ValueError: for numbers out of range.
    """
    checks.number("--epsilon", epsilon, low=0.0)
    return statistics.shared_release(population, math.sqrt(places) / 2, 1.0, epsilon, delta,
                                     people=people)


_CENTRED = types.Problem(lambda z, record: types.Saddle(record.weight @ (record.x - 0.5), None))


def release_counts(key: jax.Array, described: Repeat, rows: records.Records) -> np.ndarray:
    """Releases how many records have each flaw, `[k]`, with noise.

    Args:
      key: a key of its own.
      described: by `counts_query`.
      rows: whether each row has each flaw; of a person the mean of the rows counts.
    """
    start = types.Saddle(jnp.zeros(rows.x.shape[-1]), ())
    answer = release(key, described, jnp.int32(0), _CENTRED, start, rows)
    return (np.asarray(answer.w, np.float64) + 0.5) * len(rows.x)
