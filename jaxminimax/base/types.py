"""The ground: a pair of players, a problem, the saddle operator, records of numbers."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np

PyTree = Any  # a pytree of arrays
T = TypeVar("T")


class Saddle(NamedTuple):
    """One thing per player: the point z = (w, v), an operator's value, or a pair of settings."""

    w: PyTree
    v: PyTree


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(jax.tree.static,))
def pytree_dataclass(cls: type[T]) -> type[T]:
    """Frozen, keyword-only dataclass that is a pytree.

    Plain fields are leaves, so they may be traced and vmapped over; fields declared with
    `jax.tree.static` shape the program. NumPy's numbers in static fields become Python's, also
    inside tuples: products of counts would overflow at 32 bits, and every door reads them. No
    validation in `__post_init__`: unflattening runs it on tracers. Numbers are checked where a
    run, a calibration or a charge begins.
    """
    static: list[str] = []

    def __post_init__(self: Any) -> None:
        for name in static:
            value = getattr(self, name)
            if type(value) not in _PLAIN:
                object.__setattr__(self, name, _python(value))

    cls.__post_init__ = __post_init__  # type: ignore[attr-defined]
    made: type[T] = dataclasses.dataclass(frozen=True, kw_only=True)(cls)
    static += [field.name for field in dataclasses.fields(made)  # type: ignore[arg-type]
               if field.metadata.get("static")]
    jax.tree_util.register_dataclass(made)
    return made


_PLAIN = frozenset({int, float, bool, str, type(None)})


def _python(value: Any) -> Any:
    """A static value, with numbers of NumPy or of a device as Python's; all else as it is."""
    if type(value) in _PLAIN or isinstance(value, jax.core.Tracer):
        return value
    if type(value) is tuple:
        return tuple(map(_python, value))
    if isinstance(value, np.number | np.ndarray | jax.Array) and np.ndim(value) == 0 and (
            np.issubdtype(value.dtype, np.integer) or np.issubdtype(value.dtype, np.floating)):
        return value.item()
    return value


@dataclasses.dataclass(frozen=True)
class SaddleOperator:
    """g(z; x) = (grad_w f, -grad_v f): to descend along g is to minimise in w, maximise in v.

    This class is the one place of the library where the sign of ascent is written down.

    Attributes:
      loss: `(w, v, example) -> []`.
      strategy: how clipped sums of it are computed, never what they are: "auto", "vmap",
        "microbatch" or "ghost", see `clipped_sum`.
      microbatch: examples in a slice of the "microbatch" strategy.
    """

    loss: Callable[[PyTree, PyTree, PyTree], jax.Array]
    strategy: str = "auto"
    microbatch: int = 32

    def __call__(self, z: Saddle, example: PyTree) -> Saddle:
        """The operator of one example."""
        return self.oriented(Saddle(*jax.grad(self.loss, argnums=(0, 1))(z.w, z.v, example)))

    @staticmethod
    def oriented(gradient: Saddle) -> Saddle:
        """(a, -b) for (a, b), the loss's gradients by w and v or any sums of them."""
        return Saddle(gradient.w, jax.tree.map(jnp.negative, gradient.v))


def saddle_operator(loss: Callable[[PyTree, PyTree, PyTree], jax.Array], strategy: str = "auto",
                    microbatch: int = 32) -> SaddleOperator:
    """The saddle operator of `loss(w, v, example) -> []`, see `SaddleOperator`."""
    return SaddleOperator(loss, strategy, microbatch)


@dataclasses.dataclass(frozen=True)
class OwnOperator:
    """An operator that is given as such, with how its clipped sums are computed.

    Attributes:
      operator: `(z, example) -> g`.
      strategy: as in `SaddleOperator`; "ghost" needs a loss.
      microbatch: as in `SaddleOperator`.
    """

    operator: Callable[[Saddle, PyTree], Saddle]
    strategy: str = "auto"
    microbatch: int = 32

    def __call__(self, z: Saddle, example: PyTree) -> Saddle:
        """The operator of one example."""
        return self.operator(z, example)


def with_strategy(operator: Callable[[Saddle, PyTree], Saddle], strategy: str = "auto",
                  microbatch: int = 32) -> Any:
    """The same operator, whose clipped sums are computed another way.

        problem._replace(operator=with_strategy(problem.operator, "microbatch", 64))

    Args:
      operator: `(z, example) -> g`, a `SaddleOperator` or one of your own.
      strategy: "auto", "vmap", "microbatch" or, of a `SaddleOperator`, "ghost"; see `clipped_sum`,
        which refuses others.
      microbatch: examples in a slice of the "microbatch" strategy.
    """
    if dataclasses.is_dataclass(operator) and hasattr(operator, "strategy"):
        return dataclasses.replace(operator,  # type: ignore[type-var]
                                   strategy=strategy, microbatch=microbatch)
    return OwnOperator(operator, strategy, microbatch)


def _everywhere(z: Saddle) -> Saddle:
    return z


class Problem(NamedTuple):
    """What the data and the constraints look like to an algorithm; hashable, so static under jit.

    min over w in W, max over v in V, of (1/n) sum_i f(w, v; x_i) + r(w, v), or the variational
    inequality of any monotone operator: only `operator` is required.

    Attributes:
      operator: `(z, example) -> g`, the operator of one example's loss, a `Saddle` like z. Use
        `saddle_operator(loss)`, or an operator of your own. It must read that example only: what
        its traced program shows to read more is refused (`door.own_record`).
      public: `z -> g`, the operator of the terms that read no data (regularisers); added after
        the release, so neither clipped nor noised nor charged. None: there are none.
      project: `z -> z`, Euclidean projection on W x V (or any other post-processing).
      value: `(z, data) -> []`, the objective on a data set. Only metrics call it.
      best_response: `Saddle((v, data) -> argmin_w L(w, v), (w, data) -> argmax_v L(w, v))`, where
        they have closed forms, None where not. Only metrics call them.
      saddle_point: `data -> z`, the exact solution, where it has a closed form.
      support: `g -> argmin_{z in W x V} <g, z>`, for gaps of variational inequalities.
      furthest: `(z, data) -> argmax_u <F(u), z - u>`, where it is known.
    """

    operator: Callable[[Saddle, PyTree], Saddle]
    public: Callable[[Saddle], Saddle] | None = None
    project: Callable[[Saddle], Saddle] = _everywhere
    value: Callable[[Saddle, PyTree], jax.Array] | None = None
    best_response: Saddle = Saddle(None, None)
    saddle_point: Callable[[PyTree], Saddle] | None = None
    support: Callable[[Saddle], Saddle] | None = None
    furthest: Callable[[Saddle, PyTree], Saddle] | None = None


class GroupProblem(NamedTuple):
    """What one model for several groups looks like to an algorithm; hashable, static under jit.

    min over w in W of max over groups i of L_i(w), the mean of loss(w, record) over group i's
    records; as a saddle problem, max over v in the simplex of sum_i v_i L_i(w). Algorithms need
    different things: those that clip gradients and losses rest on neither `lipschitz` nor `bound`
    for privacy, a certified solution rests on both.

    Attributes:
      loss: `(w, record) -> []`, w any pytree.
      operator: `(Saddle(w, ()), record) -> Saddle(grad_w loss, ())`.
      project: `w -> w`, Euclidean projection on W.
      diameter: M, the largest distance of two points of W.
      lipschitz: L, bound on the norm of grad_w loss on W, whatever a record contains.
      bound: B, the loss lies in [0, B] on W, whatever a record contains.
      smooth: beta, Lipschitz constant of grad_w loss; None: not known to be smooth.
      convex: whether the loss is convex in w on W, whatever a record contains, and its derivative
        as computed is finite and a subgradient (that of a norm at 0 is neither).
    """

    loss: Callable[[PyTree, PyTree], jax.Array]
    operator: Callable[[Saddle, PyTree], Saddle]
    project: Callable[[PyTree], PyTree]
    diameter: float
    lipschitz: float
    bound: float
    smooth: float | None = None
    convex: bool = False


class Algorithm(Protocol):
    """A private algorithm: a module with these functions, and `Hyper` and `State` classes.

    `hyper` carries `query` and `iterations`; the state carries `z`, `average` and `spent`. A sweep
    over runs of different lengths hands `update` a hyper whose `iterations` are traced. Those of
    the library have `example` too, by which commands and benchmarks make a `Hyper`, and `plan`
    where a theorem sets their numbers.
    """

    def mechanism(self, hyper: Any) -> Any:
        """What a whole run does to the data: all that the accountant reads."""

    def init(self, z: Saddle, hyper: Any) -> Any:
        """The state before the first round; `z` must not depend on the data."""

    def update(self, key: jax.Array, state: Any, data: PyTree, hyper: Any, problem: Problem) -> Any:
        """One round; pure, so that callers jit, vmap and scan it."""


class OnlineOptimiser(Protocol):
    """A private algorithm that reads one record a round, once, and may be used by others: a module.

    Beside what an `Algorithm` has, it feeds on records that someone else chooses.
    """

    def init(self, z: Saddle, hyper: Any) -> Any:
        """The state before the first round, with `z` its current point; not from the data."""

    def observe_record(self, key: jax.Array, state: Any, data: PyTree,
                       place: tuple[jax.Array, ...], present: jax.Array, hyper: Any,
                       problem: Problem) -> Any:
        """One round on the record `x[place]` of each leaf x, which no other round reads."""
