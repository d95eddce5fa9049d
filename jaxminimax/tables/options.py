"""What the command line says of a table: options that stand for a schema, and what is missing.

Nothing here looks at a cell. Names of columns, and the number of rows, are public.
"""

import argparse
import re
from collections.abc import Sequence
from typing import Any

from jaxminimax.accounting import epsilon
from jaxminimax.tables import ranges
from jaxminimax.tables.columns import Category, Charged, Column, Number
from jaxminimax.tables.schema import Schema

# words in the name of a column that tells who, not what; and of one that tells when
_WHO = {"id", "ids", "uuid", "guid", "key", "index", "idx", "name", "firstname", "lastname",
        "surname", "email", "mail", "phone", "ssn", "passport", "address", "street", "url", "hash",
        "token", "login", "username", "iban"}
_WHEN = {"date", "time", "timestamp", "datetime", "dob", "birthday", "birthdate"}
_MANY = 50  # rows a value, on average, below which a category has too many
_SHOWN = 10  # names


def add(flag: Any) -> None:
    """Adds the options that stand for a schema to a command."""
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


def schema(args: argparse.Namespace, names: Sequence[str], rows: int) -> Schema:
    """The schema of the file, or of the options.

    Args:
      args: of the command.
      names: of the table's columns.
      rows: of the table.

    Raises:
      ValueError: for what contradicts itself, and saying what must be told where too little is.
    """
    inline = [f"--{name}" for name in ("label", "positive", "numeric", "categorical", "owner")
              if getattr(args, name)]
    if args.schema is not None:
        if inline:
            raise ValueError(f"{' '.join(inline)} and --schema exclude each other: say it in the "
                             "file.")
        made = Schema.from_toml(args.schema)
    elif args.label is None or args.positive is None or not (args.numeric or args.categorical):
        raise ValueError(needed(args, names, rows))
    else:
        columns = dict([*map(_numeric, args.numeric), *map(_categorical, args.categorical)])
        made = Schema(columns, args.label, args.positive, args.owner,
                      1 if args.owner is None else args.most)
    if args.columns is not None:
        unknown = [name for name in args.columns if name not in made.columns]
        if unknown:
            raise ValueError(f"--columns {' '.join(unknown)}: not declared; there are "
                             f"{', '.join(made.columns)}.")
        made = made.without(tuple(n for n in made.columns if n not in args.columns))
    made = made.without(tuple(args.drop)) if args.drop else made
    if made.charged and args.schema is None and args.ranges is None:
        raise ValueError(f"no range is declared of {', '.join(made.charged)}: say NAME=LOW:HIGH "
                         f"from a codebook, or --ranges charged. {_price(args, rows)}")
    return made


def _numeric(word: str) -> tuple[str, Column]:
    name, found, ends = word.partition("=")
    if not found:
        return name, Charged()
    try:
        low, high = map(float, ends.split(":"))
    except ValueError:
        raise ValueError(f"--numeric {word}: must be NAME, or NAME=LOW:HIGH with two "
                         "numbers.") from None
    return name, Number(low, high)


def _categorical(word: str) -> tuple[str, Column]:
    name, found, values = word.partition("=")
    if not found or not values:
        raise ValueError(f"--categorical {word}: must be NAME=A|B, with the values of a codebook: "
                         "values that were found in the table would tell of its rows.")
    return name, Category(tuple(values.split("|")))


def needed(args: argparse.Namespace, names: Sequence[str], rows: int) -> str:
    """What must be told of a table of which nothing is."""
    told = {word.partition("=")[0] for word in (*args.numeric, *args.categorical)} | {args.label}
    left = [name for name in names if name not in told]
    doubts = {name: why for name in left if (why := doubt(name)) is not None}
    kept = [name for name in left if name not in doubts]
    lines = ["needs --schema FILE, or as options, what is public about the table:"]
    if args.label is None or args.positive is None:
        lines.append("  --label NAME --positive VALUE: which column is predicted, and the value "
                     "that counts.")
    lines += [
        f"  of each column that is to be read, of {', '.join(kept)}: --numeric NAME=LOW:HIGH, or "
        "--categorical 'NAME=A|B'. One that is not told is not read.",
        *(f"  {name}: {why}." for name, why in doubts.items()),
        "  --ranges charged: for --numeric NAME whose range nobody knows. " + _price(args, rows),
        "In a TOML file: [label] name, positive; [columns.NAME] range = [low, high], range = "
        "\"charged\" or categories = [...]."]
    return "\n".join(lines)


def _price(args: argparse.Namespace, rows: int) -> str:
    """What charged ranges cost."""
    one = Schema({"x": Charged()}, "y", "1")
    try:
        (described,) = ranges.paid(rows, one, args.epsilon, args.delta)
        alone = epsilon(described, args.delta)
    except ValueError:  # of an epsilon or a delta that is refused later, with its reason
        return "They cost a tenth of the budget."
    return (f"That takes a tenth of the budget (by itself epsilon = {alone:.3g} at delta = "
            f"{args.delta:g}), and shows what at least {ranges.least(described):.2g} of the "
            f"{rows} records share, times the square root of the number of such columns.")


def doubt(name: str) -> str | None:
    """Why a column should perhaps not be read, by its name alone."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name)
    words = set(re.split(r"[^a-z]+", spaced.lower())) | {name.lower()}
    if words & _WHO or name.startswith("Unnamed: "):
        return ("by its name it says who, or counts rows, which is no help with new rows; "
                "--drop it, or say [owner]")
    if words & _WHEN:
        return "by its name it is a date, and no number: give years or days"
    return None


def doubts(made: Schema, rows: int) -> list[str]:
    """What is to be noted about the columns of a schema, from the schema alone."""
    notes = [f"{name}: {why}." for name in made.columns if (why := doubt(name)) is not None]
    for name, kind in made.columns.items():
        if isinstance(kind, Category) and kind.width * _MANY > rows:
            notes.append(f"{name}: {kind.width} values for {rows} rows, fewer than {_MANY} rows a "
                         "value: most of them will be noise; merge some, or --drop it.")
    return notes


def labels(scorer: Any) -> list[str]:
    """What the released share of positives shows of the label; already paid for."""
    rare = scorer.moments.prior
    if 0.02 < rare < 0.98:
        return []
    schema = scorer.schema
    few = "few rows, or none, have" if rare < 0.5 else "nearly all rows, or all, have"
    return [f"{schema.label}: by the released share {few} the positive value "
            f"{schema.positive!r}: check how it is written."]


def constant(scorer: Any) -> list[str]:
    """What the released means show of numbers that are all but constant; already paid for."""
    if scorer.floor is None:
        return []
    spread = scorer.moments.second - scorer.moments.mean**2
    first, found = 0, []
    for name, kind in scorer.schema.columns.items():
        # twice the deviation of the spread, which is at most 1.1 floors; a tenth of the range
        if isinstance(kind, Number) and spread[first] + 2.2 * scorer.floor < 0.01:
            found.append(name)
        first += kind.width
    if not found:
        return []
    named = ", ".join(found[:_SHOWN]) + (
        f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else "")
    return [f"{named}: by the released means less than a tenth of the declared range is used: "
            "constants, or ranges that are far too wide."]
