"""Adult with its attributes as they were written, as records (x, y, s) with a private group s.

Features are fixed functions of a record: one-hot attributes, numbers on public scales, and steps at
round numbers ("knots"), which let a linear scorer bend. Sex is no feature. Which numbers are round
is general knowledge of this table, and nothing is read off the loaded rows.
"""

import io
import os
from typing import NamedTuple

import numpy as np
import pandas as pd

from benchmarks.data_sets import adult as set_adult

_COLUMNS = ("age", "workclass", "weight", "education", "schooling", "marital", "occupation",
            "relationship", "race", "sex", "gain", "loss", "hours", "country", "income")
# values as the description of the table lists them
VALUES = {
    "workclass": ("Private", "Self-emp-not-inc", "Self-emp-inc", "Federal-gov", "Local-gov",
                  "State-gov", "Without-pay", "Never-worked"),
    "race": ("White", "Asian-Pac-Islander", "Amer-Indian-Eskimo", "Other", "Black"),
    "marital": ("Married-civ-spouse", "Divorced", "Never-married", "Separated", "Widowed",
                "Married-spouse-absent", "Married-AF-spouse"),
    "occupation": ("Tech-support", "Craft-repair", "Other-service", "Sales", "Exec-managerial",
                   "Prof-specialty", "Handlers-cleaners", "Machine-op-inspct", "Adm-clerical",
                   "Farming-fishing", "Transport-moving", "Priv-house-serv", "Protective-serv",
                   "Armed-Forces"),
    "relationship": ("Wife", "Own-child", "Husband", "Not-in-family", "Other-relative",
                     "Unmarried"),
}
KNOTS = {
    "age": (22, 25, 28, 32, 36, 40, 45, 50, 55, 60, 65),
    "schooling": (8, 9, 10, 11, 12, 13, 14),
    "hours": (20, 30, 39, 40, 45, 50, 60),
    "gain": (0, 3000, 4000, 5000, 7000, 10000),
    "loss": (0, 1500, 1700, 1800, 1900, 2000, 2200),
}
_SEXES = ("Female", "Male")
_RACES = ("White", "Black")  # and all others together
GROUPS = {
    "sex": ("female", "male"),
    "sex_race": tuple(f"{sex} {race}" for sex in ("female", "male")
                      for race in ("white", "black", "other")),
}
_LENGTH = 12**0.5  # of about this many ones is a record made
PUBLIC = (
    "Values of attributes, scales of numbers and knots are general knowledge of this table.",
    "Rows with a missing attribute are left out beforehand.",
)


class Task(NamedTuple):
    """One split of the table.

    Attributes:
      train: x `[n, d]`, y `[n]` and s `[n]`.
      test: likewise.
      names: of the groups.
    """

    train: tuple[np.ndarray, np.ndarray, np.ndarray]
    test: tuple[np.ndarray, np.ndarray, np.ndarray]
    names: tuple[str, ...]


def frame(data_dir: str | os.PathLike[str] | None = None) -> pd.DataFrame:
    """All complete rows of both files.

    Raises:
      ValueError: for a file that is missing in a folder that was named, or is another one.
      OSError: if it cannot be downloaded.
    """
    parts = [pd.read_csv(io.BytesIO(set_adult.AS_WRITTEN.read(name, data_dir)), names=_COLUMNS,
                         skipinitialspace=True, skiprows=skipped, na_values="?")
             for name, skipped in (("adult.data", 0), ("adult.test", 1))]
    return pd.concat(parts, ignore_index=True).dropna(ignore_index=True)


def features(table: pd.DataFrame) -> np.ndarray:
    """`[n, 88]`: every row by itself."""
    numbers = np.stack([(table["age"] - 40) / 20, (table["schooling"] - 10) / 3,
                        (table["hours"] - 40) / 15, np.log1p(table["gain"]) / 5,
                        np.log1p(table["loss"]) / 5], 1)
    parts = [np.clip(numbers, -3, 3)]
    parts += [table[name].to_numpy()[:, None] == np.array(values)
              for name, values in VALUES.items()]
    parts += [table[name].to_numpy()[:, None] > np.array(knots) for name, knots in KNOTS.items()]
    parts += [table[["country"]].to_numpy() == "United-States", np.ones((len(table), 1))]
    return (np.concatenate(parts, 1) / _LENGTH).astype(np.float32)


def groups(table: pd.DataFrame, by: str) -> np.ndarray:
    """The number of every row's group, int32 `[n]`, in the order of `GROUPS[by]`."""
    sex = (table["sex"] == _SEXES[1]).to_numpy(np.int32)
    if by == "sex":
        return sex
    race = table["race"].map({name: k for k, name in enumerate(_RACES)}).fillna(len(_RACES))
    return sex * (len(_RACES) + 1) + race.to_numpy(np.int32)


def split(table: pd.DataFrame, by: str, seed: int) -> Task:
    """Three quarters of the rows to train on, drawn by `seed`, and the others to test on."""
    records = (features(table), (table["income"].str.startswith(">50K")).to_numpy(np.int32),
               groups(table, by))
    order = np.random.default_rng(seed).permutation(len(table))
    cut = len(table) * 3 // 4
    train, test = (tuple(a[rows] for a in records) for rows in (order[:cut], order[cut:]))
    return Task(train, test, GROUPS[by])  # type: ignore[arg-type]
