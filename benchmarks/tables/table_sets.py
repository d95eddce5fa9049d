"""Tables of at least 5,000 rows with public schemas, for `benchmarks.tables.scorers`.

A schema holds what is known without these rows: codebooks, units, and round numbers wide enough for
what a column means. Tables of one source share records: they ask other things of the same people or
images, and are no independent evidence.

fair and randhie come with statsmodels, the others from folders that `data_sets.data` reads;
raw adult is the file of the UCI repository, gzipped or not.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.data_sets import adult as set_adult
from benchmarks.data_sets import ijcnn1 as set_ijcnn1
from benchmarks.data_sets import images as set_images
from benchmarks.tables import package_tables
from jaxminimax.apps.tables import Category, Number, Schema
from jaxminimax.apps.tables.columns import Column

_ADULT: dict[str, Any] = {  # as adult.names lists them, and "?" for what is not known
    "age": Number(17, 90),
    "workclass": "Private, Self-emp-not-inc, Self-emp-inc, Federal-gov, Local-gov, State-gov, "
                 "Without-pay, Never-worked, ?",
    "fnlwgt": None,  # the survey's weight of a record, not a property of a person
    "education": "Bachelors, Some-college, 11th, HS-grad, Prof-school, Assoc-acdm, Assoc-voc, 9th, "
                 "7th-8th, 12th, Masters, 1st-4th, 10th, Doctorate, 5th-6th, Preschool",
    "education-num": Number(1, 16),
    "marital-status": "Married-civ-spouse, Divorced, Never-married, Separated, Widowed, "
                      "Married-spouse-absent, Married-AF-spouse",
    "occupation": "Tech-support, Craft-repair, Other-service, Sales, Exec-managerial, "
                  "Prof-specialty, Handlers-cleaners, Machine-op-inspct, Adm-clerical, "
                  "Farming-fishing, Transport-moving, Priv-house-serv, Protective-serv, "
                  "Armed-Forces, ?",
    "relationship": "Wife, Own-child, Husband, Not-in-family, Other-relative, Unmarried",
    "race": "White, Asian-Pac-Islander, Amer-Indian-Eskimo, Other, Black",
    "sex": "Female, Male",
    "capital-gain": Number(0, 99_999, log=True),
    "capital-loss": Number(0, 5000, log=True),
    "hours-per-week": Number(1, 99),
    "native-country": "United-States, Cambodia, England, Puerto-Rico, Canada, Germany, "
                      "Outlying-US(Guam-USVI-etc), India, Japan, Greece, South, China, Cuba, Iran, "
                      "Honduras, Philippines, Italy, Poland, Jamaica, Vietnam, Mexico, Portugal, "
                      "Ireland, France, Dominican-Republic, Laos, Ecuador, Taiwan, Haiti, Columbia,"
                      " Hungary, Guatemala, Nicaragua, Scotland, Thailand, Yugoslavia, El-Salvador,"
                      " Trinadad&Tobago, Peru, Hong, Holand-Netherlands, ?",
    "income": None,
}
_YES = Category(("0", "1"))
_PIXELS = 14  # along an edge


@dataclasses.dataclass(frozen=True)
class Table:
    """A table, its schema, and what may be said of it.

    Attributes:
      name: to print.
      source: tables of one source share records.
      frame: rows.
      schema: public.
      found_on: whether the rule of the defaults was found on this very table.
    """

    name: str
    source: str
    frame: pd.DataFrame
    schema: Schema
    found_on: bool


def _fair() -> pd.DataFrame:
    from statsmodels.datasets import fair
    frame = fair.load_pandas().data
    return frame.assign(affair=frame.affairs > 0)


def _randhie() -> pd.DataFrame:
    from statsmodels.datasets import randhie
    frame = randhie.load_pandas().data
    return frame.assign(visit=frame.mdvis > 0, often=frame.mdvis >= 10,
                        unwell=frame.hlthf + frame.hlthp > 0, limited=frame.physlm > 0)


def _columns(kinds: dict[str, Any], *dropped: str) -> dict[str, Any]:
    return {name: Category(tuple(kind.split(", "))) if isinstance(kind, str) else kind
            for name, kind in kinds.items() if kind is not None and name not in dropped}


@functools.cache
def _adult() -> pd.DataFrame:
    lines = [line for name in set_adult.AS_WRITTEN.checksums
             for line in set_adult.AS_WRITTEN.read(name).decode().splitlines()
             if line and not line.startswith("|")]
    frame = pd.DataFrame([line.rstrip(".").split(", ") for line in lines], columns=list(_ADULT))
    return frame.assign(
        long=frame["hours-per-week"].astype(int) > 40,
        degree=frame["education-num"].astype(int) > 12, gain=frame["capital-gain"] != "0")


@functools.cache
def _ijcnn1() -> pd.DataFrame:
    parts = set_ijcnn1.rows("trn")
    return pd.DataFrame(parts[0], columns=[f"x{k}" for k in range(1, 23)]).assign(y=parts[1])


@functools.cache
def _images(name: str) -> tuple[pd.DataFrame, np.ndarray]:
    pixels = set_images.images(name, size=_PIXELS)
    _, classes = set_images.raw(name, "train")
    return pd.DataFrame(pixels, columns=[f"p{k}" for k in range(_PIXELS**2)]), classes


def _picture(name: str, positive: tuple[int, ...], among: tuple[int, ...] = tuple(range(10))
             ) -> tuple[pd.DataFrame, Schema]:
    """Some classes of images against the others of `among`."""
    frame, classes = _images(name)
    kept = np.isin(classes, among)
    frame = frame[kept].assign(y=np.isin(classes[kept], positive))
    return frame, Schema({c: Number(0, 1) for c in frame if c != "y"}, "y", "1")


def _census(label: str, positive: str, *dropped: str) -> tuple[pd.DataFrame, Schema]:
    """One question to the census's records, without the columns that answer it."""
    return _adult(), Schema(_columns(_ADULT, label, *dropped), label, positive)


def _visits(label: str, *dropped: str) -> tuple[pd.DataFrame, Schema]:
    """One question to the insurance experiment's records."""
    kinds = {"mdvis": Number(0, 80, log=True), "lncoins": Number(0, 4.7), "idp": _YES,
             "lpi": Number(0, 8), "fmde": Number(0, 9), "physlm": Number(0, 1),
             "disea": Number(0, 60), "hlthg": _YES, "hlthf": _YES, "hlthp": _YES}
    return _randhie(), Schema(_columns(kinds, *dropped), label, "1")


def _affairs() -> tuple[pd.DataFrame, Schema]:
    job = Category(tuple(map(str, range(1, 7))))
    kinds: dict[str, Column] = {
        "rate_marriage": Number(1, 5), "age": Number(17, 45), "yrs_married": Number(0, 25),
        "children": Number(0, 6), "religious": Number(1, 4), "educ": Number(9, 20),
        "occupation": job, "occupation_husb": job}
    return _fair(), Schema(kinds, "affair", "1")


def _phases() -> tuple[pd.DataFrame, Schema]:
    kinds = {f"x{k}": Number(0, 1) if k <= 10 else Number(-1.5, 1.5) for k in range(1, 23)}
    return _ijcnn1(), Schema(kinds, "y", "1")


_EARLY = tuple(range(5))
# name -> source, whether the rule was found on it, and what makes it
TABLES: dict[str, tuple[str, bool, Callable[[], tuple[pd.DataFrame, Schema]]]] = {
    "fair: an affair": ("fair", True, _affairs),
    "randhie: a visit": ("randhie", False, functools.partial(_visits, "visit", "mdvis")),
    "randhie: ten visits": ("randhie", False, functools.partial(_visits, "often", "mdvis")),
    "randhie: fair or poor health": ("randhie", False, functools.partial(
        _visits, "unwell", "hlthg", "hlthf", "hlthp")),
    "randhie: a limitation": ("randhie", False, functools.partial(_visits, "limited", "physlm")),
    "adult: income": ("adult", True, functools.partial(_census, "income", ">50K")),
    "adult: sex": ("adult", False, functools.partial(_census, "sex", "Male", "relationship")),
    "adult: married": ("adult", False, functools.partial(
        _census, "marital-status", "Married-civ-spouse", "relationship")),
    "adult: over 40 hours": ("adult", False, functools.partial(
        _census, "long", "1", "hours-per-week")),
    "adult: degree": ("adult", False, functools.partial(
        _census, "degree", "1", "education", "education-num")),
    "adult: race": ("adult", False, functools.partial(_census, "race", "White")),
    "adult: federal": ("adult", False, functools.partial(_census, "workclass", "Federal-gov")),
    "adult: capital gain": ("adult", False, functools.partial(
        _census, "gain", "1", "capital-gain")),
    "ijcnn1": ("ijcnn1", False, _phases),
    "mnist: below 5": ("mnist", True, functools.partial(_picture, "mnist", _EARLY)),
    "mnist: odd": ("mnist", False, functools.partial(_picture, "mnist", (1, 3, 5, 7, 9))),
    "mnist: 3 among 3 and 8": ("mnist", True, functools.partial(_picture, "mnist", (3,), (3, 8))),
    "fashion: below 5": ("fashion", False, functools.partial(_picture, "fashion_mnist", _EARLY)),
    "fashion: shirt": ("fashion", False, functools.partial(_picture, "fashion_mnist", (6,))),
    "fashion: coat among coats and shirts": ("fashion", True, functools.partial(
        _picture, "fashion_mnist", (4,), (4, 6))),
}
QUICK = ("fair: an affair", "randhie: a visit")  # they come with statsmodels


def load(name: str) -> Table:
    """One of `TABLES` or of `package_tables`.

    Raises:
      ValueError: for another name, or a file that is not there.
      ImportError: for a table of a package that is not installed.
      OSError: if a download fails.
    """
    if name in package_tables.NAMES:
        return Table(name, name, *package_tables.load(name), name in package_tables.SET_ON)
    if name not in TABLES:
        raise ValueError(f"no table {name!r}; there are {', '.join(TABLES)}.")
    source, found_on, make = TABLES[name]
    frame, schema = make()
    # a label of "?" is none: such rows are left out, as other methods have no use for them
    return Table(name, source, frame[~np.isnan(schema.labels(frame))], schema, found_on)
