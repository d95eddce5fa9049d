"""All commands of `python -m jaxminimax`."""

import argparse

from jaxminimax.apps import accountant, planner
from jaxminimax.apps.tables import check, command, scorer

# what a command prints with --json and without
COMMANDS = {"train": command.train, "predict": scorer.predict, "check": check.check,
            "ledger": accountant.ledger, "epsilon": accountant.numbers,
            "calibrate": accountant.numbers, "explain": accountant.explain,
            "plan": planner.settings}


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """Returns the parser of all commands; `description` says what they are for."""
    result = argparse.ArgumentParser(prog="python -m jaxminimax", description=description)
    commands = result.add_subparsers(dest="command", required=True, metavar="COMMAND",
                                     help="what to do; each has its own --help")
    for add in (command.add, scorer.add, check.add, accountant.add_ledger, accountant.add,
                planner.add):
        add(commands)
    for parser in (result, *commands.choices.values()):  # `--ran` would be taken for `--ranges`
        parser.allow_abbrev = False
    return result
