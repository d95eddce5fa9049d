"""Settings and training of a private scorer that is fair to private groups, by public numbers.

What `rule` says of logistic loss holds for player w here. With it go player v, which sees how
predictions depend on the group, and one release of the groups' shares:

* `SHARE` of mu^2 for the shares of groups, of every class with every group for equalised odds;
* a tenth of the rest for moments, as without groups;
* of what is left nine tenths for player w and one for player v: v is a handful of numbers.

Rounds cost time and no accuracy, and v needs some hundred of them to follow w. Its clip norm is one
and a half times the length of a record of the rarer of two groups with shares 1/3 and 2/3 at an
undecided score, and grows like the same number for k groups of equal size. What the numbers rest on
is measured, on one table; privacy rests on none of them.
"""

import dataclasses
import functools
import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxminimax.accounting import calibrate
from jaxminimax.algorithms import descent, sgda
from jaxminimax.apps.tables import rule, statistics
from jaxminimax.apps.tables.linear import Run
from jaxminimax.apps.tables.notes import Note
from jaxminimax.apps.tables.schema import Schema
from jaxminimax.apps.tables.scorer import Scorer
from jaxminimax.base import checks
from jaxminimax.base.types import Problem, PyTree, Saddle, saddle_operator
from jaxminimax.drivers.runs import run
from jaxminimax.mechanism import Description, Query, Repeat, Sequence, budget_split
from jaxminimax.problems import fermi, fermi_start, linear_scorer, release_shares
from jaxminimax.problems._fair import KINDS

SHARE = 0.02  # of mu^2, for the shares of groups
MEMBERS = 30  # of a mixture: iterates one after the other are nearly the same


@dataclasses.dataclass(frozen=True)
class FairDefaults:
    """Settings, all from public numbers; `explain` says them in words.

    Attributes:
      plain: those of a scorer without groups, of which the moments are kept.
      shares: the release of the groups' shares.
      hyper: of `sgda`, calibrated with both.
      groups: k.
      weight: of the penalty.
      kind: "parity", "odds" or "error_rate".

    Examples:
        >>> schema = jmm.tables.Schema({"age": jmm.tables.Number(18, 90)}, "ill", "1")
        >>> chosen = jmm.tables.fair_defaults(5000, schema, 2, epsilon=1.0, delta=1e-6)
        >>> chosen.groups, chosen.kind
        (2, 'parity')
    """

    plain: rule.Defaults
    shares: Repeat
    hyper: sgda.Hyper
    groups: int
    weight: float
    kind: str
    algorithm: ClassVar[Any] = sgda  # that `hyper` is for

    @property
    def scaling(self) -> rule.Defaults:
        """Returns the settings of the moments."""
        return self.plain

    def named(self) -> tuple[tuple[str, Description], ...]:
        """Returns all releases, each after what it releases; the run is the last one."""
        *ranges, (_, shares), means = self.plain.named()[:len(self.plain.alongside) + 1]
        return (*ranges, ("shares of groups", shares), means,
                ("gradients", sgda.mechanism(self.hyper)))

    def extra(self) -> tuple[Description, ...]:
        """Returns the releases before the run."""
        return tuple(description for _, description in self.named()[:-1])

    def mechanism(self) -> Description:
        """Describes all releases together."""
        return Sequence(parts=tuple(description for _, description in self.named()))

    def notes(self) -> tuple[Note, ...]:
        """Returns notes to read before relying on it."""
        return self.plain.notes(self.mechanism())

    def explain(self) -> str:
        """Explains the settings in words."""
        query = self.hyper.query
        counted = ("every group, and every class in it" if self.kind == "odds" else "every group")
        return (f"Logistic loss + {self.weight:g} * the chi-square information between prediction "
                f"and group ({self.kind}) on {query.population} records, {self.hyper.iterations} "
                f"rounds over all of them, gradients clipped to {query.clip.w:.4g}, those of the "
                f"dual player to {query.clip.v:.4g}. {SHARE:.0%} of the budget pays for the shares "
                f"of {counted}. Which record is in which group is as private as the rest of it.")


def fair_defaults(population: int, schema: Schema, groups: int, *, epsilon: float, delta: float,
                  weight: float = 4.0, kind: str = "parity",
                  alongside: tuple[Description, ...] = (),
                  people: int = 1) -> FairDefaults:
    """Chooses settings from n, the columns, the number of groups, epsilon and delta alone.

    Args:
      population: n, records: rows, or persons.
      schema: of the columns.
      groups: k, how many groups there are; public.
      epsilon: of everything that is released, replace-one.
      delta: in (0, 1).
      weight: of the penalty; 0.5 to 10 is the range of interest, for odds a third of that.
      kind: "parity", "odds" or "error_rate".
      alongside: other mechanisms on the same records that are paid from epsilon.
      people: k, if any k records of one person may differ instead of one.

    Raises:
      ValueError: for numbers that are out of range.

    Examples:
        >>> schema = jmm.tables.Schema({"age": jmm.tables.Number(18, 90)}, "ill", "1")
        >>> chosen = jmm.tables.fair_defaults(5000, schema, 2, epsilon=1.0, delta=1e-6)
        >>> jmm.epsilon(chosen.mechanism(), 1e-6) <= 1
        True
    """
    checks.count("population", population, low=2)
    checks.kinds({"schema": (Schema, "a Schema")}, {"schema": schema})
    checks.scalars(weight=weight)
    checks.count("groups", groups, low=2)
    checks.number("weight", weight, low=0.0)
    checks.one_of("kind", kind, KINDS)
    labels = 2 if kind == "odds" else 1
    shares = statistics.shared_release(
        population, math.sqrt(1 - 1 / (labels * groups)), SHARE, epsilon, delta, alongside, people,
        statistics.Apart(math.sqrt(2), "shares of cells are at least 0 and add up to 1 at most."))
    plain = rule.defaults(population, schema, epsilon=epsilon, delta=delta,
                          alongside=(*alongside, shares), preconditioned=False, people=people)
    rounds = max(plain.hyper.iterations, 300)  # player v needs some hundred rounds to follow w
    # v, a handful of numbers, has one tenth of what the run has
    hyper = sgda.Hyper(
        query=Query(clip=Saddle(plain.label.clip, 3.0 * labels * math.sqrt(groups - 1)),
                    noise_multiplier=budget_split(w=0.9), population=population),
        step=Saddle(min(0.1 * plain.time / rounds, 2.0), 0.15), iterations=rounds,
        averaging=descent.TAIL, optimiser=Saddle(rule.HEAVY_BALL, optax.sgd))
    hyper = calibrate(sgda, hyper, epsilon=epsilon, delta=delta,
                      alongside=(*plain.alongside, plain.moments), people=people)
    return FairDefaults(plain, shares, hyper, groups, float(weight), kind)


def _fermi_of_persons(shares: Any, weight: float, kind: str) -> Problem:
    """Makes `fermi` for records of several rows each, of weights with a sum of 1 at most."""
    problem = fermi(linear_scorer, shares=shares, weight=weight, kind=kind)
    row = problem.operator.loss  # type: ignore[attr-defined]

    def loss(w: jax.Array, v: jax.Array, person: PyTree) -> jax.Array:
        *rows, importance = person
        return importance @ jax.vmap(row, (None, None, 0))(w, v, tuple(rows))

    return problem._replace(operator=saddle_operator(loss), value=None,
                            best_response=Saddle(None, None))


@functools.partial(jax.jit, static_argnames=("weight", "kind"))
def _trained(key: jax.Array, start: Saddle, data: PyTree, hyper: sgda.Hyper, shares: jax.Array,
             weight: float, kind: str) -> Any:
    """Runs all rounds, with the iterates of player w; one program for all released shares."""
    return run(key, start, data, hyper, sgda, _fermi_of_persons(shares, weight, kind), _iterate_w)


def _iterate_w(state: Any) -> jax.Array:
    return state.z.w


def train_fair(run: Run) -> Scorer:
    """Trains a private scorer with private groups, by settings of `fair_defaults`.

    Its `members` are `MEMBERS` of the iterates w_t that its weights are the mean of, evenly spaced
    in t > T / 2. Every w_t is a function of the released operators before it, which the run is
    charged for, so that the iterates cost nothing more.

    Args:
      run: of a training whose groups are `preparation.PrivateGroups`.
    """
    settings: Any = run.prepared.settings
    kind, k, groups = settings.kind, settings.groups, run.prepared.groups.number
    moments, weight = run.moments(), run.rows.weight
    y = np.asarray(run.rows.y, np.int32)
    inside = (groups >= 0) & (groups < k)
    cells = np.where(inside, y * k + groups if kind == "odds" else groups, -1)
    count = 2 * k if kind == "odds" else k
    noisy = np.array(run.once("shares", lambda: np.array(release_shares(
        run.keys.group_shares, settings.shares, cells, count, weight), np.float64).tolist()))
    noisy /= noisy.sum()
    shares = noisy.reshape(2, k) if kind == "odds" else noisy
    theta = np.zeros(run.rows.x.shape[-1] + 1, np.float32)
    theta[-1] = np.log(moments.prior / (1 - moments.prior))
    start = fermi_start(jnp.asarray(theta), shares=shares, kind=kind)
    data = run.scaled(moments), y, np.where(inside, groups, -1).astype(np.int32), weight
    state, points = _trained(run.keys.rounds, start, data, settings.hyper, jnp.asarray(shares),
                            settings.weight, kind)
    scorer = run.scorer(np.asarray(state.average.w, np.float64), moments, state)
    rounds = settings.hyper.iterations
    chosen = np.linspace(rounds // 2 + 1, rounds, MEMBERS).round().astype(int)  # t
    members = np.asarray(points, np.float64)[chosen - 2]  # row i is after round i + 1: w_{i + 2}
    return dataclasses.replace(scorer, members=members)
