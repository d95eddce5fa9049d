"""`python -m jaxminimax`: the accountant from the command line."""

import argparse
import json
import sys
from typing import Any

from jaxminimax import _check, accounting, gda, sgda
from jaxminimax import mechanism as words
from jaxminimax._types import Saddle
from jaxminimax.accounting import _charge, _curves, _epsilon, _statement
from jaxminimax.mechanism import Full, Poisson, Query

ALGORITHMS = {"sgda": sgda, "gda": gda}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m jaxminimax", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (("calibrate", "noise multipliers for a target epsilon"),
                       ("epsilon", "epsilon of given noise")):
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("algorithm", choices=sorted(ALGORITHMS))
        if name == "calibrate":
            command.add_argument("--epsilon", type=float, required=True)
            command.add_argument("--share-w", type=float, default=None,
                                 help="player w's share of the budget (default: equal noise)")
        else:
            command.add_argument("--effective-noise-multiplier", type=float, required=True,
                                 help="noise on the clipped sum over the per-record norm bound, "
                                      "both players combined")
            command.add_argument("--spent", type=int, default=None,
                                 help="releases made, for a run that stopped early")
        command.add_argument("--delta", type=float, required=True)
        command.add_argument("--population", type=int, required=True, help="n, public")
        command.add_argument("--batch", type=float, default=None,
                             help="expected batch size; needed for Poisson sampling")
        command.add_argument("--iterations", type=int, required=True)
        command.add_argument("--sampling", choices=("full", "poisson"), default=None,
                             help="default: full for gda, poisson for sgda")
        command.add_argument("--neighbours", choices=_charge.NEIGHBOURS, default="replace_one")
        command.add_argument("--json", action="store_true", help="print JSON only")
    return parser


def _hyper(args: argparse.Namespace, query: Query) -> Any:
    if args.algorithm == "gda":
        return gda.Hyper(query=query, modulus=1.0, iterations=args.iterations)
    return sgda.Hyper(query=query, step=Saddle(1.0, 1.0), iterations=args.iterations)


def _query(args: argparse.Namespace, noise_multiplier: Saddle | None, clip: Saddle) -> Query:
    _check.count("--population", args.population)
    sampling = args.sampling or ("full" if args.algorithm == "gda" else "poisson")
    if sampling == "full":
        if args.batch is not None:
            raise ValueError("--batch goes with --sampling poisson; a full batch is all records.")
        how: Full | Poisson = Full()
    else:
        if args.batch is None:
            raise ValueError("--sampling poisson needs --batch, the expected batch size.")
        _check.number("--batch", args.batch, low=0.0, high=args.population, closed=True)
        how = Poisson(rate=args.batch / args.population)
    return Query(clip=clip, noise_multiplier=noise_multiplier, sampling=how,
                 population=args.population)


def answer(args: argparse.Namespace) -> dict[str, Any]:
    """The record that a command prints."""
    algorithm = ALGORITHMS[args.algorithm]
    if args.command == "calibrate":
        ratio = None if args.share_w is None else words.budget_split(w=args.share_w)
        hyper = _hyper(args, _query(args, ratio, Saddle(1.0, 1.0)))
        hyper = accounting.calibrate(algorithm, hyper, args.epsilon, args.delta,
                                     neighbours=args.neighbours)
        mechanism = algorithm.mechanism(hyper)
    else:
        _check.number("--effective-noise-multiplier", args.effective_noise_multiplier, low=0.0)
        # one player with this noise is as strong as any two whose noise combines to it
        query = _query(args, Saddle(args.effective_noise_multiplier, None), Saddle(1.0, None))
        mechanism = algorithm.mechanism(_hyper(args, query))
        if args.spent is not None:
            _check.count("--spent", args.spent, low=1)
            mechanism = _charge.first(mechanism, args.spent)
    epsilon = accounting.epsilon(mechanism, args.delta, neighbours=args.neighbours)
    (cost,) = _charge.charges(mechanism, args.neighbours)
    _, bound = _epsilon.charged_epsilon(cost, args.delta, args.neighbours)
    z = mechanism.query.noise_multiplier
    per_player = {name: x for name, x in z._asdict().items() if x is not None}
    return {
        "algorithm": args.algorithm,
        "noise_multiplier": per_player if args.command == "calibrate" else None,
        "effective_noise_multiplier": accounting.effective_noise_multiplier(mechanism.query),
        "epsilon": epsilon,
        "delta": args.delta,
        "neighbours": args.neighbours,
        "sampling": _statement.describe(mechanism),
        "accountant": _statement.accountant_name(bound),
        "event": str(_curves.event(cost)),
    }


def main(argv: list[str] | None = None) -> int:
    """Runs a command; 0, or 2 with the reason on standard error."""
    args = _parser().parse_args(argv)
    try:
        record = answer(args)
    except ValueError as error:
        print(f"python -m jaxminimax {args.command}: {error}", file=sys.stderr)
        return 2
    if args.json:
        print(json.dumps(record))
        return 0
    for name, value in record.items():
        if isinstance(value, dict):
            value = ", ".join(f"{player} {z:.6g}" for player, z in value.items())
        elif isinstance(value, float):
            value = f"{value:.6g}"
        if value is not None:
            print(f"{name.replace('_', ' '):28} {value}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
