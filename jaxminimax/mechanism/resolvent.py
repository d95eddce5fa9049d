"""Certified solutions of regularised problems over samples: proximal points."""

import dataclasses
import math
from typing import Any, Self

import jax

from jaxminimax.base import checks, types
from jaxminimax.mechanism import description, grid, sentences
from jaxminimax.mechanism.costs import REPLACE_ONE, concrete
from jaxminimax.mechanism.fixed_size import Disjoint, FixedSize, Full
from jaxminimax.mechanism.repeat import OneRelease, Repeat, batch_size, rows_read, sampled_words
from jaxminimax.mechanism.sampling import Sampling, known_sampling
from jaxminimax.solvers import certifying_steps

__all__ = ["Resolvent"]


@types.pytree_dataclass
class Resolvent(OneRelease):
    """Release the solution of a regularised problem over a sample, plus Gaussian noise.

        u in W solves the variational inequality of  G(u) = (1/m) sum_{i in B} F_i(u) + lambda (u-w)

    up to a certified residual of rho M / m. With G mu-strongly monotone and ||F_i|| <= M, replacing
    a record moves what is released by at most 2 (1 + rho) M / (m mu), in the norm of both players
    together: by strong monotonicity of the two perturbed problems, added up. The noise is
    `noise_multiplier` times half of that; see `noise_unit`.

    `assumes` says where mu comes from. It is part of the privacy argument, so statements print it:

      "monotone"   every record's operator is monotone on W and of norm at most M, as it is: records
                   must be sanitised so that this holds for whatever they contain. mu = lambda +
                   mu_0, with mu_0 the `modulus` of the problem itself. Clipped operators are
                   refused: clipping destroys monotonicity.
      "lipschitz"  every record's operator is L-Lipschitz on W; the code clips it to norm M, which
                   keeps L. mu = lambda - s L, which must be positive.

    mu_0 is 0 unless given. It is that of every record's operator with the public terms, where all
    samples have m records: their mean has it then, and one of the two problems that are compared
    always reads m. A Poisson sample may read fewer, or none: there it is that of the public terms.

    Here s = 1, but for Poisson samples s = slots / m: a sum over more records than m, divided by
    m, is as many times steeper. A smaller capacity lowers s.

    Attributes:
      bound: M, on the norm of one record's operator, both players together [gradient units].
      prox: lambda, weight of the proximal term.
      lipschitz: L, of one record's operator plus that of the public terms; 0 for constant ones.
      diameter: the diameter of W, which sets how many steps of the inner solver are proven to be
        enough. Without a projection, a bound on the distance of the solution from the centre,
        M / mu.
      modulus: mu_0, the modulus of strong monotonicity of the operator itself; for "monotone" only.
      steps: the number of steps of operator extrapolation, from `proximal.certified`;
        one number a part if `doubling`.
      doubling: whether part t = 1, 2, ... of the data has the proximal weight (2^t - 1) lambda
        instead of lambda, as in recursive regularisation. The noise shrinks with it.
      solver: a function that computes the solution first, `(key, solvers.Regularised, residual) ->
        point`, such as `solvers.near_linear`. Its point is released if it is certified; otherwise
        operator extrapolation takes its proven number of steps from there. None for that alone.
        Keep one function object: it is hashed by identity. It runs in float64; with 64-bit types
        off, give random draws a dtype of 32 bits.
      slack: rho, certified residual over M / m.
      noise_multiplier: standard deviation of the noise over half the replace-one sensitivity, one
        number for all coordinates [dimensionless].
      sampling: `Full()`, `Poisson(rate=...)`, `FixedSize(batch=...)` or `Disjoint(batch=...)`.
      population: n, the number of records; public.
      assumes: "monotone" or "lipschitz".
      parameters: the largest number of numbers that a release has; public.

    Source: Boob and Guzman, arXiv:2104.02988, Propositions 9 and 10, with the sensitivity of the
    residual in place of theirs (which is twice as large) and the Lipschitz mode added.

    Examples:
        >>> query = jmm.mechanism.Resolvent(bound=1.0, prox=2.0, lipschitz=1.0, diameter=2.0,
        ...                                 population=1000,
        ...                                 assumes="monotone")
        >>> round(jmm.mechanism.resolvent.noise_unit(query), 6)  # half of what a record moves
        0.00051
    """

    sum_of_sample = True
    bound: float | jax.Array
    prox: float | jax.Array
    lipschitz: float | jax.Array
    diameter: float | jax.Array
    modulus: float | jax.Array = 0.0
    steps: int | tuple[int, ...] | None = jax.tree.static(default=None)
    doubling: bool = jax.tree.static(default=False)
    solver: Any = jax.tree.static(default=None)
    slack: float | jax.Array = 0.01
    population: int = jax.tree.static()
    assumes: str = jax.tree.static()

    def check(self, repeat: Repeat) -> None:
        """The sampling, the regularised problem, and whether its solution can be certified."""
        super().check(repeat)
        parts = repeat.parts
        checks.one_of("assumes", self.assumes, ("monotone", "lipschitz"))
        if self.doubling and parts > 60:
            raise ValueError(f"parts must be at most 60 where the proximal weight doubles, got "
                             f"{parts}.")
        for name in ("bound", "prox", "diameter"):
            checks.number(name, getattr(self, name), low=1e-12, high=1e12, closed=True)
        checks.number("lipschitz", self.lipschitz, low=0.0, high=1e12, closed=True)
        checks.number("slack", self.slack, low=1e-9, high=1e6, closed=True)
        checks.number("modulus", self.modulus, low=0.0, high=1e12, closed=True)
        grid.check_multiplier("noise_multiplier", self.noise_multiplier)
        numbers = (self.prox, self.lipschitz, self.diameter, self.bound, self.slack, self.modulus)
        if not grid.are_plain(*numbers):
            return  # checked on the host, where the description is charged
        if self.assumes == "lipschitz" and concrete(self.modulus) > 0:
            raise ValueError(f"modulus={self.modulus!r} goes with assumes='monotone': clipping "
                             "destroys strong monotonicity. Leave it out, or sanitise the records.")
        if concrete(self.modulus) > concrete(self.lipschitz):
            raise ValueError(f"modulus must be at most lipschitz={self.lipschitz!r}, got "
                             f"{self.modulus!r}: an operator rises no faster than its Lipschitz "
                             "constant.")
        if not concrete(modulus(self)) >= 1e-3 * concrete(self.prox):
            raise ValueError(f"prox must exceed {concrete(batch_lipschitz(self)):.6g}, the "
                             f"Lipschitz constant of the largest batch, got {self.prox!r}: "
                             "otherwise the regularised problem need not be strongly monotone. "
                             "Raise prox, give a Poisson sample a capacity, or sanitise the "
                             "records and use assumes='monotone'.")
        if self.steps is not None:
            sizes = self.steps if isinstance(self.steps, tuple) else (self.steps,)
            needed = inner_steps(self, parts)
            needed = needed if isinstance(needed, tuple) else (needed,)
            for steps in sizes:
                checks.count("steps", steps)
            if len(sizes) != len(needed) or any(a < b for a, b in zip(sizes, needed, strict=True)):
                raise ValueError(f"steps must be at least {inner_steps(self, parts)}, got "
                                 f"{self.steps}: fewer may fail to certify a solution, and a "
                                 "failure shows. proximal.certified(query) sets them.")

    def supports_group_privacy(self, repeat: Repeat) -> bool:
        """Yes: j records of a sample move the solution by at most j times what one does.

        Sums of solutions mean nothing here; but the operators of the two problems differ by at most
        2 j M / m, and strong monotonicity bounds the distance of exact solutions by that over mu;
        the residuals of both, 2 rho M / (m mu), come in once, however many records differ. The
        pairs for k records rest on distances alone: with v_S the displacement if the records S are
        read, only ||v_S|| <= |S| is used of it, never that it is a sum over S.
        """
        return True

    def sampled_by(self, sampling: Sampling) -> Self:
        """Returns it with this sampling and no steps, since these depend on the batch size."""
        return dataclasses.replace(self, sampling=sampling, steps=None)

    def words(self, repeat: Repeat) -> sentences.Words:
        """States the number of points, their problems, certificates and clip norms."""
        growing = " on the first part, 2^t - 1 times that on part t" if self.doubling else ""
        points, clipped = sampled_words(repeat, " of certified proximal points"), (
            self.assumes == "lipschitz")
        return sentences.Words(
            f"{points}: prox weight {concrete(self.prox):.6g}{growing}, modulus "
            f"{concrete(modulus(self)):.6g}, residual at most {concrete(self.slack):g} of the "
            f"bound {concrete(self.bound):.6g} over the batch size, operators "
            + ("clipped to the bound." if clipped else "as they are."),
            (*(sentences.CLIPPED,) * clipped, sentences.CERTIFIED), self._assumed())

    def _assumed(self) -> tuple[str, ...]:
        """The assumptions that monotonicity and sensitivity follow from."""
        bound, lipschitz, diameter = map(concrete, (self.bound, self.lipschitz, self.diameter))
        common = (f"Every record's operator, with the public terms, is {lipschitz:g}-Lipschitz "
                  "on the feasible set, whatever the record contains.",
                  f"The feasible set is convex with diameter at most {diameter:g}, the "
                  "projection on it is Euclidean, and the public terms are monotone.")
        if self.assumes == "lipschitz":
            return common
        strong = concrete(self.modulus)
        strongly_monotone: tuple[str, ...] = ()
        if strong > 0:
            # does every sample have as many records as the batch size says?
            full = isinstance(self.sampling, Full | Disjoint | FixedSize)
            who = ("Every record's operator, with the public terms, is" if full
                   else "The public terms alone are")
            strongly_monotone = (f"{who} {strong:g}-strongly monotone on the feasible set, "
                                 "whatever the records contain.",)
        return (f"Every record's operator is monotone on the feasible set and of norm at most "
                f"{bound:g}, whatever the record contains; operators are not clipped.",
                *strongly_monotone, *common)


def batch_lipschitz(query: Resolvent) -> Any:
    """Lipschitz constant s L of a sample's mean operator, however many records it holds."""
    # the sum of more records than m is divided by m all the same
    return max(1.0, rows_read(query) / batch_size(query)) * query.lipschitz


def modulus(query: Resolvent) -> Any:
    """Returns mu of the regularised problem: lambda + mu_0, or lambda - s L."""
    if query.assumes == "lipschitz":
        # a clipped operator may fall as steeply as it is Lipschitz, never more
        return query.prox - batch_lipschitz(query)
    return query.prox + query.modulus


def on_part(query: Resolvent, part: Any) -> Resolvent:
    """Gives `query` its proximal weight on part 0, 1, ...: 1, or 2^(part + 1) - 1 times `prox`."""
    weight = 2.0 ** (part + 1) - 1 if query.doubling else 1.0
    return dataclasses.replace(query, prox=weight * query.prox, doubling=False)


def split(query: Resolvent) -> tuple[Any, Any]:
    """A weight a that keeps F + a (u - c) monotone, and the Lipschitz constant of that.

    The proximal term keeps lambda - a = mu: a is L where clipping takes monotonicity away, -mu_0
    where there is strong monotonicity to lend. The second raises no Lipschitz constant: |F(u) -
    F(u') - mu_0 (u - u')|^2 <= (L^2 - mu_0^2) |u - u'|^2. What is Lipschitz is so with any larger
    constant too: a hundredth of mu more spares the solvers a division by 0 where the operator is
    constant.
    """
    steep = batch_lipschitz(query)
    if query.assumes == "lipschitz":
        # F + L (u - c) is monotone and 2 L-Lipschitz where F is L-Lipschitz
        return steep, 2 * steep + 0.01 * modulus(query)
    # F - mu_0 (u - c) is monotone, and L-Lipschitz as F is
    return -query.modulus, steep + 0.01 * modulus(query)


def rounding(query: Resolvent, size: Any) -> Any:
    """Bounds a certificate's error in the residual: rounding of point and mean, in float64.

    A point of norm |v| is rounded by eps |v|, which the residual, computed from it, cannot see.

    Args:
      query: the description.
      size: bound on the norms of what is computed with, up to the diameter.
    """
    # |G| grows by `steep` over a distance; the mean is one running sum over the rows
    steep = split(query)[1] + modulus(query)
    mean = math.sqrt(rows_read(query)) * query.bound
    return 16 * 2.0**-52 * (steep * (size + query.diameter) + mean)


def noise_unit(query: Resolvent) -> Any:
    """The length that a resolvent's noise multiplier is a multiple of; a clip norm's counterpart.

    Half of the replace-one sensitivity, (1 + rho) M / (m mu). For Poisson and full batches it is
    (1 + 2 rho) M / (m mu), which also bounds what adding or removing a record does: both solutions
    are inexact.
    """
    sampling = known_sampling(query.sampling)  # which compares with the sum without a record?
    inexact = 1 if sampling.relations == (REPLACE_ONE,) and not sampling.compares_absent else 2
    # residuals of both solutions: once in half of the sensitivity, twice in all of M / (m mu)
    mu = modulus(query)
    if query.assumes == "lipschitz":  # a difference, of which float32 descriptions lose some digits
        mu = mu - 2.0**-22 * query.prox
    return (1 + inexact * query.slack) * query.bound / (batch_size(query) * mu)


def inner_steps(query: Resolvent, parts: int = 1) -> int | tuple[int, ...]:
    """Steps of the inner solver after which a solution's certificate cannot fail.

    One number; or one a part of the data, if the proximal weight doubles.
    """
    if query.doubling:
        return tuple(_steps(on_part(query, part)) for part in range(parts))
    return _steps(query)


def _steps(query: Resolvent) -> int:
    # rho M / m
    residual = concrete(query.slack) * concrete(query.bound) / batch_size(query)
    lost = concrete(rounding(query, concrete(query.diameter)))
    # half of the residual, for a quarter may be lost to rounding
    steps = certifying_steps(0.5 * residual, lipschitz=concrete(split(query)[1]),
                             prox=concrete(modulus(query)), distance=concrete(query.diameter))
    if lost > 0.25 * residual or steps > description.MOST_STEPS:
        raise ValueError(
            f"slack={concrete(query.slack):g} asks for a residual of {residual:.3g}, where "
            f"rounding leaves {lost:.3g} and {steps} steps are needed of at most "
            f"{description.MOST_STEPS}: raise slack, or take fewer parts, another prox or smaller "
            "batches.")
    return steps
