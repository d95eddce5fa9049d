"""`python -m benchmarks.examples {gan,mdp,dro,digits}`: private saddle problems to look at.

  gan     synthetic data from a Wasserstein GAN, beside the data
  mdp     a policy learnt from private transitions, beside the best one
  dro     regression for the worst tenth of the records, beside the average model
  digits  images of ten classes from one release, and a classifier trained on them

Each trains at several epsilon with noise calibrated to the whole run, prints what the privacy
statement says, and measures what came out; measures read the data and are not private.
"""

from typing import Any

from benchmarks.common import report
from benchmarks.examples import digits, dro, gan, mdp, runs

EXAMPLES: dict[str, Any] = {"gan": gan, "mdp": mdp, "dro": dro, "digits": digits}


def parser() -> report.Parser:
    p = report.Parser(__file__, __doc__, "json", "plot")
    p.add_argument("example", choices=EXAMPLES)
    p.add_argument("--dataset", help="default: the first; "
                   + "; ".join(f"{k}: {', '.join(x.DATASETS)}" for k, x in EXAMPLES.items()))
    p.add_argument("--data-dir", type=runs.folder,
                   help="folder of the data files (or set JAXMINIMAX_DATA)")
    p.add_argument("--epsilon", type=report.number(0, 1e6), nargs="+")
    p.add_argument("--delta", type=report.number(0, 1), default=1e-6)
    p.add_argument("--seeds", type=report.count, help="number of runs at every epsilon")
    p.add_argument("--quick", action="store_true", help="few records, rounds and budgets")
    return p


def check(args: Any, p: report.Parser) -> None:
    """Refuses combinations of arguments that make no sense, before any data are read."""
    example = EXAMPLES[args.example]
    args.dataset = args.dataset or example.DATASETS[0]
    if args.dataset not in example.DATASETS:
        p.error(f"--dataset {args.dataset}: {args.example} has {', '.join(example.DATASETS)}")
    args.epsilon = sorted(set(args.epsilon or (example.QUICK if args.quick else example.EPSILONS)))
    args.seeds = args.seeds or (1 if args.quick else example.SEEDS)


def main(argv: list[str] | None = None) -> int:
    """Runs an example; 0, or 2 after a refusal."""
    p = parser()
    args = p.parse_args(argv)
    check(args, p)
    try:
        outcome = EXAMPLES[args.example].run(args)
    except (ValueError, OSError) as error:
        p.error(str(error))
    print(runs.show(outcome))
    report.save(args, {"title": outcome.title, "rows": outcome.rows,
                       "statements": [report.stated(s, runs.ASSUMED) for s in outcome.statements]})
    if args.plot:
        from matplotlib.figure import Figure

        figure = Figure(layout="constrained")
        outcome.draw(figure)
        figure.savefig(args.plot, dpi=110)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
