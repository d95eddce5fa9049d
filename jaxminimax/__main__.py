"""`python -m jaxminimax`: private scorers of tables, and the accountant, from the command line."""

import argparse
import gc
import json
import sys
import warnings

from jaxminimax.apps.tables import notes, scorer
from jaxminimax.base import own_files


def main(argv: list[str] | None = None) -> int:
    """Runs a command; returns 0, or 2 after printing the reason on standard error.

    Args:
      argv: its words; None: those of the process, which the command then owns.
    """
    words = sys.argv[1:] if argv is None else argv
    if words[:1] == ["predict"]:  # needs neither JAX nor the accountant, so loads neither
        parser = argparse.ArgumentParser(prog="python -m jaxminimax")
        commands_of = parser.add_subparsers(dest="command")
        scorer.add(commands_of)
        commands_of.choices["predict"].allow_abbrev = False
        commands = {"predict": scorer.predict}
    else:
        from jaxminimax.apps.commands import COMMANDS as commands
        from jaxminimax.apps.commands import parser_of
        parser = parser_of(__doc__)
    args = parser.parse_args(words)
    if argv is None and args.command == "train":
        own_files.keep_programs()
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always", UserWarning)
            as_json, plain = commands[args.command](args)
    except (ValueError, OSError, ImportError) as error:  # a file that cannot be written
        print(f"python -m jaxminimax {args.command}: {error}", file=sys.stderr)
        return 2
    for noted in dict.fromkeys(str(w.message) for w in warned
                               if w.category in (UserWarning, notes.NoteWarning)):
        print(f"python -m jaxminimax {args.command}: {noted}", file=sys.stderr)
    print(json.dumps(as_json, allow_nan=False) if args.json else plain)
    if argv is None:
        gc.freeze()  # a process that ends need not search all of JAX for garbage
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
