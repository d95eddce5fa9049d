"""`python -m benchmarks.speed.rows_on_disk`: a round over up to 10^8 rows that no memory holds.

The same private AUC run with the same batch over rows on the device, over memory-mapped files of
as many rows, and over a reader that makes a record of its number when it is asked: for a linear
scorer, and for one with a hidden layer. The files are sparse: what is measured is drawing, mapping,
gathering and sending, not the speed of a disk. They are in the memory of the system ("files"), or
every page is brought there anew ("pages"). Host memory is that of the process alone, without pages
of files, which the system takes back.
"""

import functools
import mmap
import os
import pathlib
import statistics
import sys
import tempfile
import threading
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxminimax as jmm
from benchmarks.common import report
from jaxminimax import Saddle
from jaxminimax.releases.reading import sample_of_release

HIDDEN = 256
PROBLEM = {"linear": jmm.problems.linear_scorer,
           "mlp": lambda theta, x: jnp.maximum(x @ theta["w"] + theta["b"], 0) @ theta["v"]}


class Made:
    """Records that are functions of their numbers."""

    def __init__(self, count: int, features: int) -> None:
        self._count, self._features = count, features

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> tuple[np.ndarray, np.float32]:
        x = np.arange(number % 97, number % 97 + self._features, dtype=np.float32) % 7 - 3
        return x, np.float32(number % 3 == 0)


class Peak:
    """The most memory of the process, in bytes, over what it had; a context."""

    def __enter__(self) -> "Peak":
        self.bytes, self._before, self._stop = 0, _resident(), threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._stop.wait(0.02):
            self.bytes = max(self.bytes, _resident() - self._before)

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def _resident() -> int:
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return 1024 * int(line.split()[1])
    raise RuntimeError("Linux alone says how much memory of a process is not that of files.")


def _files(folder: pathlib.Path, count: int, features: int) -> tuple[np.ndarray, np.ndarray]:
    """Sparse files of zeros, mapped."""
    shapes = {"x": (count, features), "y": (count,)}
    for name, shape in shapes.items():
        np.lib.format.open_memmap(folder / f"{name}{count}.npy", mode="w+", dtype=np.float32,
                                  shape=shape)
    x, y = (np.load(folder / f"{name}{count}.npy", mmap_mode="r") for name in shapes)
    return x, y


def _in_memory(files: tuple[Any, ...]) -> None:
    """Brings all pages of files there, where there is room."""
    for x in files:
        x.reshape(-1)[::1024].sum()


def _not_in_memory(files: tuple[Any, ...]) -> None:
    """Takes all pages of files away."""
    for x in files:
        x._mmap.madvise(mmap.MADV_DONTNEED)
        with open(x.filename, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def start(workload: str, features: int) -> Saddle:
    """Where the runs begin."""
    if workload == "linear":
        return jmm.problems.auc_start(jnp.zeros(features, jnp.float32))
    w = np.random.default_rng(0).normal(size=(features, HIDDEN)).astype(np.float32)
    return jmm.problems.auc_start({"w": jnp.asarray(w), "b": jnp.zeros(HIDDEN, jnp.float32),
                                   "v": jnp.full(HIDDEN, HIDDEN**-0.5, jnp.float32)})


def seconds(data: Any, n: int, workload: str, args: Any) -> tuple[float, float]:
    """Time on the wall, and of the processors of this process, of a run."""
    query = jmm.Query(clip=Saddle(1.0, None), noise_multiplier=Saddle(1.0, None),
                      population=n, sampling=jmm.Poisson(rate=args.batch / n))
    hyper = jmm.sgda.Hyper(query=query, step=Saddle(0.1, 0.1), iterations=args.iterations)
    z = start(workload, args.features)
    wall, cpu = time.perf_counter(), time.process_time()
    state = jmm.fit(jax.random.key(0), z, data, hyper, jmm.sgda, _problem(workload), delta=1e-9,
                    every=max(1, args.iterations // 4), progress=False).state
    jax.block_until_ready(state)
    return time.perf_counter() - wall, time.process_time() - cpu


@functools.cache
def _problem(workload: str) -> jmm.Problem:
    return jmm.problems.auc(PROBLEM[workload], prior=0.3, radius=Saddle(10.0, 10.0))


def draws(count: int, batches: tuple[int, ...]) -> list[dict[str, Any]]:
    """Time of the processor for the numbers of one sample of so many rows, the least of five."""
    result = []
    for batch in batches:
        query = jmm.Query(clip=Saddle(1.0, None), noise_multiplier=Saddle(1.0, None),
                          population=count, sampling=jmm.Poisson(rate=batch / count))
        once = jmm.Repeat(query=query, times=10)
        draw = jax.jit(lambda k, once=once: sample_of_release(jax.random.key(0), once, k).rows)
        taken = []
        for k in range(6):
            begun = time.process_time()
            jax.block_until_ready(draw(jnp.int32(k)))
            taken.append(time.process_time() - begun)
        cost = 1e3 * min(taken[1:])
        result.append({"rows": count, "batch": batch, "cpu ms": cost})
        print(f"{count:,d} rows, a sample of {batch:,d}: {cost:.2f} ms")
    return result


def measured(args: Any, folder: pathlib.Path) -> list[dict[str, Any]]:
    """All, in turn with as many rows on the device, or `args.resident`."""
    result = []
    for n in args.rows:
        files = _files(folder, n, args.features)
        resident = min(n, args.resident)
        device = tuple(jnp.zeros((resident, *x.shape[1:]), x.dtype) for x in files)
        host = jmm.placement.HostData(files)
        ways: dict[str, Any] = {"device": device, "files": host}
        if n == max(args.rows):
            ways["pages"] = host
            ways["reader"] = jmm.placement.HostData(Made(n, args.features))
        for workload in args.workloads:
            here = [way for way in ways if workload == "linear" or way in ("device", "files")]
            times: dict[str, list[Any]] = {way: [] for way in here}
            peaks = dict.fromkeys(here, 0)
            for turn in range(args.repeats + 1):  # the first compiles
                for way in here:
                    if way != "reader":
                        (_not_in_memory if way == "pages" else _in_memory)(files)
                    with Peak() as peak:
                        taken = seconds(ways[way], resident if way == "device" else n, workload,
                                        args)
                    if turn:
                        times[way].append(taken)
                        peaks[way] = max(peaks[way], peak.bytes)
            for way in here[int(resident < n):]:
                wall, cpu = (1e3 * statistics.median(x) / args.iterations
                             for x in zip(*times[way], strict=True))
                over = (statistics.median(a[k] / b[k] for a, b in zip(
                    times[way], times["device"], strict=True)) for k in range(2))
                result.append({
                    "workload": workload, "data": way, "rows": n,
                    "bytes": 4 * n * (args.features + 1), "cpu ms per round": cpu,
                    "wall ms per round": wall,
                    **dict(zip(("wall over device", "cpu over device"), over, strict=True)),
                    "host MB": peaks[way] / 1e6, "load": os.getloadavg()[0]})
                print("{workload:6s} {data:7s} {rows:12,d} rows  {cpu ms per round:7.3f} ms of "
                      "processor, {cpu over device:5.2f} of the device's; wall {wall ms per round:"
                      "7.3f} ms, {wall over device:5.2f}; {host MB:6.1f} MB; load {load:.1f}"
                      .format(**result[-1]), flush=True)
        del ways, device
    return result


def main(argv: list[str] | None = None) -> int:
    """Runs all, in turn; 0."""
    p = report.Parser(__file__, __doc__, "json")
    p.add_argument("--rows", type=report.count, nargs="+",
                   default=[1_000_000, 10_000_000, 100_000_000])
    p.add_argument("--features", type=report.count, default=16)
    p.add_argument("--batch", type=report.count, default=1024, help="expected, of a release")
    p.add_argument("--iterations", type=report.count, default=400)
    p.add_argument("--repeats", type=report.count, default=3)
    p.add_argument("--resident", type=report.count, default=10_000_000,
                   help="the most rows to have on the device; more are compared with these")
    p.add_argument("--workloads", nargs="+", choices=tuple(PROBLEM), default=list(PROBLEM))
    args = p.parse_args(argv)
    with tempfile.TemporaryDirectory() as name:
        result = measured(args, pathlib.Path(name))
    if args.json is not None:
        report.save(args, {"rows": result, "draws": draws(10**9, (1024, 8192, 65_536))})
    return 0


if __name__ == "__main__":
    sys.exit(main())
