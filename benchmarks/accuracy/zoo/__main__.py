"""Which method, when: gaps of monotone games at equal privacy, by step and number of releases.

    python -m benchmarks.accuracy.zoo [--json FILE] [--markdown FILE] [--plot FILE] [--quick]
    python -m benchmarks.accuracy.zoo --result FILE [--markdown FILE] [--plot FILE]
        [--noise-plot FILE]
    python -m benchmarks.accuracy.zoo --only noise|turns --result FILE --json FILE

The second form runs nothing: it makes the tables and the figures of a file that --json wrote. The
third measures correlated noise against Poisson samples (`noise`), or samples of parts in turn
against those of all records (`turns`), and keeps the rest of a file.

Descent-ascent (`sgda`), optimistic steps and extragradient run on full batches with the same number
of releases, calibrated to the same epsilon at delta = 1e-6, replace-one. "theory": the step from
public numbers (`games.Game.step`). "oracle": the best of six multiples of it, from 1/4 to 8,
chosen by the gaps themselves, on the same seeds and unpaid, for every method alike. Gaps are exact
ones on the training data; +- are standard errors of the mean over seeds.

Runs are those of the library (`jmm.sweep`) on the distinct records with the noise of n
(`games`), which is added in floating point (`exact=False`): the same law up to rounding.

What was tried without success has rows too: other averages and last iterates, a pull towards the
start (`anchored`), and solutions with output noise in phases (`phases`).
"""

import argparse
import dataclasses
import functools
import json
import math
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxminimax as jmm
from benchmarks.accuracy import anchored
from benchmarks.accuracy.zoo import games as zoo_games
from benchmarks.accuracy.zoo import noise, phases, plans, plot, tables
from benchmarks.accuracy.zoo.games import DELTA, ELSEWHERE, EPSILONS, Game
from benchmarks.common import report
from jaxminimax import Saddle, schedules
from jaxminimax.algorithms.descent import Averaging
from jaxminimax.types import pytree_dataclass

MULTIPLES = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
RELEASES = (30, 100, 300, 1000, 3000)
METHODS: dict[str, Any] = {"sgda": jmm.sgda, "optimistic": jmm.optimistic,
                           "extragradient": jmm.extragradient, "anchored": anchored}


@pytree_dataclass
class Weights(Averaging):
    """Further weights exp(decay (t / T - 1)), a moving average over T / decay rounds.

    Attributes:
      decay: 0 for none.
    """

    decay: float | jax.Array = 0.0

    def weight(self, t: jax.Array, rounds: int, dtype: jnp.dtype) -> jax.Array:
        """Weight of the iterate of round t = 1, 2, ..."""
        share = t.astype(dtype) / rounds - 1
        return super().weight(t, rounds, dtype) * jnp.exp(jnp.asarray(self.decay, dtype) * share)


def weights(average: str, rounds: int) -> Weights:
    """The weights of an average by its name."""
    match average:
        case "uniform":
            return Weights()
        case "t":
            return Weights(power=1.0)
        case "tail":
            return Weights(skip=0.5)
        case "moving":
            return Weights(decay=20.0)
        case "last":
            return Weights(skip=1 - 0.5 / rounds)
    raise ValueError(f"{average!r} is no average.")


@dataclasses.dataclass(frozen=True)
class Lane:
    """The settings of one mean over seeds."""

    epsilon: float
    n: int
    releases: int
    average: str
    multiple: float


def lanes(game: Game, *, epsilons: Sequence[float], releases: Sequence[int],
          averages: Sequence[str], multiples: Sequence[float] = MULTIPLES,
          ns: Sequence[int] = ()) -> list[Lane]:
    """Every multiple and average at the game's own n, and the theory's step at further ones."""
    own = [(game.n, a, m) for a in averages for m in multiples]
    more = [(n, averages[0], 1.0) for n in ns]
    return [Lane(e, n, t, a, m) for t in releases for e in epsilons for n, a, m in own + more]


def gaps(game: Game, method: str, chosen: Sequence[Lane], seeds: int, *, falling: bool = False,
         exact: bool = False, key: int = 7) -> np.ndarray:
    """Gaps of every lane and seed, `[lanes, seeds]`.

    Args:
      game: what is played.
      method: of `METHODS`.
      chosen: as many for each number of releases.
      seeds: runs of each.
      falling: whether the step falls linearly to 0.
      exact: whether the noise is on integers.
      key: of all runs.
    """
    algorithm, hypers = METHODS[method], []
    for lane in chosen:
        query = game.query(lane.epsilon, lane.releases, lane.n)
        rounds = lane.releases // 2 if method == "extragradient" else lane.releases
        step: Any = lane.multiple * game.step(method, query, lane.releases)
        if falling:
            step = schedules.Linear(scale=step, rounds=rounds)
        hypers.append(algorithm.Hyper(
            query=dataclasses.replace(game.copied(query), exact=exact), step=Saddle(step, step),
            iterations=rounds, averaging=weights(lane.average, rounds), geometry=game.geometry))
    kinds = len({(lane.releases, lane.epsilon) for lane in chosen})  # one share of a sweep each
    keys = jax.random.split(jax.random.key(key), (len(hypers), seeds))
    measure = jax.jit(jax.vmap(game.gap))
    result = np.empty(keys.shape)
    for rounds in {hyper.iterations for hyper in hypers}:
        places = [i for i, hyper in enumerate(hypers) if hyper.iterations == rounds]
        state = jmm.sweep(keys[np.asarray(places)], game.start, game.data,
                          jmm.stack([hypers[i] for i in places]), algorithm, game.problem,
                          at_once=len(hypers) // kinds * seeds)[0]
        for place, i in enumerate(places):
            result[i] = measure(jax.tree.map(lambda x, k=place: x[k], state.average))
    return result


def rows_of(game: Game, method: str, chosen: Sequence[Lane], seeds: int, *,
            falling: bool = False) -> list[dict[str, Any]]:
    """A row for the theory's step and one for the best, for all else that lanes differ in."""
    result = gaps(game, method, chosen, seeds, falling=falling)
    groups: dict[tuple[Any, ...], list[int]] = {}
    for i, lane in enumerate(chosen):
        groups.setdefault((lane.releases, lane.epsilon, lane.n, lane.average), []).append(i)
    rows = []
    for (releases, epsilon, n, average), places in groups.items():
        best = min(places, key=lambda i: float(result[i].mean()))
        picks = [("theory", i) for i in places if chosen[i].multiple == 1.0]
        for step, i in [*picks, *([("oracle", best)] if len(places) > 1 else [])]:
            row = {"game": game.name, "geometry": game.geometry.w, "n": n, "d": game.d,
                   "epsilon": epsilon, "method": method, "schedule": "linear" if falling else
                   "constant", "average": average, "releases": releases, "step": step,
                   "multiple": chosen[i].multiple, "gap": round(float(result[i].mean()), 6),
                   "se": round(float(result[i].std(ddof=1)) / math.sqrt(seeds), 6), "seeds": seeds}
            other = ELSEWHERE.get((game.name, epsilon, method))
            if (other and step == "theory" and average == "uniform" and not falling
                    and n == game.n and game.geometry.w == "euclidean" and releases in RELEASES):
                row["elsewhere"] = other[RELEASES.index(releases)]
            rows.append(row)
    return rows


@dataclasses.dataclass(frozen=True)
class Study:
    """How much is run, and where finished parts are kept.

    Attributes:
      quick: few games and releases.
      seeds: runs of each setting.
      folder: of the parts; None: they are not kept.
    """

    quick: bool
    seeds: int
    folder: pathlib.Path | None = None

    def part(self, name: str, make: Callable[[], list[dict[str, Any]]]) -> list[dict[str, Any]]:
        """The rows that `make` returns, or those that an earlier call kept under the name."""
        file = None
        if self.folder is not None:
            words = "".join(c if c.isalnum() else "_" for c in f"{name} {self.seeds} {self.quick}")
            file = self.folder / f"{words}.json"
            if file.exists():
                return json.loads(file.read_text(encoding="utf-8"))
        rows = make()
        report.say(name)
        if file is not None:
            report.write_json(file, rows)
        return rows


def main_rows(study: Study) -> list[dict[str, Any]]:
    """All games, both geometries where there are simplices."""
    quick = study.quick
    games = [zoo_games.bilinear(), zoo_games.matrix(entropic=True)]
    if not quick:
        games = [games[0], zoo_games.quadratic(), zoo_games.matrix(), games[1],
                 zoo_games.cournot(), zoo_games.robust()]
    rows = []
    for game in games:
        for method in ("sgda", "optimistic", "extragradient"):
            chosen = lanes(game, epsilons=(1.0,) if quick else EPSILONS,
                           releases=RELEASES[:2] if quick else RELEASES,
                           averages=("uniform",) if method == "extragradient" else ("uniform", "t"),
                           ns=() if quick else (game.n // 4, 4 * game.n))
            rows += study.part(f"{game.name}, {game.geometry.w}: {method}", functools.partial(
                rows_of, game, method, chosen, study.seeds))
    return rows


def failure_rows(study: Study) -> list[dict[str, Any]]:
    """Other averages, last iterates, falling steps and anchors, at epsilon = 1."""
    quick, rows = study.quick, []
    games = [zoo_games.bilinear()] if quick else [zoo_games.bilinear(), zoo_games.cournot()]
    for game in games:
        for method, falling in (("anchored", False), ("sgda", True)) if quick else (
                ("optimistic", False), ("sgda", False), ("anchored", False), ("optimistic", True),
                ("sgda", True)):
            names = (("last",) if falling else ("tail", "moving", "last", "uniform")
                     if method == "anchored" else ("tail", "moving", "last"))
            chosen = lanes(game, epsilons=(1.0,), releases=(100,) if quick else (100, 300, 1000),
                           averages=names)
            rows += study.part(f"{game.name}: {method}, {names}", functools.partial(
                rows_of, game, method, chosen, study.seeds, falling=falling))
    return rows


def plan_rows(study: Study) -> list[dict[str, Any]]:
    """What the plan of optimistic steps gives."""
    made: list[dict[str, Any]] = []
    all_games = [zoo_games.bilinear(), zoo_games.quadratic(), zoo_games.matrix(),
                 zoo_games.matrix(entropic=True), zoo_games.cournot(), zoo_games.robust()]
    for game in all_games[:1] if study.quick else all_games:
        strong = game.name in ("quadratic", "Cournot")
        for kinds in (("monotone", "bilinear"), *((("strongly_monotone",),) if strong else ())):
            made += study.part(f"plan {kinds}: {game.name}, {game.geometry.w}", functools.partial(
                plans.rows_of, game, kinds, study.seeds))
    return made


def large_rows(study: Study) -> list[dict[str, Any]]:
    """Larger simplices, optimistic steps in both geometries, n = 1000 d, epsilon = 1."""
    quick, rows = study.quick, []
    for d, planted in ((100, True),) if quick else ((100, False), (100, True), (1000, True)):
        for entropic in (True,) if quick else (False, True):
            game = zoo_games.matrix(d, 1000 * d, entropic=entropic, planted=planted)
            chosen = lanes(game, epsilons=(1.0,), averages=("uniform",), releases=(
                30,) if quick else (100, 300, 1000) if d == 100 else (100, 300))
            rows += study.part(f"{game.name}: {game.geometry.w}", functools.partial(
                rows_of, game, "optimistic", chosen, min(study.seeds, 16)))
    return rows


def text(rows: Sequence[dict[str, Any]]) -> str:
    """A table of the rows by game, epsilon and method: one column for each number of releases."""
    counts = sorted({r["releases"] for r in rows})
    lines: dict[tuple[Any, ...], dict[int, str]] = {}
    for r in rows:
        key = (r["game"], r["geometry"], r["n"], f"{r['epsilon']:g}", r["method"],
               r["schedule"], r["average"], r["step"])
        mark = f" ({r['elsewhere']:.3f})" if "elsewhere" in r else ""
        lines.setdefault(key, {})[r["releases"]] = f"{r['gap']:.4f} ± {r['se']:.4f}{mark}"
    header = ("game", "geometry", "n", "ε", "method", "schedule", "average", "step",
              *(str(c) for c in counts))
    return report.markdown(header, [[*map(str, key), *(cells.get(c, "") for c in counts)]
                                    for key, cells in lines.items()])


def page(result: dict[str, Any]) -> str:
    """The tables, each with what its cells are."""
    return (
        "A cell has the mean gap ± its standard error over the seeds. The last columns are numbers "
        "of releases. Numbers in brackets come from simulations without this library. An average "
        "weighs all iterates alike (`uniform`) or iterate t by t (`t`). A step is that of theory, "
        "or the best of six multiples of it, chosen by the gaps themselves (`oracle`). "
        f"{result['privacy']} The command `{result['environment']['command']}` made the tables "
        f"with jax {result['environment']['jax']} on {result['environment']['device']}.\n\n"
        f"## Games\n\n{text(result['rows'])}\n"
        "## Plans of optimistic steps\n\nA plan makes 300 releases at ε = 1. The last row has the "
        "geometric mean over all games and three ε. The command "
        f"`{result.get('plans_environment', result['environment'])['command']}` made it.\n\n"
        f"{tables.plans(result)}\n"
        "## Larger simplices\n\nBoth players of these matrix games have 100 or 1,000 strategies. "
        f"\"Planted\" games have few good strategies.\n\n{text(result['large'])}\n"
        "## Other averages, falling steps and anchors\n\nThe average is over the second half of a "
        "run (`tail`), moving (`moving`), or only the last iterate (`last`). A `linear` schedule "
        "lets the step fall to 0. The method `anchored` adds a pull towards the start to "
        f"optimistic steps.\n\n{text(result['failures'])}\n"
        "## Strongly convex-concave games, gap on the population\n\nA noisy solution is the saddle "
        "point of the records with Gaussian noise for its sensitivity. The phases solve for "
        f"disjoint parts of the records, one after the other.\n\n{tables.phases(result)}\n"
        f"## Correlated noise and Poisson samples\n\n{noise.caption(result['noise'])}\n"
        f"{noise.table(result)}\n"
        f"## Samples of parts in turn\n\n{noise.caption(result['turns'])}\n"
        f"{noise.turns_table(result)}")


def study_of(args: argparse.Namespace, seeds: int) -> Study:
    """What the options ask for, with so many seeds if they do not say how many."""
    return Study(args.quick, max(2, args.seeds or (4 if args.quick else seeds)), args.keep)


def noise_rows(args: argparse.Namespace, in_turn: bool = False) -> dict[str, Any]:
    """Correlated noise against Poisson samples, 24 seeds if nothing else is said."""
    study = study_of(args, 24)
    return {"environment": report.environment(),
            "rows": noise.rows(study.quick, study.seeds, study.part, in_turn=in_turn)}


def measured(args: argparse.Namespace) -> dict[str, Any]:
    """All runs."""
    study = study_of(args, 48)
    return {
        "environment": report.environment(), "arguments": report.arguments_of(args),
        "privacy": f"Every run reads full batches and has its epsilon at delta {DELTA:g} for the "
                   "replacement of one record. That epsilon does not cover the choice of a "
                   "multiple by an oracle.",
        "rows": main_rows(study), "failures": failure_rows(study), "large": large_rows(study),
        "plans": plan_rows(study),
        "phases": study.part("phases", lambda: phases.rows(study.quick, study.seeds)),
        "noise": noise_rows(args), "turns": noise_rows(args, True), "bounds": plot.bounds()}


def main(argv: list[str] | None = None) -> int:
    """Runs the games, prints the tables."""
    parser = report.Parser(__file__, __doc__, "json", "markdown", "plot")
    parser.add_argument("--quick", action="store_true", help="few games, releases and seeds")
    parser.add_argument("--seeds", type=report.count, help="runs of each setting, default 48")
    parser.add_argument("--keep", type=pathlib.Path,
                        help="folder of finished parts, for a run that goes on later")
    parser.add_argument("--result", type=pathlib.Path, help="tables and figures of this file")
    parser.add_argument("--only", choices=("noise", "turns", "plans"),
                        help="measure this part of --result anew")
    parser.add_argument("--noise-plot", type=report.output(".png", ".svg"),
                        help="file for the figure of correlated noise")
    args = parser.parse_args(argv)
    if args.only and args.result is None:
        parser.error(f"--only {args.only} needs the file of the other parts: add --result FILE")
    if args.result is None:
        result = measured(args)
    else:
        result = json.loads(args.result.read_text(encoding="utf-8"))
        if args.only == "plans":
            result["plans"] = plan_rows(study_of(args, 48))
            result["plans_environment"] = report.environment()
        elif args.only:
            result[args.only] = noise_rows(args, args.only == "turns")
    if args.json is not None:
        report.write_json(args.json, result)
    report.show(args, page(result), "Monotone games at equal privacy")
    if args.plot is not None:
        plot.plot(args.plot, result)
    if args.noise_plot is not None:
        noise.plot(args.noise_plot, result)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
