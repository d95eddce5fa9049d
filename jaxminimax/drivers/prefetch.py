"""Rows for the rounds of a run: the data themselves, or what was gathered ahead on the host.

The host draws the samples of coming releases, many in one program, by the very function that a
release on data of the device calls, with the same key, and gathers their rows. A sample is a
function of key, release and description alone, so it is drawn once: the release takes it as it was
sent, if description and mark are its own (`host_data.mark`). So neither the law of the sample nor
the answer can depend on where the data are; rows of another key or release make NaN.

The host knows the sample. It holds the data and the key anyhow, and tells nobody: row numbers go
to the device with the rows, and into no state.
"""

import contextlib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from jaxminimax.base.types import PyTree
from jaxminimax.mechanism import Query, Repeat, Resolvent, releases, rows_read
from jaxminimax.mechanism.description import Mechanism
from jaxminimax.placement import sharding
from jaxminimax.placement.host_data import HostData, Sent, Window, joined
from jaxminimax.placement.sent_rows import HostShards
from jaxminimax.releases.reading import described, samples_ahead

_BYTES = 2**26  # of the rows that are sent together, by default


class Supply(contextlib.AbstractContextManager["Supply"]):
    """Supplies the rows of a run's rounds, share by share, in order; a context, for its thread.

    Args:
      key: root key of the run.
      mechanism: what was promised to the accountant, checked.
      data: on the devices, `HostData`, or those of the processes of a mesh.
      pieces: rounds of each piece of the run.
      done: rounds before the first piece.
      total: rounds of the run.

    Raises:
      ValueError: for `HostData` of another size, or if releases read every record, or read them
        otherwise than by one repeated sample.
    """

    def __init__(self, key: jax.Array, mechanism: Mechanism, data: PyTree, pieces: list[int],
                 done: int, total: int) -> None:
        self._data, self._pool, self._next = data, None, None
        self._held: HostData | None = None  # rows that are read at random places
        if not isinstance(data, HostData | HostShards):
            return
        self._ahead: HostData | HostShards = data
        repeated, self._query = _readable(mechanism, data)
        self._limit, self._per_round = releases(repeated), releases(repeated) // total
        held = data.data if isinstance(data, HostShards) else data
        rows = (data.rows_sent(self._query) if isinstance(data, HostShards)
                else rows_read(self._query))
        size = self._per_round * rows * max(1, held.record_bytes)
        self._most = min(max(pieces, default=1), held.rounds or max(1, _BYTES // size))
        self._host = _host()
        self._key = jax.device_put(key, self._host)  # the key is an argument: no program holds it
        self._repeated = jax.device_put(repeated, self._host)
        self._shares = _cut(done, pieces, self._most)
        self._pool = ThreadPoolExecutor(1, "rows ahead")
        self._next = self._start()
        if self._query.sampling.secret:
            held.read_at_random(True)
            self._held = held

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        if self._held is not None:
            self._held.read_at_random(False)

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
        """Samples on the host, and their rows; on a mesh, by shards."""
        sent = jax.tree.map(np.asarray, drawn)
        if isinstance(self._ahead, HostShards):
            numbers, rows = self._ahead.gather(self._query, sent.rows, sent.valid)
            return sent._replace(rows=numbers, valid=None), rows
        return sent, self._ahead.take(joined(sent.rows, sent.high))

    @np.errstate(all="ignore")
    def _window(self, gathered: tuple[Sent, PyTree], first: int) -> Window:
        (sent, rows), words = gathered, described(self._repeated)
        if isinstance(self._ahead, HostShards):
            return self._ahead.window(sent, rows, first, words)
        return Window(**jax.device_put(dict(
            rows=rows, numbers=sent.rows, high=sent.high, valid=sent.valid, fits=sent.fits,
            marks=sent.marks, first=np.int32(first))), population=self._ahead.population,
            described=words)

    def _start(self) -> tuple[tuple[int, int], Future[Any]] | None:
        """Begins to gather the next share, on the other thread."""
        share = next(self._shares, None)
        if share is None:
            return None
        first, count = share[0] * self._per_round, share[1]
        # of one shape: a share that is shorter reads rows for later releases as well, or the last's
        spent = np.minimum(first + np.arange(self._most * self._per_round), self._limit - 1)
        drawn = _draw(self._key, self._repeated,
                      jax.device_put(spent.astype(np.int32), self._host))
        assert self._pool is not None
        return (first, count), self._pool.submit(self._gather, drawn)


_draw = jax.jit(samples_ahead)


def _cut(done: int, pieces: list[int], most: int) -> Iterator[tuple[int, int]]:
    """First round and number of rounds of each share; no share reaches into the next piece."""
    for rounds in pieces:
        for start in range(0, rounds, most):
            yield done + start, min(most, rounds - start)
        done += rounds


def _readable(mechanism: Mechanism, data: HostData | HostShards) -> tuple[Repeat, Any]:
    """The mechanism and its query, if its releases read samples that are known ahead.

    On a mesh, a `Query`; else a `Resolvent` too.
    """
    if not isinstance(mechanism, Repeat) or not isinstance(mechanism.query, Query | Resolvent):
        raise ValueError("HostData are for algorithms that repeat one query on samples of the "
                         "records: what others read next may depend on what they released. "
                         "Give the arrays themselves.")
    query, parts = mechanism.query, mechanism.parts
    if isinstance(data, HostShards) and not isinstance(query, Query):
        sharding.refuse_hosts()
    needed = parts * query.population
    if data.population < needed or (parts == 1 and data.population != needed):
        raise ValueError(f"HostData have {data.population} records, but the mechanism was "
                         f"described for {parts} part(s) of {query.population}.")
    return mechanism, query


def _host() -> jax.Device | None:
    """The processor; None where it is hidden from JAX, and the device itself draws."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        return None
