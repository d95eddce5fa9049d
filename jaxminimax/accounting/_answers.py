"""Delta at an epsilon, and whole profiles, of descriptions: what is asked, for whom, and where."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import scipy

from jaxminimax.accounting import _deltas, _gaussian, _people, _renyi
from jaxminimax.accounting._charge import charges, spent_part
from jaxminimax.accounting._profile import RATES, STATED, Profile
from jaxminimax.base import checks
from jaxminimax.mechanism import NEIGHBOURS, Description
from jaxminimax.mechanism.costs import Charge, concrete

_FARTHEST = (1e-12, 1e-9, 1e-6, 1e-3, 0.1, 0.5)  # deltas at which the printed range may end
_POINTS = 33  # of the printed range


def delta(mechanism: Description, epsilon: float, spent: int | None = None, *,
          neighbours: str = "replace_one", people: int = 1) -> float:
    """The delta of (epsilon, delta)-differential privacy at a given epsilon, from above.

    Args:
      mechanism: `algorithm.mechanism(hyper)`, or a `Sequence` of several.
      epsilon: at least 0. At 0 it is the largest advantage of membership inference.
      spent: as in `epsilon`.
      neighbours: as in `epsilon`.
      people: how many records of one unit differ.

    Raises:
      ValueError: for numbers that are not finite, out of range or of the wrong type.

    Examples:
        >>> query = jmm.Query(clip=Saddle(1.0, None), noise_multiplier=Saddle(40.0, None),
        ...                   population=100)
        >>> steps = jmm.Repeat(query=query, times=20)
        >>> jmm.delta(steps, 1.0) < 1e-6 < jmm.delta(steps, 0.5)
        True
    """
    checks.number("epsilon", epsilon, low=0.0, high=1e6, closed=True)
    concrete(epsilon)
    asked = _asked(mechanism, spent, neighbours, people)
    if asked is None:
        return 0.0
    return max(float(np.max(pair)) for pair in curves(asked, np.array([float(epsilon)])))


def profile(mechanism: Description, spent: int | None = None, *, neighbours: str = "replace_one",
            people: int = 1, epsilons: Iterable[float] | None = None) -> Profile:
    """What the composed privacy loss of a mechanism says at all epsilons of a range.

    Args:
      mechanism: `algorithm.mechanism(hyper)`, or a `Sequence` of several.
      spent: as in `epsilon`: a number of releases fixed before the first one.
      neighbours: as in `epsilon`.
      people: how many records of one unit differ.
      epsilons: to evaluate at, beside 0; None: up to where delta is 1e-12, or as far as is known.

    Raises:
      ValueError: for numbers that are not finite, out of range or of the wrong type.

    Examples:
        >>> query = jmm.Query(clip=Saddle(1.0, None), noise_multiplier=Saddle(40.0, None),
        ...                   population=100)
        >>> made = jmm.profile(jmm.Repeat(query=query, times=20))
        >>> round(made.advantage, 3)  # of membership inference, at most
        0.089
    """
    asked = _asked(mechanism, spent, neighbours, people)
    if asked is None:
        asked = Asked(mechanism, (Charge(),), neighbours, people)
    if epsilons is None:
        at = _range(asked)
    else:
        given = list(epsilons)
        for one in given:
            checks.number("epsilons", one, low=0.0, high=1e6, closed=True)
            concrete(one)
        at = np.unique([0.0, *map(float, given)])
    # a bound at a smaller epsilon holds at a larger one
    pairs = tuple(tuple(tuple(map(float, np.minimum.accumulate(way))) for way in pair)
                  for pair in curves(asked, at))
    zcdp, renyi = _renyi_of(asked)
    return Profile(
        neighbours, people, tuple(map(float, at)),
        tuple(map(float, np.max(pairs, axis=(0, 1)))), pairs,  # type: ignore[arg-type]
        zcdp, renyi, max(_deltas.apart(cost, people) for cost in asked.costs))


def briefly(mechanism: Description, delta: float, *, neighbours: str, people: int) -> Profile:
    """A profile at few epsilons, up to that of `delta`: for what statements print."""
    asked = Asked(mechanism, charges(mechanism, neighbours), neighbours, people)
    top = _reaches(asked, delta) or 1.0
    first = max(float(np.max(pair)) for pair in curves(asked, np.zeros(1)))
    at = [*np.linspace(0.0, top, 5), *_best_for(STATED, first)]
    return profile(mechanism, neighbours=neighbours, people=people, epsilons=at)


class Asked(NamedTuple):
    """A description, its charges, and between which data sets."""

    mechanism: Description
    costs: tuple[Charge, ...]
    neighbours: str
    people: int

    @property
    def together(self) -> bool:
        """Whether the charges may be read for all of the records."""
        return _people.together(self.mechanism, self.costs, self.people)


def _asked(mechanism: Description, spent: int | None, neighbours: str, people: int) -> Asked | None:
    """What is asked for, checked; None if nothing was released."""
    checks.one_of("neighbours", neighbours, NEIGHBOURS)
    costs, done = charges(mechanism, neighbours), mechanism
    _people.check_people(mechanism, people)
    if spent is not None:
        checks.count("spent", spent, low=0)
        part = spent_part(mechanism, int(spent))
        if part is None:
            return None
        costs, done = charges(part, neighbours), part
    return Asked(done, costs, neighbours, int(people))


def curves(asked: Asked, at: np.ndarray) -> list[_deltas.Ways]:
    """Deltas of each dominating pair in both directions, or of the group lemma where smaller."""
    direct = [(np.ones_like(at), np.ones_like(at))]
    if asked.together:
        direct = [pair for cost in _people.anywhere(asked.costs)
                  for pair in _deltas.both_ways(cost, at, asked.neighbours, asked.people)]
    if asked.people == 1:
        return direct
    one = np.max([way for cost in asked.costs for pair in _deltas.both_ways(
        cost, at / asked.people, asked.neighbours) for way in pair], axis=0)
    grown = np.array([_people.factor(e, asked.people) for e in at / asked.people])
    value = np.minimum(1.0, np.where(one > 0, one * grown, 0.0))
    return [(np.minimum(right, value), np.minimum(left, value)) for right, left in direct]


def _range(asked: Asked) -> np.ndarray:
    """Epsilons from 0 to where delta is small, and those that the printed rates ask for."""
    found = (_reaches(asked, least) for least in _FARTHEST)
    top = max(next((one for one in found if one is not None), 1.0), 1e-6)
    first = max(float(np.max(pair)) for pair in curves(asked, np.zeros(1)))
    near = [one for one in _best_for(RATES, first) if one < top]
    return np.unique([*np.linspace(0.0, top, _POINTS), *near])


def _best_for(rates: Iterable[float], advantage: float) -> list[float]:
    """Epsilons at which a Gaussian with this advantage has its best tests, and some beside them."""
    mu = min(_gaussian.closest_mu(0.0, min(advantage, 0.999)), 10.0)
    best = [abs(mu * float(scipy.special.ndtri(1 - rate)) - mu**2 / 2) for rate in rates]
    return [share * e for e in best for share in (0.9, 1.0, 1.1) if e > 0]


def _reaches(asked: Asked, least: float) -> float | None:
    """The epsilon of that delta, if there is one that is finite and not absurd."""
    try:
        found = _people.dearest(asked.mechanism, least, asked.neighbours, asked.people).epsilon
    except ValueError:  # failures alone exceed that delta
        return None
    return found if found < 700 else None


def _renyi_of(asked: Asked) -> tuple[Any, Any]:
    """Of the alternatives together: the largest rho, and the orders that all have."""
    if not asked.together:
        return None, None
    rhos = [_renyi.concentrated(cost, *asked[2:]) for cost in asked.costs]
    found = [_renyi.divergences(cost, *asked[2:]) for cost in asked.costs]
    if any(one is None for one in (*rhos, *found)):
        return None, None
    whole = np.max(np.asarray(found, np.float64), axis=0)
    known = np.isfinite(whole)
    return (_renyi.Concentrated(max(one.rho for one in rhos if one is not None),
                                min(one.up_to for one in rhos if one is not None)),
            (tuple(map(float, _renyi.ORDERS[known])), tuple(map(float, whole[known]))))
