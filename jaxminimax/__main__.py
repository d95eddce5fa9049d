"""`python -m jaxminimax`: private scorers of tables, and the accountant, from the command line."""

import argparse
import dataclasses
import json
import sys
import warnings
from typing import Any

from jaxminimax import accounting, options, plan_command
from jaxminimax.accounting import answers, curve, profiles, statements, stating
from jaxminimax.accounting.statements import NO_GUARANTEE
from jaxminimax.algorithms import ALGORITHMS, takes
from jaxminimax.base import VERSION, checks, own_files
from jaxminimax.mechanism import (
    GroupLosses,
    Query,
    RecordLosses,
    Repeat,
    Resolvent,
    Selection,
    Sequence,
    leaves,
    releases,
)
from jaxminimax.mechanism.description import Mechanism, check_noise
from jaxminimax.mechanism.resolvent import noise_unit
from jaxminimax.tables import command as tables


def _calibrated(args: argparse.Namespace) -> list[Mechanism]:
    """What is released within the target: by the run, and by losses beside it."""
    algorithm, share = ALGORITHMS[args.algorithm], args.laplace
    how: dict[str, Any] = {"neighbours": args.neighbours, "people": args.people}
    hyper, beside = options.hyper_of(args, None), []
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
    stopped = (curve.truncated(part, spent) for part in parts)
    return _together([part for part in stopped if part is not None])


def profiled(args: argparse.Namespace) -> tuple[accounting.Profile, float | None]:
    """The profile that `profile` prints, and draws; epsilon at --delta, if that is given."""
    options.check_options(args)
    whole = _together(_given(args))
    if args.spent is not None:
        whole = _stopped([whole], args.spent)
    how = {"neighbours": args.neighbours, "people": args.people}
    at = None if args.delta is None else accounting.epsilon(whole, args.delta, **how)
    made = accounting.profile(whole, **how)
    if args.plot is not None:
        made.plot(args.plot)
    return made, at


def explain(args: argparse.Namespace) -> tuple[statements.Statement, str]:
    """The statement that `explain` prints, and the same in plain words."""
    options.check_options(args)
    parts = _given(args)
    allowed = releases(parts[0])
    whole = _together(parts)
    said = stating.state_of(whole, lambda spent: _stopped(parts, spent), args.delta,
                            neighbours=args.neighbours, allowed=allowed,
                            spent=allowed if args.spent is None else min(args.spent, allowed),
                            unit=args.unit, people=args.people,
                            beside=lambda spent: sum(min(spent, releases(part))
                                                     for part in parts[1:]))
    brief = profiles.briefly(whole, args.delta, neighbours=args.neighbours, people=args.people)
    said = dataclasses.replace(said, answers=brief.answers(profiles.STATED))
    return said, stating.in_plain_words(said, brief)


def answer(args: argparse.Namespace) -> dict[str, Any]:
    """The record that a command prints."""
    options.check_options(args)
    made = _calibrated(args) if args.command == "calibrate" else _given(args)
    whole, how = _together(made), (args.neighbours, args.people)
    answers.check_delta(args.delta)
    answers.warn_of(args.delta, whole)
    found = curve.dearest(whole, args.delta, *how)
    proven, shorter, looking = None, None, None
    if found.epsilon == float("inf"):
        proven = answers.proven_up_to(whole, args.delta, *how)
    if args.command == "epsilon" and args.spent is not None:
        allowed = releases(made[0])
        if args.spent < allowed:
            looking, _ = answers.odometer(lambda spent: _stopped(made, spent), allowed,
                                          args.spent, args.delta, *how)
        shorter = curve.dearest(_stopped(made, args.spent), args.delta, *how).epsilon
    return {
        **_noise(args, whole),
        "epsilon": found.epsilon,
        "proven_up_to": proven,
        "epsilon_if_stopped_by_looking": looking,
        "epsilon_spent_if_fixed": shorter,
        "delta": args.delta,
        **_how(args, whole),
        "accountant": stating.accountant_name(found.bound),
        "event": curve.event(found.cost),
    }


def delta_answer(args: argparse.Namespace) -> dict[str, Any]:
    """The record that `delta` prints."""
    options.check_options(args)
    parts = _given(args)
    whole, how = _together(parts), {"neighbours": args.neighbours, "people": args.people}
    shorter = (None if args.spent is None else
               accounting.delta(_stopped(parts, args.spent), args.epsilon, **how))
    return {**_noise(args, whole), "epsilon": args.epsilon,
            "delta": accounting.delta(whole, args.epsilon, **how),
            "delta_spent_if_fixed": shorter, **_how(args, whole),
            "accountant": f"privacy profile, rounded pessimistically (jaxminimax {VERSION})"}


def _noise(args: argparse.Namespace, whole: Mechanism) -> dict[str, Any]:
    """The noise multipliers, as fields of a record."""
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
        "effective_noise_multiplier": main.multiplier(),
        "losses_noise_multiplier": losses[0].multiplier() if losses else None,
        "losses_noise": losses[0].unit if losses else None,
    }


def _how(args: argparse.Namespace, whole: Mechanism) -> dict[str, Any]:
    """Relation, people and sampling, as fields of a record."""
    return {"neighbours": args.neighbours, "people": args.people,
            "sampling": " ".join(map(stating.describe, leaves(whole)))}


def main(argv: list[str] | None = None) -> int:
    """Runs a command; 0, or 2 with the reason on standard error.

    Args:
      argv: its words; None: those of the process, which the command then owns.
    """
    args = options.parser(__doc__, plan_command.add, tables.add).parse_args(argv)
    if argv is None and args.command in tables.SAID:
        own_files.keep_programs()
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always", UserWarning)
            said, plain = (_SAID | plan_command.SAID | tables.SAID)[args.command](args)
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
    said, lines = delta_answer(args) if args.command == "delta" else answer(args), []
    for name, value in said.items():
        if name == "epsilon" and value == float("inf"):
            value = answers.limit_in_words(said["proven_up_to"], args.delta)
        elif isinstance(value, dict):
            value = ", ".join(f"{player} {z:.6g}".strip() for player, z in value.items())
        elif isinstance(value, float):
            value = f"{value:.6g}" if value < float("inf") else NO_GUARANTEE
        if value is not None:
            lines.append(f"{name.replace('_', ' '):28} {value}")
    return {name: NO_GUARANTEE if value == float("inf") else value
            for name, value in said.items()}, "\n".join(lines)


def _profiled(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    made, epsilon = profiled(args)
    said, plain = made.to_json(), str(made)
    if epsilon is not None:
        known = epsilon < float("inf")
        said["at_delta"] = {"delta": args.delta, "epsilon": epsilon if known else NO_GUARANTEE}
        plain += (f"\nAt delta = {args.delta:g}: epsilon = "
                  f"{f'{epsilon:.6g}' if known else NO_GUARANTEE}.")
    return said, plain + (f"\nDrawn: {args.plot}" if args.plot else "")


def _summed(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    said = accounting.Ledger(args.file).statement()
    return said.to_json(), str(said)


# what a command prints with --json and without
_SAID = {"explain": _explained, "calibrate": _answered, "epsilon": _answered,
         "delta": _answered, "profile": _profiled, "ledger": _summed}


if __name__ == "__main__":
    raise SystemExit(main())
