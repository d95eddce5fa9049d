"""`python -m jaxminimax`: private scorers of tables, and the accountant, from the command line."""

import argparse
import dataclasses
import json
import math
import sys
import warnings
from typing import Any

from jaxminimax import accounting, options
from jaxminimax.accounting import (
    _answers,
    _charge,
    _curves,
    _epsilon,
    _odometer,
    _people,
    _plain,
    _profile,
    _statement,
)
from jaxminimax.algorithms import ALGORITHMS, takes
from jaxminimax.base import checks, kept_programs
from jaxminimax.mechanism import (
    GroupLosses,
    Mechanism,
    Query,
    RecordLosses,
    Repeat,
    Resolvent,
    Selection,
    Sequence,
    budget_split,
    check_noise,
    leaves,
    noise_unit,
    releases,
)
from jaxminimax.tables import command as tables


def _calibrated(args: argparse.Namespace) -> list[Mechanism]:
    """What is released within the target: by the run, and by losses beside it."""
    algorithm, share = ALGORITHMS[args.algorithm], args.laplace
    how: dict[str, Any] = {"neighbours": args.neighbours, "people": args.people}
    ratio = None if args.share_w is None else budget_split(w=args.share_w)
    hyper, beside = options.hyper_of(args, ratio), []
    if share is not None:
        checks.number("--epsilon", args.epsilon, low=0.0)
        checks.number("--laplace", share, low=0.0, high=1.0)
        if takes(algorithm, "laplace"):
            how["share"] = share
        else:
            losses = options.losses_beside(args, None)
            beside = [accounting.calibrate_noise(losses, share * args.epsilon, args.delta, **how)]
    hyper = accounting.calibrate(algorithm, hyper, args.epsilon, args.delta,
                                 alongside=tuple(beside), **how)
    return [algorithm.mechanism(hyper), *beside]


def _given(args: argparse.Namespace) -> list[Mechanism]:
    """What is released with the noise on the command line."""
    algorithm, laplace = ALGORITHMS[args.algorithm], args.laplace_noise_multiplier
    checks.number("--effective-noise-multiplier", args.effective_noise_multiplier, low=0.0)
    if args.spent is not None:
        checks.count("--spent", args.spent, low=1)
    if laplace is not None:
        checks.number("--laplace-noise-multiplier", laplace, low=0.0)
    made = algorithm.mechanism(options.hyper_of(args, args.effective_noise_multiplier, laplace))
    own = laplace is None or takes(algorithm, "laplace")
    return [made] if own else [made, options.losses_beside(args, laplace)]


# --- what is printed ---


def _together(parts: list[Mechanism]) -> Mechanism:
    """All of it as one mechanism."""
    return parts[0] if len(parts) == 1 else Sequence(parts=tuple(parts))


def _stopped(parts: list[Mechanism], spent: int) -> Mechanism:
    """What so many releases of each part are."""
    stopped = (_charge.spent_part(part, spent) for part in parts)
    return _together([part for part in stopped if part is not None])


def profiled(args: argparse.Namespace) -> accounting.Profile:
    """The profile that `profile` prints, and draws."""
    options.check_options(args)
    whole = _together(_given(args))
    if args.spent is not None:
        whole = _stopped([whole], args.spent)
    made = accounting.profile(whole, neighbours=args.neighbours, people=args.people)
    if args.plot is not None:
        made.plot(args.plot)
    return made


def explain(args: argparse.Namespace) -> tuple[_statement.Statement, str]:
    """The statement that `explain` prints, and the same in plain words."""
    options.check_options(args)
    parts = _given(args)
    allowed = releases(parts[0])
    whole = _together(parts)
    said = _statement.state_of(whole, lambda spent: _stopped(parts, spent), args.delta,
                               neighbours=args.neighbours, allowed=allowed,
                               spent=allowed if args.spent is None else min(args.spent, allowed),
                               unit=args.unit, people=args.people)
    brief = _answers.briefly(whole, args.delta, neighbours=args.neighbours, people=args.people)
    said = dataclasses.replace(said, answers=brief.answers(_profile.STATED))
    return said, _plain.in_plain_words(said, brief)


def answer(args: argparse.Namespace) -> dict[str, Any]:
    """The record that a command prints."""
    options.check_options(args)
    made = _calibrated(args) if args.command == "calibrate" else _given(args)
    whole = _together(made)
    _epsilon.check_delta(args.delta)
    _epsilon.warn_of(args.delta, whole)
    found = _people.dearest(whole, args.delta, args.neighbours, args.people)
    shorter, looking = None, None
    if args.command == "epsilon" and args.spent is not None:
        allowed = releases(made[0])
        if args.spent < allowed:
            looking, _ = _odometer.odometer(lambda spent: _stopped(made, spent), allowed,
                                            args.spent, args.delta, args.neighbours, args.people)
        shorter = _people.dearest(_stopped(made, args.spent), args.delta, args.neighbours,
                                  args.people).epsilon
    parts: list[Any] = leaves(whole)
    of_losses = (GroupLosses, RecordLosses, Selection)
    losses = [part for part in parts if isinstance(part, of_losses)]
    main, *others = (part for part in parts if not isinstance(part, of_losses))
    query: Any = main.query if isinstance(main, Repeat) else main
    per_player = {"": query.noise_multiplier}
    if isinstance(query, Query):
        players = check_noise(query)._asdict()
        per_player = {name: x for name, x in players.items() if x is not None}
    for other in others:
        per_player |= other.noise_multipliers()
    return {
        "algorithm": args.algorithm,
        "noise_multiplier": per_player if args.command == "calibrate" else None,
        "displacement": noise_unit(query) if isinstance(query, Resolvent) else None,
        "effective_noise_multiplier": _charge.multiplier(main),
        "losses_noise_multiplier": losses[0].multiplier() if losses else None,
        "losses_noise": losses[0].unit if losses else None,
        "epsilon": found.epsilon,
        "epsilon_if_stopped_by_looking": looking,
        "epsilon_spent_if_fixed": shorter,
        "delta": args.delta,
        "neighbours": args.neighbours,
        "people": args.people,
        "sampling": " ".join(map(_statement.describe, parts)),
        "accountant": _statement.accountant_name(found.bound),
        "event": str(_curves.event(found.cost)),
    }


def main(argv: list[str] | None = None) -> int:
    """Runs a command; 0, or 2 with the reason on standard error."""
    args = options.parser(__doc__, tables.add).parse_args(argv)
    if __name__ == "__main__" and args.command in tables.SAID:
        kept_programs.keep()
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always", UserWarning)
            said, plain = (_SAID | tables.SAID)[args.command](args)
    except (ValueError, OSError, ImportError) as error:  # a file that cannot be written
        print(f"python -m jaxminimax {args.command}: {error}", file=sys.stderr)
        return 2
    for noted in dict.fromkeys(str(w.message) for w in warned if w.category is UserWarning):
        print(f"python -m jaxminimax {args.command}: {noted}", file=sys.stderr)
    print(json.dumps(said, allow_nan=False) if args.json else plain)
    return 0


def _explained(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    said, plain = explain(args)
    return said.to_json(), f"{plain}\n\nThe statement.\n{said}"


def _answered(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    said, lines = answer(args), []
    for name, value in said.items():
        if isinstance(value, dict):
            value = ", ".join(f"{player} {z:.6g}".strip() for player, z in value.items())
        elif isinstance(value, float):
            value = f"{value:.6g}"
        if value is not None:
            lines.append(f"{name.replace('_', ' '):28} {value}")
    return {name: None if value in (math.inf,) else value for name, value in said.items()}, (
        "\n".join(lines))


def _profiled(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    made = profiled(args)
    return made.to_json(), str(made) + (f"\nDrawn: {args.plot}" if args.plot else "")


def _summed(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    said = accounting.Ledger(args.file).statement()
    return said.to_json(), str(said)


# what a command prints with --json and without
_SAID = {"explain": _explained, "calibrate": _answered, "epsilon": _answered,
         "profile": _profiled, "ledger": _summed}


if __name__ == "__main__":
    raise SystemExit(main())
