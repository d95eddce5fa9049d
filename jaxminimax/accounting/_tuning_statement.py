"""What a private search over settings promised, in words and in JSON."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from jaxminimax.accounting import _tuning
from jaxminimax.accounting._charge import charges
from jaxminimax.accounting._curves import epsilon_of
from jaxminimax.accounting._epsilon import warn_of
from jaxminimax.accounting._record import record_of
from jaxminimax.accounting._tuning_noise import Target, one_run
from jaxminimax.base import VERSION
from jaxminimax.mechanism import Repeat, leaves
from jaxminimax.mechanism.repetitions import BITS
from jaxminimax.mechanism.sentences import EXACT, FLOATS

_ENFORCED = (
    "Noise, sampling and clip norms of every run, and of its score, are those charged here.",
    "One run leaves the program: its state, the number of its candidate and its released score. "
    "The number of runs, which of them it was, the other runs and their scores do not.",
    "The number of runs and every run's candidate are drawn from the key, before any record is "
    "read; every run has samples and noise of its own.",
)
_ASSUMED = (
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


@dataclasses.dataclass(frozen=True)
class TuningStatement:
    """The privacy statement of a search; `str` for words, `to_json` for a flat record.

    Attributes:
      epsilon: of the search: of the winner, its candidate and its score together.
      delta: of the search.
      neighbours: "replace_one" or "add_or_remove_one".
      unit: what one record is.
      candidates: how many there are.
      expected_runs: mean of the number of runs.
      most_runs: the largest number of runs.
      eta: of the law of the number of runs.
      gamma: of the law of the number of runs.
      chance_of_one_run: probability that there is no second run.
      chance_of_trying: probability that one given candidate, such as the best, is tried at all.
      epsilon_of_one_run: at the same delta, were it published by itself, without a choice.
      padded: whether as many runs as there could be are always made.
      sampling: what one run releases, in words; candidates that differ one after the other.
      score: what is released of a run's score, in words.
      noise_multiplier: of every candidate, by part and player, and of its score.
      law: of the number of runs, in words.
      accountant: bound, library and version.
      enforced: what the code guarantees.
      assumed: what the user must see to.

    Examples:
        >>> fields = jmm.accounting.TuningStatement.__dataclass_fields__
        >>> "epsilon_of_one_run" in fields, "expected_runs" in fields
        (True, True)
    """

    epsilon: float
    delta: float
    neighbours: str
    unit: str
    candidates: int
    expected_runs: float
    most_runs: int
    eta: float
    gamma: float
    chance_of_one_run: float
    chance_of_trying: float
    epsilon_of_one_run: float
    padded: bool
    sampling: tuple[str, ...]
    score: str
    noise_multiplier: tuple[tuple[dict[str, float], ...], ...]
    law: str
    accountant: str
    enforced: tuple[str, ...]
    assumed: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """A dictionary of plain Python values; an infinite epsilon is "no guarantee"."""
        return record_of(self)

    def __str__(self) -> str:
        relation = {"replace_one": "one record is replaced by another",
                    "add_or_remove_one": "one record is present or counts as absent"}
        first = (f"({self.epsilon:.4g}, {self.delta:g})-differential privacy for {self.unit}; "
                 f"neighbouring data sets: {relation[self.neighbours]}.")
        if self.epsilon == float("inf"):
            first = (f"NO privacy guarantee is proven for {self.unit}: epsilon is infinite, or "
                     "above every one that can be proven.")
        return "\n".join([
            first,
            f"That is of the best of several runs, by their released scores, with {self.candidates}"
            " candidate settings, one drawn for each run; of the winner's settings and score too.",
            self.law,
            f"A given candidate, such as the best, is tried with probability "
            f"{self.chance_of_trying:.3g}. One run alone would have epsilon = "
            f"{self.epsilon_of_one_run:.4g}.",
            "One run:", *(f"  - {x}" for x in (*self.sampling, self.score)),
            f"Accountant: {self.accountant}.",
            "Enforced by the code:", *(f"  - {x}" for x in self.enforced),
            "Assumed:", *(f"  - {x}" for x in self.assumed),
        ])


def tuning_statement(algorithm: Any, candidates: Sequence[Any], score: Repeat,
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
    said = dict.fromkeys(x for one in mechanisms for x in one.guarantees())
    taken = dict.fromkeys(x for one in mechanisms for x in one.assumptions())
    return TuningStatement(
        epsilon=_tuning.epsilon_of_best(costs, delta, runs, neighbours),
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
        sampling=tuple(dict.fromkeys(part.in_words() for part in parts)),
        score=_score_in_words(score, score_range, apart),
        noise_multiplier=tuple(tuple(leaf.noise_multipliers() for leaf in leaves(one))
                               for one in mechanisms),
        law=runs.in_words(),
        accountant="privacy profile of one run, and of the best of a random number of them "
                   f"(jaxminimax {VERSION})",
        enforced=(*((EXACT,) if exact else ()), *said, *_ENFORCED,
                  *((_PADDED,) if padded else ())),
        assumed=(*_ASSUMED, *(() if padded else (_TIME,)), *((_APART,) if apart else ()),
                 *(() if exact else (FLOATS,)), *taken, *assumed),
    )


def _score_in_words(score: Repeat, score_range: tuple[float, float], apart: bool) -> str:
    n, z = score.query.population, score.multiplier()
    low, high = score_range
    return (f"Its score, once: the mean over {n} {'other ' * apart}records, each one's clipped to "
            f"[{low:g}, {high:g}], with Gaussian noise of standard deviation "
            f"{z * (high - low) / (2 * n):.3g}.")
