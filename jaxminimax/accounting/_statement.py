"""What a run promised and spent, in words and in JSON."""

import dataclasses
import importlib.metadata
import json
from typing import Any

from jaxminimax.accounting import _curves
from jaxminimax.accounting._charge import charges, spent_part
from jaxminimax.accounting._epsilon import charged_epsilon, check_delta, warn_of, worst
from jaxminimax.base import checks
from jaxminimax.mechanism import Leaf, Mechanism, Sequence, concrete, leaves, releases
from jaxminimax.mechanism.sentences import EXACT, FLOATS

_BOUND = {
    "gaussian": "exact Gaussian composition",
    "unsampled": "exact Gaussian composition, amplification by sampling not used",
    "rdp": "Renyi divergences of the worst pair",
    "pld": "privacy loss distribution, rounded pessimistically",
}
ENFORCED = (
    "Noise, sampling and clip norms of the run are those of the mechanism charged here.",
    "Releases beyond the allowed number, and samples beyond their capacity, are NaN.",
)
ASSUMED = (
    "One record is the unit of privacy, and a person contributes no more than the unit says.",
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
_FIXED_END = ("The epsilon of what was spent is for an end that was fixed beforehand. If a look at "
              "what was released decided when to stop, only the epsilon of all that is allowed "
              "holds.")


@dataclasses.dataclass(frozen=True)
class Statement:
    """A privacy statement; `str` for words, `to_json` for a flat record.

    Attributes:
      epsilon: of everything the mechanism allows. It holds for a run that ends earlier too, by
        whatever rule: what was released is a part of what would have been.
      epsilon_spent_if_fixed: of what was spent, provided that this number of releases was fixed
        before the first one. A rule that looks at what was released can stop where the privacy
        loss is large, and then this number does not hold.
      delta: the delta of both.
      neighbours: "replace_one" or "add_or_remove_one".
      unit: what one record is.
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
    """

    epsilon: float
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

    def to_json(self) -> dict[str, Any]:
        """A dictionary of plain Python values; infinity becomes None, as JSON has no word for it.

        A statement with `epsilon: null` is one without any guarantee.
        """
        return dict(json.loads(json.dumps(dataclasses.asdict(self)), parse_constant=lambda _: None))

    def __str__(self) -> str:
        relation = {"replace_one": "one record is replaced by another",
                    "add_or_remove_one": "one record is present or counts as absent"}
        spent = f"Spent {self.spent} of {self.allowed} releases"
        if self.spent < self.allowed:
            spent += ("; the epsilon above is of all of them, and holds whatever made the run end. "
                      f"Had this end been fixed beforehand, not chosen by looking at what was "
                      f"released: epsilon = {self.epsilon_spent_if_fixed:.4g}")
        lines = [
            f"({self.epsilon:.4g}, {self.delta:g})-differential privacy for {self.unit}; "
            f"neighbouring data sets: {relation[self.neighbours]}.",
            f"{spent}.",
            *self.sampling,
            "Noise / clip norm per player: " + "; ".join(map(_players, self.noise_multiplier))
            + "; both together: "
            + ", ".join(f"{z:.5g}" for z in self.effective_noise_multiplier) + ".",
            *self.realisation,
            f"Accountant: {self.accountant}.",
            "Enforced by the code:", *(f"  - {x}" for x in self.enforced),
            "Assumed:", *(f"  - {x}" for x in self.assumed),
        ]
        if self.epsilon == float("inf"):
            lines[0] = f"NO privacy guarantee for {self.unit}: epsilon is infinite."
        return "\n".join(lines)


def _players(values: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.5g}".strip() for name, value in values.items())


def accountant_name(bound: str) -> str:
    """The bound and the library it comes from."""
    return f"{_BOUND[bound]} (dp-accounting {importlib.metadata.version('dp-accounting')})"


def describe(part: Leaf) -> str:
    """The releases of a mechanism, in one sentence."""
    return part.in_words()


def statement(algorithm: Any, hyper: Any, state: Any = None, *, delta: float,
              neighbours: str = "replace_one", alongside: tuple[Mechanism, ...] = (),
              unit: str = "one record", assumed: tuple[str, ...] = ()) -> Statement:
    """The privacy statement of a run.

    Its epsilon is that of all releases that are allowed, however few were made: that holds whatever
    ended the run. `Statement.epsilon_spent_if_fixed` is smaller, and holds on a condition.

    Args:
      algorithm: a module such as `sgda`.
      hyper: the `Hyper` that was run.
      state: the state it ended in, for the releases spent; None for all that are allowed.
      delta: in (0, 1).
      neighbours: as in `epsilon`.
      alongside: other mechanisms run on the same data, charged in full.
      unit: what one record is, e.g. "one patient's visit".
      assumed: further assumptions to print, e.g. the public constants of the preprocessing.

    Raises:
      ValueError: for a description that is not valid; for a state of several runs.
    """
    check_delta(delta)
    main = algorithm.mechanism(hyper)
    allowed = releases(main)
    spent = allowed if state is None else int(concrete(state.spent))
    checks.count("spent", spent, low=0)
    done = spent_part(main, spent)
    so_far = (*alongside, *(() if done is None else (done,)))
    return state_of(Sequence(parts=(*alongside, main)), Sequence(parts=so_far), delta, spent=spent,
                    allowed=allowed, neighbours=neighbours, unit=unit, assumed=assumed)


def state_of(everything: Mechanism, so_far: Mechanism, delta: float, *, spent: int, allowed: int,
             neighbours: str = "replace_one", unit: str = "one record",
             assumed: tuple[str, ...] = ()) -> Statement:
    """The privacy statement of a description, for `statement` and the command line.

    Args:
      everything: all that is allowed.
      so_far: the part of it that was run.
      delta: in (0, 1).
      spent: releases made, to print.
      allowed: releases allowed, to print.
      neighbours: as in `epsilon`.
      unit: as in `statement`.
      assumed: as in `statement`.
    """
    check_delta(delta)
    warn_of(delta, everything, stacklevel=4)
    costs = charges(everything, neighbours)
    value, bound = worst(costs, float(delta), neighbours)
    dearest = max(costs, key=lambda cost: charged_epsilon(cost, float(delta), neighbours))
    parts = leaves(everything)
    return Statement(
        epsilon=value,
        epsilon_spent_if_fixed=worst(charges(so_far, neighbours), float(delta), neighbours)[0],
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
        accountant=accountant_name(bound),
        event=str(_curves.event(dearest)),
        enforced=(*((EXACT,) if everything.is_exact() else ()), *everything.guarantees(),
                  *ENFORCED),
        assumed=(*ASSUMED, *(() if everything.is_exact() else (FLOATS,)),
                 *((_FIXED_END,) if spent < allowed else ()),
                 *dict.fromkeys(everything.assumptions()), *assumed),
    )
