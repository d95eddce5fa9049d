"""Sentences of privacy statements: what is enforced and assumed, and who answers for the unit."""

from jaxminimax.accounting._epsilon import LARGE

ENFORCED = (
    "Noise, sampling and clip norms of the run are those of the mechanism charged here.",
    "Releases beyond the allowed number, and samples that cannot be drawn, are NaN.",
)
ASSUMED = (
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
ENDS = ("The stop is a function of what was released and of coins that know nothing of the data: "
        "one decided by private quantities that were not released, a validation loss or a crash "
        "that depends on the data, is not covered by any epsilon here.")
_ONE = ("One record is the unit of privacy: who contributes several records is protected less "
        "(people=k counts any k of them).")
_CLAIM = ("That one record is '{unit}' is the user's claim, and not checked: who contributes "
          "several records is protected less (people=k counts any k of them).")
_PERSONS = ("Whose each row is was told rightly: a record is {unit}, the rows of one owner, and "
            "who has several names is protected less.")
CAPPED = ("A record is a person, with at most {rows} row(s): the person's other rows are not "
           "read, and what these hold, and how many there are, is protected as one.")
_SEVERAL = ("Nobody contributes more than {people} records, wherever they are in the data: that is "
            "the user's claim, and not checked.")
_LEMMA = ("For {people} records the curve of one is used {people} times: no sharper proof covers "
          "all of these releases.")
_FIXED_END = ("The epsilon of what was spent is for an end that was fixed beforehand. If a look at "
              "what was released decided when to stop, only the epsilon of all that is allowed "
              "and that of the milestone hold. {quote}")
_QUOTE = ("Quote one of these two, decided before the run; to quote the smaller one afterwards, "
          "say delta = {twice:g}.")
LARGE_DELTA = "Delta is too large"


def relation_in_words(neighbours: str, people: int = 1) -> str:
    """What neighbouring data sets differ by."""
    if people == 1:
        return {"replace_one": "one record is replaced by another",
                "add_or_remove_one": "one record is present or counts as absent"}[neighbours]
    return {"replace_one": f"any {people} records are replaced by others",
            "add_or_remove_one": f"each of any {people} records is present or counts as absent"
            }[neighbours]


def claims(unit: str | None, people: int, lemma: bool,
           rows_each: int | None = None) -> tuple[str, ...]:
    """What the unit of privacy rests on, and how several records of one are charged."""
    one = _PERSONS if rows_each else _CLAIM if unit not in (None, "one record") else _ONE
    claim = _SEVERAL if people > 1 else one
    several = (_LEMMA,) if lemma else ()
    return tuple(x.format(unit=unit, people=people) for x in (claim, *several))


def large_delta(delta: float, n: int) -> tuple[str, ...]:
    """What a delta that is too large leaves open."""
    if delta >= LARGE:
        return (f"{LARGE_DELTA}, {delta:g}: publishing all records with that probability would "
                "meet this statement too. IT IS NO PROTECTION.",)
    if n and delta >= 1 / n:
        return (f"{LARGE_DELTA}, {delta:g}, which is not below 1/n = {1 / n:.3g}: publishing one "
                "whole record, drawn at random, would meet this statement too.",)
    return ()


def early_end(delta: float) -> tuple[str, str]:
    """What the numbers of a run that ended early rest on."""
    return ENDS, _FIXED_END.format(quote=quote_one(delta))


def quote_one(delta: float) -> str:
    """How one of two epsilons at the same delta is quoted."""
    return _QUOTE.format(twice=2 * delta)
