"""Statements of a run and of a search: their numbers, what is enforced, and what is assumed.

`in_plain_words` says the same for those who decide whether it is good enough.
"""

import collections.abc
import math
import textwrap
from collections.abc import Callable
from typing import Any

from jaxminimax.accounting import curve, tuning
from jaxminimax.accounting.answers import (
    LARGE,
    check_delta,
    limit_in_words,
    odometer,
    proven_up_to,
    warn_of,
)
from jaxminimax.accounting.curve import charges, dearest, epsilon_of, extras, of_run, truncated
from jaxminimax.accounting.profiles import STATED, Profile, briefly
from jaxminimax.accounting.statements import (
    LARGE_DELTA,
    Statement,
    TuningStatement,
    quote_one,
    relation_in_words,
)
from jaxminimax.accounting.tuning import Target, one_run
from jaxminimax.base import VERSION, checks
from jaxminimax.base.types import unit_of
from jaxminimax.mechanism import Leaf, Repeat, Sequence, leaves, releases
from jaxminimax.mechanism.costs import concrete
from jaxminimax.mechanism.description import Mechanism
from jaxminimax.mechanism.repetitions import BITS
from jaxminimax.mechanism.sentences import EXACT, FLOATS

ENFORCED = (
    "Noise, sampling and clip norms of the run are those of the mechanism charged here.",
    "Releases beyond the allowed number, and samples that cannot be drawn, are NaN.",
)
ASSUMED = (
    "n, the initial point, the preprocessing, the projection and every hyper-parameter are public; "
    "choosing them by looking at these data is not paid for here.",
    "The key is secret, drawn with full entropy, and used for this run only.",
    "The operator of a record, losses, public terms, projection, optimisers and schedules read no "
    "data but that one record: none closes over records, or over numbers computed from them.",
    "The statement is for one run; publishing several runs on the same data adds up.",
    "The generator's words are independent and uniform, floating-point arithmetic is IEEE's, and "
    "equal programs on equal numbers give equal results; how long a release takes is not "
    "published.",
)
ENDS = ("The stop is a function of what was released and of coins that know nothing of the data: "
        "one decided by private quantities that were not released, a validation loss or a crash "
        "that depends on the data, is not covered by any epsilon here.")
_ONE = ("One record is the unit of privacy: who contributes several records is protected less "
        "(people=k counts any k of them).")
_CLAIM = ("That one record is '{unit}' is the user's claim, and not checked: who contributes "
          "several records is protected less (people=k counts any k of them).")
_PERSONS = ("Whose each row is was told rightly: a record is {unit}, the rows of one owner, and "
            "who has several names is protected less.")
CAPPED = ("A record is a person, with at most {rows} row(s): the person's other rows are not "
           "read, and what these hold, and how many there are, is protected as one.")
_SEVERAL = ("Nobody contributes more than {people} records, wherever they are in the data: that is "
            "the user's claim, and not checked.")
_LEMMA = ("For {people} records the curve of one is used {people} times: no sharper proof covers "
          "all of these releases.")
_FIXED_END = ("The epsilon of what was spent is for an end that was fixed beforehand. If a look at "
              "what was released decided when to stop, only the epsilon of all that is allowed "
              "and that of the milestone hold. {quote}")


def claims(unit: str | None, people: int, lemma: bool,
           rows_each: int | None = None) -> tuple[str, ...]:
    """States what the unit of privacy rests on, and how several records of one are charged."""
    one = _PERSONS if rows_each else _CLAIM if unit not in (None, "one record") else _ONE
    claim = _SEVERAL if people > 1 else one
    several = (_LEMMA,) if lemma else ()
    return tuple(x.format(unit=unit, people=people) for x in (claim, *several))


def large_delta(delta: float, n: int) -> tuple[str, ...]:
    """States the risk that a large delta leaves."""
    if delta >= LARGE:
        return (f"{LARGE_DELTA}, {delta:g}: publishing all records with that probability would "
                "meet this statement too. IT IS NO PROTECTION.",)
    if n and delta >= 1 / n:
        return (f"{LARGE_DELTA}, {delta:g}, which is not below 1/n = {1 / n:.3g}: publishing one "
                "whole record, drawn at random, would meet this statement too.",)
    return ()


def early_end(delta: float) -> tuple[str, str]:
    """States the assumptions of a run that ended early."""
    return ENDS, _FIXED_END.format(quote=quote_one(delta))


_BOUND = {
    "gaussian": "exact Gaussian composition",
    "pld": "privacy loss distribution with relative accuracy, rounded pessimistically",
    "chernoff": "Chernoff's bound on the privacy loss of the worst pair",
}


def accountant_name(bound: str) -> str:
    """The bound, and the library that computes it with its version."""
    return f"{_BOUND[bound]} (jaxminimax {VERSION})"


def describe(part: Leaf) -> str:
    """The releases of a mechanism, in one sentence."""
    return part.summary()


def enforced_by(mechanism: Mechanism) -> tuple[str, ...]:
    """Lists the guarantees of a mechanism that the code enforces."""
    return (*((EXACT,) if mechanism.is_exact() else ()), *mechanism.enforced(), *ENFORCED)


def assumed_by(mechanism: Mechanism) -> tuple[str, ...]:
    """Lists the assumptions of a mechanism that the user must see to, besides `ASSUMED`."""
    return (*(() if mechanism.is_exact() else (FLOATS,)),
            *dict.fromkeys(mechanism.assumed()))


def statement(algorithm: Any, hyper: Any, state: Any = None, *, delta: float,
              neighbours: str = "replace_one", alongside: tuple[Mechanism, ...] = (),
              unit: str | None = None, assumed: tuple[str, ...] = (), people: int = 1,
              answers: bool = False, rows_each: int | None = None) -> Statement:
    """The privacy statement of a run.

    Its epsilon is that of all releases that are allowed, however few were made: that holds whatever
    ended the run. Of a run that ended earlier, `Statement.epsilon_if_stopped_by_looking` holds for
    every rule that looked at what was released, and `Statement.epsilon_spent_if_fixed`, which is
    smaller, on the condition that the end was fixed beforehand.

    Args:
      algorithm: a module such as `sgda`.
      hyper: the `Hyper` that was run.
      state: the state it ended in, for the releases spent; None for all that are allowed.
      delta: in (0, 1).
      neighbours: as in `epsilon`.
      alongside: other mechanisms run on the same data, charged in full.
      unit: what one record is, e.g. "one patient's visit"; with several `people`, whose they are,
        e.g. "one patient".
      assumed: further assumptions to print, e.g. the public constants of the preprocessing.
      people: k, the most records that one unit has; epsilon is then for any k records.
      answers: whether `Statement.answers` is computed too, which takes up to some seconds.
      rows_each: of records that are `People`, the most rows of one, `people.most`; the unit is then
        "one person". `fit` sees it by the data.

    Raises:
      ValueError: for a description that is not valid; for a state of several runs.
      TypeError: for what is no algorithm, or settings that are not its own.

    Examples:
        >>> query = jmm.Query(clip=Saddle(1.0, 1.0), noise_multiplier=Saddle(30.0, 30.0),
        ...                   population=1000)
        >>> hyper = jmm.sgda.Hyper(query=query, step=Saddle(0.1, 0.1), iterations=20)
        >>> print(jmm.statement(jmm.sgda, hyper, delta=1e-6, unit="one visit"))
        (...)-differential privacy for one visit...
    """
    check_delta(delta)
    main, alongside = of_run(algorithm, hyper), extras(alongside)
    allowed = releases(main)
    spent = allowed if state is None else int(concrete(state.spent))
    checks.count("spent", spent, low=0)

    def part_at(count: int) -> Mechanism:
        done = truncated(main, count)
        return Sequence(parts=(*alongside, *(() if done is None else (done,))))

    return state_of(Sequence(parts=(*alongside, main)), part_at, delta, spent=spent,
                    allowed=allowed, neighbours=neighbours, unit=unit, assumed=assumed,
                    people=people, answers=answers, rows_each=rows_each,
                    extra=lambda _: sum(map(releases, alongside)))


def state_of(everything: Mechanism, part_at: Callable[[int], Mechanism], delta: float, *,
             spent: int, allowed: int, neighbours: str = "replace_one", unit: str | None = None,
             assumed: tuple[str, ...] = (), people: int = 1, answers: bool = False,
             rows_each: int | None = None,
             extra: Callable[[int], int] = lambda _: 0) -> Statement:
    """The privacy statement of a description, for `statement` and the command line.

    Args:
      everything: all that is allowed.
      part_at: from a number of releases of the run to the part of `everything` that they are.
      delta: in (0, 1).
      spent: releases that the run made.
      allowed: releases that the run may make.
      neighbours: as in `epsilon`.
      unit: as in `statement`.
      assumed: as in `statement`.
      people: as in `statement`.
      answers: as in `statement`.
      rows_each: as in `statement`.
      extra: from a number of releases of the run to the number of releases made alongside it.
    """
    check_delta(delta)
    if rows_each is not None:
        checks.count("rows_each", rows_each)
    unit = unit or unit_of(people, rows_each)
    worst = dearest(everything, float(delta), neighbours, people)
    warn_of(delta, everything, stacklevel=4)
    parts = leaves(everything)
    looking, milestone = None, None
    if spent < allowed:
        looking, end = odometer(part_at, allowed, spent, float(delta), neighbours, people)
        milestone = end + extra(end)
    so_far = everything if spent >= allowed else part_at(spent)
    return Statement(
        epsilon=worst.epsilon,
        epsilon_if_stopped_by_looking=looking,
        milestone=milestone,
        epsilon_spent_if_fixed=dearest(so_far, float(delta), neighbours, people).epsilon,
        delta=float(delta),
        neighbours=neighbours,
        unit=unit,
        sampling=tuple(map(describe, parts)),
        spent=spent + extra(spent),
        allowed=allowed + extra(allowed),
        noise_multiplier=tuple(part.noise_multipliers() for part in parts),
        clip=tuple(part.clips() for part in parts),
        effective_noise_multiplier=tuple(part.multiplier() for part in parts),
        charged_noise_multiplier=tuple(part.effective_noise_multiplier(neighbours)
                                       for part in parts),
        realisation=tuple(part.sampler_summary(neighbours) for part in parts),
        accountant=accountant_name(worst.bound),
        event=curve.event(worst.cost),
        enforced=(*((CAPPED.format(rows=rows_each),) if rows_each else ()),
                  *enforced_by(everything)),
        assumed=(*claims(unit, people, worst.lemma, rows_each), *ASSUMED,
                 *large_delta(float(delta), everything.records()),
                 *(early_end(float(delta)) if spent < allowed else ()), *assumed_by(everything),
                 *assumed),
        people=people,
        answers=(briefly(everything, float(delta), neighbours=neighbours, people=people)
                 .answers(STATED) if answers else None),
        proven_up_to=(proven_up_to(everything, float(delta), neighbours, people)
                      if math.isinf(worst.epsilon) else None),
    )


_WIDTH = 92


def in_plain_words(stated: Statement, profile: Profile) -> str:
    """Explains in plain words the releases, the unit of privacy, the numbers and the assumptions.

    Args:
      stated: the statement.
      profile: of the same description, relation and number of records, with the rate .001 of false
        positives among what it answers well.
    """
    several = stated.people > 1
    whom = ("A person is taken to have at most "
            f"{stated.people} records; for one with more it is weaker." if several else
            "A person with several records is protected less: epsilon grows about in proportion "
            "to their number, which --people counts.")
    blocks = [
        ("What is released", _released(stated)),
        ("Whom the guarantee is for",
         f"The unit is {stated.unit}. Two worlds are compared: the data as they are, and the data "
         f"where {relation_in_words(stated.neighbours, stated.people)}. What is published is "
         f"nearly as likely in both. {whom} What the data as a whole tell about people like them "
         "is not hidden; that is what the run is for."),
        ("What the numbers mean", _numbers(stated, profile)),
        ("What it rests on", "Enforced by the code: noise, sampling and bounds on what a record "
         "moves. Not checked by the code, and for somebody to answer: the list 'Assumed' below; "
         "above all, that settings were not chosen by looking at these data, that the key of the "
         "random numbers is secret, and that all other releases of these data are added up."),
    ]
    return "\n\n".join(f"{title}.\n{textwrap.fill(text, _WIDTH)}" for title, text in blocks)


def _released(stated: Statement) -> str:
    of = (f"{stated.spent} of {stated.allowed} allowed releases were made"
          if stated.spent < stated.allowed else
          f"{stated.allowed} release{'s' * (stated.allowed > 1)}")
    return (f"{of}, such as the model after each step. A release is computed from the records, or "
            "from a sample of them, with a limit on what each record can change, and noise is "
            f"added. In detail: {' '.join(stated.sampling)} Results computed from the releases are "
            "covered too, and so is publishing all of them.")


def _numbers(stated: Statement, profile: Profile) -> str:
    if math.isinf(stated.epsilon):
        return f"Epsilon is {limit_in_words(stated.proven_up_to, stated.delta)}."
    factor = math.exp(min(stated.epsilon, 700.0))
    right = 50 * (1 + profile.advantage)
    strong = (f"epsilon = {stated.epsilon:.4g} and delta = {stated.delta:g}: the chance of any "
              "conclusion that anybody draws from what is published is at most e^epsilon = "
              f"{factor:.4g} times what it would have been in the other world, plus "
              f"{stated.delta:g}.")
    if factor > 1000:
        strong += " By itself such a factor says little; the next sentences say more."
    hits = profile.true_positives(1e-3)
    return (f"{strong} Somebody who knows everything else, and who is to tell the two worlds "
            f"apart with even odds, is right in at most {right:.4g} % of cases, where guessing is "
            "right in 50 %. If he may accuse wrongly once in a thousand, he is right about at "
            f"most {100 * hits:.3g} % of those whom he looks for.")


_SEARCH_ENFORCED = (
    "Noise, sampling and clip norms of every run, and of its score, are those charged here.",
    "One run leaves the program: its state, the number of its candidate and its released score. "
    "The number of runs, which of them it was, the other runs and their scores do not.",
    "The number of runs and every run's candidate are drawn from the key, before any record is "
    "read; every run has samples and noise of its own.",
)
_SEARCH_ASSUMED = (
    "One record is the unit of privacy, and a person contributes no more than the unit says.",
    "n, the initial point, the preprocessing, the projection, and the list of candidates are "
    "public; a list that was chosen by looking at these data is not paid for here.",
    "The key is secret, drawn with full entropy, and used for this search only.",
    "Operators, losses, scores, public terms, projections, optimisers and schedules read no data "
    "but the one record that they are given.",
    "The statement is for one search; publishing anything else on the same data adds up. Its "
    "epsilon is of no composition of releases, so others are added to it as numbers: epsilons and "
    "deltas each.",
    "The generator's words are independent and uniform, floating-point arithmetic is IEEE's, and "
    "equal programs on equal numbers give equal results; how long a release takes is not "
    "published.",
)
_TIME = ("How long the search took is not published, nor logs, profiles or costs that tell it: it "
         "tells the number of runs, and whoever knows that it was k sees a privacy loss of up to k "
         "runs.")
_PADDED = ("The largest possible number of runs is always made, so that the time of the search "
           "does not tell how many count.")
_APART = ("No record of the training is among those that the score reads, and which records these "
          "are does not depend on what any of them contains.")


def tuning_statement(algorithm: Any, candidates: collections.abc.Sequence[Any], score: Repeat,
                     score_range: tuple[float, float], target: Target, *, unit: str, padded: bool,
                     apart: bool, assumed: tuple[str, ...] = ()) -> TuningStatement:
    """The statement of a search.

    Args:
      algorithm: a module such as `sgda`.
      candidates: its `Hyper`s, calibrated.
      score: the release of a run's score.
      score_range: of one record's score.
      target: of which epsilon is found anew.
      unit: what one record is.
      padded: whether the largest number of runs is always made.
      apart: whether the score reads other records than the training.
      assumed: further assumptions to print.
    """
    delta, runs, neighbours = float(target.delta), target.runs, target.neighbours
    mechanisms = [one_run(algorithm, hyper, score, apart) for hyper in candidates]
    trainings = [algorithm.mechanism(hyper) for hyper in candidates]
    warn_of(delta, trainings[0], stacklevel=4)
    costs = tuple(dict.fromkeys(x for one in mechanisms for x in charges(one, neighbours)))
    parts = [leaf for one in trainings for leaf in leaves(one)]
    exact = all(one.is_exact() for one in mechanisms)
    guaranteed = dict.fromkeys(x for one in mechanisms for x in one.enforced())
    taken = dict.fromkeys(x for one in mechanisms for x in one.assumed())
    return TuningStatement(
        epsilon=tuning.epsilon_of_best(costs, delta, runs, neighbours),
        delta=delta,
        neighbours=neighbours,
        unit=unit,
        candidates=len(mechanisms),
        expected_runs=runs.mean,
        most_runs=len(runs.weights),
        eta=float(runs.eta),
        gamma=runs.gamma,
        chance_of_one_run=runs.weights[0] / 2**BITS,
        chance_of_trying=runs.chance_of_trying(len(mechanisms)),
        epsilon_of_one_run=max(epsilon_of(cost, delta, neighbours) for cost in costs),
        padded=padded,
        sampling=tuple(dict.fromkeys(part.summary() for part in parts)),
        score=_score_in_words(score, score_range, apart),
        noise_multiplier=tuple(tuple(leaf.noise_multipliers() for leaf in leaves(one))
                               for one in mechanisms),
        law=runs.summary(),
        accountant="privacy profile of one run, and of the best of a random number of them "
                   f"(jaxminimax {VERSION})",
        enforced=(*((EXACT,) if exact else ()), *guaranteed, *_SEARCH_ENFORCED,
                  *((_PADDED,) if padded else ())),
        assumed=(*_SEARCH_ASSUMED, *(() if padded else (_TIME,)), *((_APART,) if apart else ()),
                 *(() if exact else (FLOATS,)), *taken, *assumed),
    )


def _score_in_words(score: Repeat, score_range: tuple[float, float], apart: bool) -> str:
    n, z = score.query.population, score.multiplier()
    low, high = score_range
    return (f"Its score, once: the mean over {n} {'other ' * apart}records, each one's clipped to "
            f"[{low:g}, {high:g}], with Gaussian noise of standard deviation "
            f"{z * (high - low) / (2 * n):.3g}.")
