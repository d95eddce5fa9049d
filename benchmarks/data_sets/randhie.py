"""randhie: person-years of the RAND Health Insurance Experiment, which come with statsmodels."""

import numpy as np
import pandas as pd

from benchmarks.data_sets import files
from benchmarks.data_sets.files import Folder

PRIOR = 0.7
UNIT = "one person-year (one row), not one person: a person has up to 5 rows"
PEOPLE = 5  # rows of one person at most, as documented: enrolled for up to 5 years
PUBLIC = (
    "The prior 0.7 is rounded from the published table (three in ten rows: no visit).",
    "Columns are centred, scaled and cut into steps at fixed round numbers, chosen by "
    "hand from their documented meaning and the published table.",
)
# (Threshold, rough share of rows that reach it). The numbers in this table and in
# `features` are fixed and round: they were chosen once, by hand, from the documented
# meaning of the columns and a look at the published table.
_RATE_STEPS = ((1, 0.5), (40, 0.2), (80, 0.2), (98, 0.1))  # Rates: 0, 25, 50, 95 and 100 %.
_DISEASE_STEPS = (
    *((2, 0.9), (5, 0.8), (8, 0.7), (10, 0.6), (12, 0.4)),
    *((14, 0.2), (16, 0.2), (20, 0.1), (30, 0.0)),
)
# These two columns are logarithms, and 0 where nothing is paid: the first step is "any at all".
_INCENTIVE_STEPS = ((0.1, 0.8), (5.5, 0.6), (6, 0.5), (6.5, 0.3))
_EXPENDITURE_STEPS = ((0.1, 0.6), (6, 0.5), (6.5, 0.3), (7, 0.2), (8, 0.1))


def parts(split: str, seed: int, data_dir: Folder) -> tuple[np.ndarray, ...]:
    """Training rows and labels, test rows and labels."""
    if split == "file":
        raise ValueError("randhie has no published test file; use split='random'")
    return files.hold_out(*rows(), seed)


def rows() -> tuple[np.ndarray, np.ndarray]:
    """In the order of the table."""
    from statsmodels.datasets import randhie  # Slow to import and used only here.

    frame = randhie.load_pandas().data
    return features(frame), (frame["mdvis"] > 0).to_numpy(np.float32)


def features(frame: pd.DataFrame) -> np.ndarray:
    """Map the nine explanatory columns to 31 features.

    The first nine are the columns, centred and scaled to about [-1/2, 1/2]. The others are
    steps, which let a linear scorer bend (about two points of AUC without noise). Columns that
    are far from centred cost accuracy under noise.
    """
    linear = np.stack(
        [
            frame["lncoins"] / 5 - 0.4,  # At most ln 101 = 4.6.
            frame["lpi"] / 8 - 0.6,  # Logarithms of at most a few thousand dollars.
            frame["fmde"] / 9 - 0.4,
            frame["disea"] / 60 - 0.2,  # A count of up to about 60.
            frame["idp"] - 0.25,  # The rest are indicators.
            frame["physlm"] - 0.1,
            frame["hlthg"] - 0.35,
            frame["hlthf"] - 0.1,
            frame["hlthp"],
        ],
        axis=1,
    )
    steps = (
        _steps(np.expm1(frame["lncoins"]), _RATE_STEPS),
        _steps(frame["disea"], _DISEASE_STEPS),
        _steps(frame["lpi"], _INCENTIVE_STEPS),
        _steps(frame["fmde"], _EXPENDITURE_STEPS),
    )
    return np.hstack([linear, *steps]).astype(np.float32)


def _steps(values: pd.Series, steps: tuple[tuple[float, float], ...]) -> np.ndarray:
    """Make one column per (threshold, centre): whether the value reaches it, minus the centre."""
    thresholds, centres = np.array(steps).T
    return (values.to_numpy()[:, None] >= thresholds) - centres
