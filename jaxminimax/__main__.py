"""`python -m jaxminimax`: the accountant from the command line."""

import argparse
import dataclasses
import json
import sys
import warnings
from typing import Any

from jaxminimax import (
    _check,
    _valid,
    accounting,
    active_groups,
    extragradient,
    ftrl,
    gda,
    group_oco,
    group_sgd,
    phased_erm,
    proximal,
    recursive,
    recursive_sgda,
    sgda,
)
from jaxminimax import mechanism as words
from jaxminimax._types import Saddle
from jaxminimax.accounting import _charge, _curves, _epsilon, _statement
from jaxminimax.mechanism import (
    Disjoint,
    FixedSize,
    Full,
    GroupGradients,
    GroupLosses,
    GroupSolution,
    Mechanism,
    Poisson,
    Query,
    RecordLosses,
    Repeat,
    Resolvent,
    Sequence,
    Tree,
)

GROUPED = {"group_sgd": group_sgd, "active_groups": active_groups}  # these have groups' losses
ONCE = {"phased_erm": phased_erm, "group_oco": group_oco, "ftrl": ftrl}  # they read a record once
SOLVED = ("proximal", "recursive")  # they release certified solutions
ALGORITHMS = {"sgda": sgda, "gda": gda, "extragradient": extragradient, "proximal": proximal,
              "recursive": recursive, "recursive_sgda": recursive_sgda, **GROUPED, **ONCE}
SAMPLINGS = ("full", "poisson", "fixed", "with_replacement", "disjoint")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m jaxminimax", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (("calibrate", "noise multipliers for a target epsilon"),
                       ("epsilon", "epsilon of given noise"),
                       ("explain", "privacy statement of given noise, in words")):
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("algorithm", choices=sorted(ALGORITHMS))
        if name == "calibrate":
            command.add_argument("--epsilon", type=float, required=True)
            command.add_argument("--share-w", type=float, default=None,
                                 help="player w's share of the budget (default: equal noise)")
            command.add_argument("--joint-clip", action="store_true",
                                 help="one clip for both players together instead of one each")
            command.add_argument("--laplace", type=float, default=None, metavar="SHARE",
                                 help="release all groups' mean losses in every iteration too; the "
                                      "share of epsilon that they cost alone (group_sgd and "
                                      "active_groups: 0.2)")
        else:
            command.add_argument("--effective-noise-multiplier", type=float, required=True,
                                 help="noise on the clipped sum over the per-record norm bound, "
                                      "both players combined")
            command.add_argument("--laplace-noise-multiplier", type=float, default=None,
                                 metavar="Z", help="release all groups' mean losses in every "
                                 "iteration too; Laplace scale over (loss bound / group size)")
            command.add_argument("--spent", type=int, default=None,
                                 help="releases made, if their number was fixed beforehand; "
                                      "printed beside the epsilon of all")
        command.add_argument("--delta", type=float, required=True)
        command.add_argument("--population", type=int, default=None,
                             help="n, public; needed unless --group-sizes is given")
        command.add_argument("--group-sizes", type=int, nargs="+", default=None, metavar="N",
                             help="group_sgd, active_groups and phased_erm: records of every "
                                  "group, public; --batch is then that of the smallest one")
        command.add_argument("--batch", type=float, default=None,
                             help="batch size (expected, for Poisson sampling); "
                                  "needed unless full")
        command.add_argument("--iterations", type=int, required=True,
                             help="rounds; extragradient, group_sgd, active_groups and group_oco "
                                  "make two releases in each; recursive: parts of the data, one "
                                  "release on each; recursive_sgda: releases on each part")
        command.add_argument("--parts", type=int, default=1,
                             help="of the data, recursive_sgda only (default 1)")
        resolvent = command.add_argument_group("proximal and recursive, where noise is over a "
                                               "displacement")
        resolvent.add_argument("--bound", type=float, default=1.0, help="M, on a record's operator")
        resolvent.add_argument("--prox", type=float, default=1.0, help="lambda")
        resolvent.add_argument("--lipschitz", type=float, default=0.0, help="L")
        resolvent.add_argument("--diameter", type=float, default=1.0, help="D, of the feasible set")
        resolvent.add_argument("--assumes", choices=_valid.ASSUMES, default="monotone")
        command.add_argument("--sampling", choices=SAMPLINGS, default=None,
                             help="default: full for gda and groups, poisson for the others")
        command.add_argument("--parameters", type=int, default=words.PARAMETERS, metavar="D",
                             help="most numbers of a release, which the grid is charged for "
                                  f"(default: {words.PARAMETERS})")
        command.add_argument("--neighbours", choices=_charge.NEIGHBOURS, default="replace_one")
        command.add_argument("--json", action="store_true", help="print JSON only")
    return parser


def _hyper(args: argparse.Namespace, query: Any) -> Any:
    # what is not part of the mechanism does not matter here
    if args.algorithm == "recursive_sgda":
        return recursive_sgda.Hyper(query=query, base=1.0, diameter=1.0, rounds=args.parts,
                                    inner=args.iterations + 1)
    own: dict[str, dict[str, Any]] = {"gda": {"modulus": 1.0}, "proximal": {}, "recursive": {}}
    extra = own.get(args.algorithm, {"step": Saddle(1.0, 1.0)})
    return ALGORITHMS[args.algorithm].Hyper(query=query, iterations=args.iterations, **extra)


def _no_parts(args: argparse.Namespace) -> None:
    if args.parts != 1:
        raise ValueError("--parts is for recursive_sgda; recursive has --iterations parts.")


def _grouped(args: argparse.Namespace, noise_multiplier: float | None,
             laplace: float | None) -> Any:
    """The `Hyper` of an algorithm for groups; clip norm, loss bound and steps cost nothing."""
    if getattr(args, "joint_clip", False) or getattr(args, "share_w", None) is not None:
        raise ValueError(f"{args.algorithm} has gradients of one player only: leave out --share-w "
                         "and --joint-clip.")
    _no_parts(args)
    if args.group_sizes is None or args.population is not None:
        raise ValueError(f"{args.algorithm} needs --group-sizes, and no --population.")
    for n in args.group_sizes:
        _check.count("--group-sizes", n)
    sizes = tuple(args.group_sizes)
    args.population = min(sizes)  # what --batch is a part of
    sampling: Any = _sampling(args, args.sampling or "full")
    query = GroupGradients(clip=1.0, noise_multiplier=noise_multiplier, sampling=sampling,
                           sizes=sizes, parameters=args.parameters)
    losses = GroupLosses(bound=1.0, noise_multiplier=laplace, sizes=sizes,
                         only_argmax=args.algorithm == "active_groups")
    own = {} if losses.only_argmax else {"weight_step": 1.0}
    return GROUPED[args.algorithm].Hyper(query=query, losses=losses, step=1.0,
                                         iterations=args.iterations, **own)


def _once(args: argparse.Namespace, noise_multiplier: float | None,
          laplace: float | None) -> Any:
    """The description of an algorithm that reads a record once; its other constants cost nothing.

    For phased_erm the multiplier is over the whole sensitivity of a replaced record.
    """
    _no_parts(args)
    for name in ("joint_clip", "share_w", "laplace", "sampling", "batch", "population"):
        if getattr(args, name, None):
            raise ValueError(f"{args.algorithm} reads every record at most once: leave out "
                             f"--{name.replace('_', '-')}.")
    tree = Tree(clip=1.0, noise_multiplier=noise_multiplier, leaves=args.iterations,
                parameters=args.parameters)
    if args.algorithm == "phased_erm":
        if args.group_sizes is None:
            raise ValueError("phased_erm needs --group-sizes.")
        return GroupSolution(lipschitz=1.0, bound=1.0, smooth=1.0, diameter=1.0, reg_w=1.0,
                             reg_lam=1.0, noise_multiplier=noise_multiplier,
                             sizes=tuple(args.group_sizes), phases=args.iterations,
                             parameters=args.parameters)
    if args.group_sizes is not None:
        raise ValueError(f"{args.algorithm} costs the same for all sizes: leave out "
                         "--group-sizes.")
    if args.algorithm == "ftrl":
        return tree
    losses = RecordLosses(bound=1.0, noise_multiplier=laplace, times=args.iterations)
    return dataclasses.replace(
        group_oco.releases(clip=1.0, bound=1.0, iterations=args.iterations), parts=(tree, losses))


def _query(args: argparse.Namespace, noise_multiplier: Any, clip: Saddle) -> Query | Resolvent:
    if args.group_sizes is not None:
        raise ValueError(f"--group-sizes goes with {' and '.join(GROUPED)}, not with "
                         f"{args.algorithm}.")
    if args.population is None:
        raise ValueError(f"{args.algorithm} needs --population.")
    _check.count("--population", args.population)
    _check.count("--iterations", args.iterations)
    _check.count("--parts", args.parts)
    if args.algorithm != "recursive_sgda":
        _no_parts(args)
    recurses = args.algorithm.startswith("recursive")
    parts = args.iterations if args.algorithm == "recursive" else args.parts
    if parts > args.population:
        raise ValueError(f"{parts} parts need as many records, and --population is "
                         f"{args.population}.")
    args.population //= parts  # records of a part, from here on
    whole = recurses or args.algorithm == "gda"
    sampling = _sampling(args, args.sampling or ("full" if whole else "poisson"))
    joint = getattr(args, "joint_clip", False)
    if args.algorithm not in SOLVED:
        return Query(clip=clip, noise_multiplier=noise_multiplier, sampling=sampling,
                     population=args.population, joint=joint, parameters=args.parameters)
    if joint or (noise_multiplier is not None and clip.v is not None):
        raise ValueError(f"{args.algorithm} releases one point with one noise multiplier: leave "
                         "out --share-w and --joint-clip.")
    z = None if noise_multiplier is None else noise_multiplier.w
    return Resolvent(bound=args.bound, prox=args.prox, lipschitz=args.lipschitz,
                     diameter=args.diameter, noise_multiplier=z, sampling=sampling,
                     population=args.population, assumes=args.assumes,
                     parameters=args.parameters,
                     doubling=args.algorithm == "recursive")


def _sampling(args: argparse.Namespace, name: str) -> Full | Poisson | FixedSize | Disjoint:
    if name == "full":
        if args.batch is not None:
            raise ValueError("--batch goes with every --sampling but full; a full batch is all "
                             "records.")
        return Full()
    if args.batch is None:
        expected = ", the expected batch size" if name == "poisson" else ""
        raise ValueError(f"--sampling {name} needs --batch{expected}.")
    _check.number("--batch", args.batch, low=0.0, high=args.population, closed=True)
    if name == "poisson":
        return Poisson(rate=args.batch / args.population)
    if args.batch != int(args.batch):
        raise ValueError(f"--batch must be an integer for --sampling {name}, got {args.batch!r}.")
    if name == "disjoint":
        return Disjoint(batch=int(args.batch))
    return FixedSize(batch=int(args.batch), replacement=name == "with_replacement")


def _losses(args: argparse.Namespace, noise_multiplier: float | None) -> GroupLosses:
    # the cost depends on the noise multiplier alone, not on the bound or the groups' size
    return GroupLosses(bound=1.0, sizes=(args.population,), noise_multiplier=noise_multiplier,
                       times=args.iterations)


def _calibrated(args: argparse.Namespace) -> tuple[Any, Any]:
    """The releases of operators and of losses that share a budget."""
    algorithm: Any = ALGORITHMS[args.algorithm]
    if args.algorithm in ONCE:
        described = _once(args, None, None)
        parts = tuple(accounting.calibrate_noise(part, args.epsilon, args.delta,
                                                 neighbours=args.neighbours)
                      for part in words.leaves(described))
        return (dataclasses.replace(described, parts=parts) if len(parts) > 1 else parts[0]), None
    if args.algorithm in GROUPED:
        share = 0.2 if args.laplace is None else args.laplace
        _check.number("--laplace", share, low=0.0, high=1.0)
        hyper = accounting.calibrate(algorithm, _grouped(args, None, None), args.epsilon,
                                     args.delta, neighbours=args.neighbours, share=share)
        return algorithm.mechanism(hyper), None
    ratio = None if args.share_w is None else words.budget_split(w=args.share_w)
    hyper = _hyper(args, _query(args, ratio, Saddle(1.0, 1.0)))
    losses: Any = None
    if args.laplace is not None:
        _check.number("--epsilon", args.epsilon, low=0.0)
        _check.number("--laplace", args.laplace, low=0.0, high=1.0)
        losses = accounting.calibrate_noise(_losses(args, None), args.laplace * args.epsilon,
                                            args.delta, neighbours=args.neighbours)
    hyper = accounting.calibrate(algorithm, hyper, args.epsilon, args.delta,
                                 neighbours=args.neighbours,
                                 alongside=() if losses is None else (losses,))
    return algorithm.mechanism(hyper), losses


def _given(args: argparse.Namespace) -> tuple[Any, Any]:
    """The releases with the noise on the command line."""
    _check.number("--effective-noise-multiplier", args.effective_noise_multiplier, low=0.0)
    if args.spent is not None:
        _check.count("--spent", args.spent, low=1)
    if args.algorithm in ONCE:
        z = args.laplace_noise_multiplier
        if (z is None) == (args.algorithm == "group_oco"):
            raise ValueError("--laplace-noise-multiplier, the scale of one loss's noise over the "
                             "loss bound, goes with group_oco, which needs it, and not with ftrl "
                             "or phased_erm.")
        return _once(args, args.effective_noise_multiplier, z), None
    if args.algorithm in GROUPED:
        z = args.laplace_noise_multiplier
        if z is None:
            raise ValueError(f"{args.algorithm} needs --laplace-noise-multiplier: it releases "
                             "losses too.")
        _check.number("--laplace-noise-multiplier", z, low=0.0)
        hyper = _grouped(args, args.effective_noise_multiplier, z)
        return GROUPED[args.algorithm].mechanism(hyper), None  # type: ignore[attr-defined]
    # one player with this noise is as strong as any two whose noise combines to it
    query = _query(args, Saddle(args.effective_noise_multiplier, None), Saddle(1.0, None))
    z = args.laplace_noise_multiplier
    if z is not None:
        _check.number("--laplace-noise-multiplier", z, low=0.0)
    return (ALGORITHMS[args.algorithm].mechanism(_hyper(args, query)),
            None if z is None else _losses(args, z))


def _together(*parts: Mechanism | None) -> Mechanism:
    """What is there, as one mechanism."""
    present = tuple(part for part in parts if part is not None)
    return present[0] if len(present) == 1 else Sequence(parts=present)


def _stopped(args: argparse.Namespace, *parts: Mechanism | None) -> Mechanism:
    """What `--spent` releases of each part are, if that number was fixed beforehand."""
    return _together(*(None if part is None else _charge.first(part, args.spent)
                       for part in parts))


def explain(args: argparse.Namespace) -> _statement.Statement:
    """The statement that `explain` prints."""
    mechanism, losses = _given(args)
    allowed = words.releases(mechanism)
    spent = allowed if args.spent is None else min(args.spent, allowed)
    whole = _together(mechanism, losses)
    so_far = whole if args.spent is None else _stopped(args, mechanism, losses)
    return _statement.state_of(whole, so_far, args.delta,
                               spent=spent, allowed=allowed, neighbours=args.neighbours)


def answer(args: argparse.Namespace) -> dict[str, Any]:
    """The record that a command prints."""
    mechanism, losses = _calibrated(args) if args.command == "calibrate" else _given(args)
    whole = _together(mechanism, losses)
    epsilon = accounting.epsilon(whole, args.delta, neighbours=args.neighbours)
    shorter = None
    if args.command == "epsilon" and args.spent is not None:
        shorter = _epsilon.worst(_charge.charges(_stopped(args, mechanism, losses),
                                                 args.neighbours), args.delta, args.neighbours)[0]
    cost = max(_charge.charges(whole, args.neighbours), key=lambda cost: _epsilon.charged_epsilon(
        cost, args.delta, args.neighbours))
    _, bound = _epsilon.charged_epsilon(cost, args.delta, args.neighbours)
    parts = words.leaves(whole)
    (main,) = (part for part in parts if not isinstance(part, GroupLosses | RecordLosses))
    query = main.query if isinstance(main, Repeat) else main
    laplace = [part.noise_multiplier for part in parts
               if isinstance(part, GroupLosses | RecordLosses)]
    length: Any = None
    if isinstance(query, Resolvent):
        per_player, length = {"": query.noise_multiplier}, words.displacement(query)
    elif not isinstance(query, Query):
        per_player = {"": query.noise_multiplier}
    else:
        per_player = words.check_noise(query)._asdict()
        per_player = {name: x for name, x in per_player.items() if x is not None}
    return {
        "algorithm": args.algorithm,
        "noise_multiplier": per_player if args.command == "calibrate" else None,
        "displacement": length,
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
    args = _parser().parse_args(argv)
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
