"""`python -m benchmarks.rows_on_disk`: a round over up to 10^8 rows that no memory holds.

The same private AUC run with the same batch over rows on the device, over memory-mapped files of
more and more rows, and over a reader that makes a record of its number when it is asked. The files
are sparse: what is measured is drawing, mapping, gathering and sending, not the speed of a disk.
Host memory is that of the process alone, without pages of files, which the system takes back.
"""

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
from benchmarks import host_data, report
from jaxminimax import Saddle
from jaxminimax.door.samples import sample_of_release


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


def parser() -> report.Parser:
    p = report.Parser(prog="python -m benchmarks.rows_on_disk", description=__doc__)
    p.add_argument("--rows", type=report.count, nargs="+",
                   default=[1_000_000, 10_000_000, 100_000_000])
    p.add_argument("--features", type=report.count, default=16)
    p.add_argument("--batch", type=report.count, default=1024, help="expected, of a release")
    p.add_argument("--iterations", type=report.count, default=200)
    p.add_argument("--repeats", type=report.count, default=5)
    p.add_argument("--json", type=report.output(".json"))
    return p


def _files(folder: pathlib.Path, count: int, features: int) -> tuple[np.ndarray, np.ndarray]:
    """Sparse files of zeros, mapped."""
    shapes = {"x": (count, features), "y": (count,)}
    for name, shape in shapes.items():
        np.lib.format.open_memmap(folder / f"{name}{count}.npy", mode="w+", dtype=np.float32,
                                  shape=shape)
    x, y = (np.load(folder / f"{name}{count}.npy", mmap_mode="r") for name in shapes)
    return x, y


def draws(count: int, batches: tuple[int, ...]) -> list[dict[str, Any]]:
    """Time of the processor for the numbers of one sample of so many rows, the least of five."""
    found = []
    for batch in batches:
        query = jmm.Query(clip=Saddle(1.0, None), noise_multiplier=Saddle(1.0, None),
                          population=count, sampling=jmm.Poisson(rate=batch / count))
        once = jmm.Repeat(query=query, times=10)
        draw = jax.jit(lambda k, once=once: sample_of_release(jax.random.key(0), once, k)[1].rows)
        taken = []
        for k in range(6):
            begun = time.process_time()
            jax.block_until_ready(draw(jnp.int32(k)))
            taken.append(time.process_time() - begun)
        found.append({"rows": count, "batch": batch, "cpu ms": 1e3 * min(taken[1:])})
        print("{rows:,d} rows, a sample of {batch:,d}: {cpu ms:.2f} ms".format(**found[-1]))
    return found


def main(argv: list[str] | None = None) -> int:
    """Runs all, in turn; 0."""
    args = parser().parse_args(argv)
    problem = jmm.problems.auc(jmm.problems.linear_scorer, prior=0.3, radius=Saddle(10.0, 10.0))
    found = []
    with tempfile.TemporaryDirectory() as folder:
        least, most = min(args.rows), max(args.rows)
        jobs: list[tuple[str, int, Any]] = [
            ("device", least, (jnp.zeros((least, args.features), jnp.float32),
                               jnp.zeros(least, jnp.float32)))]
        jobs += [("files", n, jmm.HostData(_files(pathlib.Path(folder), n, args.features)))
                 for n in args.rows]
        jobs.append(("reader", most, jmm.HostData(Made(most, args.features))))
        times: list[list[tuple[float, float]]] = [[] for _ in jobs]
        peaks = [0] * len(jobs)
        for turn in range(args.repeats + 1):  # the first compiles
            for k, (_, n, data) in enumerate(jobs):
                query = jmm.Query(clip=Saddle(1.0, None), noise_multiplier=Saddle(1.0, None),
                                  population=n, sampling=jmm.Poisson(rate=args.batch / n))
                hyper = jmm.sgda.Hyper(query=query, step=Saddle(0.1, 0.1),
                                       iterations=args.iterations)
                with Peak() as peak:
                    wall, cpu, _ = host_data.seconds(data, hyper, problem, args.features)
                if turn:
                    times[k].append((wall, cpu))
                    peaks[k] = max(peaks[k], peak.bytes)
        for (way, n, _), taken, more in zip(jobs, times, peaks, strict=True):
            found.append({
                "data": way, "rows": n, "bytes": 4 * n * (args.features + 1),
                "cpu ms per round": 1e3 * statistics.median(c for _, c in taken)
                / args.iterations,
                "cpu over device": statistics.median(
                    c / d for (_, c), (_, d) in zip(taken, times[0], strict=True)),
                "host MB": more / 1e6})
            print("{data:7s} {rows:12,d} rows  {cpu ms per round:7.3f} ms of processor a round  "
                  "{cpu over device:5.2f} of the device's  {host MB:6.1f} MB".format(**found[-1]))
    if args.json is not None:
        report.write_json(args.json, {
            "environment": report.environment(),
            "arguments": {k: v for k, v in vars(args).items() if k != "json"},
            "rows": found, "draws": draws(10**9, (1024, 8192, 65_536))})
    return 0


if __name__ == "__main__":
    sys.exit(main())
