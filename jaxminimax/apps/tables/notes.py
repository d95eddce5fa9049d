"""Notes on a table and its schema: likely mistakes, each with the column and what to do about it.

`before` reads the schema, the names of the table's columns and the number of records. All of them
are public, and no cell is read: a note that depends on a cell would be a release. `after` reads
released means and second moments, so it is postprocessing and costs nothing. NumPy alone.

**Thresholds of `after`.** A released mean has normal noise of standard deviation s, which is
public. Each check compares a noisy number, that is large on right data, with

    T = max(right - q s', wrong + 1.4 s'),

s' its standard deviation and q the normal quantile of 1 % divided by the number of checks. Where
the number is at least `right`, or T + q s' if that is larger, all checks of a table together make a
note with a chance of at most 1 %; each note states that bound. Where it is `wrong`, the check makes
a note with a chance of at least 92 %. The numbers are the share of the rarer label, the share of a
column's cells with a declared value (s' = s sqrt(k) for k values), and of a number in [-1, 1] the
distance of its mean from an end, 1 - |m_1|, and the variance, m_2 - m_1^2 (s' = s sqrt(1 + 4
m_1^2)). The lower end of a range from 0 does no harm, as counts and amounts lie there. Checks whose
bound would be too weak to be of use are left out. Rows without a label are noted where their share
is surely above 5 % (s' = 2 s); all other numbers are divided by the share of those that
have one, and so is their s.

**Small variances.** Cells that are no number count as the middle of their range. So where the mean
is there, a variance that may be 0 is noted, unless the middle is 0, as that of a standardised
column. Elsewhere a small variance is a constant, or a range far too wide, or right: amounts and
logarithms in a range from 0 lie close together. It does harm where it is less than what is added to
it before features are divided by its root, 0.0025 at least, which is more than that of a
standard deviation of a fiftieth of the width. So a variance is noted where it is within noise of 0,
or below that, and only where the noise is so small that a column with a standard deviation of a
twentieth of the width has no note; in the lower half of a range from 0, and of logarithms, of a
fortieth.

**Variances, by rows.** The second moments of scaled rows (`statistics`), where they are released,
are a second measurement: their diagonal times what squares were divided by. The mean of both, with
weights by the variances of their noise, has less of it. In tables of up to some 30 features the
second one decides. Rows that are cut make it too small, on no right column of the benchmark below
0.7 of the variance, so right data have half of it at least. The note states what the moments alone
bound.
"""

import math
import re
import statistics
import warnings
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from jaxminimax.apps.tables.columns import Category, Number, listed, record_as_header
from jaxminimax.apps.tables.schema import Schema

if TYPE_CHECKING:
    from jaxminimax.apps.tables.scorer import Moments

_MANY = 50  # rows a value, on average, below which a category has too many
_SHOWN = 10  # names


class NoteWarning(UserWarning):
    """A note on a table that is likely to waste privacy budget.

    Examples:
        >>> issubclass(jmm.tables.NoteWarning, UserWarning)
        True
    """


class StoppedOnNotesError(ValueError):
    """A training ended after its moments, because of what these say of the table.

    Examples:
        >>> issubclass(jmm.tables.StoppedOnNotesError, ValueError)
        True
    """


class Note(NamedTuple):
    """A likely mistake, and what to do about it.

    Attributes:
      column: its name; None for a note on the whole table.
      text: what was noticed.
      fix: what to do.

    Examples:
        >>> print(jmm.tables.Note("sex", "no cell matches", "check the spelling"))
        sex: no cell matches. Check the spelling.
    """

    column: str | None
    text: str
    fix: str

    def __str__(self) -> str:
        """Prints the column, what was noticed, and the fix in a sentence of its own."""
        prefix = "" if self.column is None else f"{self.column}: "
        return f"{prefix}{self.text}. {self.fix[:1].upper()}{self.fix[1:]}."

    def to_json(self) -> dict[str, Any]:
        """Returns `column`, `text` and `fix`."""
        return self._asdict()


def warn(notes: Iterable[Note]) -> None:
    """Warns of each note, as a `NoteWarning`."""
    for note in notes:
        warnings.warn(str(note), NoteWarning, stacklevel=4)


def check_delta(delta: float, population: int, allowed: bool) -> None:
    """Refuses a delta at which publishing one record in n at random would be private.

    Args:
      delta: of everything that is to be released.
      population: n, records; public, as neighbouring tables have equally many.
      allowed: whether the user allows it by name.

    Raises:
      ValueError: for a delta at or above 1/n that is not allowed.
    """
    if delta * population >= 1 and not allowed:
        raise ValueError(
            f"delta = {delta:g} is not below 1/n = {1 / population:.3g}, for n = {population} "
            "records: publishing one of them, drawn at random, would be (0, delta)-private. Take "
            f"a much smaller one, such as {min(1e-6, population**-2.0):.2g}, or allow it by "
            "allow_large_delta=True (--allow-large-delta).")


# --- before a release ---


def before(schema: Schema, population: int, names: Iterable[Any] = (), *,
           owned: bool = False) -> tuple[Note, ...]:
    """Returns notes from public facts: names, declared values and the number of records.

    The first ones are on columns that seem to say whose row it is, declared or not. That a cell is
    the only one of its value is not public, so text that is nearly unique is known from declared
    values alone: more than half as many as there are records.

    Args:
      schema: of the table.
      population: n, records.
      names: of the table's columns.
      owned: whether owners are known without the schema, or how many rows a person may have.
    """
    names, roles = list(names), {schema.label, schema.owner, schema.groups}
    shown = () if record_as_header(names, schema.names) else names
    notes = [] if owned or schema.owner is not None else [
        note for name in dict.fromkeys((*schema.columns, *shown)) if name not in roles
        and (note := whose(name, schema.columns.get(name), population)) is not None]
    persons = {note.column for note in notes}
    notes += [note for name in schema.columns if name not in persons
              and (note := doubt(name)) is not None]
    notes += [Note(name, f"{kind.width} values for {population} records, fewer than {_MANY} for "
                   "each value, so most of them will be noise", "merge values, or drop the column")
              for name, kind in schema.columns.items()
              if isinstance(kind, Category) and kind.width * _MANY > population]
    undeclared = [str(name) for name in names
                  if name not in schema.names and str(name) not in persons]
    if undeclared:
        text = f"{listed(undeclared[:_SHOWN], names, schema.names)}{_more(undeclared)}"
        notes.append(Note(None, f"training ignores undeclared columns: {text}",
                          "declare in the schema those that are features of new rows too"))
    return tuple(notes)


def whose(name: Any, kind: Any = None, population: float = math.inf) -> Note | None:
    """Returns a note on a column that seems to say whose row it is; else None.

    Args:
      name: of the column.
      kind: as it is declared; None for one that is not.
      population: n, records.
    """
    # such as user, patient_id, accountno, e-mail and id
    evidence, alike = "by its name", re.search(
        "(?:^| )(?:account|applicant|borrower|citizen|client|customer|donor|employee|household|"
        "individual|insured|member|owner|participant|patient|person|policyholder|respondent|"
        "student|subject|user|voter)(?: ?(?:ids?|no|nr|num|number|code|key|ref|hash|name))?$|"
        "(?:^| )(?:ids?|uuid|guid|mrn|ssn|e?mail|phone|passport|iban|login|"
        "(?:first|last|sur|full) ?name)(?: (?:address|number|no|hash))?$|^id |^name$",
        " ".join(_words(name))) is not None
    if isinstance(kind, Category):
        evidence, alike = (f"with {kind.width} values for {population} records",
                     2 * kind.width > population)
    elif isinstance(kind, Number):  # a count, or 0 and 1
        alike &= (kind.high - kind.low) * _MANY > population
    if not alike:
        return None
    return Note(str(name), f"{evidence} it says whose row it is, and epsilon protects one row",
                f'if a person may have several rows, declare [owner] name = "{name}" (fit: '
                "owners=...), or say --people K (people=K); it is no feature of new rows")


def _words(name: Any) -> list[str]:
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", str(name))
    return [word for word in re.split(r"[^a-z]+", spaced.lower()) if word]


def doubt(name: str) -> Note | None:
    """Returns why a column should perhaps not be read, by its name alone; else None."""
    words = {*_words(name), str(name).lower()}
    counts_rows = {"id", "ids", "uuid", "guid", "key", "index", "idx", "name", "address", "street",
                   "url", "hash", "token", "username"}
    if words & counts_rows or whose(name) is not None or str(name).startswith("Unnamed: "):
        return Note(name, "by its name it identifies a person or counts rows, which is no help "
                    "with new rows", "drop it, or declare it as [owner]")
    if words & {"date", "time", "timestamp", "datetime", "dob", "birthday", "birthdate"}:
        return Note(name, "by its name it is a date, and no number", "give years or days")
    return None


def _more(names: Collection[str]) -> str:
    return f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""


# --- from what was released ---


def after(schema: Schema, moments: "Moments", deviation: float, *, features: bool,
          of_rows: tuple[np.ndarray, np.ndarray] | None = None,
          label_deviation: float | None = None) -> tuple[Note, ...]:
    """Returns notes from released moments.

    Args:
      schema: of the features.
      moments: the released ones.
      deviation: s, standard deviation of the noise in each released mean.
      features: whether moments of features were released, or the share of positives alone.
      of_rows: variances of features by the second moments of rows, and the standard deviation of
        their noise, both `[d]`; None if these were not released.
      label_deviation: as `deviation`, of the label's mean; None: the same.
    """
    # all checks of a table together make a note on right data with a chance of at most 1 %
    sure = -statistics.NormalDist().inv_cdf(0.01 / (len(schema.columns) + 2))
    lacking = 1 - moments.labelled - sure * 2 * deviation
    of_label = (deviation if label_deviation is None else label_deviation) / moments.labelled
    deviation /= moments.labelled  # means are those of rows with a label

    def check(weakest: float, actual: float, noise: float, right: float, wrong: float = 0.0,
              power: float = 1.4) -> float | None:
        """Bounds a number without noise, but with a chance of 1 % for all; None: no note."""
        threshold = max(right - sure * noise, wrong + power * noise)
        bound = threshold + sure * noise
        return bound if actual < threshold and bound <= weakest else None

    def misread(name: str, kind: Number, mean: list[float], second: float, deviation: float,
                of_row: tuple[float, float] = (0.0, math.inf)) -> list[Note]:
        # of numbers of which four fifths are clipped at an end, the mean is 0.07 from it
        end = check(0.5, 1 - abs(mean[0]), deviation, 0.2, 0.07)
        if end is not None and (mean[0] > 0 or kind.low != 0):
            return [_at_an_end(name, kind, mean[0] > 0, end)]
        variance = second - mean[0] ** 2
        noise = deviation * math.sqrt(1 + 4 * min(mean[0] ** 2, 1.0))
        bound = max(variance, 0.0) + sure * noise
        weight = noise**2 / (noise**2 + of_row[1] ** 2)  # of the second one, by variances of noise
        scale = 0.5 if weight > 0.5 else 1.0  # cut rows leave that share of right data's variance
        middle = ((abs(mean[0]) <= 2.5 * deviation and kind.low + kind.high != 0)
                  or (len(mean) > 1 and mean[1] > 0.5))
        from_0 = kind.log or (kind.low == 0 and mean[0] < 0)
        # Variances of numbers in [-1, 1]: uniform ones on a tenth of it, and those of a standard
        # deviation of a fiftieth, a fortieth and a twentieth of its width. A mean within 2.5
        # deviations of the middle and a variance within 1.8 have a chance of 95 % together.
        right, weakest, power = (scale * 0.2**2 / 12, 0.25, 1.8) if middle else (
            scale * (2 / 50) ** 2, scale * (2 / (40 if from_0 else 20)) ** 2, 1.4)
        spread = check(weakest, (1 - weight) * variance + weight * of_row[0],
                       noise * math.sqrt(1 - weight), right, power=power)
        return [_narrow(name, kind, bound, middle)] if spread is not None and (
            bound <= 0.25) else []

    mistakes = [] if lacking < 0.05 else [_unlabelled(schema, lacking)]
    if isinstance(schema.target, Number):
        mean, second = np.asarray(moments.prior).tolist()
        mistakes += misread(schema.label, schema.target, [mean], second, of_label)
    elif schema.target is None:
        share = float(moments.prior)  # clipped to [0.02, 0.98], so 0.02 may be any smaller share
        rare = min(share, 1 - share)
        label = check(0.15, rare if rare > 0.02 + 1e-9 else 0.0, of_label, 0.05)
        if label is not None:
            mistakes.append(_rare(schema, "have" if share < 0.5 else "lack", label))
    first = 0
    for name, kind in schema.columns.items() if features else ():
        place = slice(first, first := first + kind.width)
        if isinstance(kind, Category):
            # of right data half of the cells match, and of a single value one in twenty
            matching = check(0.9, float(moments.mean[place].sum()),
                             deviation * math.sqrt(kind.width), 0.5 if kind.width > 1 else 0.05)
            if matching is not None:
                mistakes.append(_unmatched(name, kind, matching))
        elif isinstance(kind, Number):
            of_row = () if of_rows is None else ([float(x[place][0]) for x in of_rows],)
            mistakes += misread(name, kind, moments.mean[place].tolist(),
                               float(moments.second[place][0]), deviation, *of_row)
    return tuple(mistakes)


def _unlabelled(schema: Schema, bound: float) -> Note:
    """Words the note on rows without a label, at least a part `bound` of all."""
    return Note(schema.label, f"by the released share at least {bound:.0%} of the rows have no "
                "label: they count as records, with weight 0", "check how it is written")


def _rare(schema: Schema, verb: str, bound: float) -> Note:
    """Words the note on a label with one value in at most a part `bound` of the records."""
    return Note(schema.label, f"by the released share at most {bound:.0%} of the records, or "
                f"none, {verb} the positive value {schema.positive!r}", "check how it is written")


def _unmatched(name: str, kind: Category, bound: float) -> Note:
    """Words the note on a category whose values at most a part `bound` of the cells have."""
    return Note(name, f"by the released shares at most {bound:.0%} of the cells, or none, have a "
                "declared value", "check spelling, case and codes, such as 0 and 1, against "
                f"{', '.join(kind.values[:_SHOWN])}{_more(kind.values)}")


def _at_an_end(name: str, kind: Number, upper: bool, bound: float) -> Note:
    """Words the note on a number whose mean is at an end of its range; `bound`: its distance."""
    low, high = kind.ends
    value = high - bound / 2 * (high - low) if upper else low + bound / 2 * (high - low)
    value = math.expm1(value) if kind.log else value
    end = "upper" if upper else "lower"
    return Note(name, f"by the released mean it lies at the {end} end of its range [{kind.low:g}, "
                f"{kind.high:g}], at {value:.3g} on average or beyond, and what is outside is "
                "clipped", "check the unit, such as months for years")


def _narrow(name: str, kind: Number, bound: float, middle: bool) -> Note:
    """Words the note on a number that hardly varies, or is the middle of its range."""
    interval = f"its range [{kind.low:g}, {kind.high:g}]"
    finding, fix = (
        f"hardly more than the middle of {interval}", "check whether the cells are numbers, as "
        "missing cells and text such as '1,5' and '5 kg' count as the middle") if middle else (
        f"hardly more than one value of {interval}, where this noise would show a useful column",
        "check whether it is a constant, and whether the range or its unit is far too wide")
    return Note(name, f"by the released moments it is {finding}: the standard deviation is at most "
                f"{math.sqrt(bound) / 2:.1%} of the width", fix)
