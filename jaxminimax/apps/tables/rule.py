"""Settings from public numbers: `defaults`, the rule for a table that nobody has tuned.

Logistic loss, one player, full batches, heavy-ball steps, the mean of the last half of the points.
Full batches because T releases of parameter mu_t = mu / sqrt(T) have noise 2 C sqrt(T) / (n mu),
and T steps of effective size tau / T add up to tau 2 C / (n mu): T cancels, so that rounds cost
time and no privacy, and their charge is exact. The one number that matters is tau, the time of the
gradient flow that is followed. A direction without curvature gathers noise tau 2 C / (n mu') in it;
the rule sets that to 0.7 a coordinate, and to more for many columns.

A released matrix of second moments makes the rounds few (`statistics`): steps are multiplied by a
preconditioner P with the ridge r, and T rounds of steps 1 with momentum 1/2 move a flat direction
for a time of 2 T / r. With r = 2 T / tau it gathers the same noise as before. r must be above what
the noise of the matrix may hide, so

    T = max(20, tau least_ridge / 2),     which grows like d whatever n and epsilon are.

The matrix costs 0.015 of mu^2, and time, for which d / 2 rounds are reckoned. Where that saves
none, as in wide tables of few records, for groups, and for data too few for moments, the flow
stays.

Where n mu' / sqrt(d) is above 2,000, bias costs more than noise: the clip norm grows with it until
no gradient is clipped, at 4,000. (A rare label is what clipped gradients keep from being learned.)

The loss and its clip norm C are those of the kind of label, see `labels`.

Three limits that suit small budgets are relaxed for larger ones. With nu = n mu0 / d, mu0 =
mu sqrt(1 - 0.1 - 0.015 - 0.05) (the last one not of numbers) and z = sqrt(nu / 75), a label that is
a number has

    rows cut at clip(z, 1, 3),   the knee clip(1.2 z, 1, 4),   and of the time the part
    clip(nu / 20, 1/2, 1), for d above 25 clip(S / 100, 1/2, 1) with S = nu sqrt(d).

A row cut at L is divided by L sqrt(d), so a direction has a curvature of about 1 / (d L^2). One
that has converged has, after averaging, scores that are off by 2 sigma^2 d L^2 in variance, sigma =
2 sqrt(2) h / (n mu0), and d of them by 16 (h L)^2 / nu^2 of the label's variance: that is 0.004 at
L = z, h = 1.2 z, whatever n, d and epsilon are. With n mu / sqrt(d) in place of nu wide tables
lose. A rare value of two needs more time, as its curvature is q (1 - q): (4 q (1 - q))^(-1/2) of
it, at most 2, where nu is 50 at least. Moments get up to twice their share where S = n mu0 /
sqrt(d) is below 150. Rows of several values are cut at 1.

Rows of two values of the average record are cut at clip((nu / 75)^(1/2) d^(-1/4), 1, 2) times the
typical length of rows, over the square of the former of the time. With few columns the lengths of
rows spread by d^(-1/2) of their mean, so that the cut at 1 shortens two in five of 4 columns, and
the rarest label is often in these. Cut at L, noise costs L^2 / nu^2, so this is for large nu alone.
The typical length is known from the released moments, by variances v and the floor f the root of
the mean of v / (v + f): where public ranges are much wider than the data, f hides the variance,
rows are short, and a flow in the units of a whole row would need more time than there is.

Groups that contain the label are trained by `balanced_groups`: each group has the same weight at
first, then weights move towards the groups of the largest noisy losses, if these losses can be
heard: steps that add up to S gather noise S B / (n_i mu_l) in the log weight of group i, mu_l^2
what the losses cost together. Where 0.2 of noise leaves no S of 1, groups stay balanced. Groups
without the label differ in how hard they are, which no weight changes, so the model is that of the
average record, and the groups' mean losses under it are released. Of a label that is a number any
groups are trained so, as their means and slopes may differ: the loss is then Huber's.

What the numbers rest on is measured, not proved; privacy rests on none of them.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import optax

from jaxminimax.accounting import calibrate, epsilon
from jaxminimax.accounting.printing import rounded_up
from jaxminimax.algorithms import balanced_groups, descent, sgda
from jaxminimax.apps.tables import labels, records, statistics
from jaxminimax.apps.tables.notes import Note
from jaxminimax.apps.tables.schema import Schema
from jaxminimax.apps.tables.scorer import Moments
from jaxminimax.base import checks
from jaxminimax.base.types import Saddle
from jaxminimax.mechanism import Description, GroupGradients, GroupLosses, Query, Repeat, Sequence

SHARE = 0.1  # of mu^2, for the release of moments
GATHERED = 0.7  # noise of a flat direction at the end, a coordinate
# Features are divided by sqrt(d), so what a weight has to reach grows with it: from that many
# columns on the time does, too. (Found on pairs of pictures, d = 196, where it halves the gap.)
WIDE = 25
MATRIX = 0.015  # of mu^2, for the second moments of rows
LOSS_BOUND = 2.0
CALIBRATED = 0.05  # of mu^2, for the release that makes scores log-odds
CHECKED = 0.05  # of mu^2, for the losses of a model that was trained without groups
# one object each, by which compiled programs are known
HEAVY_BALL, HALF_BALL = (functools.partial(optax.sgd, momentum=x) for x in (0.9, 0.5))


@dataclasses.dataclass(frozen=True)
class Defaults:
    """Settings that `defaults` chose, all from public numbers; `explain` states them in words.

    Attributes:
      hyper: of `sgda` or `balanced_groups`, calibrated.
      moments: the release of means that is charged with the run.
      standardise: whether features are put on one scale by the released moments.
      deviation: s, standard deviation of a released mean.
      floor: least variance that a feature is divided by.
      time: tau.
      strength: n mu' / sqrt(d), how far the data outweigh the noise.
      alongside: what else is paid from epsilon.
      epsilon: of everything.
      delta: of everything.
      method: "average", "balanced" or "minimax".
      population: n, records.
      label: the kind of label.
      losses: the release of groups' losses under a model that was trained without groups, or None.
      line: the release that calibrates the scores of a model of the average record, or None.
      matrix: the release of rows' second moments that makes a preconditioner, or None for none.
      people: k, how many records of one person may differ.
      moments_share: of mu^2, for the release of moments.
      label_deviation: s of the label's released mean.
      cut: L, the length that rows are cut to, over sqrt(d) standard deviations.
      cut_by_length: whether that is times `records.typical_length`, by released moments.

    Examples:
        >>> schema = jmm.tables.Schema({"age": jmm.tables.Number(18, 90)}, "ill", "1")
        >>> chosen = jmm.tables.defaults(5000, schema, epsilon=1.0, delta=1e-6)
        >>> isinstance(chosen, jmm.tables.Defaults), chosen.standardise
        (True, True)
    """

    hyper: Any
    moments: Repeat
    standardise: bool
    deviation: float
    floor: float
    time: float
    strength: float
    alongside: tuple[Description, ...]
    epsilon: float
    delta: float
    method: str
    population: int
    label: labels.Label
    losses: GroupLosses | None = None
    line: Repeat | None = None
    matrix: Repeat | None = None
    people: int = 1
    moments_share: float = SHARE
    label_deviation: float = 0.0
    cut: float = 1.0
    cut_by_length: bool = False

    @property
    def scaling(self) -> "Defaults":
        """Returns the settings of the moments, which are these."""
        return self

    @property
    def ridge(self) -> float:
        """R of the preconditioner, so that a flat direction moves for the time tau."""
        return 2 * self.hyper.iterations / self.time  # a step of 1 with momentum 1/2 adds up to 2

    @property
    def label_floor(self) -> float:
        """Returns the least variance that a label which is a number is divided by."""
        return max(self.label_deviation, 0.0005)  # at most 45 standard units

    def divisors(self, moments: Moments) -> tuple[Moments, float | None]:
        """Returns what features are scaled by, the released moments and a floor, both stretched.

        The floor is the least variance that a feature is divided by; None: features are not scaled.
        """
        if not self.standardise:
            return moments, None
        cut = self.cut * (records.typical_length(moments, self.floor) if self.cut_by_length else 1)
        return records.stretched(moments, cut), cut**2 * self.floor

    @property
    def algorithm(self) -> Any:
        """Returns the algorithm that `hyper` is for."""
        return sgda if self.method == "average" else balanced_groups

    def named(self) -> tuple[tuple[str, Description], ...]:
        """Returns all releases, each after what it releases; the run is the last one."""
        means = ("means and mean squares" if self.standardise else
                 f"the {self.label.released}"), self.moments
        optional = (("second moments of rows", self.matrix), ("losses of groups", self.losses),
                    ("slope of scores" if isinstance(self.label, labels.Several) else
                     "slope and intercept of scores", self.line))
        run = "gradients" + " and losses of groups" * (self.method == "minimax")
        return (*(("ranges of columns", x) for x in self.alongside), means,
                *((name, x) for name, x in optional if x is not None),
                (run, self.algorithm.mechanism(self.hyper)))

    def extra(self) -> tuple[Description, ...]:
        """Returns the releases that are charged with the run."""
        return tuple(description for _, description in self.named()[:-1])

    def mechanism(self) -> Description:
        """Describes all releases together."""
        return Sequence(parts=tuple(description for _, description in self.named()))

    def explain(self) -> str:
        """Explains every setting in words, from the features' scaling to the averaging."""
        hyper, n, average = self.hyper, self.population, self.method == "average"
        clip, noise, step = (x.w if average else x for x in (
            hyper.query.clip, hyper.query.noise_multiplier, hyper.step))
        scale = ("centred and scaled by released means and second moments, with a variance of at "
                 f"least {self.floor:.3g}" if self.standardise else
                 "left as they are, since the data are too few for their moments: only the "
                 f"{self.label.released} is released")
        prior = f" and the intercept of the released {self.label.released}" if average else ""
        of_rows, step_words = "", f"{step:.4g} with momentum 0.9"
        if self.matrix is not None:
            of_rows = f"{MATRIX:g} for one of the second moments of rows, "
            step_words = (f"{step:.4g} with momentum 0.5, preconditioned by these second moments "
                          f"with a ridge of {self.ridge:.4g}" + self.label.growth_in_words)
        lines = [
            f"{self.label.loss} on {n} records; a row without a label has weight 0",
            f"Features are {scale}, and divided by {self.cut:.3g} sqrt(d)"
            + " times the typical length of rows by these moments" * self.cut_by_length
            + "; a row longer than 1 is scaled down to 1, and has a further constant 1",
            f"A share of {self.moments_share:.3g} of the budget (of mu squared) pays for that "
            f"release, {of_rows}and the rest for gradients",
            f"Sampler: none; the batch of every round is all {n} records",
            f"Clip norm of a record's gradient: {clip:.4g}",
            f"Noise of a round over the clip norm: {float(noise):.4g}",
            f"Rounds: {hyper.iterations}, as more of them cost time and no privacy",
            f"Optimiser: heavy-ball gradient steps of {step_words}, over a time of "
            f"{self.time:.4g}, from weights 0{prior}",
            "Averaging: the scorer is the mean of the last half of the points"]
        if self.line is not None:
            result = ("the slope of the scores, so that they are logits of probabilities"
                      if isinstance(self.label, labels.Several) else
                      "slope and intercept of the scores, so that they are log-odds")
            lines.append(f"Calibration: a release for {CALIBRATED:g} of the budget sets {result}")
        return (". ".join(lines) + "." + self.explain_groups()
                + " ".join(("", *map(str, self.notes()))))

    def notes(self, described: Description | None = None) -> tuple[Note, ...]:
        """Returns notes to read before relying on it: too few data, a delta near 1/n.

        Args:
          described: all that is released; None: `mechanism()`.
        """
        # below that strength the rule promises nothing
        notes = [] if self.strength >= 100.0 else [Note(
            None, "for so many columns, a mean of rows of length 1 has noise of length "
            f"{2 / self.strength:.2g}, as n mu / sqrt(d) = {self.strength:.0f}",
            "ask for a larger epsilon, or leave columns out")]
        epsilons = other_deltas(described or self.mechanism(), self.population, self.delta,
                              self.people)
        if epsilons:
            pairs = ", ".join(f"{rounded_up(e)} at delta = {x}" for x, e in epsilons.items())
            notes.append(Note(
                None, f"delta = {self.delta:g} is near 1/n = {1 / self.population:.3g}, which "
                f"makes epsilon look small: the same noise has epsilon = {pairs}",
                "quote epsilon at a delta of 1e-6 or less"))
        return tuple(notes)

    def explain_groups(self) -> str:
        """Explains the treatment of groups in words."""
        if self.method == "balanced":
            return " Every group has the same weight."
        if self.method == "minimax":
            first = balanced_groups.rounds_balanced(self.hyper)
            return (f" Every group has the same weight for {first} rounds; then weights move "
                    "towards the groups of the largest noisy losses, which a tenth of the rest "
                    "pays for.")
        if self.losses is None:
            return ""
        return (" Groups do not contain the label, so the model is that of the average record: "
                "minimax training is for groups of unequal shares of labels. The groups' mean "
                f"losses under it are released, for {CHECKED:g} of the budget.")


def defaults(population: int, schema: Schema, *, epsilon: float, delta: float,
             sizes: tuple[int, ...] = (), by_label: bool = False, method: str | None = None,
             alongside: tuple[Description, ...] = (), preconditioned: bool = True,
             people: int = 1) -> Defaults:
    """Chooses settings of a private linear scorer, from n, the columns, epsilon and delta alone.

    Args:
      population: n, records: rows, or persons where the schema has an owner.
      schema: of the columns.
      epsilon: of everything that is released, replace-one.
      delta: in (0, 1).
      sizes: n_i, records of every group; public. Empty: no groups.
      by_label: whether all records of a group have one label, which is then public.
      method: "average", of all records; "balanced", every group has the same weight; "minimax",
        balanced at first, then the largest loss of a group is made small. None: for groups that
        contain the label, or a label that is a number, "minimax", or "balanced" where losses would
        be noise; else "average".
      alongside: other mechanisms on the same records that are paid from epsilon.
      preconditioned: whether second moments of rows may be released, where that saves rounds.
      people: k, if any k records of one person may differ instead of one.

    Raises:
      ValueError: for numbers that are out of range, or a method that needs groups without them.

    Examples:
        >>> schema = jmm.tables.Schema({"age": jmm.tables.Number(18, 90)}, "ill", "1")
        >>> chosen = jmm.tables.defaults(5000, schema, epsilon=1.0, delta=1e-6)
        >>> chosen.hyper.query.sampling, jmm.epsilon(chosen.mechanism(), 1e-6) <= 1
        (Full(), True)
    """
    checks.kinds({"schema": (Schema, "a Schema"), "sizes": (tuple | list, "sizes of groups"),
                  "by_label": checks.TRUTH, "preconditioned": checks.TRUTH}, locals())
    checks.count("population", population, low=2)
    for k, size in enumerate(sizes):
        checks.count(f"sizes[{k}]", size)
    if method is not None:
        checks.one_of("method", method, ("average", "balanced", "minimax"))
    if method not in (None, "average") and not sizes:
        raise ValueError(f"method={method!r} needs groups: give their sizes.")
    label, width = labels.label_of(schema), max(schema.width, 1)
    release = functools.partial(statistics.shared_release, population, epsilon=epsilon,
                                delta=delta, alongside=alongside, people=people)
    whole_noise = release(1.0, 1.0).query.noise_multiplier.w
    losses_share = 0.1  # of mu^2 besides the moments', for the losses that move weights
    losses_mu_squared = (1 - SHARE) * losses_share * (2 / whole_noise) ** 2
    # of losses of 1; the log weight of the smallest group has a noise of 0.2 at the end, at most
    weight_steps_total = min(2.1, 0.2 * min(sizes, default=0)
                             * math.sqrt(losses_mu_squared) / LOSS_BOUND)
    if method is None:
        method = "average" if not sizes or not (by_label or isinstance(label, labels.Amount)) else (
            # steps that add up to less are not worth what the losses cost
            "minimax" if weight_steps_total >= 1.0 else "balanced")
    group_losses, calibration = None, None
    if sizes and method == "average":
        group_losses = _losses(sizes, 1, CHECKED * (2 / whole_noise) ** 2)
    if method == "average" and label.calibration_clip is not None:
        calibration = release(label.calibration_clip, CALIBRATED)
    nu = population * 2 / whole_noise / width * math.sqrt(
        1 - SHARE - MATRIX - CALIBRATED * bool(calibration))
    scales = _scales(release, schema, nu * math.sqrt(width))
    label, cut, time_part = _relaxed(label, nu, width, method == "average" and scales.standardise,
                                     preconditioned)
    gradients_share = ((1 - scales.share) * (1 - losses_share if method == "minimax" else 1)
                       - CHECKED * bool(group_losses))
    mu = 2 / whole_noise * math.sqrt(gradients_share)
    effective_population = population if method == "average" else len(sizes) * min(sizes)
    flow_time = (time_part * GATHERED * effective_population * mu
                 / (2 * label.clip * label.time_divisor))
    if method == "average":
        rounds = _rounds(population, label, width, flow_time, mu, MATRIX / gradients_share,
                         release(1.0, MATRIX, apart=statistics.SECOND_APART),
                         preconditioned and scales.standardise)
    else:
        rounds = _group_rounds(sizes, label, flow_time, mu, weight_steps_total,
                               losses_mu_squared if method == "minimax" else 0.0)
    result = Defaults(
        rounds.hyper, scales.moments, scales.standardise, scales.deviation,
        # a feature is divided by at least that variance: at most 20 standard units
        max(label.variance_floor_deviations * scales.deviation, 0.0025), rounds.time,
        effective_population * rounds.mu / math.sqrt(width), alongside, float(epsilon),
        float(delta), method, population, label, group_losses, calibration, rounds.second_moments,
        people, scales.share, statistics.label_deviation(
            scales.moments, schema, scales.standardise), cut,
        method == "average" and preconditioned and isinstance(label, labels.TwoValues))
    hyper = calibrate(result.algorithm, result.hyper, epsilon=epsilon, delta=delta,
                      alongside=result.extra(), people=people)
    return dataclasses.replace(result, hyper=hyper)


class _Scales(NamedTuple):
    """The release that features are scaled by, see `Defaults`, and its share of mu^2."""

    moments: Repeat
    standardise: bool
    deviation: float
    share: float


def _scales(release: Callable[..., Repeat], schema: Schema, strength: float) -> _Scales:
    """Chooses the release of moments, which has more of mu^2 where `strength`, S, is small."""
    def moments(share: float, features: bool = True) -> Repeat:
        return release(statistics.psi_length(schema, features), share,
                       apart=statistics.psi_apart(schema, features))

    first = moments(SHARE)
    deviation = statistics.deviation(first)
    if deviation > 0.3:  # as large as the means are: features stay as they are
        return _Scales(moments(SHARE, False), False, deviation, SHARE)
    share = SHARE * min(max(150.0 / strength, 1.0), 2.0)
    if share > SHARE:
        first = moments(share)
    return _Scales(first, True, statistics.deviation(first), share)


def _relaxed(label: labels.Label, nu: float, width: int, scaled: bool,
            preconditioned: bool) -> tuple[labels.Label, float, float]:
    """Returns the label, the cut and the part of the time that the data are many enough for.

    All follow from public numbers, and none is in a bound on a record's gradient.

    Args:
      label: the kind of label.
      nu: n mu0 / d.
      width: d.
      scaled: whether features are scaled, for the average record.
      preconditioned: whether second moments of rows may be released.
    """
    root = math.sqrt(nu / 75.0)  # z, see above
    if scaled and isinstance(label, labels.Amount):
        knee = min(max(1.2 * root, 1.0), 4.0)
        return (dataclasses.replace(label, knee=knee), min(max(root, 1.0), 3.0),
                # S / 100 is nu / 20 at d = 25
                min(max(nu / 20.0 * max(1.0, math.sqrt(width / WIDE)), 0.5), 1.0))
    if scaled and preconditioned and isinstance(label, labels.TwoValues):
        root = math.sqrt(nu / math.sqrt(width) / 75.0)
        cut = min(max(root, 1.0), 2.0)
        growth = 2.0 if nu >= 50.0 else 1.0
        return dataclasses.replace(label, largest_growth=growth), cut, cut**2
    return label, 1.0, 1.0


class _Rounds(NamedTuple):
    """Settings of the rounds, before they are calibrated.

    Attributes:
      hyper: of `sgda` or `balanced_groups`.
      time: tau.
      mu: of all gradients together, per record.
      second_moments: the release of rows' second moments, or None for none.
    """

    hyper: Any
    time: float
    mu: float
    second_moments: Repeat | None = None


def _rounds(population: int, label: labels.Label, width: int, flow_time: float, mu: float,
            matrix_share: float, second_moments: Repeat, preconditioned: bool) -> _Rounds:
    """Chooses rounds on the average record: plain ones, or preconditioned ones if these are fewer.

    Args:
      population: n, records.
      label: the kind of label.
      width: of the features.
      flow_time: tau, for the noise of `mu`.
      mu: of gradients, if they have all that is left of the budget.
      matrix_share: share of mu^2 that second moments would take.
      second_moments: their release.
      preconditioned: whether it may be made.
    """
    if label.time_grows_with_width:
        flow_time *= max(1.0, math.sqrt(width / WIDE))
    rounds = min(max(math.ceil(flow_time / label.longest_round_time), 100), 1000)
    preconditioned_rounds = max(20, math.ceil(
        label.largest_growth * flow_time / 2 * statistics.least_ridge(
            width, population, second_moments.query.noise_multiplier.w, label.curvature)))
    clip, ball, share_left = label.clip, HEAVY_BALL, 1.0
    released: Repeat | None = None
    if preconditioned and preconditioned_rounds + width / 2 < rounds:
        rounds, ball, share_left = preconditioned_rounds, HALF_BALL, math.sqrt(1 - matrix_share)
        strength = share_left * population * mu / math.sqrt(width)
        clip = min(clip * max(strength / 2000.0, 1.0), label.longest_gradient)
        step, time, released = 1.0, share_left * flow_time * label.clip / clip, second_moments
    else:
        time = min(flow_time, label.longest_round_time * rounds)
        step = min(0.1 * time / rounds, 2.0)
    hyper = sgda.Hyper(
        query=Query(clip=Saddle(clip, None), population=population), step=Saddle(step, 1.0),
        iterations=rounds, averaging=descent.TAIL, optimiser=Saddle(ball, optax.sgd))
    return _Rounds(hyper, time, share_left * mu, released)


def _group_rounds(sizes: tuple[int, ...], label: labels.Label, flow_time: float, mu: float,
                  weight_steps_total: float, losses_mu_squared: float) -> _Rounds:
    """Chooses rounds on groups; without `losses_mu_squared` their weights stay equal."""
    rounds = 200
    time = min(flow_time, label.longest_round_time * rounds)
    hyper = balanced_groups.Hyper(
        query=GroupGradients(clip=label.clip, sizes=sizes, groups="all"), losses=None,
        step=min(0.1 * time / rounds, 2.0), iterations=rounds,
        averaging=descent.TAIL, optimiser=HEAVY_BALL)
    if not losses_mu_squared:
        return _Rounds(hyper, time, mu)
    moving = dataclasses.replace(hyper, losses=_losses(sizes, 1, 1.0))
    moving_rounds = rounds - balanced_groups.rounds_balanced(moving)
    return _Rounds(dataclasses.replace(moving, losses=dataclasses.replace(
        _losses(sizes, moving_rounds, losses_mu_squared), times=1),
        weight_step=weight_steps_total / moving_rounds), time, mu)


def _losses(sizes: tuple[int, ...], times: int, budget: float) -> GroupLosses:
    """Describes releases of losses that have mu^2 = `budget` together, 1 / z^2 each."""
    return GroupLosses(bound=LOSS_BOUND, sizes=sizes, noise="gaussian", times=times,
                       noise_multiplier=math.sqrt(times / budget))


def other_deltas(described: Description, population: int, delta: float,
                 people: int = 1) -> dict[str, float]:
    """Returns epsilons of the same noise at 1e-6 and 1/n^2, by delta; none if delta is small.

    A delta near 1/n makes for a small epsilon: a run may say (1, n^-1.1) where it is
    (1.3, 1e-6).
    """
    if population * delta <= 0.1:  # far enough below 1/n
        return {}
    return {f"{x:.3g}": epsilon(described, x, people=people)
            for x in (1e-6, population**-2.0) if x < delta}
