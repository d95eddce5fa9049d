"""How far the integers that are drawn are from the law that they are said to have."""

from jaxminimax.base import checks
from jaxminimax.noise._tables import BITS

NORMAL_TAIL = 2.0**-166    # above P(|G| >= 15) = 2^-166.54
LAPLACE_RATIO = 2.0**-162  # see floored_laplace
LAPLACE_TAIL = 2.0**-184   # above P(|E| >= 128) = e^-128 = 2^-184.66
CHOICE_RATIO = 2.0**-160   # see chosen


def choice_tail(indices: int) -> float:
    """Bound on the total variation that `CHOICE_RATIO` leaves of `chosen`.

    Examples:
        >>> jmm.noise.choice_tail(10) < 1e-20
        True
    """
    return (indices + 1) * 2.0**-184


def normal_ratio(bits: int) -> float:
    """Bound on |ln(P'/P)|, P' the realised and P the ideal probability of a normal integer.

        normal_ratio(L) = 2^-85 (2^L + 16),

    for every integer x with -15 <= x 2^-L < 15. All others together have less than `NORMAL_TAIL`,
    under either law. For N numbers, drawn one after the other and added to integers that may depend
    on those before, this gives for every event, with rho = N normal_ratio, tau = N NORMAL_TAIL,

        P' <= e^rho P + tau  and  P <= e^rho P' + tau,

    and (epsilon, delta) of the ideal mechanism becomes
    (epsilon + 2 rho, e^rho delta + (1 + e^(epsilon + rho)) tau) of the realised one.

    Proof. The first two stages return a number only if it is floor(2^L q(U)) whatever the bits of U
    are that they have not read; q(u) is the inverse of u = P(|G| > x). The last one returns
    floor(2^L y), and |y - q(U)| < e = 2^-86 as long as q(U) <= 15 + e, which holds for no U below
    2^-167 = octave 166's left end. In units of 2^-92 = e / 64, y loses

        28 for the coefficients, rounded down, and 27 for the products, likewise (each of these is
           multiplied by powers of t <= 1 only),
        0.2 for the terms left out (0.129: the largest remainder of all cells, see the tables),
        2 for t, which has 96 bits, and 85 of them known at worst, in octave 166, whose cells have
           dq/dt < 0.0083,
        1 for bits of U after the 255th: q' = 1 / (2 phi(q)) <= 1 / (q u) by Mills' ratio:

    58.2 < 64. (U below 2^-167 gives y > 15, too: if its octave has no table, that of the last.) So
    {A = j}, A the magnitude, gains or loses at its two ends only. With f the density of |G|,
    w = 2^-L, a = j w, a + w <= 15 and c = a + w / 2 < 15,

        |P' - P| <= e f(a - e) + e f(a + w - e) <= 2 e f(a) (1 + 2^-81),
        P >= f(a) int_0^w e^(-c s) ds = f(a) (1 - e^(-c w)) / c >= f(a) / (c + 1 / w),

    hence |P' / P - 1| <= 2 e (2^L + 15) (1 + 2^-81); for the logarithm, 16 instead of 15 is ample.
    The sign is a bit of its own.

    Args:
      bits: L.

    Raises:
      ValueError: unless `bits` is an integer in [0, 22].

    Examples:
        >>> jmm.noise.normal_ratio(18) < 1e-19
        True
    """
    checks.count("bits", bits, low=0)
    checks.number("bits", bits, low=0, high=BITS, closed=True)
    return 2.0**-85 * (2.0**bits + 16)
