"""A release as the first link of an optax chain, for a training loop that exists already.

    private = private_gradient(key, data, problem, Repeat(query=query, times=T))
    tx = optax.chain(private, optax.adamw(1e-3))
    state = tx.init(params)
    for ticket in private.tickets(state):                  # in the place of a loader
        updates, state = tx.update(ticket, state, params)  # in the place of a gradient

`update` makes release number t of the description at `params`. A ticket holds t, a key and the
rows, so that they are arguments of whatever program the loop compiles. A program that closes over a
ticket, in place of getting it as an argument, holds them.
The state holds t too, and is saved with the optimiser's. What keeps a number from two points:

* **the trace**: what is no ticket of this transformation is refused, a ticket that a trace uses
  twice, a `vmap`, and an operator that is another one than in the first trace. The program of each
  release is checked as a round of an algorithm is, by `releases.data_flow`.
* **the state**: the host hands a number out once, and a release whose ticket and state differ is
  NaN. A state that is copied, begun anew or older does not go with the next ticket.
* **the key**: sample, noise and operators of a release follow its point (`releases.point_keys`),
  so that a number that comes again at another point is one more independent release.
* **the host**: with `watched`, or where samples or noise are fixed before the point is known, the
  host admits a number at one point (`point_register`), and with a journal processes after it too.
"""

import dataclasses
import json
import os
import warnings
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.experimental import io_callback

from jaxminimax.accounting import Ledger, Statement, statement
from jaxminimax.accounting.ledger import Entry
from jaxminimax.base import arguments, checks, identity, programs
from jaxminimax.base.types import OwnOperator, Problem, PyTree, Saddle, pytree_dataclass
from jaxminimax.drivers import fingerprint, long_runs, saved_runs
from jaxminimax.drivers.point_register import Limits, Register, register
from jaxminimax.mechanism import FixedSize, Full, Poisson, Query, Repeat, composed
from jaxminimax.placement import sharding
from jaxminimax.placement.host_data import HostData
from jaxminimax.releases import opening, point_keys, record_isolation, release_keys, sums
from jaxminimax.releases.watch import update

_BEHIND = ("Put MultiSteps, multi_transform, masked, clipping and other wrappers behind it: "
           "optax.chain(private, optax.MultiSteps(...))")
_NO_TICKET = ("private_gradient takes a ticket in the place of a gradient, for ticket in private."
              "tickets(state): tx.update(ticket, state, params), as the first link of the chain. A "
              "gradient of records has no noise, and links or wrappers before this one would see "
              f"it. {_BEHIND}.")


class Spent(NamedTuple):
    """The state of `private_gradient`.

    Attributes:
      number: releases made before, int32 `[]`.
      clip: the next clip norms where they follow a quantile, else None.
    """

    number: jax.typing.ArrayLike
    clip: Saddle | None = None


class _Named(type):
    """A kind that prints the fix where optax prints it, as one that is not the parameters'."""

    def __repr__(cls) -> str:
        return f"<a ticket of private_gradient, which stands for no gradient yet. {_BEHIND}>"


@pytree_dataclass
class Ticket(metaclass=_Named):
    """Number, key and rows of a release, in the place of a gradient; as secret as these are.

    Attributes:
      number: of the release, int32 `[]`; of several of them `[k]`, see `PrivateGradient.take`.
      key: that its sample and noise are drawn by.
      data: the rows.
      words: of the key that points are hashed by, uint32 `[2]`.
      mark: of the transformation that it is for.

    Examples:
        >>> jmm.types.Ticket(number=3, key=None, data=None, words=None, mark="")  # by hand
        <a ticket of private_gradient...>
    """

    number: jax.typing.ArrayLike
    key: jax.Array
    data: PyTree
    words: jax.typing.ArrayLike
    mark: str = jax.tree.static()

    def at(self, number: jax.Array) -> "Ticket":
        """The ticket of one of several numbers, for the body of a scan over `number`."""
        return dataclasses.replace(self, number=number)

    def __post_init__(self) -> None:
        # of what a wrapper computes for every leaf of a gradient, such as whether it is NaN
        if jnp.issubdtype(getattr(self.number, "dtype", np.int32), jnp.integer):
            return
        raise ValueError(_NO_TICKET)

    def __contains__(self, name: object) -> bool:
        return False  # flax asks a gradient for a name

    def __repr__(self) -> str:
        return repr(type(self))  # neither key nor rows


@pytree_dataclass
class _Settings:
    """The settings of `_Release`."""

    mechanism: Repeat

    @property
    def iterations(self) -> int:
        return self.mechanism.releases()


class _Round(NamedTuple):
    """The state of `_Release`: that of optax, the point or its release, and the ticket."""

    spent: jax.Array
    clip: Saddle | None
    z: Saddle
    number: jax.Array
    words: jax.Array


@dataclasses.dataclass(frozen=True)
class _Release:
    """An algorithm whose round is one release at its point, so that all checks of rounds apply.

    Attributes:
      follows: whether keys follow the point.
      admitted: the register that is asked, if any.
    """

    follows: bool
    admitted: Register | None

    __name__ = "jaxminimax.private_gradient"

    def mechanism(self, hyper: _Settings) -> Repeat:
        return hyper.mechanism

    def init(self, z: Saddle, hyper: _Settings) -> _Round:
        query = hyper.mechanism.query
        clip = None if query.adaptive is None else jax.tree.map(
            lambda norm: jnp.asarray(norm, jnp.float32), query.clip)
        return _Round(jnp.int32(0), clip, z, jnp.int32(0), jnp.zeros(2, jnp.uint32))

    def update(self, key: jax.Array, state: _Round, data: PyTree, hyper: _Settings,
               problem: Problem) -> _Round:
        # a number of -1 is refused, by NaN
        number = jnp.where(state.spent == state.number, state.spent, -1)
        digest = point_keys.digest(state.words, (state.z, state.clip))
        if self.admitted is not None:
            answered = io_callback(self.admitted.admit, jax.ShapeDtypeStruct((), np.bool_),
                                   jnp.append(digest, number.astype(jnp.uint32)), ordered=False)
            number = jnp.where(answered, number, -1)
        if self.follows:
            key = point_keys.key_at(key, digest)
        g, clip = sums.noisy_operator_and_clip(key, hyper.mechanism, number, problem, state.z,
                                               data, state.clip)
        return _Round(state.spent + 1, clip, g, state.number, state.words)


class _Run:
    """All that the releases of one `private_gradient` are made of.

    Attributes:
      release: the algorithm whose round is one of them.
      watched: whether the register is asked.
      entry: of a ledger, if there is one.
    """

    def __init__(self, key: jax.Array, data: PyTree, problem: Problem, mechanism: Repeat,
                 watched: bool, journal: Any) -> None:
        self.key, self.data, self.problem, query = key, data, problem, mechanism.query
        self.settings = _Settings(mechanism=mechanism)
        # of others the sample or the noise of a number may be fixed before its point is known
        follows = (type(query.sampling) in (Full, Poisson, FixedSize) and query.bands == 1
                   and mechanism.parts == 1 and not isinstance(data, HostData))
        self.watched, self.hash_key = watched or not follows, fingerprint.secret(key)
        # the problem is bound when it is traced
        promise = saved_runs.promise_of(key, mechanism, self.settings, _Release(follows, None))
        self.marks = fingerprint.mark_of_run(self.hash_key, json.dumps(promise).encode(),
                                             resumable=journal is not None)
        (machine,) = fingerprint.hash_machine(
            self.hash_key, problem, getattr(data, "mesh", None)).values()
        self.register = register(self.marks.key, Limits(
            self.marks.run, mechanism.releases(), query.bands > 1, machine), journal)
        self.release = _Release(follows, self.register if self.watched else None)
        self.entry: Entry | None = None
        self._used: list[weakref.ref[Any]] = []  # numbers of tickets that traces have used

    def read_rows(self) -> None:
        """Reads all rows once, for their mark; keys of tickets depend on it."""
        rows = fingerprint.hash_rows(self.hash_key, self.data)
        self.register.bind("rows", rows, "data set, or order of its rows")
        mark = fingerprint.mark(self.hash_key, rows.encode(), self.marks.run.encode())
        # another machine rounds sums in other ways, so it has other noise
        machine_mark = fingerprint.mark(
            self.hash_key, mark.encode(), self.register.limits.machine.encode())
        root, _ = point_keys.root_key(self.key, bytes.fromhex(machine_mark)[:8])
        _, hashed = point_keys.root_key(self.key, bytes.fromhex(mark)[:8])
        self._ticket: dict[str, Any] = dict(
            key=root if self.release.follows else self.key, mark=machine_mark,
            words=np.asarray(jax.random.key_data(hashed)))

    def ticket(self, number: Any, rows: PyTree) -> "Ticket":
        """The ticket of a number."""
        return Ticket(number=np.asarray(number, np.int32), data=rows, **self._ticket)

    def init(self, params: PyTree) -> Spent:
        _check_whole(params)
        state = self.release.init(_point(params), self.settings)
        return Spent(state.spent, state.clip)

    def update(self, updates: PyTree, state: Spent, params: PyTree | None = None, *,
               ticket: Ticket | None = None, **_: Any) -> tuple[PyTree, Spent]:
        if ticket is not None and not _is_same(updates, params):
            raise ValueError("With ticket=..., the parameters themselves stand in the place of "
                             f"gradients: update(model, nnx.state(model, nnx.Param), ticket=ticket)"
                             f". {_NO_TICKET}")
        ticket = updates if ticket is None else ticket
        if not isinstance(ticket, Ticket):
            raise ValueError(_NO_TICKET)
        if ticket.mark != self._ticket["mark"]:
            raise ValueError("The ticket is of another private_gradient: take one of this one's "
                             "own tickets(state).")
        if params is None:
            raise ValueError("A release is made at the parameters: tx.update(ticket, state, "
                             "params).")
        if not isinstance(state, Spent):
            raise ValueError(f"The state must be that of tx.init(params), got "
                             f"{checks.describe(state)}.")
        if np.ndim(ticket.number):
            raise ValueError("The ticket is of several releases: scan over ticket.number, and use "
                             "ticket.at(number) in the body.")
        _check_whole(params)
        self._check_once(ticket.number)
        # no derivative of a release: it would be of the sum without its noise
        stopped, z = jax.lax.stop_gradient((state, _point(params)))
        self._check_program(z, ticket.data)
        moved = update(self.release, ticket.key, _Round(
            jnp.asarray(stopped.number), stopped.clip, z, jnp.asarray(ticket.number),
            jnp.asarray(ticket.words)), ticket.data, self.settings, self.problem, numbered=False)
        g, new = jax.lax.stop_gradient(_in_one_lane((moved.z, Spent(moved.spent, moved.clip))))
        return (g if isinstance(params, Saddle) else g.w), new

    def _check_once(self, number: Any) -> None:
        self._used = [x for x in self._used if x() is not None]
        if programs.is_traced(number):  # else it is compared with the state
            if any(x() is number for x in self._used):
                raise ValueError("A ticket is used at two points of one step, which would be two "
                                 "releases under one number: take two tickets.")
            self._used.append(weakref.ref(number))

    def _check_program(self, z: Saddle, rows: PyTree) -> None:
        """Refuses another program than that of the first trace; it would have the same keys."""
        operator = self.problem.operator
        traced, _, _ = record_isolation.check(release_keys.operator_of(self.problem), z, rows,
                                              drawn=self.problem.random)
        if any(map(programs.calls_host, programs.equations(traced))):
            raise ValueError("The operator calls the host, which may answer otherwise when a "
                             "number comes again at its point, under one noise: compute it by "
                             "jax.numpy, or beforehand as a part of the record.")
        # a new function, since JAX keeps what it traced of an old one
        problem = self.problem._replace(operator=OwnOperator(lambda *args: operator(*args)))
        try:
            with warnings.catch_warnings():  # the release itself warns
                warnings.simplefilter("ignore")
                mark = fingerprint.hash_round(self.hash_key, self.key.dtype, z, self.data,
                                              self.settings, self.release, problem)
        except jax.errors.TracerArrayConversionError as error:
            raise ValueError("The operator closes over a number of the traced step, which may "
                             "change under one noise: make it one of the parameters.") from error
        self.register.bind("round", mark,
                           "operator, public term, shape of parameters or setting of JAX")
        if self.entry is not None:
            self.entry.ledger.bind(self.entry, {fingerprint.ROUND: mark})


class PrivateGradient(optax.GradientTransformationExtraArgs):  # type: ignore[misc]
    """A `private_gradient`: `init` and `update` of optax, its tickets, and what it states.

    Examples:
        >>> issubclass(jmm.types.PrivateGradient, tuple)  # as optax's transformations are
        True
    """

    _run: _Run

    def tickets(self, state: Any) -> Iterator[Ticket]:
        """Yields the tickets of all releases that are left, from the state's number on.

        Each number is handed out once, unless it is watched. A release whose ticket and state
        differ is NaN: use each ticket, in its order, and hand the state on.

        Args:
          state: of `tx`, with the state of this transformation somewhere in it.

        Raises:
          ValueError: for a state without it, or with several; for one that is not at its beginning,
            of samples or noise that need a journal to go on.
          RuntimeError: for a number that was handed out before, or once it is closed.
        """
        run, first, total = self._run, self._next(state), self._run.settings.iterations
        with long_runs.Supply(run.key, run.settings.mechanism, run.data, [1] * (total - first),
                              first, total) as supply:
            for number in range(first, total):
                run.register.issue(number, run.watched)
                for rows, _ in supply.piece(1):
                    yield run.ticket(number, rows)

    def take(self, state: Any, count: int) -> Ticket:
        """Returns the next `count` tickets as one, for a scan over its `number`.

            jax.lax.scan(lambda carry, number: step(carry, ticket.at(number)), carry, ticket.number)

        Args:
          state: as of `tickets`.
          count: of releases, at most those that are left.

        Raises:
          ValueError: as `tickets`; for more than are left; for `HostData`, whose rows come one
            release at a time.
          RuntimeError: as `tickets`.
        """
        run, first = self._run, self._next(state)
        checks.count("count", count)
        if isinstance(run.data, HostData):
            raise ValueError("The rows of HostData come with the ticket of each release: use "
                             "tickets(state), or give the arrays themselves.")
        if first + count > run.settings.iterations:
            raise ValueError(f"count must be at most {run.settings.iterations - first}, the "
                             f"releases that are left, got {count}.")
        for number in range(first, first + count):
            run.register.issue(number, run.watched)
        return run.ticket(range(first, first + count), run.data)

    def _next(self, state: Any) -> int:
        """The state's number, which the first ticket has."""
        run, number = self._run, _number(state)
        numbers = run.register.points if run.register.has_journal else run.register.issued
        if number and not run.release.follows and number - 1 not in numbers:
            raise ValueError(f"The state has made {number} releases that this process has no note "
                             "of, and samples or noise were fixed before their points: give "
                             "journal=... from the beginning, by which a run goes on, or make "
                             "another private_gradient with a key of its own.")
        return number

    def statement(self, state: Any = None, *, delta: float, **options: Any) -> Statement:
        """Makes the privacy statement of the releases so far, and of all that are described.

        Args:
          state: the newest one; None for the count of this process.
          delta: of the statement.
          **options: as of `jaxminimax.statement`, such as `unit` and `neighbours`.
        """
        run, spent = self._run, self._spent(state)
        one_point: tuple[str, ...] = (
            "User: Every state was used at one point. A state that is used at two points has "
            "independent noise at both, and is one release more than this epsilon counts.",)
        enforced: tuple[str, ...] = ()
        # the register was asked of every one of them
        if run.watched and len(run.register.points) == spent:
            one_point, enforced = (), (
                "Each number of a release was answered at one point only: the register of this "
                f"process{' with its journal' * run.register.has_journal} refused any other.",)
        user = ("User: The training loop hands its tickets on as they are, and computes nothing "
                "else from records: no gradient, no loss, no statistic of a batch.", *one_point,
                *options.pop("assumed", ()))
        stated = statement(run.release, run.settings, SimpleNamespace(spent=spent), delta=delta,
                           assumed=user, rows_each=identity.rows_each(run.data), **options)
        return dataclasses.replace(stated, enforced=(*stated.enforced, *enforced))

    def _spent(self, state: Any) -> int:
        """Counts the releases that were made, or may have been."""
        jax.effects_barrier()
        run = self._run
        # another transformation of this key may have handed out numbers that nobody watches
        numbers = {*run.register.points, *(
            run.register.unwatched if run.watched else run.register.issued)}
        return max([0 if state is None else _number(state), *(number + 1 for number in numbers)])

    def close(self, state: Any = None) -> None:
        """Ends the run: no ticket is handed out after that, and the entry of a ledger is closed.

        With filter="renyi" the ledger takes back the releases that were not made.

        Args:
          state: the newest one; None for the count of this process.
        """
        spent = SimpleNamespace(spent=self._spent(state))
        self._run.register.close()
        if self._run.entry is not None:
            self._run.entry.close(spent)


def private_gradient(key: jax.Array, data: PyTree, problem: Problem, mechanism: Repeat, *,
                     watched: bool = False, ledger: Ledger | None = None, name: str | None = None,
                     journal: str | os.PathLike[str] | None = None) -> PrivateGradient:
    """Makes the releases of a description as gradients of a loop of one's own, for optax.

    The first link of an `optax.chain`. A ticket stands in the place of a gradient, so that the loop
    never holds one without noise:

        private = jmm.private_gradient(key, data, problem, mechanism)
        tx = optax.chain(private, optax.adam(1e-3))
        state = tx.init(params)
        for ticket in private.tickets(state):
            updates, state = tx.update(ticket, state, params)  # under jit, as usual
            params = optax.apply_updates(params, updates)
        print(private.statement(state, delta=1e-5))

    `params` is a `Saddle` of both players, and the release for v is minus its gradient, so that
    both optimisers descend; or any other tree, of one player, with `clip=Saddle(norm, None)` and a
    loss `(w, v, record)` that does not read v. Public terms are added, and `problem.project` is
    left to the loop. Wrappers such as `optax.MultiSteps` or `optax.multi_transform` go behind it.

    The state counts the releases, and goes with the optimiser's into any checkpoint. A process that
    goes on makes the transformation with equal arguments, and takes `tickets` of the saved state:
    its releases are the same, bit for bit, on the same machine, mesh and versions; on others their
    noise is independent. Whatever a loop does, no noise serves two points. That a
    state is used at one point is an assumption of the statement, unless it is `watched`.

    Args:
      key: root key, a secret of threefry2x32, for this transformation only.
      data: leaves `[n, ...]`, `HostData`, or the result of `placement.shard`.
      problem: see `Problem`; one-player losses ignore v.
      mechanism: a `Repeat` of a `Query`, calibrated by `accounting.calibrate_noise`.
      watched: whether the host notes the point of every release, and refuses a second one for its
        number. It costs a call of the host in each step. Always on for correlated noise, samples
        other than `Poisson`, `FixedSize` and `Full`, several parts and `HostData`.
      ledger: the budget of everything that is released about these data; all releases are charged
        before a row is read. Without a journal, a key is then good for one process.
      name: of the run in the ledger.
      journal: file that the points are noted in, before a release is answered, so that processes
        that go on know them; sets `watched`. Nobody else may write to its folder.

    Raises:
      ValueError: for a description that is not valid or does not fit the data, another run under
        the same key, or inside a traced program; if the ledger refuses it; for several processes
        with what needs one register; later, while tracing, for what is no ticket of its own.
      TypeError: for arguments of another kind, such as a `GroupProblem` or a `Sequence`.

    Examples:
        >>> loss = lambda w, v, record: jnp.sum((w - record) ** 2) / 2
        >>> query = jmm.Query(clip=Saddle(1.0, None), noise_multiplier=Saddle(2.0, None),
        ...                   population=100, sampling=jmm.Poisson(rate=0.2))
        >>> private = jmm.private_gradient(
        ...     jmm.noise.secret_key(), jnp.ones((100, 3)),
        ...     jmm.Problem(operator=jmm.saddle_operator(loss)), jmm.Repeat(query=query, times=5))
        >>> params = jnp.zeros(3)
        >>> state = private.init(params)
        >>> for ticket in private.tickets(state):
        ...     update, state = private.update(ticket, state, params)
        ...     params = params - 0.1 * update
        >>> int(state.number), private.statement(state, delta=1e-3).spent
        (5, 5)
    """
    checks.exact_arithmetic()
    rows = () if isinstance(data, HostData) else data
    if programs.is_traced(key, rows, jnp.zeros(())):
        raise ValueError("private_gradient is made once, outside of jit and other transformations, "
                         "and its tickets are arguments of the step.")
    arguments.key(key)
    if str(jax.random.key_impl(key)) != "threefry2x32":
        raise ValueError("private_gradient needs a key of threefry2x32, whose noise is the same on "
                         f"any device, got {jax.random.key_impl(key)}: use secret_key().")
    arguments.problem(problem)
    if not isinstance(problem, Problem):
        raise TypeError("private_gradient releases the operator of a Problem, got a "
                        f"{type(problem).__name__}: use fit with an algorithm for groups.")
    if not isinstance(mechanism, Repeat) or not isinstance(mechanism.query, Query):
        raise TypeError("private_gradient makes the releases of a Repeat of a Query, got "
                        f"{checks.describe(mechanism)}: use fit with an algorithm for others.")
    composed.check(mechanism)
    mechanism.check_own()
    if name is not None and ledger is None:
        raise ValueError(f"name = {name!r} is that of a run in a ledger: give ledger=... too.")
    if not isinstance(data, HostData):
        sharding.check_records(data)
        data = sharding.as_rows(data)
        opening.check_layout(data, mechanism)
    elif data.population != mechanism.query.population * mechanism.parts:
        raise ValueError(f"HostData have {data.population} records, but the mechanism was described"
                         f" for {mechanism.query.population * mechanism.parts}.")
    run = _Run(key, data, problem, mechanism, watched or journal is not None, journal)
    if jax.process_count() > 1 and (run.watched or ledger is not None):
        raise ValueError("Several processes have no register in common, which watched=True, ledger="
                         "..., correlated noise, HostData, and samples other than Poisson, "
                         "FixedSize and Full need: use fit.")
    if ledger is not None:
        rows_each = identity.rows_each(data)
        unit = None if rows_each is None else identity.unit_of(ledger.people, rows_each)
        run.entry = ledger.reserve(mechanism, name=name, run=run.marks, unit=unit)
        if not run.entry.fresh and not run.register.begun:
            raise ValueError(f"{run.entry.name!r} was begun before, and its journal has none of its"
                             " releases: give the journal that it began with, or another key.")
    run.read_rows()
    private = PrivateGradient(run.init, run.update)
    private._run = run
    return private


def _point(params: PyTree) -> Saddle:
    z = params if isinstance(params, Saddle) else Saddle(params, ())
    return arguments.point(z, "params")


def _is_same(updates: PyTree, params: PyTree) -> bool:
    leaves = jax.tree.leaves(updates), jax.tree.leaves(params)
    return len(leaves[0]) == len(leaves[1]) and all(a is b for a, b in zip(*leaves, strict=True))


def _check_whole(params: PyTree) -> None:
    """Refuses parameters of which a wrapper hides some."""
    if any(isinstance(x, optax.MaskedNode) for x in jax.tree.leaves(
            params, is_leaf=lambda x: isinstance(x, optax.MaskedNode))):
        raise ValueError("private_gradient releases at all parameters, of which a wrapper hides "
                         f"some here. {_BEHIND}.")


def _number(state: Any) -> int:
    """The count in a state of optax."""
    counts = [x for x in jax.tree.leaves(state, is_leaf=lambda x: isinstance(x, Spent))
             if isinstance(x, Spent)]
    if len(counts) != 1:
        raise ValueError(f"The state holds {len(counts)} states of private_gradient, and needs one:"
                         " give that of tx.init(params) or of the last tx.update.")
    return int(np.asarray(counts[0].number))


@jax.custom_batching.custom_vmap
def _in_one_lane(released: PyTree) -> PyTree:
    return released


@_in_one_lane.def_vmap
def _refuse_lanes(size: int, _: Any, __: Any) -> Any:
    raise ValueError(f"A vmap would make {size} releases of one ticket: make a private_gradient "
                     "with a key of its own for each, or use jmm.sweep.")
