"""All commands of `python -m jaxminimax`: their options, and what they print."""

import argparse
import dataclasses
import functools
import inspect
import typing
from typing import Any

import numpy as np

from jaxminimax import accounting, mechanism
from jaxminimax.accounting import statement_of_run
from jaxminimax.accounting.printing import NO_GUARANTEE, limit_in_words, rounded_up
from jaxminimax.algorithms import ALGORITHMS, takes
from jaxminimax.apps import options
from jaxminimax.apps.tables import check, scorer
from jaxminimax.apps.tables import command as tables
from jaxminimax.base import VERSION, checks, types
from jaxminimax.drivers import plan, plans


def _calibrated(args: argparse.Namespace) -> list[mechanism.Description]:
    """Describes a run and its extra losses, with noise calibrated to the target."""
    algorithm, share = ALGORITHMS[args.algorithm], args.laplace
    how: dict[str, Any] = {"neighbours": args.neighbours, "people": args.people}
    hyper, extra = options.hyper_of(args, None), []
    if share is not None:
        checks.number("--epsilon", args.epsilon, low=0.0)
        checks.number("--laplace", share, low=0.0, high=1.0)
        if takes(algorithm, "laplace"):
            how["share"] = share
        else:
            losses = options.extra_losses(args, None)
            extra = [accounting.calibrate_noise(losses, share * args.epsilon, args.delta, **how)]
    hyper = accounting.calibrate(algorithm, hyper, args.epsilon, args.delta,
                                 alongside=tuple(extra), **how)
    return [algorithm.mechanism(hyper), *extra]


def _described(args: argparse.Namespace) -> list[mechanism.Description]:
    """Describes the releases with the noise of the command line."""
    algorithm, laplace = ALGORITHMS[args.algorithm], args.laplace_noise_multiplier
    checks.number("--effective-noise-multiplier", args.effective_noise_multiplier, low=0.0)
    if args.spent is not None:
        checks.count("--spent", args.spent, low=1)
    if laplace is not None:
        checks.number("--laplace-noise-multiplier", laplace, low=0.0)
    main = algorithm.mechanism(options.hyper_of(args, args.effective_noise_multiplier, laplace))
    own = laplace is None or takes(algorithm, "laplace")
    return [main] if own else [main, options.extra_losses(args, laplace)]


# --- what is printed ---


def _together(parts: list[mechanism.Description]) -> mechanism.Description:
    """Returns all parts as one mechanism."""
    return parts[0] if len(parts) == 1 else mechanism.Sequence(parts=tuple(parts))


def _stopped(parts: list[mechanism.Description], spent: int) -> mechanism.Description:
    """Truncates each part after so many releases."""
    stopped = (part.truncated(spent) for part in parts)
    return _together([part for part in stopped if part is not None])


def profiled(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Returns the privacy profile, which --plot draws, and epsilon at --delta if that is given."""
    options.check_options(args)
    everything = _together(_described(args))
    if args.spent is not None:
        everything = _stopped([everything], args.spent)
    how = {"neighbours": args.neighbours, "people": args.people}
    profile = accounting.profile(everything, **how)
    record, plain = profile.to_json(), str(profile)
    if args.delta is not None:
        epsilon = accounting.epsilon(everything, args.delta, **how)
        none = NO_GUARANTEE if epsilon == float("inf") else None
        record["at_delta"] = {"delta": args.delta, "epsilon": none or epsilon}
        plain += f"\nAt delta = {args.delta:g}: epsilon = {none or rounded_up(epsilon, 6)}."
    if args.plot is not None:
        profile.plot(args.plot)
        plain += f"\nDrawn: {args.plot}"
    return record, plain


def _stated(args: argparse.Namespace, parts: list[mechanism.Description]) -> accounting.Statement:
    """States what the parts cost, and what they cost after --spent releases."""
    allowed, spent = mechanism.releases(parts[0]), getattr(args, "spent", None)
    return statement_of_run.statement_for(
        _together(parts), lambda spent: _stopped(parts, spent), args.delta, allowed=allowed,
        spent=allowed if spent is None else min(spent, allowed), neighbours=args.neighbours,
        unit=getattr(args, "unit", None), people=args.people,
        attack_bounds=args.command == "explain",
        extra=lambda spent: sum(min(spent, mechanism.releases(part)) for part in parts[1:]))


def explain(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Returns the privacy statement, with bounds on membership attacks by the whole profile."""
    options.check_options(args)
    stated = _stated(args, _described(args))
    return stated.to_json(), str(stated)


def _answers(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the record that `calibrate`, `epsilon` or `delta` prints."""
    options.check_options(args)
    parts = _calibrated(args) if args.command == "calibrate" else _described(args)
    everything, spent = _together(parts), getattr(args, "spent", None)
    how = {"neighbours": args.neighbours, "people": args.people}
    record, where = _noise(args, everything), {**how, "sampling": everything.summary()}
    if args.command == "delta":
        return {**record, "epsilon": args.epsilon,
                "delta": accounting.delta(everything, args.epsilon, **how),
                "delta_spent_if_fixed": None if spent is None else accounting.delta(
                    _stopped(parts, spent), args.epsilon, **how), **where,
                "accountant": f"privacy profile, rounded pessimistically (jaxminimax {VERSION})"}
    stated = _stated(args, parts)
    return {**record, "epsilon": stated.epsilon, "proven_up_to": stated.proven_up_to,
            "epsilon_if_stopped_by_looking": stated.epsilon_if_stopped_by_looking,
            "epsilon_spent_if_fixed": None if spent is None else stated.epsilon_spent_if_fixed,
            "delta": args.delta, **where, "accountant": stated.accountant, "event": stated.event}


def _noise(args: argparse.Namespace, everything: mechanism.Description) -> dict[str, Any]:
    """Returns the noise multipliers, as fields of a record."""
    parts: list[Any] = mechanism.leaves(everything)
    of_losses = (mechanism.GroupLosses, mechanism.RecordLosses, mechanism.Selection)
    losses = [part for part in parts if isinstance(part, of_losses)]
    main, *others = (part for part in parts if not isinstance(part, of_losses))
    query: Any = main.query if isinstance(main, mechanism.Repeat) else main
    per_player = {"": query.noise_multiplier}
    if isinstance(query, mechanism.Query):
        players = mechanism.grid.check_noise(query)._asdict()
        per_player = {name: x for name, x in players.items() if x is not None}
    for other in others:
        per_player |= other.noise_multipliers()
    return {"algorithm": args.algorithm,
            "noise_multiplier": per_player if args.command == "calibrate" else None,
            "displacement": (mechanism.resolvent.noise_unit(query)
                             if isinstance(query, mechanism.Resolvent) else None),
            "effective_noise_multiplier": main.multiplier(),
            "losses_noise_multiplier": losses[0].multiplier() if losses else None,
            "losses_noise": losses[0].unit if losses else None}


def _answered(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Returns noise multipliers, epsilon or delta, a line for each."""
    record, lines = _answers(args), []
    for name, value in record.items():
        if name == "epsilon" and value == float("inf"):
            value = limit_in_words(record["proven_up_to"], args.delta)
        elif isinstance(value, dict):
            value = ", ".join(f"{player} {rounded_up(z, 6)}".strip()
                              for player, z in value.items())
        elif isinstance(value, float):
            value = rounded_up(value, 6) if value < float("inf") else NO_GUARANTEE
        if value is not None:
            lines.append(f"{name.replace('_', ' '):28} {value}")
    return {name: NO_GUARANTEE if value == float("inf") else value
            for name, value in record.items()}, "\n".join(lines)


def _summed(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    stated = accounting.Ledger(args.file, epsilon=args.epsilon, delta=args.delta,
                               people=args.people, unit=args.unit).statement()
    return stated.to_json(), str(stated)


# --- settings by a theorem ---

_PLANNED = {name: x for name, x in sorted(ALGORITHMS.items()) if hasattr(x, "plan")}
_PLAN = "settings and noise for a target epsilon, by an algorithm's theorem, from public numbers"


_READ = {frozenset({int}): int, frozenset({float}): float, frozenset({str}): str,
         frozenset({int, types.Saddle}): int,
         frozenset({int, str}): lambda text: int(text) if text.isdigit() else text}
# what each public number of a plan is; what no word stands for, as a solver, is for Python only
_NUMBERS = {
    "dim": "d, the number of coordinates of both players together",
    "iterations": "T, the number of rounds", "population": "n, the number of records",
    "bound": "M, the largest norm of a record's operator, players together: the joint clip",
    "smooth": "the Lipschitz constant of a record's operator",
    "diameter": "B, the diameter of W x V", "passes": '"one", "many" or "full"',
    "public_bound": "P, the largest norm of the public terms' operator",
    "public_smooth": "the Lipschitz constant of the public terms' operator",
    "radius": "R, the largest distance of a point of the set from the start",
    "modulus": "mu_0, the modulus of strong monotonicity of every record's operator",
    "loss_bound": "B, the public range of losses",
    "tree": "sums have the paper's tree of noise, even if correlated noise would be less",
    "game": '"monotone", "bilinear" or "strongly_monotone"',
    "proved": "whether to keep to settings that the theorem covers",
    "kappa": 'the factor of "manual"', "slack": "the slack of certificates",
    "eta": "the step size", "phases": "T, the number of phases",
    "smooth_difference": "the Lipschitz constant of the difference of two records' operators",
    "mode": '"tight", of the theorem\'s smallest bound; "manual", kappa times that; or "paper"',
    "rounds": '"bound_optimal"; "largest" T with 2^T lambda B <= L, as in the paper; or a number',
    "inner": "K, the iterates of a round", "batch": "the batch size of one pass",
    "composite": "whether constant steps handle the quadratic in the projection"}


@functools.cache
def numbers() -> dict[str, tuple[Any, str]]:
    """Finds how the public numbers of all plans are read, and what each one is."""
    hints = {name: hint for module in _PLANNED.values()
             for name, hint in typing.get_type_hints(module.plan).items()}
    return {name: (bool if hints[name] is bool else _READ[
                frozenset(typing.get_args(hints[name]) or [hints[name]]) - {type(None)}], text)
            for name, text in _NUMBERS.items()}


_CONSTANTS = ("bound", "lipschitz", "diameter", "smooth")  # of a group problem


def _add_plan(commands: Any) -> None:
    """Adds `plan` to the commands of a parser.

    Its options are the public numbers that the algorithms' `plan` functions take. For group
    algorithms they include the constants of the `problem`, because a plan reads nothing else of it.
    """
    lines = (f"  {name}: {', '.join(flag_of(x) for x in plan_options(name))}" for name in _PLANNED)
    command = commands.add_parser(
        "plan", help=_PLAN, description=_PLAN, formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="\n".join(["options of each algorithm:", *lines, "example:",
                          "  python -m jaxminimax plan gda --epsilon 1 --delta 1e-6 "
                          "--population 1000 --bound 1 --smooth 1 --modulus 0.5"]))
    flag = command.add_argument
    flag("algorithm", choices=list(_PLANNED), metavar="ALGORITHM", nargs="?",
         help="one of " + ", ".join(_PLANNED) + "; without one all that fit the numbers, side by "
              "side, by what they promise")
    flag("--epsilon", type=float, required=True, help="the target, positive")
    flag("--delta", type=float, required=True, help="of (epsilon, delta); well below 1/n")
    flag("--neighbours", choices=mechanism.NEIGHBOURS, default="replace_one",
         help="what neighbouring data sets differ by (default: replace_one)")
    for name, (kind, text) in numbers().items():
        if kind is bool:
            flag(flag_of(name), action="store_true", default=None, help=text)
        else:
            flag(flag_of(name), type=kind, help=text)
    flag("--lipschitz", type=float,
         help="of group algorithms, on the norm of a record's gradient; --bound is on its loss")
    flag("--group-sizes", dest="sizes", type=int, nargs="+", metavar="N",
         help="of group algorithms, records of every group")
    flag("--json", action="store_true", help="print JSON only")


def plan_options(name: str) -> list[str]:
    """Returns the options of an algorithm, by the names that they have in Python."""
    taken = [x for x in inspect.signature(ALGORITHMS[name].plan).parameters
             if x in numbers() or x in ("problem", "sizes")]
    return [x for one in taken for x in (_CONSTANTS if one == "problem" else (one,))]


def flag_of(name: str) -> str:
    """Returns the option of a public number."""
    return "--group-sizes" if name == "sizes" else f"--{name.replace('_', '-')}"


def _numbers(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the keywords of `plan` that the options mean.

    Raises:
      ValueError: for an option that the algorithm has no use for, or a constant that is missing.
    """
    arguments = {name: getattr(args, name) for name in (*numbers(), "lipschitz", "sizes")
                 if getattr(args, name) is not None}
    # without an algorithm, of groups if there are any
    own = (plan_options(args.algorithm) if args.algorithm else
           [name for name in arguments if name != "lipschitz" or "sizes" in arguments])
    for name in arguments.keys() - set(own):
        raise ValueError(f"{flag_of(name)} is no number of {args.algorithm}, which takes "
                         f"{', '.join(map(flag_of, own))}: leave it out." if args.algorithm else
                         f"{flag_of(name)} is for groups: give --group-sizes too.")
    if "lipschitz" not in own and not ("sizes" in own and args.algorithm is None):
        return arguments
    constants = {name: arguments.pop(name) for name in _CONSTANTS if name in arguments}
    for name in _CONSTANTS[:3]:
        if name not in constants:
            raise ValueError(f"{args.algorithm or 'a plan for groups'} needs {flag_of(name)}.")

    def unused(*_: Any) -> Any:
        raise TypeError("a plan reads constants only")

    problem = types.GroupProblem(unused, unused, unused, convex=True, **constants)
    return arguments | {"problem": problem, "sizes": tuple(arguments.pop("sizes", ()))}


def _plain(value: Any) -> Any:
    """Returns a setting for JSON; a schedule, or an algorithm, by its name."""
    if isinstance(value, types.Saddle):
        return {player: _plain(one) for player, one in value._asdict().items() if one is not None}
    if dataclasses.is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name))
                for field in dataclasses.fields(value)} or type(value).__name__
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    if value is None or isinstance(value, bool | int | str):
        return value
    if hasattr(value, "__name__") or callable(value):
        return getattr(value, "__name__", type(value).__name__)
    return float(np.asarray(value))


def _planned(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    if args.algorithm is None:
        choices = plans(epsilon=args.epsilon, delta=args.delta, neighbours=args.neighbours,
                        **_numbers(args))
        return {"plans": [one.to_json() for one in choices]}, str(choices)
    algorithm = ALGORITHMS[args.algorithm]
    planned = plan(algorithm, epsilon=args.epsilon, delta=args.delta,
                   neighbours=args.neighbours, **_numbers(args))
    described = algorithm.mechanism(planned.hyper)
    line = {"algorithm": args.algorithm,
            "epsilon": accounting.epsilon(described, args.delta, neighbours=args.neighbours),
            "delta": args.delta, "neighbours": args.neighbours,
            "sampling": " ".join(leaf.summary() for leaf in mechanism.leaves(described)),
            "guarantee": planned.guarantee, "trivial": planned.trivial, "vacuous": planned.vacuous,
            "gap": planned.gap, "on": planned.on,
            "why": list(planned.why), "hyper": _plain(planned.hyper)}
    lines = [f"{name:28} {rounded_up(value, 6) if isinstance(value, float) else value}"
             for name, value in line.items() if name not in ("why", "hyper") and value is not None]
    lines += [f"{'hyper ' + name:28} {value}" for name, value in line["hyper"].items()]
    return line, "\n".join([*lines, *planned.why])


# what a command prints with --json and without
COMMANDS = {"explain": explain, "calibrate": _answered, "epsilon": _answered, "delta": _answered,
            "profile": profiled, "ledger": _summed, "plan": _planned, "train": tables.train,
            "predict": scorer.predict, "check": check.check}


def parser_of(what: str | None) -> argparse.ArgumentParser:
    """Returns the parser of all commands; `what` they are for."""
    return options.parser(what, _add_plan, tables.add, check.add, scorer.add)
