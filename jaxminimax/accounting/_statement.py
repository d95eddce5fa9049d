"""What a run promised and spent, in words and in JSON."""

import dataclasses
import importlib.metadata
import math
from collections.abc import Callable
from typing import Any, Self

from jaxminimax.accounting import _curves, _limits
from jaxminimax.accounting._answers import briefly
from jaxminimax.accounting._charge import beside, of_run, spent_part
from jaxminimax.accounting._epsilon import check_delta, warn_of
from jaxminimax.accounting._odometer import odometer
from jaxminimax.accounting._people import dearest
from jaxminimax.accounting._profile import STATED
from jaxminimax.accounting._record import fields_of, record_of
from jaxminimax.accounting._sentences import (
    ASSUMED,
    CAPPED,
    ENFORCED,
    LARGE_DELTA,
    claims,
    early_end,
    large_delta,
    quote_one,
    relation_in_words,
)
from jaxminimax.base import VERSION, checks
from jaxminimax.base.types import unit_of
from jaxminimax.mechanism import Leaf, Sequence, leaves, releases
from jaxminimax.mechanism.costs import concrete
from jaxminimax.mechanism.description import Mechanism
from jaxminimax.mechanism.sentences import EXACT, FLOATS

_BOUND = {
    "gaussian": "exact Gaussian composition",
    "pld": "privacy loss distribution with relative accuracy, rounded pessimistically",
    "chernoff": "Chernoff's bound on the privacy loss of the worst pair",
}


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
      milestone: the number of releases that `epsilon_if_stopped_by_looking` covers, with those of
        `alongside`; None if the run did not end earlier.
      epsilon_spent_if_fixed: of what was spent, provided that this number of releases was fixed
        before the first one. A rule that looks at what was released can stop where the privacy
        loss is large, and then this number does not hold.
      delta: the delta of each of them.
      neighbours: "replace_one" or "add_or_remove_one".
      unit: what one record is, or with several `people`, what they are the records of.
      people: k, how many records differ: any k of them.
      sampling: in words, one sentence a part.
      spent: releases made, with those of `alongside`.
      allowed: releases allowed, with those of `alongside`.
      noise_multiplier: per part and player, noise on the clipped sum over clip norm.
      clip: per part and player.
      effective_noise_multiplier: per part, players combined.
      charged_noise_multiplier: per part, the multiplier of a mechanism with real-valued sums and
        noise that is no more private than what runs: rounding is part of the distance.
      realisation: per part, what the grid, sums of blocks and the sampler of the noise cost.
      accountant: bound, library and version, of `epsilon`; version of dp-accounting too, if the
        bound is a closed form of it.
      event: the dp-accounting event that `epsilon` is of; multipliers are noise over clip norm.
      enforced: what the code guarantees.
      assumed: what the user must see to.
      answers: what `profile` says beside epsilon, if it was asked for: the largest advantage of
        membership inference, true positives at given rates of false ones, and the mu of the
        closest Gaussian.
      proven_up_to: None unless `epsilon` is infinite although there is noise. Then no epsilon above
        this one can be proven at `delta`, and the run may have a finite one; 0 if none can be
        proven, as samplers and noise may fail with a probability of `delta` or more.

    Examples:
        >>> query = jmm.Query(clip=Saddle(1.0, 1.0), noise_multiplier=Saddle(30.0, 30.0),
        ...                   population=1000)
        >>> hyper = jmm.sgda.Hyper(query=query, step=Saddle(0.1, 0.1), iterations=20)
        >>> said = jmm.statement(jmm.sgda, hyper, delta=1e-6)
        >>> said.allowed, jmm.accounting.Statement.from_json(said.to_json()) == said
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
    proven_up_to: float | None = None

    def to_json(self) -> dict[str, Any]:
        """A dictionary of plain Python values; infinity is "no guarantee", JSON having no word.

        None is for what does not apply, such as the odometer of a run that ended as planned.
        """
        return record_of(self)

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Self:
        """The statement that `to_json` made `record` of; "no guarantee" becomes infinity again.

        Records of version 0.1.0 and before, with null for infinity, are read too.

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
                      f"odometer: epsilon = {_known(self.epsilon_if_stopped_by_looking)}, of "
                      f"{self.milestone} releases, the next of its milestones, which were fixed "
                      f"before the run. {quote_one(self.delta)} Had this end been "
                      "fixed beforehand, not chosen by looking at what was released: epsilon = "
                      f"{_known(self.epsilon_spent_if_fixed)}")
        large = [x for x in self.assumed if x.startswith(LARGE_DELTA)]
        lines = [
            f"({self.epsilon:.4g}, {self.delta:g})-differential privacy for {self.unit}; "
            f"neighbouring data sets: {relation}.",
            *large,
            f"{spent}.",
            *self.sampling,
            "Noise / clip norm per player: " + "; ".join(map(_players, self.noise_multiplier))
            + "; both together: "
            + ", ".join(f"{z:.5g}" for z in self.effective_noise_multiplier) + ".",
            *self.realisation,
            f"Accountant: {self.accountant}.",
            *(() if self.answers is None else (_answered(self.answers),)),
            "Enforced by the code:", *(f"  - {x}" for x in self.enforced),
            "Assumed:", *(f"  - {x}" for x in self.assumed if x not in large),
        ]
        if math.isinf(self.epsilon):
            why = _limits.in_words(self.proven_up_to, self.delta)
            lines[0] = (f"NO privacy guarantee for {self.unit}: epsilon is infinite."
                        if self.proven_up_to is None else
                        f"Epsilon for {self.unit} is {why}; neighbouring data sets: {relation}.")
        return "\n".join(lines)


def _answered(answers: dict[str, Any]) -> str:
    rates = ", ".join(f"{true:.4g} at {false}" for false, true in
                      answers["true_positives"].items())
    return (f"Membership inference: advantage at most {answers['advantage']:.4g}; true positives "
            f"at most {rates} false ones.")


def _known(epsilon: float) -> str:
    return f"{epsilon:.4g}" if math.isfinite(epsilon) else "not proven"


def _players(values: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.5g}".strip() for name, value in values.items())


def accountant_name(bound: str) -> str:
    """The bound, and the libraries that compute it with their versions."""
    closed = (f", closed forms of dp-accounting {importlib.metadata.version('dp-accounting')}"
              if bound == "gaussian" else "")
    return f"{_BOUND[bound]} (jaxminimax {VERSION}{closed})"


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
                    people=people, answers=answers, rows_each=rows_each,
                    beside=lambda _: sum(map(releases, alongside)))


def state_of(everything: Mechanism, part_at: Callable[[int], Mechanism], delta: float, *,
             spent: int, allowed: int, neighbours: str = "replace_one", unit: str | None = None,
             assumed: tuple[str, ...] = (), people: int = 1, answers: bool = False,
             rows_each: int | None = None,
             beside: Callable[[int], int] = lambda _: 0) -> Statement:
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
      beside: from a number of releases of the run to the number of releases made alongside it.
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
        looking, end = odometer(part_at, allowed, spent, float(delta), neighbours, people)
        milestone = end + beside(end)
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
        spent=spent + beside(spent),
        allowed=allowed + beside(allowed),
        noise_multiplier=tuple(part.noise_multipliers() for part in parts),
        clip=tuple(part.clips() for part in parts),
        effective_noise_multiplier=tuple(part.multiplier() for part in parts),
        charged_noise_multiplier=tuple(part.charged(neighbours) for part in parts),
        realisation=tuple(part.realisation(neighbours) for part in parts),
        accountant=accountant_name(found.bound),
        event=str(_curves.event(found.cost)),
        enforced=(*((CAPPED.format(rows=rows_each),) if rows_each else ()),
                  *enforced_by(everything)),
        assumed=(*claims(unit, people, found.lemma, rows_each), *ASSUMED,
                 *large_delta(float(delta), everything.records()),
                 *(early_end(float(delta)) if spent < allowed else ()), *assumed_by(everything),
                 *assumed),
        people=people,
        answers=(briefly(everything, float(delta), neighbours=neighbours, people=people)
                 .answers(STATED) if answers else None),
        proven_up_to=(_limits.proven_up_to(everything, float(delta), neighbours, people)
                      if math.isinf(found.epsilon) else None),
    )
