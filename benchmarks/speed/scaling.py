"""What a step on D devices costs: rows of each, bytes between them.

    python -m benchmarks.speed.scaling [--markdown FILE]

One release of the AUC problem is compiled for 1, 2, 4 and 8 forced host devices, with a million
rows that need not exist, and the compiled program of one device is read: its collectives, and the
rows that it gathers, for each sampling. Times would say nothing, for the devices share the cores of
one host; nor would XLA's count of arithmetic, where a large sum is made in slices, for it counts
the body of a loop once. The model that the numbers are held against is

    rows(D)   = `pass_rows`, of a sample of b rows; for D = 1 all of its slots
    bytes(D)  = 2 (D - 1) / D * 4 bytes * parameters, of one all-reduce, and nothing else.
"""

import math
import os
import pathlib
import re
import subprocess
import sys
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jaxminimax as jmm
from benchmarks.common import report
from jaxminimax import Saddle
from jaxminimax.placement import shard_sums

DEVICES = (1, 2, 4, 8)
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute",
               "collective-broadcast")
WIDTH = {"f64": 8, "s64": 8, "u64": 8, "f32": 4, "s32": 4, "u32": 4, "bf16": 2, "f16": 2, "s8": 1,
         "u8": 1, "pred": 1}
RESULT = pathlib.Path(__file__).parent / "results/scaling.md"
# bytes a second in one direction, as the makers print them
LINKS = {"NVLink 4 (8 GPUs of one host)": 450e9, "400 Gbit/s network": 50e9,
         "100 Gbit/s network": 12.5e9}


class Step(NamedTuple):
    """One device's share of a release.

    Attributes:
      devices: D.
      rows: that it works on at once.
      gathered: rows that its program takes out of its shard at once.
      flops: of its program, as XLA counts them, a loop's body once.
      collectives: (kind, bytes of the result) of each.
      parameters: of both players.
      size: of the sums of both players, in bytes.
    """

    devices: int
    rows: int
    gathered: int
    flops: float
    collectives: list[tuple[str, int]]
    parameters: int
    size: int

    @property
    def moved(self) -> float:
        """Bytes that a ring sends from each device."""
        return 2 * (self.devices - 1) / self.devices * sum(size for _, size in self.collectives)


def collectives(text: str) -> list[tuple[str, int]]:
    """(kind, bytes) of the collectives of a compiled program."""
    result = []
    for line in text.splitlines():
        made = re.search(rf"= (.*?) ({'|'.join(COLLECTIVES)})(?:-start)?\(", line)
        if made:
            parts = re.findall(r"([a-z]+\d*)\[([\d,]*)\]", made[1])
            sizes = [WIDTH[kind] * math.prod(int(n) for n in shape.split(",") if n)
                     for kind, shape in parts]
            result.append((made[2], sum(sizes)))
    return result


def gathered(text: str, dim: int) -> int:
    """The most rows `[r, dim]` that one gather of a lowered program makes."""
    return max(int(rows) for rows in re.findall(rf"gather.* -> tensor<(\d+)x{dim}xf32>", text))


def samplings(population: int, batch: int) -> dict[str, jmm.mechanism.Sampling]:
    """The samplings of b rows, by their names in the table."""
    return {"Poisson": jmm.Poisson(rate=batch / population),
            "Poisson, drawn again": jmm.Poisson(rate=batch / population, again=0.2),
            "fixed size, with replacement": jmm.FixedSize(batch=batch, replacement=True),
            "fixed size, without": jmm.FixedSize(batch=batch),
            "disjoint": jmm.Disjoint(batch=batch)}


def compiled(devices: int, sampling: jmm.mechanism.Sampling, *, population: int, dim: int,
             hidden: int) -> Step:
    """A release of DP-SGDA on an MLP's AUC, compiled for D devices; no row is made."""
    mesh = Mesh(jax.devices()[:devices], ("data",))
    problem = jmm.problems.auc(jmm.problems.mlp_scorer, prior=0.5, radius=Saddle(100.0, 100.0))
    z = jmm.problems.auc_start(jmm.problems.mlp_init(jax.random.key(0), dim, hidden))
    query = jmm.Query(clip=Saddle(1.0, 1.0), noise_multiplier=Saddle(1.0, 1.0),
                      sampling=sampling, population=population)
    size = -(-population // devices)
    spread = NamedSharding(mesh, PartitionSpec("data"))
    rows = (jax.ShapeDtypeStruct((devices * size, dim), jnp.float32, sharding=spread),
            jax.ShapeDtypeStruct((devices * size,), jnp.int32, sharding=spread))
    data = jmm.placement.Sharded(rows=rows, population=population, mesh=mesh)
    mechanism = jmm.mechanism.Repeat(query=query, times=10)

    def release(key: jax.Array, spent: jax.Array, z: Saddle, data: Any) -> Saddle:
        return jmm.release(key, mechanism, spent, problem, z, data)

    lowered = jax.jit(release).lower(jax.random.key(0), jnp.int32(0), z, data)
    program: Any = lowered.compile()
    return Step(devices, shard_sums.pass_rows(query, size, devices),
                gathered(lowered.as_text(), dim), program.cost_analysis()["flops"],
                collectives(program.as_text()),
                sum(x.size for x in jax.tree.leaves(z)),
                sum(x.nbytes for x in jax.tree.leaves(z)))


def markdown(steps: list[Step], batch: int) -> str:
    """The measured table."""
    lines = ["| devices D | rows a device | over b / D | collectives | bytes of their results | "
             "bytes sent a device |", "|--:|--:|--:|---|--:|--:|"]
    for s in steps:
        kinds = ", ".join(kind for kind, _ in s.collectives) or "none"
        lines.append(
            f"| {s.devices} | {s.rows:,} | {s.rows * s.devices / batch:.2f} | {kinds} | "
            f"{sum(size for _, size in s.collectives):,} | {s.moved:,.0f} |")
    lines += ["", f"The model has {steps[0].parameters:,} parameters. The next table divides the "
              f"bytes that each of {steps[-1].devices} devices sends by the speed of a link.",
              "", "| link | seconds a step |", "|---|--:|",
              *(f"| {name} | {steps[-1].moved / speed:.2e} |" for name, speed in LINKS.items())]
    return "\n".join(lines)


def by_sampling(steps: dict[str, list[Step]]) -> str:
    """The table of the rows that a device gathers at once."""
    lines = ["| rows that a device gathers at once | "
             + " | ".join(f"D = {devices}" for devices in DEVICES) + " |",
             "|---|" + "--:|" * len(DEVICES)]
    for name, row in steps.items():
        lines.append(f"| {name} | " + " | ".join(f"{step.gathered:,}" for step in row) + " |")
    return "\n".join(lines)


def main() -> None:
    """Prints the tables, from a process that has 8 devices."""
    parser = report.Parser(__file__, __doc__.split("\n")[0], compiles=True)
    parser.add_argument("--markdown", type=pathlib.Path, help="where to write the table")
    parser.add_argument("--population", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--dim", type=int, default=784)
    parser.add_argument("--hidden", type=int, default=256)
    options = parser.parse_args()
    if jax.device_count() < max(DEVICES):
        force, given = "--xla_force_host_platform_device_count=8", os.environ.get("XLA_FLAGS", "")
        if force in given:
            parser.error(f"XLA_FLAGS={given!r} gives {jax.device_count()} devices instead of 8")
        flags = f"{force} {given}"  # first: what follows a word without dashes is not read
        sys.exit(subprocess.run([sys.executable, "-m", "benchmarks.speed.scaling", *sys.argv[1:]],
                                env=os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
                                check=False).returncode)
    steps = {name: [compiled(count, sampling, population=options.population, dim=options.dim,
                             hidden=options.hidden) for count in DEVICES]
             for name, sampling in samplings(options.population, options.batch).items()}
    text = f"{markdown(steps['Poisson'], options.batch)}\n\n{by_sampling(steps)}"
    print(text)
    if options.markdown:
        options.markdown.write_text(
            "# A release on D devices\n\nThe numbers are read from the compiled program of one "
            f"release for the AUC of an MLP {options.dim}-{options.hidden}-1. It has "
            f"{options.population:,} rows and Poisson samples of b = {options.batch:,} expected "
            f"rows, on forced host devices with jax {jax.__version__}. `docs/scale.md` explains "
            "the columns. The command `python -m benchmarks.speed.scaling --markdown "
            f"benchmarks/speed/results/scaling.md` made this page.\n\n{text}\n")


if __name__ == "__main__":
    main()
