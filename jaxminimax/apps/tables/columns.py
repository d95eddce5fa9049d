"""Numbers from a table's columns: by declared values alone, each cell on its own.

Nothing here depends on other data: ranges and categories are public, and a fixed rule clips values
that lie outside. So row i of what comes out is a function of row i of the table, and
of public words.
"""

import contextlib
import dataclasses
import math
import numbers
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxminimax.base import checks
from jaxminimax.base.identity import LONGEST, absent, exact

_NO_RANGE = ("the range of a charged column is released by train(...), which encodes its cells: "
             "declare Number(low, high) to encode them here.")
# text that says that a label of two values is missing; "-" and "None" may be values
NO_LABEL = ("", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "NULL", "null", "?", ".")


def as_numbers(cells: Any) -> np.ndarray:
    """Reads cells as float64 `[n]`; NaN where a cell is no number."""
    array = np.asarray(cells)
    if array.dtype.kind in "biuf":
        return array.astype(np.float64)
    listed = array.astype(object).tolist()
    kinds = set(map(type, listed))
    with contextlib.suppress(ValueError, OverflowError):  # of a cell that is no number, or large
        if kinds == {str}:
            return np.array(list(map(float, listed)))
        if kinds <= {int, type(None)}:
            return np.array(listed, np.float64)
    return np.array(list(map(_number, listed)), np.float64)


def _number(cell: Any) -> float:
    if cell is None:
        return math.nan
    plain = type(cell) is str or isinstance(cell, bool | numbers.Real)
    try:
        return float(cell if plain else str(cell))
    except OverflowError:  # of an integer
        return math.inf if cell > 0 else -math.inf
    except ValueError:
        return math.nan


def as_words(cells: Any) -> np.ndarray:
    """Reads cells as text `[n]`: stripped, whole numbers without a point, "" for missing ones."""
    return _each(word, cells, object)


def places(cells: Any, values: Sequence[str]) -> np.ndarray:
    """Returns each cell's place among `values`, `[n]`; their number where it is none of them."""
    order = {value: k for k, value in enumerate(values)}
    return _each(lambda cell: order.get(word(cell), len(order)), cells, np.int64)


def _each(read: Callable[[Any], Any], cells: Any, kind: type) -> np.ndarray:
    """Applies `read` to every cell by itself, but to equal texts, and to equal numbers, once.

    Other cells that are equal, such as 1 and True, need not read alike.
    """
    array = exact(cells)
    if array.dtype.kind in "biuf":
        values, positions = np.unique(array, return_inverse=True)
        return np.array([read(x) for x in values.tolist()], kind)[positions]
    listed = array.astype(object).tolist()
    texts = {x: read(x) for x in {x for x in listed if type(x) is str}}
    return np.array([texts[x] if type(x) is str else read(x) for x in listed], kind)


def word(cell: Any) -> str:
    """Reads one cell as text, so that 1, 1.0, "1" and " 1.0 " are the same value.

    It is for values of categories; names of persons are exact, see `base.identity`.
    """
    if absent(cell):
        return ""
    if isinstance(cell, bool | np.bool_):
        return "1" if cell else "0"
    if isinstance(cell, numbers.Integral):
        return str(int(cell)) if abs(int(cell)) < LONGEST else hex(cell)
    if isinstance(cell, numbers.Real):
        value = _number(cell)
        return str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)
    text = str(cell).strip()
    match = re.fullmatch(r"([+-]?\d+)\.0+", text)  # "3.0" and "3" are one value
    return {"true": "1", "false": "0"}.get(text.lower(), match[1] if match else text)


def record_as_header(table: Sequence[Any], declared: Collection[Any]) -> str:
    """Says why names of a table's columns may be a record, which no message may print; or "".

    The first line of a file without a header line is a record. So a declared name must be among
    those of the table, and a number in text must not.
    """
    if any(isinstance(name, str) and not math.isnan(_number(name)) for name in table):
        return "numbers"
    return "" if any(name in declared for name in table) else "none declared"


def listed(names: Sequence[Any], table: Sequence[Any], declared: Collection[Any]) -> str:
    """Prints names of a table's columns for a message, or how many there are."""
    doubt = record_as_header(table, declared)
    return f"{len(names)} columns ({doubt}: is a header line missing?)" if doubt else ", ".join(
        map(str, names))


def range_of(name: str, ends: Any) -> "Number":
    """Makes a range of an argument (low, high).

    Raises:
      ValueError: naming the argument.
    """
    checks.kinds({name: (tuple | list | np.ndarray, "(low, high), two numbers")}, {name: ends})
    if len(ends) != 2:
        raise ValueError(f"{name} must be (low, high), two numbers, got {len(ends)} of them.")
    try:
        return Number(*ends)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def check_column(name: str, cells: Any) -> None:
    """Refuses what is not one column, with a cell for each row.

    Raises:
      ValueError: naming the argument, and how to make one column of two.
    """
    rows = isinstance(cells, list | tuple) and any(isinstance(x, list | tuple) for x in cells)
    if (rows or isinstance(cells, str | bytes | Mapping) or hasattr(cells, "columns")
            or not hasattr(cells, "__len__") or getattr(cells, "ndim", 1) != 1):
        raise ValueError(f"{name} must be one column, with a cell for each row, got "
                         f"{checks.describe(cells)}. One of two is X.a.astype(str) + ', ' + "
                         "X.b.astype(str).")


def check_type(name: Any, kind: Any) -> None:
    """Refuses a column of a type that holds no numbers, before a cell of it is read.

    Raises:
      ValueError: naming the column, its type, and what to give.
    """
    for beginning, advice in {
            r"(date|time|duration|period|interval)": "of dates or times: give years or days",
            r"(large_|fixed_size_)?(list|struct|array|map)":
                "nested: give each of its numbers a column",
            r"(large_|fixed_size_)?(binary|bytes|complex)": "no numbers: give numbers"}.items():
        # the whole type of a list may have the values of its cells
        if (match := re.match(beginning, str(kind).lower())) is not None:
            raise ValueError(f"column {name!r} is declared as a number, and its type {match[0]} is "
                             f"{advice}, or leave it out.")


def as_written(kind: "Column", cells: Any) -> dict[str, int]:
    """Counts cells without noise, by how they differ from what was declared; no release."""
    counts = {flaw: int(flags.sum()) for flaw, flags in kind.odd(cells).items()}
    listed = np.asarray(cells).astype(object).tolist()
    if isinstance(kind, Category):
        plain, exactly = {x.casefold() for x in kind.values}, set(kind.values)
        counts["in another case"] = sum(
            word(x) not in exactly and word(x).casefold() in plain for x in listed)
    else:
        texts = [word(x) for x, y in zip(listed, as_numbers(cells), strict=True)
                 if math.isnan(y)]
        patterns = {  # of cells that are no numbers
            "with a currency": r".*[$\u20ac\u00a3\u00a5].*",
            "dates or times": r"\d{1,4}[-/.:]\d{1,2}[-/.:T ].*|\d{1,2}:\d\d",
            "with thousands separators": r"[+-]?\d{1,3}([ ,.'\u2019\u202f\xa0]\d{3})+([.,]\d*)?",
            "with a decimal comma": r"[+-]?\d*,\d+",
            "with a unit or a percent sign": r"[+-]?\d[\d.,]* ?[^\d\s.,].*",
            "lists or records": r"[\[{(].*"}
        counts |= Counter(next((flaw for flaw, like in patterns.items() if re.fullmatch(like, x)),
                               "other text") for x in texts if x not in NO_LABEL)
    return {flaw: count for flaw, count in counts.items() if count}


# Each kind of column answers: `width`, the numbers that a cell becomes; `length`, a bound on
# |psi|^2, and `squared_distance`, one on |psi - psi'|^2, see `statistics`; `squares`, which of
# these numbers' squares are other numbers; `encode`, `[n]` cells as `[n, width]` numbers in
# [-1, 1]; `declared`, what was declared, as a record; and `described`, how another program makes
# each of these numbers.


class _OneNumber:
    """Sizes of a number in [-1, 1], and of a flag of 0 or 1 where its missing cells have one."""

    missing: bool

    @property
    def width(self) -> int:
        """Returns 1, and 2 with a flag for missing cells."""
        return 1 + self.missing

    @property
    def length(self) -> float:
        """Bounds x^2 + (x^2 - 1)^2 by 1 on [-1, 1], and (f - 1/2)^2 of a flag by 1/4."""
        return 1.0 + 0.25 * self.missing

    @property
    def squared_distance(self) -> float:
        """Bounds (x - x')^2 (1 + (x + x')^2) by 4 on [-1, 1], and 1 + x^2 + x^4 <= 3 by it."""
        return 4.0

    @property
    def squares(self) -> tuple[bool, ...]:
        """Returns True for the number, whose square is another one, and False for the flag."""
        return (True, False)[: self.width]


@dataclasses.dataclass(frozen=True)
class Number(_OneNumber):
    """A number with a public range, mapped linearly from [low, high] to [-1, 1].

    What lies outside is clipped; what is missing, or is no number, becomes the middle of the range.
    The ends are at most 1e150 in magnitude and at least 1e-150 apart, after log(1 + x) is taken
    where it is: with a width that overflows, or vanishes, every cell would count as missing.

    Attributes:
      low: lower end of the range.
      high: upper end.
      log: whether log(1 + x) is taken first; the range must not begin below 0.
      missing: whether a number of its own, 0 or 1, says that the cell is missing.

    Examples:
        >>> age = jmm.tables.Number(18, 90)
        >>> age.low, age.high, age.log
        (18, 90, False)
    """

    low: float
    high: float
    log: bool = False
    missing: bool = False

    def __post_init__(self) -> None:
        checks.kinds({"log": checks.TRUTH, "missing": checks.TRUTH}, vars(self))
        # of a range's ends and of one over its width, whose squares are finite, too
        largest = 1e150
        for name in ("low", "high"):
            value = getattr(self, name)
            if isinstance(value, np.number):  # the width of narrow ones could overflow
                object.__setattr__(self, name, value := value.item())
            if isinstance(value, bool) or not isinstance(value, numbers.Real) or not (
                    abs(value) <= largest):  # type: ignore[operator]
                shown = "text" if isinstance(value, str) else checks.describe(value)
                raise ValueError("range must be two finite numbers, at most 1e150 in magnitude, "
                                 f"got {name} = {shown}.")
        if not self.low < self.high:
            raise ValueError(f"range must have low < high, got [{self.low!r}, {self.high!r}].")
        if self.log and self.low < 0:
            raise ValueError(f"log = true needs a range of numbers from 0 on, got low = "
                             f"{self.low!r}: log(1 + x) is taken.")
        low, high = self.ends
        if not high - low >= 1 / largest:
            raise ValueError(f"range must be 1e-150 wide at least, got [{self.low!r}, "
                             f"{self.high!r}]{' before log(1 + x)' * self.log}: widen it.")

    @property
    def ends(self) -> tuple[float, float]:
        """Returns low and high, or log(1 + low) and log(1 + high): [-1, 1] is linear in these."""
        low, high = (math.log1p(e) if self.log else float(e) for e in (self.low, self.high))
        return low, high

    def encode(self, cells: Any) -> np.ndarray:
        """Encodes `[n]` cells as `[n, width]` numbers."""
        x = as_numbers(cells)
        absent = np.isnan(x)
        low, high = self.ends
        x = np.clip(np.where(absent, self.low, x), self.low, self.high)
        x = np.log1p(x) if self.log else x
        x = np.where(absent, 0.0, np.clip(2 * (x - low) / (high - low) - 1, -1.0, 1.0))
        return np.stack([x, absent] if self.missing else [x], 1)

    def decode(self, x: Any) -> Any:
        """Returns the numbers that `encode` maps to these, of a column without `log`."""
        return self.low + (self.high - self.low) / 2 * (1 + x)

    def odd(self, cells: Any) -> dict[str, np.ndarray]:
        """Returns which cells are missing or no number, and which are clipped, each `[n]`."""
        x = as_numbers(cells)
        return {"missing": np.isnan(x), "clipped": (x < self.low) | (x > self.high)}

    def declared(self) -> dict[str, Any]:
        """Returns `range`, and the options that differ from the default."""
        options = {name: True for name in ("log", "missing") if getattr(self, name)}
        return {"range": [self.low, self.high], **options}

    def described(self) -> list[dict[str, Any]]:
        """Returns how each of the numbers is read, and what its name adds to the column's."""
        flag = [{"name": " is missing", "read": "missing"}] if self.missing else []
        return [{"name": "", "read": "number", "range": [self.low, self.high], "log": self.log},
                *flag]


@dataclasses.dataclass(frozen=True)
class Charged(_OneNumber):
    """A number without a public range; a noisy histogram releases one, see `statistics`.

    It counts like a `Number` where settings are chosen, and becomes one before a cell is encoded.

    Attributes:
      missing: whether a number of its own, 0 or 1, says that the cell is missing.

    Examples:
        >>> income = jmm.tables.Charged()  # nobody knows its range beforehand
        >>> income.within(0.0, 1e5)
        Number(low=0.0, high=100000.0, log=False, missing=False)
    """

    missing: bool = False

    def __post_init__(self) -> None:
        checks.kinds({"missing": checks.TRUTH}, vars(self))

    def within(self, low: float, high: float) -> Number:
        """Returns the column with a released range."""
        return Number(low, high, missing=self.missing)

    def encode(self, cells: Any) -> np.ndarray:
        """Refuses to encode, as there is no range yet.

        Raises:
          ValueError: always.
        """
        raise ValueError(_NO_RANGE)

    def odd(self, cells: Any) -> dict[str, np.ndarray]:
        """Returns which cells are missing or no number, `[n]`."""
        return {"missing": np.isnan(as_numbers(cells))}

    def declared(self) -> dict[str, Any]:
        """Returns `range = "charged"`, and `missing` if it is set."""
        return {"range": "charged", **({"missing": True} if self.missing else {})}

    def described(self) -> list[dict[str, Any]]:
        """Refuses as `encode` does."""
        raise ValueError(_NO_RANGE)


@dataclasses.dataclass(frozen=True)
class Category:
    """One of several declared values: a 1 in the place of the value, zeros if it is none of them.

    Attributes:
      values: all different; compared as text, whole numbers without a point.

    Examples:
        >>> job = jmm.tables.Category(("desk", "field"))
        >>> job.values
        ('desk', 'field')
    """

    values: tuple[str, ...]

    def __post_init__(self) -> None:
        is_table = isinstance(self.values, Mapping) or hasattr(self.values, "columns")
        if is_table or not isinstance(self.values, Iterable):
            raise ValueError("categories must be several values, such as ('a', 'b'), got "
                             f"{checks.describe(self.values)}.")
        words = tuple(map(word, self.values))
        if not words:
            raise ValueError("categories must have a value at least, got none.")
        if len(set(words)) < len(words):
            raise ValueError(f"categories must be different from each other, got {len(words)} of "
                             f"which {len(set(words))} are: a record would be counted twice.")
        object.__setattr__(self, "values", words)

    @property
    def width(self) -> int:
        """Returns the number of values: each has a place."""
        return len(self.values)

    @property
    def length(self) -> float:
        """Bounds |e - 1/k|^2 by 1 - 1/k for k >= 2 places, and (e - 1/2)^2 by 1/4 for one."""
        return max(1 - 1 / self.width, 0.25)

    @property
    def squared_distance(self) -> float:
        """Returns 2, that of two of several values, and 1 for one place, (1/2 - -1/2)^2."""
        return 2.0 if self.width > 1 else 1.0

    @property
    def squares(self) -> tuple[bool, ...]:
        """Returns False for each place: the squares of 0 and 1 are 0 and 1."""
        return (False,) * self.width

    def encode(self, cells: Any) -> np.ndarray:
        """Encodes `[n]` cells as `[n, width]` zeros and ones."""
        return (places(cells, self.values)[:, None] == np.arange(self.width)).astype(np.float32)

    def odd(self, cells: Any) -> dict[str, np.ndarray]:
        """Returns which cells are missing, and which have no declared value, each `[n]`."""
        place = places(cells, (*self.values, *({""} - set(self.values))))
        return {"missing": place == self.width, "unseen": place > self.width}

    def declared(self) -> dict[str, Any]:
        """Returns `categories`."""
        return {"categories": list(self.values)}

    def described(self) -> list[dict[str, Any]]:
        """Returns how each of the numbers is read, and what its name adds to the column's."""
        return [{"name": f" = {x}", "read": "category", "value": x} for x in self.values]


Column = Number | Charged | Category


def column_from_record(name: str, record: Any) -> Column:
    """Makes a column of what `declared` returns, as the published schema of tables says it.

    Raises:
      ValueError: naming the column, and what is wrong.
    """
    try:
        if "categories" in record:
            return Category(tuple(record["categories"]))
        missing, log = record.get("missing", False), record.get("log", False)
        if isinstance(record["range"], str):
            if log:
                raise ValueError("log = true needs a range of its own: range = [low, high].")
            return Charged(missing)
        low, high = record["range"]
        return Number(low, high, log=log, missing=missing)
    except ValueError as error:
        raise ValueError(f"[columns.{name}]: {error}") from None
