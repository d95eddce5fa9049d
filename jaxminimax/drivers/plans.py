"""All plans that fit the public numbers of a problem, side by side, each with what it promises."""

import functools
import inspect
from typing import Any, NamedTuple

from jaxminimax import mechanism
from jaxminimax.algorithms import ALGORITHMS, described_by
from jaxminimax.algorithms.planning import Plan
from jaxminimax.base import checks
from jaxminimax.base.types import GroupProblem
from jaxminimax.drivers.runs import plan
from jaxminimax.problems import Bounded

# what a guarantee may bound, in the order of the table; one is never compared with another
KINDS = {("strong", "population"): "Bounds on the strong gap on the population:",
         ("weak", "population"): "Bounds on the weak gap on the population:",
         ("strong", "records"): "Bounds on the strong gap on the records themselves:",
         ("regret", "population"): "Bounds on the regret on the population:",
         ("risk", "population"): "Bounds on the worst group's excess risk on the population:",
         ("risk", "records"): "Bounds on the worst group's excess risk on the records themselves:",
         ("", ""): "Rates, and settings without a number, by record gradients:",
         None: "No plan:"}


class Choice(NamedTuple):
    """One way to plan a run, and what it promises.

    Attributes:
      algorithm: its name.
      arguments: what tells this plan from others of the algorithm.
      plan: the plan; None if numbers are missing, or if it does not fit.
      gap: what its guarantee bounds, and `on` of which problem, see `Plan`; "" without a guarantee.
      on: "population" or "records"; "" without a guarantee.
      releases: how many releases a run makes.
      gradients: how many gradients of single records it computes; expected for random samples.
      measured: the gap of the default plan on one small problem; None where it was not measured.
      why: what the guarantee, or for certified solutions privacy too, rests on; without a plan what
        is missing.

    Examples:
        >>> (first, *_) = jmm.plans(epsilon=1.0, delta=1e-6, population=2000, dim=10, bound=1.0,
        ...                         diameter=2.0)
        >>> first.gap, first.on, first.plan.guarantee < first.plan.trivial
        ('strong', 'population', True)
    """

    algorithm: str
    arguments: dict[str, Any]
    plan: Plan[Any] | None
    gap: str
    on: str
    releases: int
    gradients: int
    measured: float | None
    why: str

    @property
    def name(self) -> str:
        """The algorithm and its arguments in words."""
        return ", ".join((self.algorithm, *(
            x if isinstance(x, str) else name for name, x in self.arguments.items())))

    @property
    def place(self) -> tuple[int, float]:
        """Where it stands: kinds of gaps one after the other, each by its numbers."""
        kind = None if self.plan is None else (self.gap, self.on)
        return list(KINDS).index(kind), getattr(self.plan, "guarantee", None) or self.gradients

    def to_json(self) -> dict[str, Any]:
        """Returns a record for JSON."""
        numbers = {name: getattr(self.plan, name, None) for name in ("guarantee", "trivial")}
        return self._asdict() | numbers | {"plan": self.name, "planned": self.plan is not None}


class Choices(tuple[Choice, ...]):
    """The choices of `plans`, which print as a table."""

    def __str__(self) -> str:
        lines = []
        for k, title in enumerate(KINDS.values()):
            if rows := [x for x in self if x.place[0] == k]:
                lines += [title, *_table(rows)]
        return "\n".join([
            *lines, "measured: the mean gap of default plans at 1,000 records and epsilon = 1 on "
            "one small problem, for comparison: a bilinear game, for gda a quadratic one, for "
            "groups points near five."])

    __repr__ = __str__


def _table(rows: list[Choice]) -> list[str]:
    cells = [("plan", "guarantee", "of the trivial", "releases", "record gradients", "measured",
              "if")]
    for choice in rows:
        if choice.plan is None:
            return [f"  {x.name}: {x.why}" for x in rows]
        number, trivial = choice.plan.guarantee, choice.plan.trivial
        cells.append((choice.name, "-" if number is None else f"{number:.3g}",
                      f"{100 * number / trivial:.2g} %" if number is not None and trivial else "-",
                      f"{choice.releases:,}", f"{choice.gradients:,}",
                      "-" if choice.measured is None else f"{choice.measured:.2g}", choice.why))
    wide = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  " + "  ".join(x.ljust(k) for x, k in zip(row, wide, strict=True)).rstrip()
            for row in cells]


def plans(*, epsilon: float, delta: float, neighbours: str = "replace_one",
          problem: Bounded | GroupProblem | None = None, **numbers: Any) -> Choices:
    """Plans every algorithm that fits the public numbers, and sorts the plans by what they promise.

    Bounds on different gaps are never compared: a bound on the gap on the records themselves is
    smaller than one on the population, and says less. First come bounds on the strong gap on the
    population, the smallest first, then those on other gaps, then plans without a number by the
    gradients that they compute, then what needs further numbers, which are named. Algorithms whose
    plan knows no public terms are left out where `public_bound` is above 0.

    Args:
      epsilon: the privacy target.
      delta: the privacy target.
      neighbours: the neighbouring relation of the target.
      problem: whose constants are taken where `numbers` have none: a `Bounded` game, or a
        `GroupProblem`, for which `sizes` are needed.
      **numbers: public numbers, as the algorithms' plans take them: `population`, `dim`, `bound`,
        `smooth`, `diameter`, `radius`, `modulus`, `public_bound`, `public_smooth`, `sizes`, ... A
        modulus is given to `gda` alone, because the privacy of certified solutions would rest on
        it.

    Returns:
      A tuple of `Choice`, which prints as a table.

    Raises:
      ValueError: for a number that no plan takes, or one that is out of range.

    Examples:
        >>> found = jmm.plans(epsilon=1.0, delta=1e-6, population=2000, dim=10, bound=1.0,
        ...                   diameter=2.0)
        >>> bounds = [x.plan.guarantee for x in found if (x.gap, x.on) == ("strong", "population")]
        >>> bounds == sorted(bounds), next(x.why for x in found if x.algorithm == "gda")
        (True, 'give smooth=, modulus=')
    """
    checks.number("epsilon", epsilon, low=0.0)
    checks.number("delta", delta, low=0.0, high=1.0)
    if isinstance(problem, Bounded):
        if problem.problem.public is not None and not numbers.get("public_bound"):
            raise ValueError("The problem has public terms: give public_bound=, the largest norm "
                             "of their operator on the set, or bounds would be too small.")
        numbers = {name: getattr(problem, name) for name in ("bound", "smooth", "diameter")
                   } | numbers
    elif problem is not None:
        numbers = {"problem": problem} | numbers
    modules = {name: x for name, x in ALGORITHMS.items() if hasattr(x, "plan_variants")}
    accepted = {x for module in modules.values() for x in _parameters(module)}
    if unknown := sorted(numbers.keys() - accepted):
        raise ValueError(f"plans has no use for {', '.join(unknown)}: the public numbers of all "
                         f"plans are {', '.join(sorted(accepted))}.")
    choices = [_choice(name, variant, numbers, epsilon, delta, neighbours)
            for name, module in modules.items() for variant in module.plan_variants]
    return Choices(sorted((x for x in choices if x is not None), key=lambda x: x.place))


@functools.cache
def _parameters(module: Any) -> dict[str, bool]:
    """The public numbers of an algorithm's plan, and whether each must be given."""
    _, *names = inspect.signature(module.plan).parameters.values()
    variant_arguments = {name for variant in module.plan_variants for name in variant.arguments}
    return {x.name: x.default is x.empty for x in names if x.name not in variant_arguments}


def _choice(name: str, variant: Any, numbers: dict[str, Any], epsilon: float, delta: float,
            neighbours: str) -> Choice | None:
    """Plans one variant; None if its plan would not count the problem's public terms."""
    module: Any = ALGORITHMS[name]
    parameters = _parameters(module)
    if numbers.get("public_bound") and "public_bound" not in parameters:
        return None
    empty = Choice(name, variant.arguments, None, "", "", 0, 0, variant.measured, "")
    if missing := [x for x, must in (parameters | dict.fromkeys(variant.needs, True)).items()
                   if must and numbers.get(x) is None]:
        return empty._replace(why=f"give {', '.join(f'{x}=' for x in missing)}")
    certified = described_by(module) in (mechanism.Resolvent, mechanism.GroupSolution)
    # privacy of certified solutions rests on the modulus of every record, and it may be the mean's
    plan_numbers = {x: numbers[x] for x in parameters.keys() & numbers.keys()
           if not (certified and x == "modulus")}
    try:
        planned = plan(module, epsilon=epsilon, delta=delta, neighbours=neighbours, **plan_numbers,
                       **variant.arguments)
    except ValueError as error:
        return empty._replace(why=str(error))
    described = module.mechanism(planned.hyper)
    gap, domain = (planned.gap, planned.on) if planned.guarantee is not None else ("", "")
    holds = (*(("monotone records of any content",) if certified else ("nothing clipped",)),
             *(("independent records",) if domain == "population" else ()))
    return empty._replace(plan=planned, gap=gap, on=domain, releases=described.releases(),
                          gradients=round(sum(map(_gradients, mechanism.leaves(described)))),
                          why=", ".join(holds))


def _gradients(leaf: Any) -> float:
    """Gradients of single records that the releases of a leaf compute."""
    if isinstance(leaf, mechanism.GroupSolution):
        return leaf.phases * sum(mechanism.phase_sizes(leaf)) * (leaf.steps or 1)
    query = getattr(leaf, "query", None)
    if not isinstance(leaf, mechanism.Repeat):  # a sum over a stream reads a record; losses none
        return leaf.releases() if hasattr(leaf, "leaves") else 0
    if isinstance(query, mechanism.GroupGradients):
        sizes = mechanism.group_batch_sizes(query)
        return leaf.times * (sum(sizes) if query.groups == "all" else max(sizes))
    steps = getattr(query, "steps", None) or 1
    rounds = sum(steps) if isinstance(steps, tuple) else leaf.times * steps
    return rounds * mechanism.batch_size(query)  # type: ignore[arg-type]
