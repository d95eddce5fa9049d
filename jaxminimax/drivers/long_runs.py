"""Long runs in pieces on the host: progress, callbacks, checkpoints, exact resume, rows sent ahead.

Where rows lie on the host, the host draws the samples of coming releases, many in one program, by
the very function that a release on data of the device calls, with the same key, and gathers their
rows. A sample is a function of key, release and description alone, so it is drawn once: the release
takes it as it was sent, if description and mark are its own (`host_data.mark`). So neither the law
of the sample nor the answer can depend on where the data are; rows of another key or release make
NaN.

The host knows the sample. It holds the data and the key anyhow, and tells nobody: row numbers go
to the device with the rows, and into no state.
"""

import contextlib
import dataclasses
import functools
import json
import os
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxminimax import mechanism
from jaxminimax.accounting import Ledger, Statement, statement
from jaxminimax.algorithms import planning
from jaxminimax.base import arguments, checks, identity, programs, types
from jaxminimax.base.types import Algorithm, HyperT, PyTree, Saddle, StateT
from jaxminimax.drivers import fingerprint, runs, saved_runs
from jaxminimax.placement import agreement, sharding
from jaxminimax.placement.host_data import HostData, Sent, Window
from jaxminimax.releases import reading, record_isolation
from jaxminimax.releases.watch import update


@dataclasses.dataclass(frozen=True)
class Metrics:
    """Numbers of a run so far, for a callback of `fit`: none was computed from records.

    Attributes:
      round: rounds made.
      rounds: rounds of the whole run.
      releases: releases made.
      seconds: since this process began its first round. For you alone: statements assume that the
        time of a release is not published.
      statement: of a run that ends here.

    Examples:
        >>> "epsilon" in dir(jmm.types.Metrics)
        True
    """

    round: int
    rounds: int
    releases: int
    seconds: float
    statement: Callable[[], Statement] = dataclasses.field(repr=False)

    @functools.cached_property
    def epsilon(self) -> float:
        """Epsilon of a run that ends here, also by a rule that looked; computed when it is read."""
        stated = self.statement()
        looking = stated.epsilon_if_stopped_by_looking
        return stated.epsilon if looking is None else min(stated.epsilon, looking)

    def to_json(self) -> dict[str, float]:
        """Returns the numbers that may be published as a dictionary, for loggers: no seconds."""
        return {name: getattr(self, name) for name in ("round", "rounds", "releases", "epsilon")}


def _wants_metrics(callback: Any) -> bool:
    """Returns whether a callback needs more than the state; refuses what is no callback."""
    try:
        checks.takes("callback", callback, "state")
    except TypeError:
        checks.takes("callback", callback, "state", "metrics")
        return True
    return False


@functools.partial(programs.Compiled, static_argnames=("algorithm", "problem", "places"),
                   donate_argnames=("state",))
def _advance(state: StateT, key: jax.Array, data: PyTree, hyper: HyperT, rounds: jax.Array,
             algorithm: Algorithm[HyperT, StateT], problem: types.AnyProblem,
             places: tuple[Any, ...] | None = None) -> StateT:
    def step(_: jax.Array, state: Any) -> Any:
        state = update(algorithm, key, state, data, hyper, problem)
        if places is None:
            return state
        # what was on every device, or spread over some, stays so
        leaves = map(jax.lax.with_sharding_constraint, jax.tree.leaves(state), places)
        return jax.tree.unflatten(jax.tree.structure(state), leaves)

    return jax.lax.fori_loop(0, rounds, step, state)


def _piece(rows: PyTree, *args: Any) -> Any:
    """Makes rounds, unless their program closes over one of the data's arrays."""
    record_isolation.check_constants(_advance.trace(*args).jaxpr, rows, "update")
    return _advance(*args)


def _copied(x: jax.Array) -> jax.Array:
    """Copies an array, without a program if this process has all of it."""
    alone = isinstance(x, jax.Array) and x.is_fully_addressable
    return jax.device_put(x, may_alias=False) if alone else jnp.array(x, copy=True)


def fit(key: jax.Array, z: Saddle, data: PyTree, hyper: HyperT,
        algorithm: Algorithm[HyperT, StateT], problem: types.AnyProblem, *, delta: float,
        neighbours: str = "replace_one", alongside: tuple[mechanism.Description, ...] = (),
        unit: str | None = None, checkpoint: str | os.PathLike[str] | None = None,
        every: int | None = None, callback: Callable[..., bool | None] | None = None,
        progress: bool = True, mesh: Mesh | None = None, shards: int | None = None, people: int = 1,
        ledger: Ledger | None = None, name: str | None = None) -> runs.Run[StateT]:
    """Runs an algorithm in jitted pieces of `every` rounds, the same run as `run`.

    With `checkpoint`, the state is saved after every piece, and a run with a saved state goes on
    from it. Release k is a function of the key and k alone. So rounds that were lost between the
    last save and a crash are repeated exactly, and not released a second time with other noise. A
    resumed run ends bit for bit where an uninterrupted one does. The key is never saved. A folder
    of another key, mechanism, algorithm, problem or optimiser is refused, and so is one of other
    rows, or of the same in another order, in which a record could be read twice. To compare them,
    all rows are read once more when a run with `checkpoint` starts, and keyed hashes are saved,
    which only the owner of the key can use to test anything about the data. Functions are compared
    by the round that they make, as this version of JAX traces it: go on with the versions that a
    run began with.

    With `mesh`, the rows are spread over its axis "data", or those of every group if the problem is
    of groups. Every device clips and sums its own rows of the same sample (`sharding`), or of the
    rows of a solution. The run is the same up to rounding, for any number of devices, and costs the
    same epsilon; a saved state may go on on another mesh. The state is on every device, but leaves
    of z that are spread over other axes of the mesh stay so. If the mesh spans several processes,
    all call `fit` with equal arguments except their rows, and need a `checkpoint` folder that all
    of them see. Each writes its own parts of the state, and a state is valid once all have. With
    `shards`, the run is the same on any number of devices that divides it: noisy sums to the last
    bit on devices of one kind, solutions up to rounding.

    With `ledger`, the run is charged before it reads data, or refused. A run that goes on after a
    crash, with its checkpoint, its key and its other arguments, is not charged again. Nor is a run
    that lost its checkpoint and begins anew on the same device. A crashed run that does not go on
    stays charged.

    Args:
      key: root key of the run, a secret.
      z: initial point; must not depend on the data.
      data: leaves `[n, ...]`. If they are larger than the device's memory, `HostData` of them, or
        of any object that returns records by number: the same run, with the rows of every release
        sent ahead, on one device. Or the result of `placement.shard`, which has its own mesh.
      hyper: the algorithm's `Hyper`, calibrated.
      algorithm: a module such as `sgda`.
      problem: operator, public terms, projection.
      delta: delta of the statement.
      neighbours: the neighbouring relation of the statement.
      alongside: other mechanisms on the same data, for the statement; not charged to `ledger`.
      unit: the unit of privacy, for the statement, and the same as that of `ledger`. None for "one
        record", and for data by `by_person` "one person".
      checkpoint: folder for the saved states, which no other user may write to: a state chosen by
        another could repeat noise at another point; needs orbax-checkpoint.
      every: number of rounds in a piece; None for a hundredth of the run.
      callback: called with a host copy of the state after every piece, and with its `Metrics` if
        it has two arguments without defaults; never sees the data. The run ends after a piece for
        which it returns True, in every process of a mesh alike: the statement is as of there, and a
        ledger takes back what filter="renyi" allows.
      progress: whether to show a progress bar, if tqdm is installed.
      mesh: devices, with an axis "data"; None for one device, or the mesh of the data.
      shards: number of parts of the rows, a multiple of the devices along the axis "data", which
        sum theirs one after another; None for one for each device. A run with a checkpoint goes
        on with the same number only.
      people: the largest number of records of one unit, for the statement.
      ledger: the budget of everything that is released about these data; see `Ledger`. A ledger of
        another unit refuses the run. With filter="basic" the run is charged at `delta`, if that is
        below the ledger's.
      name: the name of the run in the ledger.

    Returns:
      A `Run` of the last state, with its privacy `statement`.

    Raises:
      ValueError: for a description that is not valid or does not fit the data, a folder of
        another run or number of shards, or one that another user owns or may write to, processes
        that do not agree, `HostData` on a mesh or in shards, or for an algorithm that reads all
        records, or chooses them; for a checkpoint of a key of another generator than threefry2x32;
        for arithmetic in which NaN is no number like others; if the ledger refuses the run.
      RuntimeError: for a state that could not be saved.
      TypeError: for arguments of another kind.
      ImportError: if `checkpoint` is given and orbax-checkpoint is not installed.

    Examples:
        >>> game = jmm.problems.quadratic_game(modulus=1.0, coupling=0.5, radius=Saddle(2.0, 2.0))
        >>> data = (jnp.ones((100, 2)), jnp.zeros((100, 2)))
        >>> start = Saddle(jnp.zeros(2), jnp.zeros(2))
        >>> query = jmm.Query(clip=Saddle(3.0, 3.0), population=100)
        >>> hyper = jmm.sgda.Hyper(query=query, step=Saddle(0.1, 0.1), iterations=5)
        >>> hyper = jmm.calibrate(jmm.sgda, hyper, epsilon=1.0, delta=1e-3)
        >>> done = jmm.fit(jmm.noise.secret_key(), start, data, hyper, jmm.sgda, game, delta=1e-3,
        ...                progress=False)
        >>> int(done.state.spent), done.statement.epsilon <= 1
        (5, True)
    """
    reports = callback is not None and _wants_metrics(callback)
    described, every = _checked(key, z, hyper, algorithm, problem, checkpoint, every, people,
                                shards)
    total = hyper.iterations
    # a copy: the state is donated to each piece, and the caller's z must outlive that
    state = jax.tree.map(_copied, algorithm.init(z, hyper))
    shards = sharding.shards_of(data, shards)
    # only what is stored is marked by the key
    stored = checkpoint is not None or ledger is not None
    promise = saved_runs.promise_of(key if stored else None, described, hyper, algorithm, shards)
    with saved_runs.Booking(ledger, key, described, promise, name, checkpoint is not None,
                            delta=delta, neighbours=neighbours, people=people,
                            unit=unit or identity.unit_of(people, identity.rows_each(data))
                          ) as booking:
        placed = _placed(data, mesh, shards, problem, algorithm, z, hyper)
        mesh = getattr(placed, "mesh", None)
        state, places = _replicated(state, mesh, key, z, [promise, every, checkpoint is not None])
        if checkpoint is not None:
            marks = fingerprint.hash_run(key, sharding.arrays(z), placed, hyper, algorithm,
                                       problem)
            booking.bind(z, marks, problem, mesh)
            promise |= marks
            if mesh is not None:
                agreement.agree(mesh, problem=json.dumps(promise).encode())
        per_round = mechanism.releases(described) // total
        with saved_runs.Folder(checkpoint, promise) as folder:
            state = folder.latest(state)
            if mesh is not None:
                agreement.agree(mesh, **{"the saved state": state})
            # of rounds that do not all make as many releases, the state counts itself
            completed = int(getattr(state, "rounds", int(state.spent) // per_round))
            if checkpoint is not None:
                booking.bind_place(completed, problem, mesh)
            stated = functools.partial(
                statement, algorithm, hyper, delta=delta, unit=unit, neighbours=neighbours,
                alongside=alongside, people=people, rows_each=identity.rows_each(data))
            metrics = functools.partial(
                _metrics, total, time.monotonic(), stated) if reports else None
            pieces = [min(every, total - start) for start in range(completed, total, every)]
            with (runs.bar(total, completed, progress and jax.process_index() == 0) as bar,
                  Supply(key, described, placed, pieces, completed, total) as supply):
                for rounds in pieces:
                    for share, count in supply.piece(rounds):
                        supply.wait(state)
                        state = _piece(placed, state, key, share, hyper, jnp.int32(count),
                                       runs.Functions.from_algorithm(algorithm), problem, places)
                    completed += rounds
                    booking.begin(completed)
                    folder.save(completed, state)
                    if bar is not None:
                        bar.update(rounds)
                    if callback is not None and _ends(callback, state, metrics and
                                                      functools.partial(metrics, completed)):
                        booking.end(state)
                        break
    return runs.Run.stated(state, stated(state))


def _checked(key: jax.Array, z: Saddle, hyper: Any, algorithm: Any, problem: types.AnyProblem,
             checkpoint: str | os.PathLike[str] | None, piece: int | None, people: int,
             shards: int | None) -> tuple[mechanism.Description, int]:
    """Refuses what `fit` cannot run; returns what is charged, and the rounds of a piece."""
    checks.exact_arithmetic()
    arguments.call(key, z, hyper, algorithm, problem)
    if checkpoint is not None:
        saved_runs.check_folder(checkpoint, key)
    described = algorithm.mechanism(hyper)
    mechanism.composed.check(described)
    for text in planning.warnings_of_public(hyper, problem):
        warnings.warn(text, stacklevel=3)
    piece = max(1, hyper.iterations // 100) if piece is None else piece
    checks.count("every", piece)
    checks.count("people", people)
    if shards is not None:
        checks.count("shards", shards)
    return described, piece


def _placed(data: PyTree, mesh: Mesh | None, shards: int | None, problem: types.AnyProblem,
            algorithm: Any, z: Saddle, hyper: Any) -> PyTree:
    """The rows where rounds read them; what is refused here is not charged."""
    sharding.check_records(data)
    placed = sharding.on_mesh(data, mesh, shards, grouped=isinstance(problem, types.GroupProblem))
    if not isinstance(placed, HostData):
        placed = sharding.as_rows(placed)
        runs.check_functions(algorithm, z, hyper, placed)
    return placed


def _replicated(state: StateT, mesh: Mesh | None, key: jax.Array, z: Saddle,
                settings: list[Any]) -> tuple[StateT, tuple[Any, ...] | None]:
    """The state on every device, and where its leaves lie; processes must agree on all of it."""
    if mesh is None:
        return state, None
    agreement.agree(mesh, key=jax.random.key_data(key), z=z, settings=json.dumps(settings).encode())
    state = sharding.replicated(state, mesh)
    return state, tuple(x.sharding for x in jax.tree.leaves(state))


def _metrics(total: int, start_time: float, stated: Callable[..., Any], completed: int,
             state: Any) -> Metrics:
    return Metrics(completed, total, int(state.spent), time.monotonic() - start_time,
                   functools.partial(stated, state))


def _ends(callback: Callable[..., Any], state: Any,
          metrics: Callable[[Any], Metrics] | None) -> bool:
    """Calls the callback with a copy of the state on the host; returns whether it ends the run."""
    with programs.briefly(False):  # the caller may train by another loss in it
        copy = sharding.on_host(state)
        ended = callback(copy) if metrics is None else callback(copy, metrics(copy))
    return bool((ended is True or getattr(ended, "dtype", None) == np.bool_) and ended)


# --- rows for the rounds: the data themselves, or what was gathered ahead on the host ---


class Supply(contextlib.AbstractContextManager["Supply"]):
    """Supplies the rows of a run's rounds, share by share, in order; a context, for its thread.

    Args:
      key: root key of the run.
      described: what was promised to the accountant, checked.
      data: on the devices, or `HostData`.
      pieces: rounds of each piece of the run.
      completed: rounds before the first piece.
      total: rounds of the run.

    Raises:
      ValueError: for `HostData` of another size, or if releases read every record, or read them
        otherwise than by one repeated sample.
    """

    def __init__(self, key: jax.Array, described: mechanism.Description, data: PyTree,
                 pieces: list[int], completed: int, total: int) -> None:
        self._data, self._pool, self._next = data, None, None
        self._secret = False  # whether rows are read at random places
        if not isinstance(data, HostData):
            return
        repeated, query = _readable(described, data)
        self._limit = mechanism.releases(repeated)
        self._per_round = self._limit // total
        size = self._per_round * mechanism.rows_read(query) * max(1, data.record_bytes)
        # rows of 64 MiB are sent together, by default
        self._max_rounds = min(max(pieces, default=1), data.rounds or max(1, 2**26 // size))
        self._host = _host()
        self._key = jax.device_put(key, self._host)  # the key is an argument: no program holds it
        self._repeated = jax.device_put(repeated, self._host)
        self._shares = _cut(completed, pieces, self._max_rounds)
        self._pool = ThreadPoolExecutor(1, "rows ahead")
        self._next = self._start()
        self._secret = query.sampling.secret
        if self._secret:
            data.read_at_random(True)

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        if self._secret:
            self._data.read_at_random(False)

    def piece(self, rounds: int) -> Iterator[tuple[PyTree, int]]:
        """Rows of the next `rounds` rounds, and for how many of them, until there are enough."""
        if self._pool is None:
            yield self._data, rounds
            return
        while rounds:
            assert self._next is not None
            (first, count), gathered = self._next
            window = self._window(gathered.result(), first)
            self._next = self._start()
            yield window, count
            rounds -= count

    def wait(self, state: Any) -> None:
        """Waits for a state that was made of what was sent: so that two shares are there, not more.

        To be called before the next share is used: it is on its way by then.
        """
        if self._pool is not None:
            jax.block_until_ready(state)

    # NumPy would warn, or raise, where a record does not fit a narrower type: of sampled ones only
    @np.errstate(all="ignore")
    def _gather(self, drawn: Sent) -> tuple[Sent, PyTree]:
        """Samples on the host, and their rows."""
        sent = jax.tree.map(np.asarray, drawn)
        return sent, self._data.take(sent.rows)

    @np.errstate(all="ignore")
    def _window(self, gathered: tuple[Sent, PyTree], first: int) -> Window:
        sent, rows = gathered
        return Window(**jax.device_put(dict(
            rows=rows, numbers=sent.rows, valid=sent.valid, fits=sent.fits, marks=sent.marks,
            first=np.int32(first))), population=self._data.population,
            described=reading.described(self._repeated))

    def _start(self) -> tuple[tuple[int, int], Future[Any]] | None:
        """Begins to gather the next share, on the other thread."""
        share = next(self._shares, None)
        if share is None:
            return None
        first, count = share[0] * self._per_round, share[1]
        # of one shape: a share that is shorter reads rows for later releases as well, or the last's
        spent = np.minimum(first + np.arange(self._max_rounds * self._per_round), self._limit - 1)
        drawn = _draw(self._key, self._repeated, jax.device_put(spent.astype(np.int32), self._host))
        assert self._pool is not None
        return (first, count), self._pool.submit(self._gather, drawn)


_draw = jax.jit(reading.samples_ahead)


def _cut(completed: int, pieces: list[int], max_rounds: int) -> Iterator[tuple[int, int]]:
    """First round and number of rounds of each share; no share reaches into the next piece."""
    for rounds in pieces:
        for start in range(0, rounds, max_rounds):
            yield completed + start, min(max_rounds, rounds - start)
        completed += rounds


def _readable(described: mechanism.Description, data: HostData) -> tuple[mechanism.Repeat, Any]:
    """The mechanism and its query, if its releases read samples that are known ahead."""
    if not isinstance(described, mechanism.Repeat) or not isinstance(
            described.query, mechanism.Query | mechanism.Resolvent):
        raise ValueError("HostData are for algorithms that repeat one query on samples of the "
                         "records: what others read next may depend on what they released. "
                         "Give the arrays themselves.")
    query, parts = described.query, described.parts
    required = parts * query.population
    if data.population < required or (parts == 1 and data.population != required):
        raise ValueError(f"HostData have {data.population} records, but the mechanism was "
                         f"described for {parts} part(s) of {query.population}.")
    return described, query


def _host() -> jax.Device | None:
    """The processor; None where it is hidden from JAX, and the device itself draws."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        return None
