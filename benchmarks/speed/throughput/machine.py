"""What the benchmark of steps runs on: its name, and the cores that it stays on."""

import contextlib
import os
import pathlib
import platform
import sys


def processor() -> str:
    """The name of what the steps run on."""
    import jax

    if jax.default_backend() != "cpu":
        return jax.devices()[0].device_kind
    with contextlib.suppress(OSError):
        for line in pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def pin(cores: int, module: str = "benchmarks.speed.throughput") -> None:
    """Starts the command again on so many cores, unless it is there; libraries count at loading."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    mine = sorted(os.sched_getaffinity(0))
    if len(mine) <= cores and all(os.environ.get(name) == str(cores) for name in names):
        return
    os.sched_setaffinity(0, mine[-cores:])
    more = dict.fromkeys(names, str(cores))
    if cores == 1:
        more["XLA_FLAGS"] = (os.environ.get("XLA_FLAGS", "") + " --xla_cpu_multi_thread_eigen=false"
                             " intra_op_parallelism_threads=1").strip()
    os.execve(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]],
              {**os.environ, **more})
