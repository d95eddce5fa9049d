"""Computes the statements of a run and of a search: numbers, what is enforced, what is assumed."""

import collections.abc
import math
from collections.abc import Callable
from typing import Any

from jaxminimax.accounting import curve, epsilon_delta, printing, tuning
from jaxminimax.accounting.attack_bounds import STATED_RATES, short_profile
from jaxminimax.accounting.statement_text import LARGE_DELTA, Statement, TuningStatement
from jaxminimax.base import VERSION, checks, identity
from jaxminimax.mechanism import Description, Repeat, Sequence, leaves, repetitions, sentences
from jaxminimax.mechanism.costs import concrete


def common_assumptions(what: str, settings: str, also: str = "") -> tuple[str, ...]:
    """Returns the assumptions on a "run" or a "search"; `also` names more that reads records."""
    return (
        f"User: The number of records, the initial point, the preprocessing, the projection and "
        f"{settings} are public. Choosing them by looking at these data costs privacy that this "
        "epsilon does not count.",
        f"Operator: The key is secret, drawn with full entropy, and used for this {what} only.",
        f"User: Operators, losses, {also}public terms, projections, optimisers and schedules read "
        "no data except the one record that they are given. None captures records, or numbers "
        "computed from records.",
        "Operator: The random generator's words are independent and uniform, floating-point "
        "arithmetic follows IEEE 754, and equal programs on equal numbers give equal results.",
        "Operator: How long a release takes is not published.")


ASSUMED = (
    *common_assumptions("run", "all hyper-parameters"),
    "User: This statement covers one run. Several runs on the same data add up; a ledger adds "
    "them.")
ENDS = ("User: The run ended by a rule that reads only released numbers, and randomness that is "
        "independent of the data. No epsilon here covers an end decided by private quantities that "
        "were not released, such as a validation loss or a crash that depends on the data.")
def claims(unit: str | None, people: int, rows_each: int | None = None) -> tuple[str, ...]:
    """States what the unit of privacy rests on."""
    if people > 1:
        return (f"User: No person contributes more than {people} records, wherever they are in the "
                "data. The code does not check this.",)
    if rows_each:
        return (f"User: The owner of every row is stated correctly. A record is {unit}, the rows "
                "of one owner; a person with several names is protected less. " + identity.NAMES,)
    claim = ("The unit of privacy is one record." if unit in (None, "one record") else
             f"One record is '{unit}'. The code does not check this.")
    return (f"User: {claim} A person who contributes k records is protected less: epsilon can be "
            "more than k times as large. people=k counts any k records.",)


def large_delta(delta: float, n: int) -> tuple[str, ...]:
    """States the risk that a large delta leaves."""
    if delta >= epsilon_delta.LARGE:
        return (f"{LARGE_DELTA}, {delta:g}: a program that publishes all records with "
                "that probability would meet this statement too. IT IS NO PROTECTION.",)
    if n and delta >= 1 / n:
        return (f"{LARGE_DELTA}, {delta:g}, which is not below 1/n = {1 / n:.3g}: a "
                "program that publishes one whole record, drawn at random, would meet this "
                "statement too.",)
    return ()


def accountant_name(bound: str, people: int = 1) -> str:
    """Returns the bound, the library and its version; `people` if it is by the group lemma."""
    name = {"gaussian": "exact Gaussian composition",
            "pld": "composition of privacy loss distributions, rounded up",
            "chernoff": "Chernoff's bound on the composed privacy loss"}[bound]
    lemma = "" if people == 1 else f", and the group privacy lemma for {people} records"
    return f"{name}{lemma} (jaxminimax {VERSION})"


def enforced_by(mechanism: Description) -> tuple[str, ...]:
    """Returns what the code enforces of a mechanism."""
    return (*((sentences.EXACT,) if mechanism.is_exact() else ()), *mechanism.enforced(),
            "The noise, the samples and the clip norms of the run are those that the accountant "
            "counted.",
            "A release beyond the allowed number, or on a sample that cannot be drawn, is NaN.")


def assumed_by(mechanism: Description) -> tuple[str, ...]:
    """Returns the assumptions of a mechanism that the user must see to, besides `ASSUMED`."""
    return (*(() if mechanism.is_exact() else (sentences.FLOATS,)),
            *dict.fromkeys(mechanism.assumed()))


def statement(algorithm: Any, hyper: Any, state: Any = None, *, delta: float,
              neighbours: str = "replace_one", alongside: tuple[Description, ...] = (),
              unit: str | None = None, assumed: tuple[str, ...] = (), people: int = 1,
              attack_bounds: bool = False, rows_each: int | None = None) -> Statement:
    """Makes the privacy statement of a run.

    Its epsilon is that of all releases that are allowed, however few were made, and holds for any
    reason that ended the run. For a run that ended earlier,
    `Statement.epsilon_if_stopped_by_looking` holds for every rule that looked at the releases.
    `Statement.epsilon_spent_if_fixed`, which is smaller, holds on the condition that the end was
    fixed beforehand.

    Args:
      algorithm: a module such as `sgda`.
      hyper: the `Hyper` that was run.
      state: the state it ended in, for the releases spent; None for all that are allowed.
      delta: delta, in (0, 1).
      neighbours: "replace_one" or "add_or_remove_one".
      alongside: other mechanisms on the same data, charged in full.
      unit: the unit of privacy, e.g. "one patient's visit"; with several `people`, their owner,
        e.g. "one patient".
      assumed: further assumptions to print, e.g. the public constants of the preprocessing.
      people: k, the largest number of records of one unit; epsilon is then for any k records.
      attack_bounds: whether `Statement.attack_bounds` is computed too, in up to some seconds.
      rows_each: for records that are `People`, the largest number of rows of one, `people.most`;
        the unit is then "one person". `fit` reads it from the data.

    Raises:
      ValueError: for a description that is not valid; for a state of several runs.
      TypeError: for an object that is no algorithm, or settings of another one.

    Examples:
        >>> query = jmm.Query(clip=Saddle(1.0, 1.0), noise_multiplier=Saddle(30.0, 30.0),
        ...                   population=1000)
        >>> hyper = jmm.sgda.Hyper(query=query, step=Saddle(0.1, 0.1), iterations=20)
        >>> print(jmm.statement(jmm.sgda, hyper, delta=1e-6, unit="one visit"))
        The releases of this run satisfy (...)-differential privacy for one visit...
    """
    epsilon_delta.check_delta(delta)
    main, alongside = curve.run_description(algorithm, hyper), curve.extras(alongside)
    allowed = main.releases()
    spent = allowed if state is None else int(concrete(state.spent))
    checks.count("spent", spent, low=0)

    def part_at(count: int) -> Description:
        finished = main.truncated(count)
        return Sequence(parts=(*alongside, *(() if finished is None else (finished,))))

    name = getattr(algorithm, "__name__", type(algorithm).__name__)
    if not name.startswith("jaxminimax."):
        assumed = (
            f"User: The algorithm {name} is no part of the library. Drivers refuse a round whose "
            "program reads records other than through its releases. That its start, its constants "
            "and what Python does between rounds are not computed from records is not checked.",
            *assumed)
    return statement_for(Sequence(parts=(*alongside, main)), part_at, delta, spent=spent,
                    allowed=allowed, neighbours=neighbours, unit=unit, assumed=assumed,
                    people=people, attack_bounds=attack_bounds, rows_each=rows_each,
                    extra=lambda _: sum(fixed.releases() for fixed in alongside))


def statement_for(everything: Description, part_at: Callable[[int], Description], delta: float, *,
             spent: int, allowed: int, neighbours: str = "replace_one", unit: str | None = None,
             assumed: tuple[str, ...] = (), people: int = 1, attack_bounds: bool = False,
             rows_each: int | None = None,
             extra: Callable[[int], int] = lambda _: 0) -> Statement:
    """Makes the privacy statement of a description, for `statement` and the command line.

    Args:
      everything: all that is allowed.
      part_at: from a number of releases of the run to the part of `everything` that they are.
      delta: in (0, 1).
      spent: releases that the run made.
      allowed: releases that the run may make.
      neighbours: "replace_one" or "add_or_remove_one".
      unit: the unit of privacy.
      assumed: further assumptions to print.
      people: k, the largest number of records of one unit.
      attack_bounds: whether `Statement.attack_bounds` is computed too.
      rows_each: for records that are `People`, the largest number of rows of one.
      extra: from a number of releases of the run to the number of releases made alongside it.
    """
    epsilon_delta.check_delta(delta)
    if rows_each is not None:
        checks.count("rows_each", rows_each)
    unit, delta = unit or identity.unit_of(people, rows_each), float(delta)
    question: dict[str, Any] = {"neighbours": neighbours, "people": people}
    worst = curve.dearest(everything, delta, **question)
    epsilon_delta.warn_about_delta(delta, everything, stacklevel=4)
    parts = leaves(everything)
    looking = milestone = None
    early: tuple[str, ...] = ()
    if spent < allowed:
        early = ENDS, (
            "User: epsilon_spent_if_fixed holds only for an end that was fixed before the run. If "
            "somebody looked at releases to decide when to stop, only the epsilon of all allowed "
            f"releases and that of the milestone hold. {printing.quote_one(delta)}")
        looking, end = epsilon_delta.odometer(part_at, allowed, spent, delta, neighbours, people)
        milestone = end + extra(end)
    so_far = everything if spent >= allowed else part_at(spent)
    return Statement(
        epsilon=worst.epsilon, epsilon_if_stopped_by_looking=looking, milestone=milestone,
        epsilon_spent_if_fixed=curve.dearest(so_far, delta, **question).epsilon,
        delta=delta, unit=unit, **question, records=everything.records(),
        spent=spent + extra(spent), allowed=allowed + extra(allowed),
        sampling=tuple(leaf.summary() for leaf in parts),
        noise_multiplier=tuple(leaf.noise_multipliers() for leaf in parts),
        clip=tuple(leaf.clips() for leaf in parts),
        effective_noise_multiplier=tuple(leaf.multiplier() for leaf in parts),
        charged_noise_multiplier=tuple(x.effective_noise_multiplier(neighbours) for x in parts),
        realisation=tuple(leaf.sampler_summary(neighbours) for leaf in parts),
        accountant=accountant_name(worst.bound, people if worst.lemma else 1),
        enforced=(*((f"A record is a person, with at most {rows_each} row(s). The person's other "
                     "rows are not read. The contents of these rows and their number are protected "
                     "together, as one record.",) if rows_each else ()), *enforced_by(everything)),
        assumed=(*claims(unit, people, rows_each), *ASSUMED,
                 *large_delta(delta, everything.records()), *early, *assumed_by(everything),
                 *assumed),
        attack_bounds=(short_profile(everything, delta, **question).attack_bounds(STATED_RATES)
                 if attack_bounds else None),
        proven_up_to=(epsilon_delta.proven_up_to(everything, delta, **question)
                      if math.isinf(worst.epsilon) else None))


# --- of a search ---

def tuning_statement(algorithm: Any, candidates: collections.abc.Sequence[Any], score: Repeat,
                     score_range: tuple[float, float], target: tuning.Target, *, unit: str,
                     padded: bool, apart: bool, assumed: tuple[str, ...] = (),
                     ) -> TuningStatement:
    """Returns the statement of a search.

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
    mechanisms = [tuning.one_run(algorithm, hyper, score, apart) for hyper in candidates]
    trainings = [algorithm.mechanism(hyper) for hyper in candidates]
    epsilon_delta.warn_about_delta(delta, trainings[0], stacklevel=4)
    costs = tuple(dict.fromkeys(cost for mechanism in mechanisms
                                for cost in curve.charges(mechanism, neighbours)))
    parts = [leaf for mechanism in trainings for leaf in leaves(mechanism)]
    exact = all(mechanism.is_exact() for mechanism in mechanisms)
    guaranteed = dict.fromkeys(x for mechanism in mechanisms for x in mechanism.enforced())
    taken = dict.fromkeys(x for mechanism in mechanisms for x in mechanism.assumed())
    return TuningStatement(
        epsilon=tuning.epsilon_of_best(costs, delta, runs, neighbours),
        delta=delta, neighbours=neighbours, unit=unit, records=trainings[0].records(),
        candidates=len(mechanisms), expected_runs=runs.mean, most_runs=len(runs.weights),
        eta=float(runs.eta), gamma=runs.gamma, padded=padded, law=runs.summary(),
        chance_of_one_run=runs.weights[0] / 2**repetitions.BITS,
        chance_of_trying=runs.chance_of_trying(len(mechanisms)),
        epsilon_of_one_run=max(curve.charge_epsilon(cost, delta, neighbours) for cost in costs),
        sampling=tuple(dict.fromkeys(leaf.summary() for leaf in parts)),
        score=_score_in_words(score, score_range, apart),
        noise_multiplier=tuple(tuple(leaf.noise_multipliers() for leaf in leaves(mechanism))
                               for mechanism in mechanisms),
        accountant="privacy profile of one run, and of the best of a random number of runs "
                   f"(jaxminimax {VERSION})",
        enforced=(*((sentences.EXACT,) if exact else ()), *guaranteed,
                  *_enforced_of_search(padded)),
        assumed=(*claims(unit, 1), *_assumed_of_search(padded, apart),
                 *(() if exact else (sentences.FLOATS,)), *taken, *assumed))


def _enforced_of_search(padded: bool) -> tuple[str, ...]:
    """Returns what the code enforces of every search, and of one that is padded."""
    return (
        "The noise, the samples and the clip norms of every run and of its score are those that "
        "the accountant counted.",
        "The search publishes one run: its state, the index of its candidate and its released "
        "score. It does not publish the number of runs, which of them it was, or the other runs "
        "and their scores.",
        "The number of runs and the candidate of every run are drawn from the key, before any "
        "record is read. Every run has samples and noise of its own.",
        *("The search always makes the largest possible number of runs, so that its time does not "
          "reveal how many count.",) * padded)


def _assumed_of_search(padded: bool, apart: bool) -> tuple[str, ...]:
    """Returns the assumptions on a search: on its time unless it is padded, and on `apart`."""
    return (
        *common_assumptions("search", "the list of candidates", "scores, "),
        "User: This statement covers one search. Other releases of the same data add up. Their "
        "epsilons and deltas are added as numbers, because a search is not a composition of "
        "releases.",
        *("Operator: Nobody publishes how long the search took, nor logs, profiles or costs that "
          "reveal it. The time reveals the number of runs, and an observer who knows that there "
          "were k runs sees a privacy loss of up to k runs.",) * (not padded),
        *("User: The training and the score read different records. Which records these are does "
          "not depend on the contents of any record.",) * apart)


def _score_in_words(score: Repeat, score_range: tuple[float, float], apart: bool) -> str:
    n, z = score.query.population, score.multiplier()
    low, high = score_range
    return (f"the mean over {n} {'other ' * apart}records, each clipped to [{low:g}, {high:g}], "
            f"with Gaussian noise of standard deviation {z * (high - low) / (2 * n):.3g}.")
