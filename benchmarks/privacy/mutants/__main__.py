"""Planted bugs: each is caught by a detector that is silent on the code as it stands.

    python -m benchmarks.privacy.mutants [--only NAME,NAME] [--markdown FILE]

A bug is planted by replacing one function in the module that uses it, for the time of one check;
no file is edited. `plants` has the bugs and `aims` their places. A detector returns a number and
the largest value that the number may have (`detectors`, and `samples` of samples); one that breaks
has caught nothing, but where the library refuses to trace the round that a bug makes: that bug is
caught by the check of rounds. `charges` of the accountant, `subtle`, `grids` and `places` have bugs
with detectors, and so has each file with an `AIMS` and a `BUGS`, which is read without being
listed: `runs` of files and ledgers, `turns` of parts in turn, and `tables`.
"""

import contextlib
import functools
import importlib
import math
import pathlib
import pkgutil
import re
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, NamedTuple

import jax

import jaxminimax as jmm
from benchmarks.common import report
from benchmarks.privacy.mutants import charges, grids, places, samples, subtle
from benchmarks.privacy.mutants import detectors as find
from benchmarks.privacy.mutants import plants as plant
from benchmarks.privacy.mutants.aims import replace
from benchmarks.privacy.mutants.detectors import Finding
from jaxminimax import gda, proximal, recursive_sgda
from jaxminimax.accounting import calibration, curve
from jaxminimax.mechanism import poisson
from jaxminimax.mechanism.size_law import thresholds

RESULT = pathlib.Path(__file__).parents[1] / "results/mutants.md"


class Mutant(NamedTuple):
    """A planted bug and what must find it.

    Attributes:
      name: in a few words, unique.
      breaks: what it takes away.
      caught_by: the detector, in words, and what its number is.
      plant: context manager that holds while the bug is there.
      detector: run with and without the bug.
    """

    name: str
    breaks: str
    caught_by: str
    plant: Callable[[], contextlib.AbstractContextManager[Any]]
    detector: Callable[[], Finding]


def _forget() -> None:
    """Empties every cache that an answer of the mutant could stay in."""
    calibration._CACHE.clear()
    for cached in (curve.named_epsilon, curve.charge_delta, thresholds, poisson._slots):
        cached.cache_clear()


@contextlib.contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """Holds the bug in place, and leaves nothing of it behind."""
    _forget()
    try:
        with mutant.plant():
            yield
    finally:
        _forget()


SIGNAL = "signal over the charged one"
ONE, FOUR = functools.partial(find.signal, 1), functools.partial(find.signal, 4)
JOINT = functools.partial(find.signal, 1, joint=True)
SAMPLED = functools.partial(find.signal, 4, find.POISSON)
BATCHES = functools.partial(find.signal, 7, jmm.Disjoint(batch=6))
POINT = functools.partial(find.signal, 1, algorithm=proximal)
PARTS = functools.partial(find.signal, 2, algorithm=recursive_sgda)
GRADIENTS = functools.partial(find.group_signal, "gradients")
LOSSES = functools.partial(find.group_signal, "losses")
GAUSSIAN_LOSSES = functools.partial(find.group_signal, "losses", noise="gaussian")
ALL_GROUPS = functools.partial(find.group_signal, "gradients", jmm.balanced_groups)
LARGEST = functools.partial(find.group_signal, "largest loss", jmm.active_groups)
ADAPTIVE_JOINT = functools.partial(find.adaptive, joint=True)
PHASES, TREE, LEAF, LOSS, WEIGHTS, CORRELATED = (
    functools.partial(find.stream_signal, k) for k in range(6))
PASSES = functools.partial(find.signal, 8, jmm.Disjoint(batch=5), bands=3)

# name, what it breaks, what is replaced and by what, detector, and what its number is
_BUGS: tuple[tuple[str, str, str, Callable[[Any], Any], Callable[[], Finding], str], ...] = (
    # noise
    ("noise of one player halved", "standard deviation of player w",
     "integer noise of both players", plant.of_one_player(0.5), ONE, SIGNAL),
    ("noise a tenth low", "standard deviation", "integer noise", plant.quieter(0.9),
     FOUR, SIGNAL),
    ("noise a tenth low, sampled", "standard deviation", "integer noise",
     plant.quieter(0.9), SAMPLED, SIGNAL),
    ("noise of a point a tenth low", "standard deviation", "integer noise",
     plant.quieter(0.9), POINT, SIGNAL),
    ("noise of a group's gradient a tenth low", "standard deviation", "integer noise",
     plant.quieter(0.9), GRADIENTS, SIGNAL),
    ("noise of all groups' gradient a tenth low", "standard deviation", "integer noise",
     plant.quieter(0.9), ALL_GROUPS, SIGNAL),
    ("noise of balanced weights while these move", "standard deviation follows the weights",
     "sum over all groups", plant.noise_of_balanced_weights, ALL_GROUPS, SIGNAL),
    ("noise of nodes a tenth low", "standard deviation", "integer noise", plant.quieter(0.9),
     TREE, SIGNAL),
    ("correlated noise a tenth low", "standard deviation", "what correlated noise is made of",
     plant.quieter(0.9), CORRELATED, SIGNAL),
    ("correlated noise of passes a tenth low", "standard deviation",
     "what correlated noise is made of", plant.quieter(0.9), PASSES, SIGNAL),
    ("noise of solutions a tenth low", "standard deviation", "integer noise",
     plant.quieter(0.9), PHASES, SIGNAL),
    ("noise of counts halved", "standard deviation of the counts that clip norms follow",
     "noise of counts", plant.quieter(0.5), find.adaptive, SIGNAL),
    ("noise of groups' losses a tenth low", "scale", "integer Laplace noise", plant.quieter(0.9),
     LOSSES, SIGNAL),
    ("Gaussian noise of groups' losses a tenth low", "standard deviation", "integer noise",
     plant.quieter(0.9), GAUSSIAN_LOSSES, SIGNAL),
    ("noise of the largest loss halved", "scale", "index", plant.quieter_index(0.5), LARGEST,
     SIGNAL),
    ("noise of the largest loss a fifth low", "scale", "index", plant.quieter_index(0.8), LARGEST,
     SIGNAL),
    ("Gumbel noise by each group's own size", "one scale for all scores", "index",
     plant.scale_of_each_group, LARGEST, SIGNAL),
    ("noise of single losses a tenth low", "scale", "integer Laplace noise", plant.quieter(0.9),
     LOSS, SIGNAL),
    ("noise a 256th low", "the margin for rounding", "margin of the noise",
     lambda _: 1 - 2.0**-8, find.loudness, "described over measured deviation"),
    ("Laplace noise by the number of all records", "scale of the noise", "integer Laplace noise",
     plant.by_all_records, LOSSES, SIGNAL),
    ("noise of bounded range", "tails of the noise: uniform, same variance", "integer noise",
     plant.uniform, find.law, "distance from the normal law"),
    ("noise of the textbook's Box-Muller numbers", "the last bits of the noise", "noise on a sum",
     grids.naive_noise, grids.grids, "audit: lower bound on epsilon"),
    ("noise skipped once in ten rounds", "one release is exact", "release", plant.silent_once,
     FOUR, SIGNAL),
    # independence
    ("noise of a constant key", "noise differs in no run", "integer noise",
     plant.of_key_0, ONE, SIGNAL),
    ("one noise draw for both players", "independence of players", "integer noise of both players",
     plant.one_draw_for_both, ONE, SIGNAL),
    ("a scalar leaf shares the next one's noise", "independence of leaves",
     "integer noise of both players", plant.scalars_share, find.leaves, SIGNAL),
    ("a quarter of the variance is of one draw", "independence of leaves",
     "integer noise of both players", plant.leaves_share, find.leaves, SIGNAL),
    ("one key for two rounds", "independence of releases", "release",
     plant.same_key_in_two_rounds, FOUR, SIGNAL),
    ("spent not advanced (noise)", "independence of releases", "update", plant.not_advanced, FOUR,
     SIGNAL),
    ("noise of the words that drew the sample", "independence of noise and sample",
     "key and sample", plant.of_the_noises_words, SAMPLED, SIGNAL),
    ("operators draw the words of the noise", "independence of noise and operators",
     "words of operators", plant.of_the_noises_key, find.drawn,
     "distance of a release's variance from that of noise and operator"),
    ("operators of groups draw the words of the noise", "independence of noise and operators",
     "words of operators", plant.of_the_noises_key, functools.partial(find.drawn, True),
     "distance of a release's variance from that of noise and operator"),
    ("one noise for all nodes of a level", "independence of a tree's nodes", "node",
     plant.one_noise_a_level, TREE, SIGNAL),
    ("one noise for nodes of one index", "independence of a tree's levels", "node",
     plant.one_noise_an_index, TREE, SIGNAL),
    ("correlated noise of one block's numbers", "independence of what it is made of",
     "keys of a release", plant.of_block_0, CORRELATED, SIGNAL),
    ("noise kept in a state", "secrecy of noise that is used again", "round on a stream",
     plant.keeps_noise, find.kept_noise, "numbers of a state that are noise"),
    ("one noise for all phases", "independence of phases", "keys of a release",
     plant.of_number_0, PHASES, SIGNAL),
    ("one noise for all single losses", "independence of rounds", "single loss",
     plant.loss_of_round_0, LOSS, SIGNAL),
    ("one noise for all rounds of groups' losses", "independence of rounds", "keys of a release",
     plant.of_number_0, LOSSES, SIGNAL),
    # several releases a round
    ("one_place", "independence of two descriptions of one kind", "stream of keys",
     places.of_the_kind_alone, places.two_parts, "correlation of two releases' noise"),
    ("one_number", "independence of two releases of one description", "numbers of a round",
     places.of_one_number, places.one_part, "correlation of two releases' noise"),
    ("unpriced", "accountant: releases that are not described", "parts of a round",
     places.with_another_clip, places.refused, "runs that are refused"),
    # samples
    ("sampling rate doubled", "amplification", "sample", plant.times_the_rate(2.0), SAMPLED,
     SIGNAL),
    ("sampling rate a tenth high", "amplification", "sample", plant.times_the_rate(1.1), SAMPLED,
     SIGNAL),
    ("ties of a size's first bits not extended", "amplification: the law of sizes",
     "law of sizes", plant.ties_not_extended, samples.sizes,
     "samples whose size is not that of their words"),
    ("rows that are drawn twice count twice", "clipping: a record is added once", "new rows",
     plant.repeated_rows, samples.repeated, "samples that hold a row twice"),
    ("samples in the first slots", "sensitivity: the slots of others", "slots of a sample",
     plant.first_slots, samples.slots, "first against last slots, standard deviations"),
    ("samples that do not fit are cut", "amplification: the law of sizes", "sample that fits",
     plant.cut_short, samples.cut, "samples that fill their capacity"),
    ("overflow does not fail closed", "amplification: the law of sizes", "sample",
     plant.any_fits, samples.overflows, "releases that are numbers"),
    ("overflow of rows sent ahead is released", "uniformity, of data on the host",
     "rows sent ahead", plant.fits_if_sent, samples.sent_ahead, "releases that are numbers"),
    ("rows sent for another release are read", "uniformity, of data on the host",
     "words of samples sent ahead", plant.of_first_mark, samples.sent_for_another,
     "releases that are numbers"),
    ("batches not disjoint", "one read a pass", "sample", plant.first_batch_only, BATCHES, SIGNAL),
    ("rows in another order in every pass", "distance of a record's releases, of correlated noise",
     "sample", plant.reshuffled, PASSES, SIGNAL),
    ("all parts the first one", "one part a record", "part",
     lambda part: lambda mechanism, spent: 0 * spent, PARTS, SIGNAL),
    # sums
    ("clip norm doubled", "sensitivity", "weight", plant.clip_times(2.0), ONE, SIGNAL),
    ("clip norm a tenth high", "sensitivity", "weight", plant.clip_times(1.1), FOUR, SIGNAL),
    ("clip norm of a group's gradient a tenth high", "sensitivity", "weight",
     plant.clip_times(1.1), GRADIENTS, SIGNAL),
    ("clip norm of all groups' gradient a tenth high", "sensitivity", "weight",
     plant.clip_times(1.1), ALL_GROUPS, SIGNAL),
    ("clip norm of a leaf a fifth high", "sensitivity", "weight", plant.clip_times(1.2), LEAF,
     SIGNAL),
    ("clip lifted", "sensitivity", "weight", plant.lifted, ONE, SIGNAL),
    ("features not shortened", "sensitivity, where nothing is clipped", "product with a record",
     lambda _: lambda w, x, radius: x @ w, find.one_operator,
     "norm of one record's operator over its bound"),
    ("norm of numbers cast to bfloat16", "sensitivity, by some thousandths", "norm",
     plant.in_bfloat16, find.one_norm, "norm of one clipped record over the clip norm"),
    ("cross terms of shared rows dropped", "sensitivity, of gradients kept as factors", "gram",
     plant.without_cross_terms, find.shared_rows, "norm of one clipped record over the clip norm"),
    ("norm of the first of stacked matrices", "sensitivity, of gradients kept as factors",
     "norms of matrices", plant.of_the_first_matrix, find.stacked_matrices,
     "norm of one clipped record over the clip norm"),
    ("lookups of a tied table left out of its norm", "sensitivity, of gradients kept as factors",
     "norms of tied tables", plant.without_lookups, find.tied_table,
     "norm of one clipped record over the clip norm"),
    ("records of a grouped convolution not held apart", "sensitivity, where a record is NaN",
     "records by themselves", lambda _: lambda f, z, x: jax.vmap(f, (None, 0))(z, x),
     find.others_of_nan, "what a NaN record moves the sum of the others by over the clip norm"),
    ("rows of a slice that begins early counted again", "sensitivity, of long batches",
     "rows of a slice", lambda _: lambda rows, first: rows >= 0, find.slices,
     "what one record moves a sum in slices by over the clip norm"),
    ("joint clip of each player alone", "sensitivity, one clip for both", "joint norm",
     lambda _: lambda ratio: ratio, JOINT, SIGNAL),
    ("a record counts as two", "sensitivity of the counts that clip norms follow", "count",
     plant.counted_twice, find.adaptive, SIGNAL),
    ("division by the realised batch size", "sensitivity, where few records were drawn",
     "clipped sum", plant.by_realised_size, find.distance,
     "distance of equal-key releases on neighbours"),
    ("displacement of a proximal point a fifth low", "sensitivity of a solution", "noise unit",
     plant.times(0.8), POINT, SIGNAL),
    ("sensitivity of a certified solution a fifth low", "sensitivity of a phase",
     "length of a solution", plant.times(0.8), WEIGHTS, SIGNAL),
    ("groups' weights left out of a sensitivity", "sensitivity of a phase",
     "length of a solution", plant.of_gradients_alone, WEIGHTS, SIGNAL),
    ("losses clipped a tenth high", "sensitivity of losses", "clipped losses",
     plant.losses_clipped_at(1.1), LOSSES, SIGNAL),
    ("losses of the largest one not clipped", "sensitivity of scores", "clipped scores",
     lambda _: lambda each, bound: each / bound, LARGEST, SIGNAL),
    ("losses of the largest one clipped a fifth high", "sensitivity of scores", "clipped scores",
     plant.scores_clipped_at(1.2), LARGEST, SIGNAL),
    ("losses not clipped", "sensitivity of losses", "clipped losses",
     lambda _: lambda each, bound: each, LOSSES, SIGNAL),
    # the end of the budget
    ("spent not advanced (budget)", "the end of the budget", "update", plant.not_advanced,
     find.budget, "releases that are not NaN"),
    # the accountant
    ("factor two of replace-one dropped", "accountant", "shift",
     lambda _: lambda neighbours: 1.0, functools.partial(find.signal, 1, algorithm=gda), SIGNAL),
    ("the dearer player charged alone", "accountant: both players", "multiplier",
     charges.dearer_player_alone, ONE, SIGNAL),
    ("counts that clip norms follow not charged", "accountant: all parts of a release",
     "multiplier", charges.counts_free, ADAPTIVE_JOINT, SIGNAL),
    ("one release not charged", "accountant", "charge", charges.one_release_free, FOUR, SIGNAL),
    ("one release of all groups' gradient not charged", "accountant", "charge",
     charges.one_release_free, ALL_GROUPS, SIGNAL),
    ("a pass that was begun not charged", "accountant", "charge", charges.whole_passes_only,
     BATCHES, SIGNAL),
    ("players charged as two samples", "accountant: one sample for both", "charge",
     charges.players_apart, charges.one_sample, "true delta over the claimed one"),
    ("rate charged a twentieth low", "accountant", "charge", charges.rate_charged(0.95),
     charges.one_sample, "true delta over the claimed one"),
    ("delta spent twice", "accountant", "delta", charges.spent_twice, charges.one_sample,
     "true delta over the claimed one"),
    ("group losses not charged", "accountant: Laplace releases", "charge", charges.laplace_free,
     charges.laplace, "true delta over the claimed one"),
    ("index of the largest loss not charged", "accountant: selections", "charge",
     charges.index_free, charges.selection, "true delta over the claimed one"),
    ("several releases of a round charged as one", "accountant: what a stopped run has spent",
     "stopped rounds", charges.one_of_each, charges.stopped_rounds,
     "squared parameter over the charged"),
    ("a tree charged as one node", "accountant: nodes that a record is in", "charge",
     charges.tree_of(lambda leaves: 1), TREE, SIGNAL),
    ("a tree charged one leaf short", "accountant: nodes that a record is in", "charge",
     charges.tree_of(lambda leaves: leaves - 1), find.power_of_two_leaves, SIGNAL),
    ("correlated noise charged as independent", "accountant: releases that a record moves",
     "length of columns", charges.one_column_entry, CORRELATED, SIGNAL),
    ("correlated noise of one pass charged for all", "accountant: passes", "length of columns",
     charges.one_pass_alone, PASSES, SIGNAL),
    ("group charged at its rate over the number of groups", "accountant: adaptive groups",
     "charge", charges.rate_over_groups, charges.one_group, "true delta over the claimed one"),
    ("several records charged as in the largest group", "accountant: groups of several sizes",
     "charge", charges.in_the_largest_group, charges.several_in_a_group,
     "true delta over the claimed one"),
    *subtle.BUGS,
)


def _files() -> list[ModuleType]:
    """Finds the files of this folder with bugs and places of their own, `BUGS` and `AIMS`."""
    names = (info.name for info in pkgutil.iter_modules([str(pathlib.Path(__file__).parent)]))
    modules = [importlib.import_module(f"{__package__}.{x}") for x in names if x != "__main__"]
    return [module for module in modules if {"AIMS", "BUGS"} <= vars(module).keys()]


MUTANTS = tuple(Mutant(name, breaks, number, replace(aim, make), detector)
                for name, breaks, aim, make, detector, number in _BUGS)
MUTANTS += tuple(Mutant(name, breaks, number, replace(aim, make, own.AIMS), detector)
                 for own in _files()
                 for name, breaks, aim, make, detector, number in own.BUGS)
# an attack's bound on epsilon sees a gross mistake of any kind
MUTANTS += (Mutant("clip norm doubled, attacked", "sensitivity", "audit: lower bound on epsilon",
                   replace("weight", plant.clip_times(2.0)), functools.partial(find.audit, 1)),)


@functools.cache
def _without_bugs(detector: Callable[[], Finding]) -> Finding:
    _forget()
    return detector()


def check(mutant: Mutant) -> tuple[Finding, Finding]:
    """What the detector measures without the bug and with it."""
    sound = _without_bugs(mutant.detector)
    with planted(mutant):
        try:
            return sound, mutant.detector()
        except ValueError as error:
            # what `data_flow` and `watch` say of a round, and nothing else does
            if not str(error).startswith("update "):
                raise
            return sound, Finding(math.inf, sound.limit, refused=True)


def markdown(rows: list[tuple[Mutant, Finding, Finding]]) -> str:
    """The table, in Markdown."""
    lines = ["| planted bug | breaks | caught by | with the bug | limit | without | caught |",
             "| --- | --- | --- | ---: | ---: | ---: | --- |"]
    for mutant, sound, broken in rows:
        caught = "refused when traced" if broken.refused else "yes"
        verdict = caught if broken.fires and not sound.fires else "NO"
        lines.append(f"| {mutant.name} | {mutant.breaks} | {mutant.caught_by} | "
                     f"{broken.value:.4g} | {broken.limit:.4g} | "
                     f"{sound.value:.4g} | {verdict} |")
    return "\n".join(lines) + "\n"


def main(argv: list[str] | None = None) -> int:
    parser = report.Parser(__file__, __doc__.split("\n")[0])
    parser.add_argument("--markdown", type=report.output(".md"), help=f"default: {RESULT.name}")
    parser.add_argument("--only", help="names of bugs with commas between them; a table is "
                        "written by --markdown alone")
    args = parser.parse_args(argv)
    names = {m.name for m in MUTANTS}
    only = names if args.only is None else set(re.split(r",(?! )", args.only))
    if only - names:
        parser.error(f"no planted bug is called {sorted(only - names)}: names are the first column "
                     f"of {RESULT.name}")
    rows = []
    for mutant in (m for m in MUTANTS if m.name in only):
        rows.append((mutant, *check(mutant)))
        report.say(markdown(rows[-1:]).splitlines()[-1])
    text = ("# Planted bugs\n\nWritten by `python -m benchmarks.privacy.mutants`. A signal is the "
            "distance of neighbours' releases in units of their noise: its lower confidence bound "
            f"at 0.999 from {find.RUNS} runs, divided by the charge. If larger, it is the share of "
            "releases that read a record, or 1 plus the correlation of noise.\n\n"
            + markdown(rows))
    if args.markdown is None:
        RESULT.parent.mkdir(exist_ok=True)
    if args.only is None or args.markdown is not None:
        (args.markdown or RESULT).write_text(text, encoding="utf-8")
    caught = all(broken.fires and not sound.fires for _, sound, broken in rows)
    if not caught:
        report.say("A PLANTED BUG WAS NOT CAUGHT, or a detector fires without one: see the table.")
    return 0 if caught else 1


if __name__ == "__main__":
    raise SystemExit(main())
