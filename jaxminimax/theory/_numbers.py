"""Checks of the numbers that bounds are made of."""

from jaxminimax.base import checks


def positive(**numbers: float) -> None:
    """Refuses what is not above 0, and counts that are none."""
    for name, value in numbers.items():
        if name in ("population", "rounds", "dim", "batch", "groups"):
            checks.count(name, value)
        else:
            checks.number(name, value, low=0.0)


def nonnegative(**numbers: float) -> None:
    """Refuses what is below 0."""
    for name, value in numbers.items():
        checks.number(name, value, low=0.0, closed=True)


def short(step: float, smooth: float, most: float = 1.0) -> None:
    """Refuses steps above most / smooth, which a bound is not for."""
    if step * smooth > most * (1 + 1e-9):
        raise ValueError(f"step must be at most {most / smooth:.6g} for smooth={smooth!r}, got "
                         f"{step!r}: the bound is for such steps alone.")
