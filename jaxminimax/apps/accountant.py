"""`python -m jaxminimax epsilon`, `calibrate`, `explain` and `ledger`: the accountant's commands.

A run is described by its records, batch size, rounds and noise: each round releases one clipped
sum. The name of an algorithm adds that the sum is of two players with a clip norm each, and how
many releases it makes in a round. What more than these numbers describe, such as groups, prefix
sums and proximal points, is for `jmm.epsilon` and `jmm.statement`: the words of a statement would
otherwise state constants that nobody gave.
"""

import argparse
from typing import Any

from jaxminimax import accounting, mechanism
from jaxminimax.accounting import statement_of_run, statement_text
from jaxminimax.accounting.ledger import FILTERS
from jaxminimax.accounting.printing import NO_GUARANTEE, limit_in_words, rounded_up
from jaxminimax.algorithms import ALGORITHMS, described_by, takes
from jaxminimax.base import checks, types
from jaxminimax.mechanism.sampling import choices

# whose releases are clipped sums of samples of one set of records
NAMES = tuple(name for name, module in sorted(ALGORITHMS.items())
              if described_by(module) is mechanism.Query and not takes(module, "parts"))


def add(commands: Any) -> None:
    """Adds `epsilon`, `calibrate` and `explain` to the commands of a parser."""
    for name, text, noise in (
            ("epsilon", "epsilon of given noise, at a delta", "--noise-multiplier 2"),
            ("calibrate", "the noise multiplier for a target epsilon", "--epsilon 1"),
            ("explain", "the privacy statement of given noise", "--noise-multiplier 2")):
        command = commands.add_parser(
            name, help=text, description=text + ", of a run that releases clipped sums",
            epilog=f"example:\n  python -m jaxminimax {name} --n 10000 --batch-size 100 --rounds "
                   f"500 {noise} --delta 1e-6",
            formatter_class=argparse.RawDescriptionHelpFormatter)
        flag = command.add_argument
        flag("algorithm", metavar="ALGORITHM", nargs="?",
             help="one of " + ", ".join(NAMES) + ", with two players and a clip norm each; without "
                  "one, one clip norm, and one release in a round")
        flag("--n", type=int, required=True, help="number of records, public")
        flag("--batch-size", type=float, metavar="B",
             help="for Poisson samples the expected one (default: all records)")
        flag("--sampling", choices=tuple(choices()),
             help="(default: poisson with a batch size, full without)")
        flag("--rounds", type=int, required=True, metavar="T",
             help="of the run; extragradient makes two releases in each")
        if name == "calibrate":
            flag("--epsilon", type=float, required=True, help="the target, positive")
        else:
            flag("--noise-multiplier", type=float, required=True, metavar="Z",
                 help="standard deviation of the noise on the clipped sum over the clip norm; of "
                      "two players with a clip norm each (z_w^-2 + z_v^-2)^(-1/2)")
            flag("--spent", type=int, metavar="K",
                 help="releases made, if their number was fixed beforehand; their epsilon is "
                      "printed too")
        flag("--delta", type=float, required=True,
             help="of (epsilon, delta), in (0, 1); well below 1/n, as publishing one record in n "
                  "at random has delta = 1/n")
        if name == "explain":
            flag("--unit", metavar="WORDS",
                 help="what one record is, or with --people whose they are, to print; for example "
                      "'one visit'")
        flag("--people", type=int, default=1, metavar="K",
             help="records that one person has, at most: the guarantee is for any K of them "
                  "(default: 1)")
        flag("--neighbours", choices=mechanism.NEIGHBOURS, default="replace_one",
             help="how neighbouring data sets differ: " + ", or ".join(
                 f"{words} ({name})" for name, words in statement_text.RELATIONS.items())
                 + " (default: replace_one, the stronger one)")
        flag("--json", action="store_true", help="print JSON only")


def add_ledger(commands: Any) -> None:
    """Adds `ledger` to the commands of a parser."""
    text = "privacy statement of all runs in a ledger, in words"
    flag = commands.add_parser("ledger", help=text, description=text + (
        ". With --epsilon and --delta it opens a new ledger in the file.")).add_argument
    flag("file", help="where Ledger(...) keeps its books")
    flag("--epsilon", type=float, help="of everything that will be released")
    flag("--delta", type=float, help="of everything that will be released")
    flag("--filter", choices=tuple(FILTERS), help=(
        "how runs add up; renyi for several that share the budget (default: the first run decides, "
        "and has all of it if it needs all)"))
    flag("--unit", help="what one record is, or 'one person' where persons have several rows "
                        "(default: one record)")
    flag("--people", type=int, metavar="K", help="records that one person has, at most: the budget "
                                                 "is for any K of them (default: 1)")
    flag("--json", action="store_true", help="print JSON only")


# --- what the options describe ---


def described(args: argparse.Namespace) -> mechanism.Description:
    """Describes the releases that the options state, or calibrates them to --epsilon.

    Raises:
      ValueError: naming an option out of range, or one that goes with another.
    """
    if args.algorithm is not None and args.algorithm not in NAMES:
        raise ValueError(f"ALGORITHM must be one of {', '.join(NAMES)}, got {args.algorithm!r}. "
                         "Of others ask jmm.epsilon(jmm.NAME.mechanism(hyper), delta), in Python: "
                         "more than these numbers describes them.")
    checks.count("--n", args.n)
    checks.count("--rounds", args.rounds)
    target = args.command == "calibrate"
    if not target:
        checks.number("--noise-multiplier", args.noise_multiplier, low=0.0)
    two_players = args.algorithm is not None
    query = mechanism.Query(clip=types.Saddle(1.0, 1.0 if two_players else None),
                            sampling=_sampling(args), population=args.n)
    if not target:  # equal noise for both players, who are charged together
        query = query.with_noise(args.noise_multiplier / query.with_noise(1.0).multiplier())
    if not two_players:
        run: Any = mechanism.Repeat(query=query, times=args.rounds)
    else:
        module = ALGORITHMS[args.algorithm]
        run = module.mechanism(module.example(query, args.rounds))
    return run if not target else accounting.calibrate_noise(
        run, args.epsilon, args.delta, neighbours=args.neighbours, people=args.people)


def _sampling(args: argparse.Namespace) -> mechanism.Sampling:
    """Makes the sampling of `--sampling` and `--batch-size`."""
    name = args.sampling or ("full" if args.batch_size is None else "poisson")
    choice = choices()[name]
    if choice.batch is None:
        if args.batch_size is not None:
            raise ValueError(f"--batch-size goes with every --sampling but {name}; a full batch is "
                             "all records.")
        return choice.make(None, args.n)
    if args.batch_size is None:
        expected = ", the expected batch size" if choice.batch is float else ""
        raise ValueError(f"--sampling {name} needs --batch-size{expected}.")
    checks.number("--batch-size", args.batch_size, low=0.0, high=args.n, closed=True)
    if choice.batch is int and args.batch_size != int(args.batch_size):
        raise ValueError(f"--batch-size must be an integer for --sampling {name}, got "
                         f"{args.batch_size!r}.")
    return choice.make(choice.batch(args.batch_size), args.n)


# --- what is printed ---


def _stated(args: argparse.Namespace) -> accounting.Statement:
    """States what the run costs, and what it costs after --spent releases."""
    run, spent = described(args), getattr(args, "spent", None)
    allowed = mechanism.releases(run)
    if spent is not None:
        checks.count("--spent", spent)

    def part(count: int) -> mechanism.Description:
        return run.truncated(count) or mechanism.Sequence(parts=())

    return statement_of_run.statement_for(
        run, part, args.delta, allowed=allowed,
        spent=allowed if spent is None else min(spent, allowed), neighbours=args.neighbours,
        unit=getattr(args, "unit", None), people=args.people,
        attack_bounds=args.command == "explain")


def explain(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Returns the privacy statement, with bounds on membership attacks by the whole profile."""
    stated = _stated(args)
    return stated.to_json(), str(stated)


def numbers(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Returns the record of `epsilon` or `calibrate`, and a line for each of its numbers."""
    stated = _stated(args)
    (multiplier,), (per_player,) = stated.effective_noise_multiplier, stated.noise_multiplier
    record = {"algorithm": args.algorithm, "noise_multiplier": multiplier,
              **{f"noise_multiplier_{player}": z for player, z in per_player.items()
                 if len(per_player) > 1},
              "epsilon": stated.epsilon, "proven_up_to": stated.proven_up_to,
              "epsilon_if_stopped_by_looking": stated.epsilon_if_stopped_by_looking,
              "epsilon_spent_if_fixed": (None if getattr(args, "spent", None) is None
                                         else stated.epsilon_spent_if_fixed),
              "delta": args.delta, "neighbours": args.neighbours, "people": args.people,
              "sampling": " ".join(stated.sampling), "accountant": stated.accountant}
    words = {name: rounded_up(value, 6) if isinstance(value, float) else value
             for name, value in record.items() if value is not None}
    if stated.epsilon == float("inf"):
        words["epsilon"] = limit_in_words(stated.proven_up_to, args.delta)
    return {name: NO_GUARANTEE if value == float("inf") else value
            for name, value in record.items()}, "\n".join(
        f"{name.replace('_', ' '):30} {value}" for name, value in words.items())


def ledger(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Returns the statement of a ledger, which is opened if there is a budget."""
    stated = accounting.Ledger(args.file, epsilon=args.epsilon, delta=args.delta,
                               people=args.people, unit=args.unit, filter=args.filter).statement()
    return stated.to_json(), str(stated)
