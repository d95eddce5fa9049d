"""`python -m jaxminimax plan`: settings by a theorem from public numbers."""

import argparse
import dataclasses
import inspect
from typing import Any

import numpy as np

from jaxminimax import accounting, mechanism
from jaxminimax.accounting.printing import rounded_up
from jaxminimax.algorithms import ALGORITHMS
from jaxminimax.base import types
from jaxminimax.drivers import plan, plans

# of groups a plan reads the constants of a problem, which no option gives
_PLANNED = {name: x for name, x in sorted(ALGORITHMS.items())
            if hasattr(x, "plan") and "problem" not in inspect.signature(x.plan).parameters}


def _count_or_word(text: str) -> int | str:
    return int(text) if text.isdigit() else text


# public numbers of plans: how each is read, and what it is; what no word stands for, as a solver,
# is for Python only
NUMBERS: dict[str, tuple[Any, str]] = {
    "population": (int, "n, the number of records"),
    "dim": (int, "d, the number of coordinates of both players together"),
    "iterations": (int, "T, the number of rounds"),
    "batch": (int, "the batch size of one pass"),
    "inner": (int, "K, the iterates of a round"),
    "rounds": (_count_or_word, '"bound_optimal"; "largest" T with 2^T lambda B <= L, as in the '
                               "paper; or a number"),
    "passes": (str, '"one", "many" or "full"'),
    "mode": (str, '"tight", of the theorem\'s smallest bound; "manual", kappa times that; or '
                  '"paper"'),
    "game": (str, '"monotone", "bilinear" or "strongly_monotone"'),
    "bound": (float, "M, the largest norm of a record's operator, players together: the joint "
                     "clip"),
    "smooth": (float, "the Lipschitz constant of a record's operator"),
    "smooth_difference": (float, "the Lipschitz constant of the difference of two records' "
                                 "operators"),
    "diameter": (float, "B, the diameter of W x V"),
    "radius": (float, "R, the largest distance of a point of the set from the start"),
    "modulus": (float, "mu_0, the modulus of strong monotonicity of every record's operator"),
    "public_bound": (float, "P, the largest norm of the public terms' operator"),
    "public_smooth": (float, "the Lipschitz constant of the public terms' operator"),
    "kappa": (float, 'the factor of "manual"'),
    "slack": (float, "the slack of certificates"),
    "proved": (bool, "whether to keep to settings that the theorem covers"),
    "composite": (bool, "whether constant steps handle the quadratic in the projection")}


def add(commands: Any) -> None:
    """Adds `plan` to the commands of a parser; its options are the public numbers of plans."""
    lines = (f"  {name}: {', '.join(flag_of(x) for x in plan_options(name))}" for name in _PLANNED)
    text = "settings and noise for a target epsilon, by an algorithm's theorem, from public numbers"
    command = commands.add_parser(
        "plan", help=text, description=text, formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="\n".join(["options of each algorithm:", *lines, "example:",
                          "  python -m jaxminimax plan gda --epsilon 1 --delta 1e-6 "
                          "--population 1000 --bound 1 --smooth 1 --modulus 0.5"]))
    flag = command.add_argument
    flag("algorithm", metavar="ALGORITHM", nargs="?",
         help="one of " + ", ".join(_PLANNED) + "; without one all that fit the numbers, side by "
              "side, by what they promise")
    flag("--epsilon", type=float, required=True, help="the target, positive")
    flag("--delta", type=float, required=True, help="of (epsilon, delta); well below 1/n")
    flag("--neighbours", choices=mechanism.NEIGHBOURS, default="replace_one",
         help="what neighbouring data sets differ by (default: replace_one)")
    for name, (kind, text) in NUMBERS.items():
        if kind is bool:
            flag(flag_of(name), action="store_true", default=None, help=text)
        else:
            flag(flag_of(name), type=kind, help=text)
    flag("--json", action="store_true", help="print JSON only")


def plan_options(name: str) -> list[str]:
    """Returns the options of an algorithm, by the names that they have in Python."""
    return [x for x in inspect.signature(_PLANNED[name].plan).parameters if x in NUMBERS]


def flag_of(name: str) -> str:
    """Returns the option of a public number."""
    return f"--{name.replace('_', '-')}"


def _numbers(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the keywords of `plan` that the options mean.

    Raises:
      ValueError: for an option that the algorithm has no use for.
    """
    numbers = {name: x for name in NUMBERS if (x := getattr(args, name)) is not None}
    allowed = NUMBERS if args.algorithm is None else plan_options(args.algorithm)
    for name in numbers.keys() - set(allowed):
        raise ValueError(f"{flag_of(name)} is no number of {args.algorithm}, which takes "
                         f"{', '.join(map(flag_of, allowed))}: leave it out.")
    return numbers


def _plain(value: Any) -> Any:
    """Returns a setting for JSON; a schedule, or an algorithm, by its name."""
    if isinstance(value, types.Saddle):
        return {player: _plain(setting) for player, setting in value._asdict().items()
                if setting is not None}
    if dataclasses.is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name))
                for field in dataclasses.fields(value)} or type(value).__name__
    if isinstance(value, tuple | list):
        return [_plain(setting) for setting in value]
    if value is None or isinstance(value, bool | int | str):
        return value
    if hasattr(value, "__name__") or callable(value):
        return getattr(value, "__name__", type(value).__name__)
    return float(np.asarray(value))


def settings(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Returns the plan of an algorithm, or all plans that fit the numbers.

    Raises:
      ValueError: for a name that is none of an algorithm with a plan; as `plan` does.
    """
    if args.algorithm is not None and args.algorithm not in _PLANNED:
        raise ValueError(f"ALGORITHM must be one of {', '.join(_PLANNED)}, got {args.algorithm!r}. "
                         "Of groups ask jmm.plan(jmm.NAME, problem=..., sizes=...), in Python.")
    target = {"epsilon": args.epsilon, "delta": args.delta, "neighbours": args.neighbours}
    if args.algorithm is None:
        side_by_side = plans(**target, **_numbers(args))
        return {"plans": [row.to_json() for row in side_by_side]}, str(side_by_side)
    algorithm = ALGORITHMS[args.algorithm]
    planned = plan(algorithm, **target, **_numbers(args))
    described = algorithm.mechanism(planned.hyper)
    line = {"algorithm": args.algorithm, **target,
            "epsilon": accounting.epsilon(described, args.delta, neighbours=args.neighbours),
            "sampling": " ".join(leaf.summary() for leaf in mechanism.leaves(described)),
            "guarantee": planned.guarantee, "trivial": planned.trivial, "vacuous": planned.vacuous,
            "gap": planned.gap, "on": planned.on, "why": list(planned.why),
            "hyper": _plain(planned.hyper)}
    lines = [f"{name:28} {rounded_up(value, 6) if isinstance(value, float) else value}"
             for name, value in line.items() if name not in ("why", "hyper") and value is not None]
    lines += [f"{'hyper ' + name:28} {value}" for name, value in line["hyper"].items()]
    return line, "\n".join([*lines, *planned.why])
