"""What a run promised and spent, in words and in JSON."""

import dataclasses
import importlib.metadata
import json
from collections.abc import Callable
from typing import Any, Self

from jaxminimax.accounting import _curves
from jaxminimax.accounting._answers import briefly
from jaxminimax.accounting._charge import beside, of_run, spent_part
from jaxminimax.accounting._epsilon import LARGE, check_delta, warn_of
from jaxminimax.accounting._odometer import odometer
from jaxminimax.accounting._people import dearest
from jaxminimax.accounting._profile import STATED
from jaxminimax.accounting._record import fields_of
from jaxminimax.base import checks
from jaxminimax.base.people import unit_of
from jaxminimax.mechanism import Leaf, Mechanism, Sequence, concrete, leaves, releases
from jaxminimax.mechanism.sentences import EXACT, FLOATS

_BOUND = {
    "gaussian": "exact Gaussian composition",
    "pld": "privacy loss distribution with relative accuracy, rounded pessimistically",
    "chernoff": "Chernoff's bound on the privacy loss of the worst pair",
}
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
_CAPPED = ("A record is a person, with at most {rows} row(s): the person's other rows are not "
           "read, and what these hold, and how many there are, is protected as one.")
_SEVERAL = ("Nobody contributes more than {people} records, wherever they are in the data: that is "
            "the user's claim, and not checked.")
_LEMMA = ("For {people} records the curve of one is used {people} times: no sharper proof covers "
          "all of these releases.")
_FIXED_END = ("The epsilon of what was spent is for an end that was fixed beforehand. If a look at "
              "what was released decided when to stop, only the epsilon of all that is allowed "
              "and that of the milestone hold, one of them, chosen beforehand; the smaller of the "
              "two counts both deltas.")


@dataclasses.dataclass(frozen=True)
class Statement:
    """A privacy statement; `str` for words, `to_json` for a flat record.

    Attributes:
      epsilon: of everything the mechanism allows. It holds for a run that ends earlier too, by
        whatever rule: what was released is a part of what would have been.
      epsilon_if_stopped_by_looking: of a run that ended earlier, by a rule that looked at what was
        released: the epsilon of the next milestone, with one share of delta; all milestones, fixed
        by `accounting._odometer` before the run, share one delta. None if the run did not end
        earlier.
      milestone: the number of releases that it is of; None if the run did not end earlier.
      epsilon_spent_if_fixed: of what was spent, provided that this number of releases was fixed
        before the first one. A rule that looks at what was released can stop where the privacy
        loss is large, and then this number does not hold.
      delta: the delta of each of them.
      neighbours: "replace_one" or "add_or_remove_one".
      unit: what one record is, or with several `people`, what they are the records of.
      people: k, how many records differ: any k of them.
      sampling: in words, one sentence a part.
      spent: releases made.
      allowed: releases allowed.
      noise_multiplier: per part and player, noise on the clipped sum over clip norm.
      clip: per part and player.
      effective_noise_multiplier: per part, players combined.
      charged_noise_multiplier: per part, the multiplier of a mechanism with real-valued sums and
        noise that is no more private than what runs: rounding is part of the distance.
      realisation: per part, what the grid, sums of blocks and the sampler of the noise cost.
      accountant: bound, library and version, of `epsilon`.
      event: the dp-accounting event that `epsilon` is of; multipliers are noise over clip norm.
      enforced: what the code guarantees.
      assumed: what the user must see to.
      answers: what `profile` says beside epsilon, if it was asked for: the largest advantage of
        membership inference, true positives at given rates of false ones, and the mu of the
        closest Gaussian.

    Examples:
        >>> query = jmm.Query(clip=Saddle(1.0, 1.0), noise_multiplier=Saddle(30.0, 30.0),
        ...                   population=1000)
        >>> hyper = jmm.sgda.Hyper(query=query, step=Saddle(0.1, 0.1), iterations=20)
        >>> said = jmm.statement(jmm.sgda, hyper, delta=1e-6)
        >>> said.allowed, jmm.Statement.from_json(said.to_json()) == said
        (20, True)
    """

    epsilon: float
    epsilon_if_stopped_by_looking: float | None
    milestone: int | None
    epsilon_spent_if_fixed: float
    delta: float
    neighbours: str
    unit: str
    sampling: tuple[str, ...]
    spent: int
    allowed: int
    noise_multiplier: tuple[dict[str, float], ...]
    clip: tuple[dict[str, float], ...]
    effective_noise_multiplier: tuple[float, ...]
    charged_noise_multiplier: tuple[float, ...]
    realisation: tuple[str, ...]
    accountant: str
    event: str
    enforced: tuple[str, ...]
    assumed: tuple[str, ...]
    people: int = 1
    answers: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """A dictionary of plain Python values; infinity becomes None, as JSON has no word for it.

        A statement with `epsilon: null` is one without any guarantee.
        """
        return dict(json.loads(json.dumps(dataclasses.asdict(self)), parse_constant=lambda _: None))

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Self:
        """The statement that `to_json` made `record` of; null becomes infinity again.

        Raises:
          ValueError: for what is no such record.
        """
        return cls(**fields_of(cls, record))

    def __str__(self) -> str:
        relation = relation_in_words(self.neighbours, self.people)
        spent = f"Spent {self.spent} of {self.allowed} releases"
        if self.epsilon_if_stopped_by_looking is not None:
            spent += ("; the epsilon above is of all of them, and holds whatever made the run end. "
                      "For an end chosen by looking at what was released there is also the "
                      f"odometer: epsilon = {self.epsilon_if_stopped_by_looking:.4g}, of "
                      f"{self.milestone} releases, the next of its milestones, which were fixed "
                      f"before the run; for all of them together, delta = {self.delta:g}. Had this "
                      "end been fixed beforehand, not chosen by looking at what was released: "
                      f"epsilon = {self.epsilon_spent_if_fixed:.4g}")
        lines = [
            f"({self.epsilon:.4g}, {self.delta:g})-differential privacy for {self.unit}; "
            f"neighbouring data sets: {relation}.",
            f"{spent}.",
            *self.sampling,
            "Noise / clip norm per player: " + "; ".join(map(_players, self.noise_multiplier))
            + "; both together: "
            + ", ".join(f"{z:.5g}" for z in self.effective_noise_multiplier) + ".",
            *self.realisation,
            f"Accountant: {self.accountant}.",
            *(() if self.answers is None else (_answered(self.answers),)),
            "Enforced by the code:", *(f"  - {x}" for x in self.enforced),
            "Assumed:", *(f"  - {x}" for x in self.assumed),
        ]
        if self.epsilon == float("inf"):
            lines[0] = f"NO privacy guarantee for {self.unit}: epsilon is infinite."
        return "\n".join(lines)


def relation_in_words(neighbours: str, people: int = 1) -> str:
    """What neighbouring data sets differ by."""
    if people == 1:
        return {"replace_one": "one record is replaced by another",
                "add_or_remove_one": "one record is present or counts as absent"}[neighbours]
    return {"replace_one": f"any {people} records are replaced by others",
            "add_or_remove_one": f"each of any {people} records is present or counts as absent"
            }[neighbours]


def claims(unit: str | None, people: int, lemma: bool,
           rows_each: int | None = None) -> tuple[str, ...]:
    """What the unit of privacy rests on, and how several records of one are charged."""
    one = _PERSONS if rows_each else _CLAIM if unit not in (None, "one record") else _ONE
    claim = _SEVERAL if people > 1 else one
    several = (_LEMMA,) if lemma else ()
    return tuple(x.format(unit=unit, people=people) for x in (claim, *several))


def _answered(answers: dict[str, Any]) -> str:
    rates = ", ".join(f"{true:.4g} at {false}" for false, true in
                      answers["true_positives"].items())
    mu, top = answers["closest_gaussian"].values()
    return (f"Membership inference: advantage at most {answers['advantage']:.4g}; true positives "
            f"at most {rates} false ones. Closest Gaussian up to epsilon = {top:.4g}: "
            f"mu = {'infinite' if mu is None else format(mu, '.4g')}.")


def _players(values: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.5g}".strip() for name, value in values.items())


def accountant_name(bound: str) -> str:
    """The bound and who computes it."""
    closed = f"closed forms of dp-accounting {importlib.metadata.version('dp-accounting')}"
    return f"{_BOUND[bound]} ({closed if bound == 'gaussian' else 'composed by jaxminimax'})"


def describe(part: Leaf) -> str:
    """The releases of a mechanism, in one sentence."""
    return part.in_words()


def enforced_by(mechanism: Mechanism) -> tuple[str, ...]:
    """What the code guarantees of a mechanism."""
    return (*((EXACT,) if mechanism.is_exact() else ()), *mechanism.guarantees(), *ENFORCED)


def assumed_by(mechanism: Mechanism) -> tuple[str, ...]:
    """What the user must see to for a mechanism, beside `ASSUMED`."""
    return (*(() if mechanism.is_exact() else (FLOATS,)),
            *dict.fromkeys(mechanism.assumptions()))


def _large(delta: float, n: int) -> tuple[str, ...]:
    """What a delta that is too large leaves open."""
    if delta >= LARGE:
        return (f"DELTA IS {delta:g}: publishing all records with that probability would meet this "
                "statement too. It is no protection.",)
    if n and delta >= 1 / n:
        return (f"delta is {delta:g}, not below 1/n = {1 / n:.3g}: publishing one whole record, "
                "drawn at random, would meet this statement too.",)
    return ()


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
    main, alongside = of_run(algorithm, hyper), beside(alongside)
    allowed = releases(main)
    spent = allowed if state is None else int(concrete(state.spent))
    checks.count("spent", spent, low=0)

    def part_at(count: int) -> Mechanism:
        done = spent_part(main, count)
        return Sequence(parts=(*alongside, *(() if done is None else (done,))))

    return state_of(Sequence(parts=(*alongside, main)), part_at, delta, spent=spent,
                    allowed=allowed, neighbours=neighbours, unit=unit, assumed=assumed,
                    people=people, answers=answers, rows_each=rows_each)


def state_of(everything: Mechanism, part_at: Callable[[int], Mechanism], delta: float, *,
             spent: int, allowed: int, neighbours: str = "replace_one", unit: str | None = None,
             assumed: tuple[str, ...] = (), people: int = 1, answers: bool = False,
             rows_each: int | None = None) -> Statement:
    """The privacy statement of a description, for `statement` and the command line.

    Args:
      everything: all that is allowed.
      part_at: the part of it that a number of releases is.
      delta: in (0, 1).
      spent: releases made, to print.
      allowed: releases allowed, to print.
      neighbours: as in `epsilon`.
      unit: as in `statement`.
      assumed: as in `statement`.
      people: as in `statement`.
      answers: as in `statement`.
      rows_each: as in `statement`.
    """
    check_delta(delta)
    if rows_each is not None:
        checks.count("rows_each", rows_each)
    unit = unit or unit_of(people, rows_each)
    found = dearest(everything, float(delta), neighbours, people)
    warn_of(delta, everything, stacklevel=4)
    parts = leaves(everything)
    looking, milestone = None, None
    if spent < allowed:
        looking, milestone = odometer(part_at, allowed, spent, float(delta), neighbours, people)
    so_far = everything if spent >= allowed else part_at(spent)
    return Statement(
        epsilon=found.epsilon,
        epsilon_if_stopped_by_looking=looking,
        milestone=milestone,
        epsilon_spent_if_fixed=dearest(so_far, float(delta), neighbours, people).epsilon,
        delta=float(delta),
        neighbours=neighbours,
        unit=unit,
        sampling=tuple(map(describe, parts)),
        spent=spent,
        allowed=allowed,
        noise_multiplier=tuple(part.noise_multipliers() for part in parts),
        clip=tuple(part.clips() for part in parts),
        effective_noise_multiplier=tuple(part.multiplier() for part in parts),
        charged_noise_multiplier=tuple(part.charged(neighbours) for part in parts),
        realisation=tuple(part.realisation(neighbours) for part in parts),
        accountant=accountant_name(found.bound),
        event=str(_curves.event(found.cost)),
        enforced=(*((_CAPPED.format(rows=rows_each),) if rows_each else ()),
                  *enforced_by(everything)),
        assumed=(*claims(unit, people, found.lemma, rows_each), *ASSUMED,
                 *_large(float(delta), everything.records()),
                 *((ENDS, _FIXED_END) if spent < allowed else ()), *assumed_by(everything),
                 *assumed),
        people=people,
        answers=(briefly(everything, float(delta), neighbours=neighbours, people=people)
                 .answers(STATED) if answers else None),
    )
