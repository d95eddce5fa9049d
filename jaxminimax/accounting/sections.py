"""The sections of text and the JSON records that all privacy statements share.

The text of a statement has five sections: a paragraph to quote, a table, what the numbers mean, the
assumptions with the owner of each, and a technical annex.

JSON has no infinity. An epsilon that is infinite, or that is above what is proven, is the string
"no guarantee" in a record; null says that a number does not apply.
"""

import abc
import dataclasses
import json
import math
import textwrap
import types
import typing
from typing import Any, Self

NO_GUARANTEE = "no guarantee"
LARGE_DELTA = "Delta is too large"
USER, OPERATOR = "User: ", "Operator: "  # the owner of an assumption is its first word
OWNERS = ("Assumptions and their owners (user: writes the problem, chooses the settings, knows "
           "the records; operator: runs the program, keeps the key, the logs and the outputs)")
_TRUST = ("trusted curator: the operator holds the records and the key, and the program adds the "
          "noise; readers of the releases hold neither")


class Stated(abc.ABC):
    """Base of all statements: the sections of their text, and a JSON record."""

    __dataclass_fields__: typing.ClassVar[dict[str, Any]]
    subject: typing.ClassVar[str]  # with its verb: what satisfies differential privacy
    epsilon: float
    delta: float
    neighbours: str
    unit: str
    enforced: tuple[str, ...]
    assumed: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Returns a dictionary of plain Python values; infinity is "no guarantee".

        None is for what does not apply, such as the odometer of a run that ended as planned.
        """
        return dict(json.loads(json.dumps(dataclasses.asdict(self)),
                               parse_constant=lambda _: NO_GUARANTEE))

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Self:
        """Returns the statement that `to_json` made `record` of.

        Records of version 0.1.0 and before, with null for infinity, are read too.

        Raises:
          ValueError: for what is no such record.
        """
        if not isinstance(record, dict):
            raise ValueError("A statement's record must be a dictionary from Statement.to_json, "
                             f"got {type(record).__name__}.")
        kinds, needed = typing.get_type_hints(cls), {
            f.name for f in dataclasses.fields(cls)
            if f.default is f.default_factory is dataclasses.MISSING}
        if wrong := sorted(needed - set(record) | set(record) - set(kinds)):
            raise ValueError(f"The record does not fit the statements of this version: {wrong} are "
                             "missing or unknown.")
        return cls(**{name: _read(name, value, kinds[name], record)
                      for name, value in record.items()})

    @abc.abstractmethod
    def scope(self) -> str:
        """Returns sentences on the releases that the claim covers, and on the method."""

    @abc.abstractmethod
    def rows(self) -> dict[str, str]:
        """Returns the rows of the table that only this kind of statement has."""

    @abc.abstractmethod
    def annex(self) -> tuple[str, ...]:
        """Returns the technical details, one sentence each."""

    def no_guarantee(self) -> str:
        """Returns the sentence that stands in place of the guarantee if epsilon is infinite."""
        return (f"NO privacy guarantee is proven for {self.unit}: epsilon is infinite, or above "
                "every one that can be proven.")

    def paragraph(self) -> str:
        """Returns the guarantee as one paragraph: who is protected, against whom, how much, how."""
        if math.isinf(self.epsilon):
            return f"{self.no_guarantee()} {self.scope()}"
        return (f"{self.subject} ({self.epsilon:.4g}, {self.delta:g})-differential privacy for "
                f"{self.unit} (neighbouring data sets: {self.relation()}). The guarantee holds "
                "against anyone who sees all releases and knows every other record. "
                f"{membership(0.01, self.true_positives(0.01))} {self.scope()}")

    def relation(self) -> str:
        """States how neighbouring data sets differ."""
        people = getattr(self, "people", 1)
        if people == 1:
            return {"replace_one": "one record is replaced by another",
                    "add_or_remove_one": "one record is present or counts as absent",
                    }[self.neighbours]
        return {"replace_one": f"any {people} records are replaced by others",
                "add_or_remove_one": f"each of any {people} records is present or counts as absent",
                }[self.neighbours]

    def table(self) -> dict[str, str]:
        """Returns the numbers and settings that the guarantee consists of, by name."""
        delta = f"{self.delta:g}"
        if records := getattr(self, "records", 0):
            delta += f", which is {self.delta * records:.2g} times 1/n, for n = {records} records"
        return {"unit of privacy": self.unit, "neighbouring data sets": self.relation(),
                "epsilon": f"{self.epsilon:.4g}" if math.isfinite(self.epsilon) else NO_GUARANTEE,
                "delta": delta, "trust model": _TRUST, **self.rows()}

    def meaning(self) -> tuple[str, ...]:
        """Returns sentences on what epsilon and delta say about an attacker."""
        if math.isinf(self.epsilon):
            return ()
        factor = math.exp(min(self.epsilon, 700.0))
        return (
            "The probability of any conclusion from the releases is at most e^epsilon = "
            f"{factor:.4g} times what it is on neighbouring data, plus delta = {self.delta:g}.",
            "An attacker who knows every other record, and guesses between two equally likely "
            f"neighbouring data sets, is right in at most {_up(50 * (1 + self.advantage()))} % of "
            "cases. Guessing is right in 50 %.",
            membership(0.001, self.true_positives(0.001)),
            "The guarantee does not hide what the data show about people in general.")

    def advantage(self) -> float:
        """Returns the most by which true positives exceed false ones in any membership attack."""
        if stated := getattr(self, "answers", None):
            return float(stated["advantage"])
        # (e^epsilon - 1 + 2 delta) / (e^epsilon + 1), what (epsilon, delta) alone prove
        return min(1.0, math.tanh(self.epsilon / 2) + 2 * self.delta / (1 + math.exp(
            min(self.epsilon, 700.0))))

    def true_positives(self, rate: float) -> float:
        """Returns the largest true positive rate of an attack at a false positive rate."""
        stated = (getattr(self, "answers", None) or {}).get("true_positives", {})
        if f"{rate:g}" in stated:
            return float(stated[f"{rate:g}"])
        # P(S) <= e^epsilon Q(S) + delta, of the event and of its complement with P and Q exchanged
        shrunk = math.exp(-self.epsilon) * (1 - self.delta - rate)
        return min(math.exp(min(self.epsilon, 700.0)) * rate + self.delta, 1 - shrunk, 1.0)

    def owned(self) -> tuple[str, ...]:
        """Returns the assumptions, each with its owner: the user, unless it names the operator."""
        return tuple(x if x.startswith((USER, OPERATOR)) else USER + x
                     for x in self.assumed if not x.startswith(LARGE_DELTA))

    def __str__(self) -> str:
        large = tuple(x for x in self.assumed if x.startswith(LARGE_DELTA))
        table, meaning = self.table(), self.meaning()
        width = max(map(len, table)) + 2
        return "\n".join([
            _wrapped(self.paragraph()), *map(_wrapped, large), "",
            *(_wrapped(f"{name:{width}}{text}", width) for name, text in table.items()), "",
            *(("What the numbers mean:", *map(_item, meaning), "") if meaning else ()),
            _wrapped(f"{OWNERS}:"), *map(_item, self.owned()), "",
            "Technical annex:", *map(_item, self.annex()),
            "Enforced by the code:", *map(_item, self.enforced)])


def _wrapped(text: str, indent: int = 0) -> str:
    return textwrap.fill(text, 100, subsequent_indent=" " * indent, break_on_hyphens=False)


def _item(text: str) -> str:
    return _wrapped(f"  - {text}", 4)


def _read(name: str, value: Any, kind: Any, record: dict[str, Any]) -> Any:
    """Returns a field as it was before `to_json`, with tuples and infinity.

    Records of version 0.1.0 and before say null for infinity: where a number must be, that is what
    null still means.

    Raises:
      ValueError: if the value is not of the field's type.
    """
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        (kind,) = (one for one in inside if one is not type(None))
        # in an old record, the odometer of a milestone
        infinite = name == "epsilon_if_stopped_by_looking" and record.get("milestone") is not None
        none = value is None and not infinite
        return None if none else _read(name, value, kind, record)
    if kind is Any:
        return value
    if origin is tuple and isinstance(value, list):
        return tuple(_read(name, one, inside[0], record) for one in value)
    if origin is dict and isinstance(value, dict):
        return {key: _read(name, one, inside[1], record) for key, one in value.items()}
    if kind is float and value in (None, NO_GUARANTEE):
        return float("inf")
    if kind is float and type(value) in (int, float):
        return float(value)
    if kind in (int, str) and type(value) is kind:
        return value
    raise ValueError(f"{name} of a statement's record must be {kind}, got {value!r}.")


def quote_one(delta: float) -> str:
    """States how one of two epsilons at the same delta is quoted."""
    return ("Quote one of the two, decided before the run; to quote the smaller one afterwards, "
            f"say delta = {2 * delta:g}.")


def membership(rate: float, share: float) -> str:
    """States a bound on membership attacks; the share is rounded up."""
    return (f"At {100 * rate:g} % false positives, a membership attack finds at most "
            f"{_up(100 * share)} % of members.")


def _up(value: float) -> str:
    """Returns a positive number with two or three digits, rounded up."""
    step = 10.0 ** (min(math.floor(math.log10(max(value, 1e-300))), 0) - 1)
    return f"{min(math.ceil(round(value / step, 6)) * step, 100.0):.4g}"
