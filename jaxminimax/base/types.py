"""The basic types: a pair of players, a problem, the saddle operator, dataclasses of numbers."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax.base import checks

PyTree = Any  # a pytree of arrays
T = TypeVar("T")


class Saddle(NamedTuple):
    """A pair with one entry per player: a point z = (w, v), an operator's value, or settings.

    Examples:
        >>> steps = Saddle(0.1, 0.5)  # one for each player
        >>> steps.w, steps.v
        (0.1, 0.5)
    """

    w: PyTree
    v: PyTree


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(jax.tree.static,))
def pytree_dataclass(cls: type[T]) -> type[T]:
    """Makes a class a frozen, keyword-only dataclass that is a pytree.

    Plain fields are leaves, so they may be traced and vmapped over; fields declared with
    `jax.tree.static` shape the program. NumPy's numbers in static fields become Python's, also
    inside tuples, because products of counts would overflow at 32 bits. Do not validate in
    `__post_init__`: unflattening runs it on tracers. Numbers are checked where a run, a calibration
    or a charge begins. (A base class may set fields there.)

    Examples:
        >>> @jmm.types.pytree_dataclass
        ... class Range:
        ...     low: float
        ...     high: float
        ...     steps: int = jax.tree.static(default=3)
        >>> jax.tree.leaves(Range(low=1.0, high=2.0)), Range(low=1.0, high=2.0).steps
        ([1.0, 2.0], 3)
    """
    static: list[str] = []
    inherited = getattr(cls, "__post_init__", None)

    def __post_init__(self: Any) -> None:
        if inherited is not None:
            inherited(self)
        for name in static:
            value = getattr(self, name)
            if type(value) not in _PLAIN:
                object.__setattr__(self, name, _python(value))

    cls.__post_init__ = __post_init__  # type: ignore[attr-defined]
    wrapped: type[T] = dataclasses.dataclass(frozen=True, kw_only=True)(cls)
    static += [field.name for field in dataclasses.fields(wrapped)  # type: ignore[arg-type]
               if field.metadata.get("static")]
    jax.tree_util.register_dataclass(wrapped)
    return wrapped


_PLAIN = frozenset({int, float, bool, str, type(None)})


def _python(value: Any) -> Any:
    """Converts numbers of NumPy or of a device in a static value to Python's."""
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
    """The operator g(z; x) = (grad_w f, -grad_v f) of a loss f: both players descend along it.

    This class is the one place of the library where the sign of ascent is written down.

    Attributes:
      loss: `(w, v, example) -> []`; `(w, v, example, key) -> []` in a problem with `random=True`.
      strategy: the way to compute clipped sums, which does not change them: "auto", "vmap",
        "microbatch" or "ghost", see `clipped_sum`.
      microbatch: the number of examples in a slice of the "microbatch" strategy.
      memory: the bytes that a clipped sum may take by "auto" and "ghost", see `clipped_sum`; None
        for 2^30.
      skip_empty: whether slices in which no row counts are left out, see `clipped_sum`.

    Examples:
        >>> operator = jmm.types.SaddleOperator(lambda w, v, x: w * v - x * v)
        >>> g = operator(Saddle(2.0, 3.0), 1.0)
        >>> float(g.w), float(g.v)  # d/dw f = v, and -d/dv f = x - w
        (3.0, -1.0)
    """

    loss: Callable[..., jax.Array]
    strategy: str = "auto"
    microbatch: int = 32
    memory: int | None = None
    skip_empty: bool = False

    def __call__(self, z: Saddle, example: PyTree, *key: jax.Array) -> Saddle:
        """Returns the operator of one example, with a key if the loss draws.

        Raises:
          TypeError: for a loss whose value is not one number.
        """
        def loss(w: PyTree, v: PyTree) -> jax.Array:
            return checks.one_number(self.loss(w, v, example, *key), "loss(w, v, example)")

        return self.oriented(Saddle(*jax.grad(loss, argnums=(0, 1))(z.w, z.v)))

    @staticmethod
    def oriented(gradient: Saddle) -> Saddle:
        """Returns (a, -b) for (a, b), the gradients by w and v or any sums of them."""
        return Saddle(gradient.w, jax.tree.map(jnp.negative, gradient.v))


def saddle_operator(loss: Callable[..., jax.Array], strategy: str = "auto",
                    microbatch: int = 32, memory: int | None = None) -> SaddleOperator:
    """Makes the saddle operator (grad_w f, -grad_v f) of a loss of one record.

    Args:
      loss: `(w, v, example) -> []`; `(w, v, example, key) -> []` in a problem with `random=True`.
      strategy: the way to compute clipped sums: "auto", "vmap", "microbatch" or "ghost".
      microbatch: the number of examples in a slice of the "microbatch" strategy.
      memory: the bytes that a clipped sum may take by "auto" and "ghost"; None for 2^30.

    Raises:
      TypeError: for an object that is no function of three arguments, or of four with a key.

    Examples:
        >>> operator = jmm.saddle_operator(lambda w, v, x: w * v - x * v)
        >>> g = operator(Saddle(2.0, 3.0), 1.0)
        >>> float(g.w), float(g.v)
        (3.0, -1.0)
    """
    try:
        checks.takes("loss", loss, "w", "v", "example", "key")
    except TypeError:
        checks.takes("loss", loss, "w", "v", "example")
    return SaddleOperator(loss, strategy, microbatch, memory)


@dataclasses.dataclass(frozen=True)
class OwnOperator:
    """An operator of your own, with the way to compute its clipped sums.

    Attributes:
      operator: `(z, example) -> g`.
      strategy: "auto", "vmap" or "microbatch"; "ghost" needs a loss.
      microbatch: the number of examples in a slice of the "microbatch" strategy.
      memory: the bytes that a clipped sum may take by "auto"; None for 2^30.
      skip_empty: whether slices in which no row counts are left out, see `clipped_sum`.
    """

    operator: Callable[..., Saddle]
    strategy: str = "auto"
    microbatch: int = 32
    memory: int | None = None
    skip_empty: bool = False

    def __call__(self, z: Saddle, example: PyTree, *key: jax.Array) -> Saddle:
        """Returns the operator of one example, with a key if it draws."""
        return self.operator(z, example, *key)


def with_strategy(operator: Callable[..., Saddle], strategy: str = "auto",
                  microbatch: int = 32, memory: int | None = None,
                  skip_empty: bool = False) -> Any:
    """Returns the same operator, whose clipped sums are computed another way.

        problem._replace(operator=with_strategy(problem.operator, "microbatch", 64))

    Args:
      operator: `(z, example) -> g`, a `SaddleOperator` or one of your own.
      strategy: "auto", "vmap", "microbatch" or, for a `SaddleOperator`, "ghost"; see
        `clipped_sum`, which refuses others.
      microbatch: the number of examples in a slice of the "microbatch" strategy.
      memory: the bytes that a clipped sum may take by "auto" and "ghost"; None for 2^30.
      skip_empty: whether slices in which no row counts are left out, with the same result: for
        Poisson samples of rows that are dear one by one. Its time then tells the sample's size,
        see `clipped_sum`.

    Examples:
        >>> game = jmm.problems.quadratic_game(modulus=1.0, coupling=0.5, radius=Saddle(2.0, 2.0))
        >>> by_hand = game._replace(operator=jmm.types.with_strategy(game.operator, "microbatch",
        ...                                                          64))
        >>> by_hand.operator.strategy
        'microbatch'
    """
    if dataclasses.is_dataclass(operator) and hasattr(operator, "strategy"):
        return dataclasses.replace(operator, strategy=strategy, microbatch=microbatch,
                                   memory=memory, skip_empty=skip_empty)
    return OwnOperator(operator, strategy, microbatch, memory, skip_empty)


def _everywhere(z: Saddle) -> Saddle:
    return z


class Problem(NamedTuple):
    """A saddle problem or a variational inequality; hashable, so static under jit.

    It is min over w in W, max over v in V, of (1/n) sum_i f(w, v; x_i) + r(w, v), or the
    variational inequality of any monotone operator. Only `operator` is required.

    Attributes:
      operator: `(z, example) -> g`, the operator of one example's loss, a `Saddle` like z. Use
        `saddle_operator(loss)`, or an operator of your own. It must read that example only;
        runs refuse an operator whose traced program reads more (`releases.record_isolation`).
      public: `z -> g`, the operator of the terms that read no data (regularisers). It is added
        after the release, so it is neither clipped, nor made noisy, nor charged.
      project: `z -> z`, Euclidean projection on W x V (or any other postprocessing).
      value: `(z, data) -> []`, the objective on a data set. Only metrics call it.
      best_response: `Saddle((v, data) -> argmin_w L(w, v), (w, data) -> argmax_v L(w, v))`, with
        None for a player without a closed form. Only metrics call them.
      saddle_point: `data -> z`, the exact solution; None without a closed form.
      support: `g -> argmin_{z in W x V} <g, z>`, for gaps of variational inequalities.
      furthest: `(z, data) -> argmax_u <F(u), z - u>`; None if unknown.
      labels: the labels that records may have, such as (0, 1), which `check` reports. No run checks
        the data for them, because a refusal would reveal something of the records (`checkup`).
      random: whether the operator draws random numbers, for latent points, dropout and
        augmentations. Then it is `(z, example, key) -> g`, and the public term `(z, key) -> g`.
        Every release and row has its own key, the same whenever that row is read in that release,
        and independent of samples and noise (`releases.release_keys`); nothing more is charged.
        Operators that read other records, such as statistics of a batch, stay refused.

    Examples:
        >>> def loss(w, v, record):
        ...     return v * jnp.sum((w - record) ** 2) - v**2
        >>> problem = jmm.Problem(operator=jmm.saddle_operator(loss),
        ...                       project=lambda z: Saddle(z.w, jnp.clip(z.v, 0.0, 1.0)))
        >>> g = problem.operator(Saddle(jnp.zeros(2), jnp.ones(())), jnp.ones(2))
        >>> g.w.tolist(), float(g.v)  # the gradient in w, and minus the gradient in v
        ([-2.0, -2.0], -0.0)
    """

    operator: Callable[..., Saddle]
    public: Callable[..., Saddle] | None = None
    project: Callable[[Saddle], Saddle] = _everywhere
    value: Callable[[Saddle, PyTree], jax.Array] | None = None
    best_response: Saddle = Saddle(None, None)
    saddle_point: Callable[[PyTree], Saddle] | None = None
    support: Callable[[Saddle], Saddle] | None = None
    furthest: Callable[[Saddle, PyTree], Saddle] | None = None
    random: bool = False
    labels: tuple[float, ...] | None = None


class GroupProblem(NamedTuple):
    """The problem of one model for several groups; hashable, so static under jit.

    It is min over w in W of max over groups i of L_i(w), the mean of loss(w, record) over group i's
    records; as a saddle problem, max over v in the simplex of sum_i v_i L_i(w). The privacy
    of algorithms that clip gradients and losses needs neither `lipschitz` nor `bound`. The privacy
    of a certified solution needs both.

    Attributes:
      loss: `(w, record) -> []`, w any pytree.
      operator: `(Saddle(w, ()), record) -> Saddle(grad_w loss, ())`.
      project: `w -> w`, Euclidean projection on W.
      diameter: M, the largest distance of two points of W.
      lipschitz: L, the largest norm of grad_w loss on W, for records of any content.
      bound: B; the loss lies in [0, B] on W, for records of any content.
      smooth: beta, the Lipschitz constant of grad_w loss; None if it may not be smooth.
      convex: whether the loss is convex in w on W, for records of any content, and its computed
        derivative is finite and a subgradient (that of a norm at 0 is neither).
      random: whether the loss draws random numbers. Then it is `(w, record, key) -> []`, the
        operator is `(z, record, key) -> g`, and constants hold for every key. Every release and
        every record of every group has its own key; nothing more is charged.

    Examples:
        >>> problem = jmm.problems.group_glm("hinge", feature_bound=2.0, radius=1.0)
        >>> isinstance(problem, jmm.GroupProblem), problem.lipschitz
        (True, 2.0)
    """

    loss: Callable[..., jax.Array]
    operator: Callable[..., Saddle]
    project: Callable[[PyTree], PyTree]
    diameter: float
    lipschitz: float
    bound: float
    smooth: float | None = None
    convex: bool = False
    random: bool = False


AnyProblem = Problem | GroupProblem


class Settings(Protocol):
    """Protocol of an algorithm's `Hyper` for drivers: the number of its rounds."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def iterations(self) -> int:
        """T, the number of rounds."""


class State(Protocol):
    """Protocol of an algorithm's `State` for drivers; all of it is private output."""

    @property
    def z(self) -> Saddle:
        """The current iterate."""

    @property
    def average(self) -> Saddle:
        """The output of the run: the average of its iterates."""

    @property
    def spent(self) -> jax.Array:
        """Releases made so far, int32 `[]`."""


HyperT = TypeVar("HyperT", bound=Settings)
StateT = TypeVar("StateT", bound=State)
_Hyper = TypeVar("_Hyper", bound=Settings, contravariant=True)


class Algorithm(Protocol[_Hyper, StateT]):
    """A private algorithm: a module with these functions, and `Hyper` and `State` classes.

    `hyper` carries `query` and `iterations`; the state carries `z`, `average` and `spent`. A sweep
    over runs of different lengths hands `update` a hyper whose `iterations` are traced. The
    library's own have `example` too, from which commands and benchmarks make a `Hyper`, and `plan`
    if a theorem sets their numbers. Type checkers take a module for `Algorithm[Hyper, State]`: they
    infer the state that a driver returns, and refuse another algorithm's `Hyper`.

    Examples:
        >>> query = jmm.Query(clip=Saddle(1.0, 1.0), population=100)
        >>> hyper = jmm.sgda.Hyper(query=query, step=Saddle(0.1, 0.1), iterations=20)
        >>> mechanism = jmm.sgda.mechanism(hyper)  # all that the accountant reads
        >>> jmm.mechanism.releases(mechanism)
        20
    """

    def mechanism(self, hyper: _Hyper) -> Any:
        """Describes a full run; the accountant reads nothing else."""

    def init(self, z: Saddle, hyper: _Hyper) -> StateT:
        """The state before the first round; `z` must not depend on the data."""

    def update(self, key: jax.Array, state: StateT, data: PyTree, hyper: _Hyper,
               problem: Any) -> StateT:
        """Makes one round; it is pure, so that callers jit, vmap and scan it.

        The problem is a `Problem`, or a `GroupProblem` for algorithms on groups.
        """


class OnlineOptimiser(Protocol):
    """A private algorithm that reads each record once, one a round, chosen by another algorithm.

    It is a module with the functions of an `Algorithm` and `observe_record`.

    Examples:
        >>> hyper = jmm.ftrl.Hyper(query=jmm.mechanism.TreeSums(clip=1.0, leaves=8), step=0.1)
        >>> state = jmm.ftrl.init(Saddle(jnp.zeros(2), ()), hyper)
        >>> callable(jmm.ftrl.observe_record), state.z.w.shape
        (True, (2,))
    """

    def init(self, z: Saddle, hyper: Any) -> Any:
        """Returns the state before the first round, with `z` its current point."""

    def observe_record(self, key: jax.Array, state: Any, data: PyTree, place: tuple[jax.Array, ...],
                       present: jax.Array, hyper: Any, problem: Problem) -> Any:
        """Makes one round on the record `x[place]` of each leaf x, which no other round reads."""
