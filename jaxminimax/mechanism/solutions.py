"""Certified solutions of the regularised worst-group problem, phase by phase."""

import dataclasses
from typing import Any

import jax

from jaxminimax.base import checks, types
from jaxminimax.mechanism import description, grid, sentences
from jaxminimax.mechanism.costs import SENSITIVITY, concrete
from jaxminimax.mechanism.sentences import Words
from jaxminimax.solvers import groups

__all__ = ["GroupSolution", "Solution", "phase_sizes"]


@types.pytree_dataclass
class Solution(description.Once):
    """One release of a solver's certified solution plus Gaussian noise (output perturbation).

    Attributes:
      sensitivity: replace-one bound on how far the exact solution moves.
      slack: rho, certified distance of what is released from the exact solution over the
        sensitivity; the noise covers (1 + 2 rho) times the sensitivity.
      noise_multiplier: standard deviation over (1 + 2 rho) * sensitivity.
      because: the assumptions that the sensitivity rests on; printed in the statement.

    Examples:
        >>> query = jmm.mechanism.Solution(sensitivity=0.01, noise_multiplier=5.0,
        ...                                because="strong convexity")
        >>> round(jmm.epsilon(query, 1e-6), 2)
        0.83
    """

    sensitivity: float | jax.Array
    slack: float | jax.Array = 0.0
    noise_multiplier: float | jax.Array | None = None
    because: str = jax.tree.static()

    kind = description.Kind.SOLUTION

    def check(self) -> None:
        """The sensitivity, what is left of it uncertified, and its assumptions."""
        checks.number("sensitivity", self.sensitivity, low=0.0)
        checks.number("slack", self.slack, low=0.0, high=1e6, closed=True)
        grid.check_multiplier("noise_multiplier", self.noise_multiplier)
        if not self.because:
            raise ValueError("because must name the assumptions that the sensitivity rests on.")

    def facts(self) -> description.Facts:
        """Returns the facts of one Gaussian; the caller adds the noise."""
        return description.Facts(SENSITIVITY, 1, 1, numbers=0, near=0, noise=self.noise_multiplier,
                                 exact=None)

    def words(self) -> Words:
        """The sensitivity, what is left of it uncertified, and what it rests on."""
        return Words("1 release of a certified solution with Gaussian noise, for a sensitivity of "
                     f"{concrete(self.sensitivity):.6g} and a slack of {concrete(self.slack):g}.",
                     assumed=(self.because,))


@types.pytree_dataclass
class GroupSolution(description.Once):
    """`phases` releases of certified solutions of the regularised worst-group problem.

    Phase t = 1, ..., T reads n_t = floor(n_i / T) records of every group i that no other phase
    reads, and releases, with noise, the w of the saddle point of

        sum_i v_i L_i(w) - mu_v sum_i v_i ln v_i + (mu_t / 2) ||w - c||^2     over W x simplex,

    with mu_t = 2^(t-1) `reg_w` and c released before. Replacing a record moves the exact point by
    at most `exact_sensitivity`; solutions are certified to within `slack` times that, and the noise
    is `noise_multiplier` times (1 + 2 slack) times it, see `solution_length`.

    Nothing is clipped: clipping would break the proof. Every record's loss must itself be convex,
    L-Lipschitz and in [0, B] on W, whatever the record contains; statements print it.

    Attributes:
      lipschitz: L, the Lipschitz constant of one record's loss on W.
      bound: B, the length of an interval that its values on W lie in.
      smooth: beta, the Lipschitz constant of its gradient on W; None if it is not smooth.
      diameter: M, the diameter of W.
      reg_w: mu_1, weight of the quadratic in the first phase.
      reg_lam: mu_v, weight of the entropy.
      slack: certified distance from the exact point over the exact sensitivity.
      steps: the number of steps of the inner solver, from `phased_erm.certified`.
      noise_multiplier: standard deviation of the noise over (1 + 2 slack) times the replace-one
        sensitivity [dimensionless], and not over half of it.
      sizes: n_1, ..., n_p, records of each group; public.
      phases: T, the number of phases.
      parameters: the largest number of numbers that a release has; public.

    Examples:
        >>> query = jmm.mechanism.GroupSolution(lipschitz=1.0, bound=1.0, smooth=1.0, diameter=2.0,
        ...                                     reg_w=0.1,
        ...                                     reg_lam=0.1, sizes=(90, 70), phases=2)
        >>> jmm.mechanism.phase_sizes(query)  # records of each group that one phase reads
        (45, 35)
    """

    lipschitz: float | jax.Array
    bound: float | jax.Array
    smooth: float | jax.Array | None
    diameter: float | jax.Array
    reg_w: float | jax.Array
    reg_lam: float | jax.Array
    slack: float | jax.Array = 0.01
    steps: int | None = jax.tree.static(default=None)
    noise_multiplier: float | jax.Array | None = None
    sizes: tuple[int, ...] = jax.tree.static()
    phases: int = jax.tree.static()
    parameters: int = jax.tree.static(default=grid.PARAMETERS)

    kind = description.Kind.GROUP_SOLUTION

    def check(self) -> None:
        """The phases, the constants of the loss, and whether solutions can be certified."""
        grid.check_grid(self.parameters)
        checks.count("phases", self.phases)
        grid.check_sizes(self.sizes)
        if min(phase_sizes(self)) < 1:
            raise ValueError(f"phases must be at most {min(self.sizes)}, the smallest group's "
                             f"records, got {self.phases}.")
        if self.phases > 60:
            raise ValueError(f"phases must be at most 60, got {self.phases}: the weight of the "
                             "quadratic doubles in each.")
        for name in ("lipschitz", "bound", "diameter", "reg_w", "reg_lam"):
            checks.number(name, getattr(self, name), low=1e-12, high=1e12, closed=True)
        if self.smooth is not None:
            checks.number("smooth", self.smooth, low=0.0, high=1e12, closed=True)
        checks.number("slack", self.slack, low=0.0, high=1e6)
        grid.check_multiplier("noise_multiplier", self.noise_multiplier)
        if not grid.are_plain(self.lipschitz, self.bound, self.diameter, self.reg_w, self.reg_lam,
                              self.slack, 0.0 if self.smooth is None else self.smooth):
            return  # checked on the host, where the description is charged
        enough = solution_steps(self)
        if self.steps is not None:
            checks.count("steps", self.steps)
            if self.steps < enough:
                raise ValueError(f"steps must be at least {enough}, got {self.steps}: fewer may "
                                 "fail to certify a solution, and a failure shows. "
                                 "phased_erm.certified(query) sets them.")

    def facts(self) -> description.Facts:
        """A record is in one phase; a solution is rounded once more, where it is scaled."""
        # phases read disjoint records: the whole run costs what one of them does
        return description.Facts(SENSITIVITY, self.phases, 1, numbers=self.parameters, near=1,
                                 records=sum(self.sizes), noise=self.noise_multiplier,
                                 parameters=self.parameters, exact=True, slack=self.slack,
                                 sizes=self.sizes)

    def words(self) -> Words:
        """States the number of solutions, their records and their sensitivity."""
        first, last = (concrete(exact_sensitivity(self, concrete(self.reg_w) * 2.0**k))
                       for k in (0, self.phases - 1))
        lipschitz, bound, diameter = map(concrete, (self.lipschitz, self.bound, self.diameter))
        smooth = "" if self.smooth is None else f", {concrete(self.smooth):g}-smooth"
        return Words(
            f"{self.phases} release(s) of certified worst-group solutions with Gaussian noise, "
            f"each on {sentences.groups(phase_sizes(self))} that no other reads: sensitivity "
            f"{first:.6g} in the first, {last:.6g} in the last, slack {concrete(self.slack):g}.",
            (sentences.CERTIFIED,),
            # nothing is clipped
            (f"Every record's loss is convex, {lipschitz:g}-Lipschitz{smooth} and in "
             f"[0, {bound:g}] on the feasible set, whatever the record contains, and its "
             "derivative as computed is finite and a subgradient there; neither losses nor "
             "gradients are clipped.",
             f"The feasible set is convex with diameter at most {diameter:g} and the "
             "projection on it is Euclidean.",
             sentences.PUBLIC_GROUPS, sentences.PLACES,
             "How long a run takes is not published: it depends on the data."))


def phase_sizes(query: GroupSolution) -> tuple[int, ...]:
    """Records of each group that a phase reads; what is left over is never read.

    Examples:
        >>> query = jmm.mechanism.GroupSolution(lipschitz=1.0, bound=1.0, smooth=1.0, diameter=2.0,
        ...                                     reg_w=0.1,
        ...                                     reg_lam=0.1, sizes=(90, 70), phases=4)
        >>> jmm.mechanism.phase_sizes(query)
        (22, 17)
    """
    return tuple(n // query.phases for n in query.sizes)


def exact_sensitivity(query: GroupSolution, reg_w: Any) -> Any:
    """Replace-one bound on how far the exact solution of a phase moves, mu = `reg_w`.

    (a + (a^2 + b^2)^(1/2)) / (2 mu^(1/2)),   a = 2 L / (n mu^(1/2)),   b = B / (2 n mu_v^(1/2)),

    n the smallest group's records in the phase. For two neighbouring problems F and F' differ by
    v_i d(w) / n, d the difference of two records' losses, 2 L-Lipschitz and at most B in size. At
    the saddle points (w, v) of F and (w', v') of F', F is mu-strongly convex in w and, by Pinsker's
    inequality, mu_v-strongly concave in v in the 1-norm, and so is F'; adding up,

        mu ||w - w'||^2 + mu_v ||v - v'||_1^2 <= (v_i d(w') - v'_i d(w)) / n
            <= (2 L / n) ||w - w'|| + (B / 2n) ||v - v'||_1,

    as v_i <= 1 and |v_i - v'_i| <= ||v - v'||_1 / 2. In x = mu^(1/2) ||w - w'|| and y = mu_v^(1/2)
    ||v - v'||_1 that is the disc x^2 + y^2 <= a x + b y, and this is its largest x over mu^(1/2). A
    group with more records moves it less. (The paper's Lemma 3, for inexact solutions, is 6 to 12
    times as large.)
    """
    n = min(phase_sizes(query))
    # the disc x^2 + y^2 <= a x + b y reaches to x = (a + (a^2 + b^2)^(1/2)) / 2
    a, b = 2 * query.lipschitz / (n * reg_w**0.5), query.bound / (2 * n * query.reg_lam**0.5)
    return (a + (a * a + b * b) ** 0.5) / (2 * reg_w**0.5)


def solution_length(query: GroupSolution, reg_w: Any) -> Any:
    """The length that a phase's noise multiplier is a multiple of: two solutions are inexact."""
    return (1 + 2 * query.slack) * exact_sensitivity(query, reg_w)


def solution_smooth(query: GroupSolution, reg_w: Any) -> Any:
    """Smoothness of the problem in w alone, l = beta + L^2 / mu_v + mu; for smooth losses."""
    assert query.smooth is not None
    return query.smooth + query.lipschitz**2 / query.reg_lam + reg_w


def solution_rounding(query: GroupSolution, reg_w: Any, size: Any) -> Any:
    """Bounds what a certificate's distance may miss: rounding of the point and of P, in float64.

    For sums over the N records of a phase in whatever order, one running sum included, and over
    several devices: an allowance of max{512, 2 N} units of rounding, 2^-53.

    Args:
      query: the description, its steps set.
      reg_w: mu of the phase.
      size: bound on the norms of the points, up to the diameter.
    """
    tiny = max(512, 2 * sum(phase_sizes(query))) * 2.0**-53
    reach = size + query.diameter
    if query.smooth is not None:
        # a gradient's weights are as exact as risks over reg_lam
        gradient = query.lipschitz * (1 + query.bound / query.reg_lam)
        # an error e of the gradient moves a mu-strongly convex function's minimiser by e / mu
        return tiny * (gradient + solution_smooth(query, reg_w) * reach) / reg_w
    assert query.steps is not None
    # a value's error is half of mu times a squared distance, hence the root
    steep = query.lipschitz + reg_w * query.diameter
    value = query.bound + query.diameter * steep + query.lipschitz * size
    # the value and its lower model, a sum over the steps
    return (2 * tiny * query.steps**0.5 * value / reg_w) ** 0.5 + tiny * reach


def solution_steps(query: GroupSolution) -> int:
    """Steps of the inner solver after which no phase's certificate can fail.

    Raises:
      ValueError: for an accuracy that float64 or ten million steps may not reach.
    """
    most_steps = 0
    for phase in range(query.phases):
        reg_w = concrete(query.reg_w) * 2.0**phase  # mu_t doubles in every phase
        lipschitz, diameter = map(concrete, (query.lipschitz, query.diameter))
        distance = concrete(query.slack) * concrete(exact_sensitivity(query, reg_w))
        # half of the distance, for a quarter may be lost to rounding
        numbers = dict(modulus=reg_w, lipschitz=lipschitz, diameter=diameter)
        steps = (groups.subgradient_steps(0.5 * distance, **numbers)
                 if query.smooth is None else groups.accelerated_steps(
                     0.5 * distance, smooth=concrete(solution_smooth(query, reg_w)), **numbers))
        lost = concrete(solution_rounding(dataclasses.replace(query, steps=steps), reg_w, diameter))
        if lost > 0.25 * distance or steps > description.MOST_STEPS:
            raise ValueError(
                f"slack={concrete(query.slack):g} asks for a solution within {distance:.3g} in "
                f"phase {phase + 1}, where rounding leaves {lost:.3g} and {steps} steps are "
                f"needed of at most {description.MOST_STEPS}: raise slack or reg_w, take fewer "
                "phases, or smooth the loss.")
        most_steps = max(most_steps, steps)
    return most_steps
