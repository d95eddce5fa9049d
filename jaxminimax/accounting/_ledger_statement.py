"""What a ledger promises for everything together, in words and in JSON."""

import dataclasses
from typing import Any

from jaxminimax.accounting import _sentences
from jaxminimax.accounting._filters import Filter
from jaxminimax.accounting._record import record_of
from jaxminimax.accounting._sentences import ENDS, claims, relation_in_words

ENFORCED = (
    "A run is charged before it reads data, and refused if the ledger cannot pay for it; what a "
    "crash left behind stays charged.",
)
ASSUMED = (
    "Everything that is released about these data is in this ledger, with the description that it "
    "was run with; every run has a key of its own. No older copy of the file was put back.",
    "A run's problem, data and settings are fixed when it is reserved; which run comes next, its "
    "settings, and when it ends may be chosen by looking at anything that was released.",
    "A run that was closed with a state made no release after that state.",
    "n, the preprocessing and the projections are public; initial points and hyper-parameters are "
    "public, or computed from what this ledger paid for.",
    *(x for x in _sentences.ASSUMED if not x.startswith(("n, ", "The statement is for one run"))),
)


@dataclasses.dataclass(frozen=True)
class LedgerStatement:
    """The statement of all runs of a ledger; `str` for words, `to_json` for a flat record.

    Attributes:
      epsilon: of everything that is in the ledger and that it will ever let in.
      epsilon_if_stopped_by_looking: the odometer's, of what is charged now, if nothing more is
        reserved; holds whatever made one stop.
      delta: of each of them; one of the two is to be quoted, chosen beforehand, as the smaller one
        counts both deltas.
      neighbours: "replace_one" or "add_or_remove_one".
      people: k, how many records of one person may differ.
      unit: what one record is.
      filter: by what theorem runs are added up, in words.
      odometer: what the odometer's number means, in words.
      limits: of every amount that is charged.
      spent: of every amount.
      runs: a record each, with name, unit, words, charge, releases, spent, opened and closed; unit
        is None for a run of a ledger that did not record it.
      enforced: what the code guarantees.
      assumed: what the user must see to.

    Examples:
        >>> said = jmm.accounting.Ledger("study.json", epsilon=2.0, delta=1e-6).statement()
        >>> said.epsilon, said.delta, len(said.runs)
        (2.0, 1e-06, 0)
    """

    epsilon: float
    epsilon_if_stopped_by_looking: float
    delta: float
    neighbours: str
    people: int
    unit: str
    filter: str
    odometer: str
    limits: dict[str, float]
    spent: dict[str, float]
    runs: tuple[dict[str, Any], ...]
    enforced: tuple[str, ...]
    assumed: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """A dictionary of plain Python values; an infinite epsilon is "no guarantee"."""
        return record_of(self)

    def __str__(self) -> str:
        used = ", ".join(f"{name} {self.spent[name]:.4g} of {limit:.4g}"
                         for name, limit in self.limits.items())
        lines = [
            f"({self.epsilon:.4g}, {self.delta:g})-differential privacy for {self.unit}, of "
            f"everything in this ledger, now and later; neighbouring data sets: "
            f"{relation_in_words(self.neighbours, self.people)}.",
            f"If nothing more is reserved: epsilon = {self.epsilon_if_stopped_by_looking:.4g}, "
            f"{self.odometer}. Quote one of the two, chosen beforehand.",
            self.filter,
            f"Charged: {used}.",
            *(_line(run) for run in self.runs),
            "Enforced by the code:", *(f"  - {x}" for x in self.enforced),
            "Assumed:", *(f"  - {x}" for x in self.assumed),
        ]
        return "\n".join(lines)


def _line(run: dict[str, Any]) -> str:
    made = "" if run["spent"] is None else f", {run['spent']} made"
    state = "open" if run["closed"] is None else "closed"
    charge = ", ".join(f"{name} {x:.4g}" for name, x in run["charge"].items())
    unit = "unit not recorded" if run["unit"] is None else f"for {run['unit']}"
    return f"  {run['name']} ({unit}; {state}{made}; {charge}): {run['words']}"


def statement_of(content: dict[str, Any], rule: Filter, spent: dict[str, float],
                 ) -> LedgerStatement:
    """The statement of a ledger's content, by its filter and the sums of its charges."""
    entries = content["entries"]
    told = ("name", "unit", "words", "charge", "releases", "spent", "opened", "closed")
    return LedgerStatement(
        epsilon=content["epsilon"],
        epsilon_if_stopped_by_looking=rule.odometer(spent),
        delta=content["delta"],
        neighbours=content["neighbours"],
        people=content["people"],
        unit=content["unit"],
        filter=rule.in_words(),
        odometer=rule.odometer_in_words(),
        limits=dict(rule.limits),
        spent=spent,
        runs=tuple({name: entry.get(name) for name in told} for entry in entries),
        enforced=tuple(dict.fromkeys((*ENFORCED, *(x for e in entries for x in e["enforced"])))),
        assumed=tuple(dict.fromkeys((
            *claims(content["unit"], content["people"], False), *ASSUMED, ENDS,
            *(x for e in entries for x in e["assumed"] if x not in _sentences.ASSUMED)))),
    )
