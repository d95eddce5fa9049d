"""`python -m jaxminimax plan`: settings and noise of a run by an algorithm's theorem.

Its options are the public numbers that the algorithms' `plan` functions take. For group
algorithms they include the constants of the `problem`, because a plan reads nothing else of it.
Samplings, solvers and geometries can be given in Python only.
"""

import argparse
import dataclasses
import inspect
from typing import Any

import numpy as np

from jaxminimax.accounting import epsilon
from jaxminimax.algorithms import ALGORITHMS
from jaxminimax.base.types import GroupProblem, Saddle
from jaxminimax.mechanism import NEIGHBOURS, leaves
from jaxminimax.plans import plan

_PLANNED = {name: x for name, x in sorted(ALGORITHMS.items()) if hasattr(x, "plan")}
_TEXT = "settings and noise for a target epsilon, by an algorithm's theorem, from public numbers"


def _rounds(given: str) -> int | str:
    return int(given) if given.isdigit() else given


# the keyword of `plan`, its type, and what it is
_NUMBERS: dict[str, tuple[Any, str]] = {
    "population": (int, "n, records"),
    "dim": (int, "d, numbers of both players together; of group algorithms, of the model"),
    "bound": (float, "on the norm of a record's operator, players together; of group algorithms, "
                     "on a record's loss"),
    "smooth": (float, "Lipschitz constant of a record's operator"),
    "diameter": (float, "of the feasible set"),
    "radius": (float, "largest distance of a feasible point from the start"),
    "modulus": (float, "of strong monotonicity"),
    "passes": (str, "one, many or full"),
    "iterations": (int, "rounds"),
    "batch": (int, "records of a disjoint batch"),
    "slack": (float, "relative residual of certified solutions"),
    "mode": (str, "tight, paper or manual"),
    "kappa": (float, "factor of the regularisation, or of the step"),
    "rounds": (_rounds, "largest, bound_optimal, or a number"),
    "inner": (int, "iterates of a round"),
    "composite": (bool, "keep the regularisation out of the clipped operator"),
    "game": (str, "monotone, bilinear or strongly_monotone"),
    "proved": (bool, "keep to the settings that the theorem covers"),
    "tree": (bool, "noise by a tree where correlated noise would be less, too"),
    "eta": (float, "step size"),
    "phases": (int, "certified solutions"),
    "step": (float, "step size"),
    "anchors": (float, "share of the budget for anchors"),
}
_IN_PYTHON = {"sampling", "solver", "geometry", "decaying"}
_CONSTANTS = ("bound", "lipschitz", "diameter", "smooth")  # of a group problem


def add(commands: Any) -> None:
    """Adds the command to those of a parser."""
    lines = (f"  {name}: {', '.join(_flag(x) for x in _options(name))}" for name in _PLANNED)
    command = commands.add_parser(
        "plan", help=_TEXT, description=_TEXT, formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="\n".join(["options of each algorithm:", *lines, "example:",
                          "  python -m jaxminimax plan gda --epsilon 1 --delta 1e-6 "
                          "--population 1000 --bound 1 --smooth 1 --modulus 0.5"]))
    flag = command.add_argument
    flag("algorithm", choices=list(_PLANNED), metavar="ALGORITHM",
         help="one of " + ", ".join(_PLANNED))
    flag("--epsilon", type=float, required=True, help="the target, positive")
    flag("--delta", type=float, required=True, help="of (epsilon, delta); well below 1/n")
    flag("--neighbours", choices=NEIGHBOURS, default="replace_one",
         help="what neighbouring data sets differ by (default: replace_one)")
    for name, (kind, text) in _NUMBERS.items():
        if kind is bool:
            flag(_flag(name), action="store_true", default=None, help=text)
        else:
            flag(_flag(name), type=kind, help=text)
    flag("--lipschitz", type=float, help="of group algorithms, on the norm of a record's gradient")
    flag("--group-sizes", dest="sizes", type=int, nargs="+", metavar="N",
         help="of group algorithms, records of every group")
    flag("--json", action="store_true", help="print JSON only")


def _options(name: str) -> list[str]:
    """The options of an algorithm, by the names that they have in Python."""
    taken = [x for x in inspect.signature(ALGORITHMS[name].plan).parameters
             if x != "target" and x not in _IN_PYTHON]
    return [x for one in taken for x in (_CONSTANTS if one == "problem" else (one,))]


def _flag(name: str) -> str:
    return "--group-sizes" if name == "sizes" else f"--{name.replace('_', '-')}"


def _numbers(args: argparse.Namespace) -> dict[str, Any]:
    """The keywords of `plan` that the options mean.

    Raises:
      ValueError: for an option that the algorithm has no use for, or a constant that is missing.
    """
    own = _options(args.algorithm)
    given = {name: getattr(args, name) for name in (*_NUMBERS, "lipschitz", "sizes")
             if getattr(args, name) is not None}
    for name in given.keys() - set(own):
        raise ValueError(f"{_flag(name)} is no number of {args.algorithm}, which takes "
                         f"{', '.join(map(_flag, own))}: leave it out.")
    if "lipschitz" not in own:
        return given
    constants = {name: given.pop(name) for name in _CONSTANTS if name in given}
    for name in _CONSTANTS[:3]:
        if name not in constants:
            raise ValueError(f"{args.algorithm} needs {_flag(name)}.")

    def unused(*_: Any) -> Any:
        raise TypeError("a plan reads constants only")

    problem = GroupProblem(unused, unused, unused, convex=True, **constants)
    return given | {"problem": problem, "sizes": tuple(given.pop("sizes", ()))}


def _plain(value: Any) -> Any:
    """A setting as JSON knows it; a schedule, or an algorithm, by its name."""
    if isinstance(value, Saddle):
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
    algorithm = ALGORITHMS[args.algorithm]
    made = plan(algorithm, epsilon=args.epsilon, delta=args.delta, neighbours=args.neighbours,
                **_numbers(args))
    mechanism = algorithm.mechanism(made.hyper)
    said = {"algorithm": args.algorithm,
            "epsilon": epsilon(mechanism, args.delta, neighbours=args.neighbours),
            "delta": args.delta, "neighbours": args.neighbours,
            "sampling": " ".join(leaf.summary() for leaf in leaves(mechanism)),
            "guarantee": made.guarantee, "trivial": made.trivial, "vacuous": made.vacuous,
            "why": list(made.why), "hyper": _plain(made.hyper)}
    lines = [f"{name:28} {value:.6g}" if isinstance(value, float) else f"{name:28} {value}"
             for name, value in said.items() if name not in ("why", "hyper") and value is not None]
    lines += [f"{'hyper ' + name:28} {value}" for name, value in said["hyper"].items()]
    return said, "\n".join([*lines, *made.why])


# what the command prints with --json and without
SAID = {"plan": _planned}
