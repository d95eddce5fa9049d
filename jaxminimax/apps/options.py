"""Options of the command line: their parser, and the `Hyper` that they describe.

Of an algorithm, options ask its `example` only: which class of descriptions it takes, and whether
there are parts, or losses besides the main release.
"""

import argparse
from collections.abc import Callable
from typing import Any

from jaxminimax import mechanism
from jaxminimax.algorithms import ALGORITHMS, described_by, takes
from jaxminimax.base import checks, types
from jaxminimax.mechanism.sampling import choices

WHOLE = ("gda", "recursive", "recursive_sgda")  # these read all records of a part by default

_SAMPLED = ("population", "batch", "sampling", "laplace", "laplace_noise_multiplier",
            "losses_noise")
# the options that go with each class of descriptions, and no others; the first one is needed, but
# for `bands`
OPTIONS: dict[type, tuple[str, ...]] = {
    mechanism.Query: (*_SAMPLED, "share_w", "joint_clip", "bands"),
    mechanism.Resolvent: _SAMPLED,
    mechanism.GroupGradients: ("group_sizes", *_SAMPLED[1:]),
    mechanism.GroupSolution: ("group_sizes",), mechanism.TreeSums: ("bands",)}


def parser(what: str | None, *more: Callable[[Any], None]) -> argparse.ArgumentParser:
    """Makes the parser of the commands, and of those that `more` adds; `what` they are for."""
    result = argparse.ArgumentParser(
        prog="python -m jaxminimax", description=what, epilog=_examples(),
        formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = result.add_subparsers(dest="command", required=True, metavar="COMMAND",
                                     help="what to do; each has its own --help")
    for name, text in (("calibrate", "noise multipliers for a target epsilon"),
                       ("epsilon", "epsilon of given noise, at a delta"),
                       ("delta", "delta of given noise, at an epsilon"),
                       ("explain", "the privacy statement of given noise"),
                       ("profile", "what given noise says at every epsilon: delta, membership "
                                   "inference, the closest Gaussian, Renyi divergences")):
        command = commands.add_parser(name, help=text, description=text, epilog=_examples(),
                                      formatter_class=argparse.RawDescriptionHelpFormatter)
        add = command.add_argument
        add("algorithm", choices=sorted(ALGORITHMS), metavar="ALGORITHM",
            help="one of " + ", ".join(sorted(ALGORITHMS)))
        _add_noise(name, add)
        _add_guarantee(name, add)
        _add_data(add)
        _add_displacement(command)
        add("--json", action="store_true", help="print JSON only")
    text = "privacy statement of all runs in a ledger, in words"
    add = commands.add_parser("ledger", help=text, description=text + (
        ". With --epsilon and --delta it opens a new ledger in the file.")).add_argument
    add("file", help="where Ledger(...) keeps its books")
    add("--epsilon", type=float, help="of everything that will be released")
    add("--delta", type=float, help="of everything that will be released")
    add("--unit", help="what one record is, or 'one person' where persons have several rows "
                       "(default: one record)")
    add("--people", type=int, metavar="K", help="records that one person has, at most: the budget "
                                                "is for any K of them (default: 1)")
    add("--json", action="store_true", help="print JSON only")
    for others in more:
        others(commands)
    for command in (result, *commands.choices.values()):  # `--ran` would be taken for `--ranges`
        command.allow_abbrev = False
    return result


def _add_noise(name: str, add: Callable[..., Any]) -> None:
    """Adds the noise that a command is given, or what it is calibrated by."""
    if name == "calibrate":
        add("--epsilon", type=float, required=True, help="the target, positive")
        add("--laplace", type=float, metavar="SHARE",
            help="release all groups' mean losses in every iteration too; the share of epsilon "
                 f"that they cost alone ({_those('laplace')}: 0.2)")
    else:
        add("--effective-noise-multiplier", type=float, required=True,
            help="noise on the clipped sum over the per-record norm bound, both players combined")
        add("--laplace-noise-multiplier", type=float, metavar="Z",
            help="release all groups' mean losses in every iteration too; Laplace scale over "
                 "(loss bound / group size); of active_groups the scale of Gumbel noise on all of "
                 "them over (loss bound / size of the smallest group)")
        add("--spent", type=int, help="releases made, if their number was fixed beforehand; " + (
            "only these are profiled" if name == "profile" else
            f"their {'delta' if name == 'delta' else 'epsilon'} is printed too"))
    add("--losses-noise", choices=("laplace", "gaussian"),
        help="the noise on losses (default: the one of smaller deviation to calibrate, else "
             "laplace; of active_groups Gumbel noise)")
    add("--share-w", type=float, help="player w's share of the budget (default: equal noise)")
    add("--joint-clip", action="store_true", help="one clip for both players, not one for each")
    add("--bands", type=int, metavar="P",
        help="correlated noise by P bands of the inverse square root: for disjoint batches, and "
             "instead of a tree for ftrl and group_oco")


def _add_guarantee(name: str, add: Callable[..., Any]) -> None:
    """Adds what the answer of a command is about."""
    if name == "profile":
        add("--plot", metavar="FILE",
            help="draw the trade-off curve and delta(epsilon) into this file (.png, .pdf, .svg); "
                 "needs matplotlib")
    if name == "delta":
        add("--epsilon", type=float, required=True,
            help="of (epsilon, delta), at least 0; at 0, delta is the largest advantage of "
                 "membership inference")
    else:
        add("--delta", type=float, required=name != "profile",
            help="of (epsilon, delta), in (0, 1); well below 1/n, as publishing one record in n at "
                 "random has delta = 1/n"
                 + ("; epsilon is then printed there too" if name == "profile" else ""))
    if name == "explain":
        add("--unit", metavar="WORDS",
            help="what one record is, or with --people whose they are, to print; for example 'one "
                 "visit'")
    add("--people", type=int, default=1, metavar="K",
        help="records that one person has, at most: the guarantee is for any K of them "
             "(default: 1)")
    add("--neighbours", choices=mechanism.NEIGHBOURS, default="replace_one",
        help="what neighbouring data sets differ by: one record is replaced by another, or is "
             "present or counts as absent (default: replace_one, the stronger one)")


def _add_data(add: Callable[..., Any]) -> None:
    """Adds which records are read, how often, and how many numbers are released of them."""
    add("--population", type=int, help="n, public; needed unless --group-sizes is given")
    add("--group-sizes", type=int, nargs="+", metavar="N",
        help=f"{_those('group_sizes')}: records of every group, public; --batch is then that of "
             "the smallest one")
    add("--batch", type=float, help="batch size (for Poisson expected); needed unless full")
    add("--sampling", choices=tuple(choices()),
        help="default: full for gda and groups, poisson for the others")
    add("--iterations", type=int, required=True,
        help="rounds; extragradient, group_sgd, active_groups and group_oco make two releases in "
             "each; recursive: parts of the data, one release on each; recursive_sgda and "
             "recursive_inner: releases on each part")
    add("--parts", type=int, default=1, help=f"of the data, {_those('parts')} only (default 1)")
    add("--parameters", type=int, default=mechanism.PARAMETERS, metavar="D",
        help="most numbers of a release, which the grid is charged for "
             f"(default: {mechanism.PARAMETERS})")


def _add_displacement(command: argparse.ArgumentParser) -> None:
    """Adds the constants that decide how far a record moves a solution."""
    group = command.add_argument_group("proximal and recursive, where noise is over a displacement")
    for name, default, text in (
            ("bound", 1.0, "M, on the norm of a record's operator (default: 1)"),
            ("prox", 1.0, "lambda, weight of the proximal term (default: 1)"),
            ("lipschitz", 0.0, "L, of a record's operator (default: 0, constant operators)"),
            ("diameter", 1.0, "D, of the feasible set (default: 1)")):
        group.add_argument(f"--{name}", type=float, default=default, help=text)
    group.add_argument("--assumes", choices=mechanism.resolvent.ASSUMES, default="monotone",
                       help="what is known of every record's operator (default: monotone)")


def example_of(name: str) -> list[str]:
    """Returns the words of the shortest command for an algorithm, after `jaxminimax`."""
    needs = OPTIONS[described_by(ALGORITHMS[name])][:1]
    words = ["calibrate", name, "--epsilon", "1", "--delta", "1e-6", "--iterations", "20"]
    if needs == ("group_sizes",):
        return [*words, "--group-sizes", "5000", "8000"]
    if needs == ("population",):
        words += ["--population", "10000"]
        return words if name in WHOLE else [*words, "--batch", "100"]
    return words


def _examples() -> str:
    """Lists one command for each algorithm."""
    lines = [f"  python -m jaxminimax {' '.join(example_of(name))}" for name in sorted(ALGORITHMS)]
    return "\n".join(["examples:", *lines])


def _goes_with(option: str, algorithm: Any) -> bool:
    """Returns whether an algorithm has a use for an option."""
    if option == "parts":
        return takes(algorithm, option)
    losses = option == "laplace_noise_multiplier" and takes(algorithm, "laplace")
    return losses or option in OPTIONS[described_by(algorithm)]


def _those(option: str) -> str:
    """Lists the algorithms that an option is about: it is their argument, or they need it."""
    return ", ".join(name for name, x in ALGORITHMS.items() if _goes_with(option, x) and (
        takes(x, option) or option == _needed(x)))


def _needed(algorithm: Any) -> str | None:
    """Returns the option that an algorithm needs."""
    first = OPTIONS[described_by(algorithm)][0]
    return None if first == "bands" else first


def check_options(args: argparse.Namespace) -> None:
    """Refuses options that the algorithm does not use, and names those that it needs."""
    algorithm = ALGORITHMS[args.algorithm]
    needed = _needed(algorithm)
    if needed is not None and getattr(args, needed) is None:
        raise ValueError(f"{args.algorithm} needs --{needed.replace('_', '-')}.")
    if args.command != "calibrate" and takes(algorithm, "laplace") and (
            args.laplace_noise_multiplier is None):
        raise ValueError(f"{args.algorithm} needs --laplace-noise-multiplier: it releases losses "
                         "too.")
    usual = {"parts": 1}
    for option in {"parts", *(x for names in OPTIONS.values() for x in names)}:
        is_set = getattr(args, option, None) not in (None, False, usual.get(option))
        if is_set and not _goes_with(option, algorithm):
            flag = f"--{option.replace('_', '-')}"
            those = ", ".join(name for name, x in ALGORITHMS.items() if _goes_with(option, x))
            raise ValueError(f"{flag} goes with {those}, not with {args.algorithm}: leave out "
                             f"{flag}.")
    for name in ("population", "iterations", "parts"):
        if getattr(args, name) is not None:
            checks.count(f"--{name}", getattr(args, name))
    for n in args.group_sizes or ():
        checks.count("--group-sizes", n)


def hyper_of(args: argparse.Namespace, z: float | None, laplace: float | None = None) -> Any:
    """Makes the `Hyper` of a run with noise multiplier `z`, players combined; None: to calibrate.

    What is not on the command line costs nothing.
    """
    algorithm = ALGORITHMS[args.algorithm]
    describe = _DESCRIBE[described_by(algorithm)]
    more = {"parts": args.parts, "laplace": laplace, "losses_noise": args.losses_noise}
    more = {name: x for name, x in more.items() if takes(algorithm, name)}

    def of(records: int) -> Any:
        return algorithm.example(describe(args, z, records), args.iterations, **more)

    records = min(args.group_sizes) if args.group_sizes else args.population or 1
    hyper = of(records)
    parts = getattr(algorithm.mechanism(hyper), "parts", 1)
    if isinstance(parts, int) and parts > 1:
        if parts > records:
            raise ValueError(f"{parts} parts need as many records, and --population is {records}.")
        hyper = of(records // parts)
    return hyper


def _query(args: argparse.Namespace, z: Any, records: int) -> mechanism.Query:
    ratio = None if args.share_w is None else mechanism.budget_split(w=args.share_w)
    query = mechanism.Query(clip=types.Saddle(1.0, 1.0), noise_multiplier=ratio,
                            sampling=_sampling(args, records),
                            population=records, joint=args.joint_clip, parameters=args.parameters,
                            bands=1 if args.bands is None else args.bands)
    if z is None:
        return query
    unit = query.with_noise(1.0)
    return unit.with_noise(z / unit.multiplier())  # z is that of both players combined


def _resolvent(args: argparse.Namespace, z: Any, records: int) -> mechanism.Resolvent:
    return mechanism.Resolvent(bound=args.bound, prox=args.prox, lipschitz=args.lipschitz,
                               diameter=args.diameter, noise_multiplier=z, population=records,
                               sampling=_sampling(args, records), assumes=args.assumes,
                               parameters=args.parameters)


def _groups(args: argparse.Namespace, z: Any, records: int) -> mechanism.GroupGradients:
    sampling: Any = _sampling(args, records)
    return mechanism.GroupGradients(clip=1.0, noise_multiplier=z, sampling=sampling,
                                    sizes=tuple(args.group_sizes), parameters=args.parameters)


def _solution(args: argparse.Namespace, z: Any, records: int) -> mechanism.GroupSolution:
    return mechanism.GroupSolution(lipschitz=1.0, bound=1.0, smooth=1.0, diameter=1.0, reg_w=1.0,
                                   reg_lam=1.0, noise_multiplier=z, sizes=tuple(args.group_sizes),
                                   phases=args.iterations, parameters=args.parameters)


def _sums(args: argparse.Namespace, z: Any, records: int) -> mechanism.factorisation.PrefixSums:
    if args.bands is not None:
        return mechanism.CorrelatedSums(clip=1.0, noise_multiplier=z, leaves=args.iterations,
                                        bands=args.bands, parameters=args.parameters)
    return mechanism.TreeSums(clip=1.0, noise_multiplier=z, leaves=args.iterations,
                              parameters=args.parameters)


_DESCRIBE: dict[type, Callable[[argparse.Namespace, Any, int], Any]] = {
    mechanism.Query: _query, mechanism.Resolvent: _resolvent, mechanism.GroupGradients: _groups,
    mechanism.GroupSolution: _solution, mechanism.TreeSums: _sums}


def _sampling(args: argparse.Namespace, records: int) -> mechanism.Sampling:
    """Makes the sampling of `--sampling` and `--batch`."""
    full = args.group_sizes is not None or args.algorithm in WHOLE
    name = args.sampling or ("full" if full else "poisson")
    choice = choices()[name]
    if choice.batch is None:
        if args.batch is not None:
            raise ValueError(f"--batch goes with every --sampling but {name}; a full batch is all "
                             "records.")
        return choice.make(None, records)
    if args.batch is None:
        expected = ", the expected batch size" if choice.batch is float else ""
        raise ValueError(f"--sampling {name} needs --batch{expected}.")
    checks.number("--batch", args.batch, low=0.0, high=records, closed=True)
    if choice.batch is int and args.batch != int(args.batch):
        raise ValueError(f"--batch must be an integer for --sampling {name}, got {args.batch!r}.")
    return choice.make(choice.batch(args.batch), records)


def extra_losses(args: argparse.Namespace, laplace: float | None) -> mechanism.GroupLosses:
    """Describes the losses that are released alongside an algorithm that has none of its own."""
    # the cost depends on the noise multiplier alone, not on the bound or the groups' size
    return mechanism.GroupLosses(bound=1.0, sizes=(args.population,), noise_multiplier=laplace,
                                 times=args.iterations, noise=args.losses_noise)
