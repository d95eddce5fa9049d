"""Upper confidence bounds on a released point's risk or gap, from records held out of its training.

**Statement.** H: h records, independent draws of a population, that nothing read before; z: a point
that is a function of other records, coins and public numbers, so independent of H. One release y of
H certifies, with probability 1 - beta over H and the noise, for beta_1 + beta_2 = beta and q the
noise's quantile of level 1 - beta_2:

    worst group     max_i L_i(w)  <=  max_i B k_i((y_i + q_i) / B),
                    k_i(m) = sup {p in [m, 1]: kl(m, p) <= ln(1 / beta_1) / h_i},
    strong gap      max_v F(w, v) - min_w F(w, v)  <=  y + q + L R (2 ln(1 / beta_1) / h)^(1/2),
    primal risk     max_v F(w, v)  <=  y + q + (B + L R) (ln(1 / beta_1) / (2 h))^(1/2).

*Worst group.* y are the noisy means of losses clipped to [0, B] (`GroupLosses`). The worst group i
is a function of w and the population alone, so only its bound must hold, and there is no union over
groups. Its losses are independent, in [0, B], of mean L_i: by Hoeffding's first inequality their
mean m has P[m < L_i, kl(m / B, L_i / B) > a] <= e^(-h_i a). k_i grows with m, and m <= y_i + q_i
but with probability beta_2. (By Pinsker's inequality k_i(m) <= m + (ln(1/beta_1)/(2 h_i))^(1/2).)

*Strong gap.* y is c(z) of `HeldOutBound` plus noise. Let F be convex in w and concave in v, or any
monotone operator's, on a convex set. Then gap(z) <= max_u <E G_x(z) + r(z), z - u>, attained at a
u* that is a function of z and the population, and not of H. So c(z) >= mean <G_x(z), z - u*> +
<r(z), z - u*>, a mean of independent numbers in an interval of length 2 L R if ||G_x(z)|| <= L:
Hoeffding. For bilinear games without public terms gap(z) is this maximum itself; a strongly
monotone game's is smaller, and the bound is then larger than it need be.

*Primal risk.* For f concave in v, of every record, max_u F(w, u) <= max_u E psi_u with psi_u(x) =
f(w, v; x) + <g_x, v - u>, g_x the operator of player v, and R the distance of v alone. psi_u is at
least f(w, u; x), so it lies in [low, high + L R] if losses lie in [low, high]: Hoeffding.

**Privacy.** Training and H are disjoint by place: `Parallel`. A neighbour in the training part
changes the law of z alone, and y given z is one kernel on both data sets. A neighbour in H leaves
the law of z, and moves what y is made of, given z, by what its description is charged for. So both
together cost the dearer of them (replace-one; sizes and places are public).

**Places.** Rows of a table may be sorted, and its last ones are then no independent draws, fixed
though their places are. So places are drawn here, once, from public coins, and nobody gives them:
records at places that no record's content decides are exchangeable with the others, and independent
draws if the table's are.

Source: Hoeffding, "Probability inequalities for sums of bounded random variables", JASA 1963,
Theorem 1. The certificates, their sensitivities and the linear bounds are this library's.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import scipy

from jaxminimax.accounting import Statement, statement_of_run
from jaxminimax.base import arguments, checks
from jaxminimax.base.types import GroupProblem, PyTree, Saddle
from jaxminimax.mechanism import GroupLosses, HeldOutBound, Parallel, composed, held_out
from jaxminimax.mechanism.grid import PARAMETERS, check_noise, grid_bits
from jaxminimax.problems import Bounded, HeldOut, by_group
from jaxminimax.releases.groups import release_group_losses
from jaxminimax.releases.held_out import largest_distance, release_held_out_bound, shown_by_points

KINDS = {"worst_group": "The worst group's risk", "strong_gap": "The strong gap",
         "primal_risk": "The primal risk"}
_SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)  # of beta, for the noise


@dataclasses.dataclass(frozen=True)
class Certificate:
    """An upper confidence bound on a point's risk or gap; all of it is private output.

    Attributes:
      of: "worst_group", "strong_gap" or "primal_risk".
      bound: the bound.
      probability: with which it holds at least, over the records held out and the noise.
      released: the noisy numbers that it was made of; one a group for the worst group.
      noise: what the bound adds for the noise.
      sampling: what it adds for the draw of the records.
      conditions: what it rests on, besides the statement's assumptions.
      statement: the privacy statement of training and certificate together.

    Examples:
        >>> problem = jmm.problems.group_means(radius=1.0, record_bound=1.0)
        >>> held = jmm.problems.hold_out(np.arange(1000) % 2, 0.5)
        >>> losses = jmm.GroupLosses(bound=2.0, sizes=held.sizes, noise_multiplier=2.0)
        >>> found = jmm.certify(jmm.noise.secret_key(), losses, Saddle(jnp.zeros(1), ()),
        ...                     np.ones((1000, 1), np.float32), problem, held_out=held,
        ...                     training=None, delta=1e-6)
        >>> bool(found.bound > 0.5), found.probability
        (True, 0.95)
    """

    of: str
    bound: float
    probability: float
    released: tuple[float, ...]
    noise: float
    sampling: float
    conditions: tuple[str, ...]
    statement: Statement

    def __str__(self) -> str:
        return "\n".join((
            f"{KINDS[self.of]} is at most {self.bound:.4g} with probability {self.probability:g} "
            f"(noise {self.noise:.2g}, sampling {self.sampling:.2g} of it).",
            *(f"It rests on this: {x}" for x in self.conditions), str(self.statement)))

    def to_json(self) -> dict[str, Any]:
        """Returns a record for JSON."""
        return dataclasses.asdict(self) | {"statement": self.statement.to_json()}


def certify(key: jax.Array, mechanism: GroupLosses | HeldOutBound, z: Saddle, data: PyTree,
            problem: GroupProblem | Bounded, *, held_out: HeldOut, training: Any, delta: float,
            beta: float = 0.05, of: str = "worst_group", read: Any = None,
            reach: float | None = None, unit: str | None = None) -> Certificate:
    """Certifies a released point by records held out of its training, at no further epsilon.

        held = jmm.problems.hold_out(labels, 0.1)
        ...                                              # train on held.rest(data)
        losses = jmm.GroupLosses(bound=problem.bound, sizes=held.sizes)
        losses = jmm.accounting.calibrate_noise(losses, epsilon=1.0, delta=1e-6)
        print(jmm.certify(key, losses, state.average, data, problem, held_out=held,
                          training=algorithm.mechanism(hyper), delta=1e-6))

    The theorem, its proof and the charge are those of the module `drivers.certificates`. It does
    not beat the best guarantee of a plan where there is one: it is for points without a theorem.
    One set of records held out serves one certificate.

    Args:
      key: root key of the certificate, a secret; drawn for it.
      mechanism: what is released and charged, its noise calibrated: `GroupLosses` of the groups'
        held-out sizes, or a `HeldOutBound` of `population=len(held_out.rows)`.
      z: the point, public or released by `training`; `Saddle(w, ())` for groups.
      data: all records, leaves `[n, ...]`; those held out alone are read.
      problem: a `GroupProblem`, or `Bounded`, whose constants hold for records of any content.
      held_out: of `hold_out`, with the groups for the worst group.
      training: what released z, as `algorithm.mechanism(hyper)`, for the records that are not held
        out; None if z follows from public numbers or other people's records.
      delta: of the statement.
      beta: the probability that the bound may fail, in (0, 1).
      of: "worst_group", "strong_gap" or "primal_risk".
      read: numbers of the rows that `training` read, where its description does not say how many
        records it is for; none may be held out.
      reach: the largest norm of a point of the feasible set, of v's for a primal risk: it makes R
        the distance from z instead of the diameter, if that is smaller.
      unit: what one record is, for the statement.

    Raises:
      ValueError: for rows that training may have read, a mechanism that is for other records, or
        that clips, a point outside of the set, a problem without the constants or functions that
        the bound needs, or numbers out of range.
      TypeError: for places that `hold_out` did not draw.

    Examples:
        >>> game = jmm.problems.matrix_game(entry_bound=1.0, shape=(2, 2))
        >>> held = jmm.problems.hold_out(1000, 0.5)
        >>> query = jmm.mechanism.HeldOutBound(bound=game.bound, population=500,
        ...                                    noise_multiplier=4.0)
        >>> z = Saddle(jnp.full(2, 0.5), jnp.full(2, 0.5))  # of records of other people
        >>> found = jmm.certify(jmm.noise.secret_key(), query, z, np.ones((1000, 2, 2), np.float32),
        ...                     game, held_out=held, training=None, delta=1e-6, of="strong_gap")
        >>> 0 < found.bound < 1  # every payoff is 1, so the gap is 0
        True
    """
    arguments.key(key)
    checks.one_of("of", of, tuple(KINDS))
    checks.number("beta", beta, low=0.0, high=1.0)
    if not isinstance(held_out, HeldOut):
        raise TypeError("held_out must be of jmm.problems.hold_out, which draws places from public "
                        "coins: rows at the end of a sorted table are no sample, got "
                        f"{checks.describe(held_out)}.")
    groups = of == "worst_group"
    kind, problem_type = (GroupLosses, GroupProblem) if groups else (HeldOutBound, Bounded)
    if not isinstance(mechanism, kind) or not isinstance(problem, problem_type):
        raise ValueError(f"of={of!r} takes a {kind.__name__} and a {problem_type.__name__}, whose "
                         "constants hold for records of any content, got a "
                         f"{type(mechanism).__name__} and a {type(problem).__name__}.")
    checks.number("problem.bound", problem.bound, low=0.0)
    everything = _together(training, mechanism, held_out, read)
    described = everything.parts[-1]  # at a place of its own, with keys of its own
    settings = {"times": 1} | ({"sizes": held_out.sizes, "only_argmax": False} if groups else
                               {"population": len(held_out.rows)})
    primal, losses = of == "primal_risk", getattr(described, "loss_range", None)
    if (any(getattr(described, name) != x for name, x in settings.items())
            or primal != (losses is not None) or described.bound < problem.bound * (1 - 1e-6)
            or groups != held_out.grouped):
        raise ValueError(
            f"of={of!r} takes a {kind.__name__} of {settings}, of bound={problem.bound:g} or more, "
            f"{'with' if primal else 'without'} a loss_range, and held_out of hold_out("
            f"{'labels' if groups else 'n'}, share). One set of records serves one certificate, "
            "clipped losses or operators are not the problem's, and draws from each group are no "
            f"sample of all. Got {described!r}.")
    arguments.records(records := held_out.taken(data))
    if groups:
        y = np.asarray(release_group_losses(
            key, described, jnp.int32(0), problem, z.w,
            by_group(records, held_out.taken(held_out.labels))[0]), np.float64)
        width, conditions = bound_risk(y, described, beta), [
            f"What is certified is the risk of min(loss, {described.bound:g}): of the loss, where "
            "none is larger."]
    else:
        assert isinstance(problem, Bounded)
        radius = _radius(problem, z, reach, primal)
        y = np.asarray(release_held_out_bound(
            key, described, jnp.int32(0), problem.problem, z, records, radius), np.float64)
        width = bound_gap(float(y), described, radius, beta)
        conditions = [
            "The game of every record and of the public terms is convex-concave, or its operator "
            "monotone, on a convex set; no record's operator is longer than "
            f"{described.bound:g} there.", *(() if losses is None else (
                f"Every loss of the population lies in [{losses[0]:g}, {losses[1]:g}] on the "
                "feasible set.",))]
    allowed = everything.releases()
    stated = statement_of_run.statement_for(
        everything, lambda _: everything, delta, spent=allowed, allowed=allowed, unit=unit,
        assumed=_assumptions(held_out))
    return Certificate(of, width.bound, 1 - beta, tuple(y.ravel().tolist()), width.noise,
                       width.sampling, (
                           "The records held out are independent draws of the population that is "
                           "meant, and independent of the others.", *conditions), stated)


def _assumptions(held_out: HeldOut) -> tuple[str, ...]:
    """States what the guarantee assumes of the records held out."""
    return (
        f"The {len(held_out.rows)} records held out lie at places that were drawn from public "
        f"coins (seed {held_out.seed}); the point is public, or a release stated here from the "
        "other records alone.",
        "Nothing else reads the records held out, before or after: no training, no scaling, no "
        "tuning, no choice of features or of the seed, no second certificate. Otherwise they cost "
        "more, and the certificate is void.")


def _radius(problem: Bounded, z: Saddle, reach: float | None, primal: bool) -> float:
    """Returns R of a point in the set.

    Raises:
      ValueError: for a point outside of it, and for a reach or a diameter that a point of the set
        shows to be too small: the number would be NaN, and its budget spent.
    """
    checks.number("problem.diameter", problem.diameter, low=0.0)
    if reach is not None:
        checks.number("reach", reach, low=0.0)
    distance = float(optax.tree.norm(optax.tree.sub(z, problem.problem.project(z))))
    if not distance <= 1e-5 * (1 + float(optax.tree.norm(z))):
        raise ValueError(f"z lies {distance:.3g} outside of the feasible set: certify "
                         "problem.project(z), which costs nothing.")
    radius = distance + largest_distance(problem.problem, z, reach, problem.diameter, primal)
    far, longest = shown_by_points(problem.problem, z, primal)
    if far > radius * (1 + 1e-5) or (reach is not None and longest > reach * (1 + 1e-5)):
        raise ValueError(
            f"reach or diameter={problem.diameter:g} is too small: the set has a point of norm "
            f"{longest:.6g}, and one {far:.6g} from z; of v alone for a primal risk.")
    return radius


def _together(training: Any, mechanism: Any, held_out: HeldOut, read: Any) -> Parallel:
    """Describes training and certificate, on records that are disjoint by place.

    Raises:
      ValueError: for rows that may be read by both.
    """
    composed.check(mechanism)
    if training is None:
        return Parallel(parts=(mechanism,))
    composed.check(training)
    not_held, stated = len(held_out.labels) - len(held_out.rows), training.records()
    rows = np.asarray([] if read is None else read)
    if read is not None and (rows.ndim != 1 or rows.dtype.kind not in "iu"
                             or np.any((rows < 0) | (rows >= len(held_out.labels)))):
        raise ValueError("read must be the numbers of rows, integers from 0 to n - 1, got shape "
                         f"{rows.shape} and dtype {rows.dtype}: "
                         "np.flatnonzero(...) makes them of a mask.")
    if stated > not_held or (stated == 0 and read is None) or np.isin(held_out.rows, rows).any():
        raise ValueError(f"training may have read rows that are held out: it is for {stated} "
                         f"records (0: it does not say), and {not_held} of {len(held_out.labels)} "
                         "are not held out. Train on held_out.rest(data), or give read=, the "
                         "numbers of the rows that it read, where its description has none.")
    return Parallel(parts=(training, mechanism))


# --- the bounds ---


def _quantile(beta: float, gaussian: bool) -> float:
    """Returns q with P[X < -q] = beta for a standard Gaussian, or a Laplace number of scale 1."""
    return float(-scipy.special.ndtri(beta)) if gaussian else math.log(1 / (2 * beta))


def largest_mean(mean: float, log_odds: float) -> float:
    """Returns sup {p in [m, 1]: kl(m, p) <= a}, for m in [0, 1] and a = ln(1 / beta) / h."""
    low, high = max(mean, 0.0), 1.0
    if low >= 1.0:
        return 1.0
    for _ in range(60):
        p = (low + high) / 2
        far = (float(scipy.special.rel_entr(mean, p) + scipy.special.rel_entr(1 - mean, 1 - p))
               > log_odds)
        low, high = (low, p) if far else (p, high)
    return high


class Width(NamedTuple):
    """A bound from released numbers.

    Attributes:
      bound: the bound.
      noise: what it has for the noise.
      sampling: what it has for the draw of the records.
    """

    bound: float
    noise: float
    sampling: float


def bound_risk(released: np.ndarray, mechanism: GroupLosses, beta: float) -> Width:
    """Bounds the largest risk by the groups' released mean losses, `[p]`."""
    bound, scale = float(mechanism.bound), float(check_noise(mechanism))
    h = np.array(mechanism.sizes, float)
    # each loss is rounded to a step of the grid, and so is the noise
    step = bound * scale * 2.0 ** -grid_bits(scale, PARAMETERS)

    def parts(share: float) -> tuple[np.ndarray, np.ndarray]:
        """The noise, and ln(1 / beta_1) / h, where beta_2 is this share of beta."""
        quantile = (1 + 2e-6) * _quantile(share * beta, mechanism.gaussian)
        return (bound * scale / h * quantile + 2 * step,
                math.log(1 / ((1 - share) * beta)) / h)

    # of public numbers: how beta is split depends on no release
    noise, log_odds = min(map(parts, _SHARES), key=lambda x: np.max(
        x[0] + bound * np.sqrt(x[1] / 2)))
    # a part in a million more, for numbers that were rounded to float32
    means = np.clip((released + 1e-6 * abs(released) + noise) / bound, 0.0, 1.0)
    bounds = [bound * largest_mean(*x) for x in zip(means, log_odds, strict=True)]
    worst = int(np.argmax(bounds))
    return Width(bounds[worst], float(noise[worst]), bounds[worst] - bound * float(means[worst]))


def bound_gap(released: float, mechanism: HeldOutBound, radius: float, beta: float) -> Width:
    """Bounds a gap, or a primal risk, by a released c(z)."""
    scale, moved = float(check_noise(mechanism)), float(held_out.length(mechanism, radius))
    reach = float(mechanism.bound) * radius
    # 2 L R; B + L R of a primal risk
    low, high = mechanism.loss_range or (0.0, reach)
    span = high - low + reach
    # the noise is rounded to a step of its grid, sums by a part of the slack, clip norms to float32
    rounding = (2 * scale * 2.0 ** -grid_bits(2 * scale, 1) + held_out.SLACK) * moved + 1e-6 * reach

    def parts(share: float) -> tuple[float, float]:
        log_odds = math.log(1 / ((1 - share) * beta))
        return ((1 + 2e-6) * scale * moved * _quantile(share * beta, True) + rounding,
                span * math.sqrt(log_odds / (2 * mechanism.population)))

    noise, sampling = min((parts(share) for share in _SHARES), key=sum)
    return Width(released + 1e-6 * abs(released) + noise + sampling, noise, sampling)
