"""Numbers and bounds in words, as statements print them: each rounded to the safe side."""

import decimal
import math

NO_GUARANTEE = "no guarantee"  # an epsilon that is infinite, or above what is proven


def rounded_up(value: float, digits: int = 4) -> str:
    """Prints a number with so many digits, rounded up; digits beyond the twelfth do not count."""
    if math.isinf(value):
        return "not proven"
    # decimal, as a float has no exact decimal digits to round up
    context = decimal.Context(prec=digits, rounding=decimal.ROUND_CEILING)
    return f"{float(context.create_decimal(f'{value:.12g}')):.{digits}g}"


def percent(value: float) -> str:
    """Prints a percentage, at most 100, with two or three digits, rounded up."""
    return rounded_up(min(value, 100.0), 2 if value < 10 else 3)


def players(values: dict[str, float]) -> str:
    """Names the numbers of all players, if there are several."""
    if list(values) == ["w"]:
        return f"{values['w']:.5g}"
    return ", ".join(f"{name} {value:.5g}".strip() for name, value in values.items())


def membership(rate: float, share: float) -> str:
    """States a bound on membership attacks; the share is rounded up."""
    return (f"At {100 * rate:g} % false positives, a membership attack finds at most "
            f"{percent(100 * share)} % of members.")


def limit_in_words(proven: float | None, delta: float) -> str:
    """Explains an infinite epsilon by the result of `proven_up_to`."""
    if proven is None:
        return "infinite, which is no guarantee"
    if proven == 0:
        return (f"not proven at delta = {delta:g}: the samplers of records and noise may fail with "
                "a larger probability, for any amount of noise; choose a larger delta")
    return (f"above what is proven, {proven:.4g} at most at delta = {delta:g}, and so no useful "
            "guarantee")


def quote_one(delta: float) -> str:
    """States how one of two epsilons at the same delta is quoted."""
    return ("Quote one of the two, decided before the run; to quote the smaller one afterwards, "
            f"say delta = {2 * delta:g}.")
