"""`python -m jaxminimax`: the accountant from the command line."""

import argparse
import json
import sys
import warnings
from typing import Any

from jaxminimax import accounting, options
from jaxminimax.accounting import _charge, _curves, _epsilon, _statement
from jaxminimax.algorithms import ALGORITHMS, takes
from jaxminimax.base import checks
from jaxminimax.mechanism import (
    GroupLosses,
    Mechanism,
    Query,
    RecordLosses,
    Repeat,
    Resolvent,
    Sequence,
    budget_split,
    check_noise,
    leaves,
    noise_unit,
    releases,
)


def _calibrated(args: argparse.Namespace) -> list[Mechanism]:
    """What is released within the target: by the run, and by losses beside it."""
    algorithm, share = ALGORITHMS[args.algorithm], args.laplace
    how: dict[str, Any] = {"neighbours": args.neighbours}
    ratio = None if args.share_w is None else budget_split(w=args.share_w)
    hyper, beside = options.hyper_of(args, ratio), []
    if share is not None:
        checks.number("--epsilon", args.epsilon, low=0.0)
        checks.number("--laplace", share, low=0.0, high=1.0)
        if takes(algorithm, "laplace"):
            how["share"] = share
        else:
            losses = options.losses_beside(args, None)
            beside = [accounting.calibrate_noise(losses, share * args.epsilon, args.delta,
                                                 neighbours=args.neighbours)]
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


def _stopped(args: argparse.Namespace, parts: list[Mechanism]) -> Mechanism:
    """What `--spent` releases of each part are, if that number was fixed beforehand."""
    stopped = (_charge.spent_part(part, args.spent) for part in parts)
    return _together([part for part in stopped if part is not None])


def explain(args: argparse.Namespace) -> _statement.Statement:
    """The statement that `explain` prints."""
    options.check_options(args)
    parts = _given(args)
    allowed = releases(parts[0])
    whole = _together(parts)
    return _statement.state_of(whole, whole if args.spent is None else _stopped(args, parts),
                               args.delta, neighbours=args.neighbours, allowed=allowed,
                               spent=allowed if args.spent is None else min(args.spent, allowed))


def answer(args: argparse.Namespace) -> dict[str, Any]:
    """The record that a command prints."""
    options.check_options(args)
    made = _calibrated(args) if args.command == "calibrate" else _given(args)
    whole = _together(made)
    epsilon = accounting.epsilon(whole, args.delta, neighbours=args.neighbours)
    shorter = None
    if args.command == "epsilon" and args.spent is not None:
        shorter = _epsilon.worst(_charge.charges(_stopped(args, made), args.neighbours),
                                 args.delta, args.neighbours)[0]
    cost = max(_charge.charges(whole, args.neighbours), key=lambda cost: _epsilon.charged_epsilon(
        cost, args.delta, args.neighbours))
    _, bound = _epsilon.charged_epsilon(cost, args.delta, args.neighbours)
    parts: list[Any] = leaves(whole)
    (main,) = (part for part in parts if not isinstance(part, GroupLosses | RecordLosses))
    query: Any = main.query if isinstance(main, Repeat) else main
    laplace: list[Any] = [part.noise_multiplier for part in parts
                          if isinstance(part, GroupLosses | RecordLosses)]
    per_player = {"": query.noise_multiplier}
    if isinstance(query, Query):
        players = check_noise(query)._asdict()
        per_player = {name: x for name, x in players.items() if x is not None}
    return {
        "algorithm": args.algorithm,
        "noise_multiplier": per_player if args.command == "calibrate" else None,
        "displacement": noise_unit(query) if isinstance(query, Resolvent) else None,
        "effective_noise_multiplier": _charge.multiplier(main),
        "laplace_noise_multiplier": laplace[0] if laplace else None,
        "epsilon": epsilon,
        "epsilon_spent_if_fixed": shorter,
        "delta": args.delta,
        "neighbours": args.neighbours,
        "sampling": " ".join(map(_statement.describe, parts)),
        "accountant": _statement.accountant_name(bound),
        "event": str(_curves.event(cost)),
    }


def main(argv: list[str] | None = None) -> int:
    """Runs a command; 0, or 2 with the reason on standard error."""
    args = options.parser(__doc__).parse_args(argv)
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always", UserWarning)
            said = explain(args) if args.command == "explain" else answer(args)
    except ValueError as error:
        print(f"python -m jaxminimax {args.command}: {error}", file=sys.stderr)
        return 2
    for noted in dict.fromkeys(str(w.message) for w in warned if w.category is UserWarning):
        print(f"python -m jaxminimax {args.command}: {noted}", file=sys.stderr)
    if isinstance(said, _statement.Statement):
        print(json.dumps(said.to_json()) if args.json else said)
        return 0
    if args.json:
        print(json.dumps(said))
        return 0
    for name, value in said.items():
        if isinstance(value, dict):
            value = ", ".join(f"{player} {z:.6g}".strip() for player, z in value.items())
        elif isinstance(value, float):
            value = f"{value:.6g}"
        if value is not None:
            print(f"{name.replace('_', ' '):28} {value}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
