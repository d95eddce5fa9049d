"""What benchmarks share: one-line refusals, the environment, a table, JSON and a plot."""

import argparse
import collections
import importlib.metadata
import json
import math
import os
import pathlib
import platform
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

ROOT = pathlib.Path(__file__).parents[2]
_FILES = {"json": ((".json",), "results"), "markdown": ((".md",), "tables"),
          "plot": ((".png", ".svg", ".pdf"), "figure")}
# what a statement says in words
_WORDS = ("accountant", "attack_bounds", "assumed", "enforced", "law", "realisation", "score")
_PACKAGES = ("jax", "jaxlib", "numpy", "optax", "dp-accounting", "jaxminimax")


class Parser(argparse.ArgumentParser):
    """Refuses a bad argument in one line on standard error, with exit status 2.

    In a command, `python -m benchmarks.NAME`, JAX keeps compiled programs for later ones
    (`own_files.keep_programs`), unless it times or reads what a compiler does.

    Args:
      file: `__file__` of the command.
      text: what it does, for `--help`.
      *files: names of the files that it writes if asked to, of `_FILES`.
      compiles: whether it times or reads what a compiler does.
    """

    def __init__(self, file: str, text: str | None, *files: str, compiles: bool = False) -> None:
        parts = pathlib.Path(file).relative_to(ROOT).with_suffix("").parts
        super().__init__(prog=f"python -m {'.'.join(parts).removesuffix('.__main__')}",
                         description=text, formatter_class=argparse.RawDescriptionHelpFormatter,
                         allow_abbrev=False)
        self._keeps = not compiles and _is_command()
        for name in files:
            endings, what = _FILES[name]
            self.add_argument(f"--{name}", type=output(*endings), metavar="FILE",
                              help=f"file for the {what}")

    def parse_args(self, *args: Any, **kwargs: Any) -> Any:
        """The arguments."""
        found = super().parse_args(*args, **kwargs)
        if self._keeps:
            from jaxminimax.base import own_files

            own_files.keep_programs()
        return found

    def error(self, message: str) -> NoReturn:
        """Prints the reason and leaves."""
        self.exit(2, f"{self.prog}: error: {' '.join(message.split())}\n")


def number(low: float, high: float) -> Callable[[str], float]:
    """An argparse type: a number strictly between `low` and `high`."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not low < value < high:
            raise argparse.ArgumentTypeError(
                f"got {text!r}; give a number between {low:g} and {high:g}")
        return value

    return parse


def natural(text: str) -> int:
    """An argparse type: an integer, at least 0."""
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"got {text!r}; give an integer, at least 0")
    return int(text)


def count(text: str) -> int:
    """An argparse type: an integer, at least 1."""
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"got {text!r}; give an integer, at least 1")
    return int(text)


def seed_options(parser: argparse.ArgumentParser, default: int | None, note: str = "") -> None:
    """`--seeds` and `--first-seed`: how often a table is run, and with which keys."""
    parser.add_argument("--seeds", type=count, default=default,
                        help="number of seeds: FIRST, FIRST + 1, ..." + note)
    parser.add_argument("--first-seed", type=natural, default=0, metavar="FIRST",
                        help="the first of them, default 0; others repeat a table on fresh keys")


def cell_option(parser: argparse.ArgumentParser) -> None:
    """`--cell`: what of a table is run."""
    parser.add_argument("--cell", action="append", metavar="WORDS",
                        help="run only cells whose name has all of these words; may be repeated")


def seeds(args: Any) -> range:
    """The seeds that `seed_options` asks for."""
    return range(args.first_seed, args.first_seed + args.seeds)


def chosen(args: Any, names: Sequence[str]) -> list[str]:
    """The cells that `--cell` asks for, of all `names`, in order.

    Raises:
      ValueError: if it asks for a cell that there is not.
    """
    if args.cell is None:
        return list(names)
    for words in args.cell:
        if not any(_has(name, words) for name in names):
            raise ValueError(f"--cell {words!r}: no cell has these words; the cells are "
                             f"{'; '.join(names)}")
    return [name for name in names if any(_has(name, words) for words in args.cell)]


def _has(name: str, words: str) -> bool:
    """Whether a name has all words, each between blanks, commas or ends."""
    return set(words.replace(",", " ").split()) <= set(name.replace(",", " ").split())


def output(*endings: str) -> Callable[[str], pathlib.Path]:
    """An argparse type: a file that can be written, with one of `endings`."""

    def parse(text: str) -> pathlib.Path:
        path = pathlib.Path(text)
        if path.suffix.lower() not in endings:
            raise argparse.ArgumentTypeError(
                f"got {text!r}; give a file name that ends in {' or '.join(endings)}")
        if path.is_dir() or not os.access(path.parent, os.W_OK):
            raise argparse.ArgumentTypeError(
                f"cannot write {text!r}; create the folder {str(path.parent)!r} or choose another")
        return path

    return parse


def environment() -> dict[str, Any]:
    """Versions, hardware, and how the result was made, as a flat record."""
    import jax

    return {
        "python": platform.python_version(),
        **{name: _version(name) for name in _PACKAGES},
        "device": jax.devices()[0].device_kind,
        "backend": jax.default_backend(),
        "platform": platform.platform(),
        "cpu_count": os.cpu_count(),
        "command": command(),
        "commit": commit(),
    }


def _version(name: str) -> str | None:
    """Of a distribution; None if there is none, as for a checkout that was never installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _is_command() -> bool:
    """Whether a module of this folder is the program that runs."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name.startswith("benchmarks.")


def command() -> str:
    """The command that runs now, as one would type it in the checkout; no path of this machine."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    program = (pathlib.Path(sys.argv[0]).name if spec is None
               else f"python -m {spec.name.removesuffix('.__main__')}")
    words = [x if not os.path.isabs(x) else pathlib.Path(x).relative_to(ROOT).as_posix()
             if pathlib.Path(x).is_relative_to(ROOT) else pathlib.Path(x).name
             for x in sys.argv[1:]]
    return shlex.join([*program.split(" "), *words])


def commit() -> str | None:
    """The commit of the source that runs, with "+" if it was changed since; None outside of git."""
    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, text=True,
                              capture_output=True, check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no")
        return git("rev-parse", "HEAD") + "+" * bool(changed)
    except (OSError, subprocess.CalledProcessError):
        return None


def write_json(path: pathlib.Path, record: Any) -> None:
    """Writes strict JSON.

    Raises:
      ValueError: for NaN or infinity, which JSON has no word for.
    """
    path.write_text(json.dumps(record, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def arguments_of(args: argparse.Namespace) -> dict[str, Any]:
    """The arguments of a command for JSON."""
    return {k: str(v) if isinstance(v, pathlib.Path) else v for k, v in vars(args).items()}


def save(args: argparse.Namespace, record: dict[str, Any],
         arguments: dict[str, Any] | None = None) -> None:
    """Writes `record` to `--json`, if that is asked for, with where it was made and how.

    Args:
      args: of the command.
      record: the results.
      arguments: those that count; None for all.
    """
    if args.json is not None:
        write_json(args.json, {"environment": environment(), "arguments": (
            arguments_of(args) if arguments is None else arguments), **record})


def stated(statement: Any, assumed: Sequence[str] = ()) -> dict[str, Any]:
    """Returns the numbers and choices of a privacy statement, and what a command assumes besides.

    The library's own sentences are left out: a change of their wording needs no run again.
    """
    numbers = {name: x for name, x in statement.to_json().items() if name not in _WORDS}
    return numbers | {"assumed": list(assumed)}


def show(args: argparse.Namespace, text: str, title: str = "") -> None:
    """Prints tables, and writes them to `--markdown`, if that is asked for, below a title."""
    print(text)
    if args.markdown is not None:
        args.markdown.write_text(f"# {title}\n\n{text}" if title else text, encoding="utf-8")


def kept(path: pathlib.Path | None, part: str, arguments: dict[str, Any],
         same: Sequence[str]) -> Any:
    """What an earlier run of the same arguments has finished; None where there is no such file.

    Args:
      path: the results file.
      part: the entry of it that holds what is finished.
      arguments: of this run.
      same: names of those that have to be equal.

    Raises:
      ValueError: for results of other arguments, which a run must not write over.
    """
    if path is None or not path.exists():
        return None
    try:
        old = json.loads(path.read_text(encoding="utf-8"))
        earlier = {"first_seed": 0, **old["arguments"]}  # in files of before that option
        fits = all(earlier[name] == arguments[name] for name in same)
        result = old[part]
    except (ValueError, KeyError, TypeError):
        fits = False
    if not fits:
        raise ValueError(f"--json {path}: the file holds results of other arguments, or of "
                         "something else; move it away or give the same ones")
    return result


def missing(runs: dict[str, Any], recipes: Mapping[str, str | None],
            seeds: Iterable[int]) -> Iterator[tuple[str, int]]:
    """Yields the cells and seeds that `runs` lacks, in order; a cell of another recipe lacks all.

    The caller measures one, puts it into `runs[name]["seeds"][str(seed)]` and writes the results
    file before it asks for the next, so that a command that was stopped loses one seed at most.

    Args:
      runs: cells by name, as `kept` has them.
      recipes: what each cell is made with, by name; None where that never changes.
      seeds: of every cell.
    """
    for name, recipe in recipes.items():
        if runs.setdefault(name, {}).get("recipe") != recipe:
            runs[name] = {"recipe": recipe}
        own = runs[name].setdefault("seeds", {})
        for seed in seeds:
            if str(seed) not in own:
                yield name, seed


def runs(cells: Mapping[str, Any]) -> str:
    """Words the commit and the seeds of every cell, a line for cells that share both.

    Args:
      cells: as `missing` has them; a seed's result has the `commit()` that made it.
    """
    alike = collections.defaultdict(list)
    for name, cell in cells.items():
        seeds = collections.defaultdict(list)
        for seed, result in cell["seeds"].items():
            seeds[(result["commit"] or "none")[:7]].append(int(seed))
        for made, own in seeds.items():
            alike[made, f"{min(own)} to {max(own)}"].append(name)
    return markdown(["commit", "seeds", "cells"],
                    [[*made, "; ".join(names)] for made, names in alike.items()])


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Aligned columns: words to the left, numbers to the right."""
    columns = list(zip(header, *rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    numeric = [all(c[:1].isdigit() for c in column[1:]) for column in columns]

    def line(cells: Sequence[str]) -> str:
        padded = (c.rjust(w) if right else c.ljust(w)
                  for c, w, right in zip(cells, widths, numeric, strict=True))
        return "  ".join(padded).rstrip()

    return "\n".join([line(header), "  ".join("-" * w for w in widths), *map(line, rows)])


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The same as a table of Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def error(row: dict[str, Any]) -> float:
    """The standard error of a mean AUC over seeds; 0 for one seed, of which nothing is known."""
    return float(row["auc_std"]) / math.sqrt(row["seeds"])


def paragraphs(texts: Sequence[str]) -> str:
    """The texts one below the other, with the last lines that all of them share printed once."""
    lines = [text.splitlines() for text in texts]
    shared = 0
    while all(len(x) > shared for x in lines) and len({x[-1 - shared] for x in lines}) == 1:
        shared += 1
    heads = ["\n".join(x[:len(x) - shared]) for x in lines]
    tail = "\n".join(lines[0][len(lines[0]) - shared:])
    return "\n\n".join([head for head in dict.fromkeys(heads) if head] + [tail]).strip()


def plot_auc(path: pathlib.Path, rows: Sequence[dict[str, Any]], title: str) -> None:
    """AUC against epsilon with its standard error, and the AUC without privacy as a line."""
    from matplotlib.figure import Figure

    rows = sorted(rows, key=lambda row: row["epsilon"])
    epsilons = [row["epsilon"] for row in rows]
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot(xscale="log", xlabel="epsilon", ylabel="AUC on held-out rows",
                              title=title)
    axes.errorbar(epsilons, [row["auc_mean"] for row in rows], [error(row) for row in rows],
                  marker="o", capsize=4, label="private, mean and standard error")
    axes.axhline(rows[0]["auc_nonprivate"], linestyle="--", color="0.4", label="without privacy")
    axes.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
    axes.minorticks_off()
    axes.margins(x=0.08)
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=150)


def say(text: str) -> None:
    """Prints to standard error."""
    print(text, file=sys.stderr, flush=True)
