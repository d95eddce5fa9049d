"""The rows of `benchmarks.speed.throughput` as tables and a page; neither JAX nor torch."""

from typing import Any

from benchmarks.common import report
from benchmarks.speed.throughput import cases

OURS, SPECIAL = "ours", "specialised scan"
# where each peer lives, and its order
PEERS = {
    OURS: "here", "ours, Poisson": "here", "ours, Poisson again": "here",
    "ours, Poisson alone": "here", SPECIAL: "here",
    "specialised scan, long words": "here", "specialised scan, resident norms": "here",
    "plain vmap, scan": "here", "plain vmap, loop": "here", "optax, loop": "here",
    "NumPy by hand": "here", "NumPy by hand, resident norms": "here", "not private, scan": "here",
    "jax_privacy": "privacy", "jax_privacy microbatched": "privacy", "jax_privacy, scan": "privacy",
    "jax_privacy, Poisson": "privacy", "jax_privacy, Poisson, microbatched": "privacy",
    "Opacus hooks": "torch", "Opacus functorch": "torch", "Opacus ghost": "torch",
    "PyTorch by hand, compiled": "torch", "PyTorch by hand, resident norms": "torch",
    "torch.func vmap, compiled": "torch",
}
# on one case: what other algorithms and samples of the library cost
ALGORITHMS = ("ours, disjoint", "ours, extragradient", "ours, gda")
# what is compared with the library: other work, or its own variants, is not
NOT_A_RIVAL = (OURS, "ours, Poisson", "ours, Poisson again", "ours, Poisson alone",
               SPECIAL, "specialised scan, long words", "specialised scan, resident norms",
               "not private, scan", "jax_privacy, Poisson", "jax_privacy, Poisson, microbatched",
               *ALGORITHMS)
TITLES = {
    "linear 22": "linear scorer, 22 numbers", "linear 784": "linear scorer, 784 numbers",
    "mlp": "MLP 784-256-1", "cnn": "small CNN", "attention": "small attention model",
    "rnn": "recurrent network, 28 steps of 256", "lora": "transformer of 4 layers, LoRA of rank 8",
    "resnet": "residual network, 9 convolutions", "cifar": "CNN of 6 convolutions, 32 x 32 x 3",
    "vit": "ViT-tiny", "vit-lora": "ViT-tiny, LoRA of rank 8",
}
_ORDER = [*PEERS, *ALGORITHMS]


def place(r: dict[str, Any]) -> tuple[int, int, int]:
    """Of a row among others."""
    return (cases.WORKLOADS.index(r["workload"]), r["batch"], _ORDER.index(r["peer"]))


def targets(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the library set out to reach, and what it reached."""
    at = {(r["workload"], r["batch"], r["peer"]): r for r in rows}

    def against(peer: str, workload: str, wanted: float) -> dict[str, Any] | None:
        batches = [b for w, b, p in at if (w, p) == (workload, peer)]
        result = [at[workload, b, peer]["ratio"] for b in batches]
        return None if not result else {
            "target": f"{workload}, batch {', '.join(map(str, batches))}: at least {wanted:.3g} x "
                      f"{peer}",
            "wanted": wanted, "least": min(result), "most": max(result),
            "reached": min(result) >= wanted}

    result = [against(peer, workload, 1.0) for workload in cases.WORKLOADS
              for peer in PEERS if peer not in NOT_A_RIVAL]
    result += [against("jax_privacy microbatched", "mlp", 10.0),
               against("Opacus ghost", "mlp", 3.0),
               against("PyTorch by hand, compiled", "mlp", 1.2)]
    for batch in (64, 256):
        if ("linear 22", batch, "jax_privacy") in at:
            ratio = at["linear 22", batch, "jax_privacy"]["ratio"]
            result.append({"target": f"linear 22, batch {batch}: at least 10 x jax_privacy",
                           "wanted": 10.0, "least": ratio, "most": ratio, "reached": ratio >= 10})
    result += [against(peer, workload, 1 / 1.1) for workload in cases.WORKLOADS
               for peer in PEERS if peer.startswith(SPECIAL)]
    made = [f for f in result if f is not None]
    private, open_ = (at.get(("mlp", 4096, p)) for p in (OURS, "not private, scan"))
    if private and open_ and private["peak_bytes"] and open_["peak_bytes"]:
        more = private["peak_bytes"] / open_["peak_bytes"]
        made.append({"target": "mlp, batch 4096: peak memory below 1.5 x the step without privacy",
                     "wanted": 1.5, "least": more, "most": more, "reached": more < 1.5})
    return made


def _table(rows: list[dict[str, Any]]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    return ("workload", "batch", "peer", "us a step", "examples a second", "ratio", "quartiles",
            "rounds", "peak MB", "compile s", "of the limit"), [
        (r["workload"], str(r["batch"]), r["peer"], f"{1e6 / r['steps_per_second']:.1f}",
         f"{r['examples_per_second']:,.0f}", f"{r['ratio']:.2f}",
         f"{r['ratio_low']:.2f} to {r['ratio_high']:.2f}", str(r["rounds"]),
         "-" if r["peak_bytes"] is None else f"{r['peak_bytes'] / 1e6:.1f}",
         f"{r['compile_seconds']:.1f}", f"{r['fraction_of_limit']:.3f}") for r in rows]


def _lines(record: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Of targets, and of what was not run."""
    return [f"{'reached' if t['reached'] else 'NOT reached'}: {t['target']}: "
            f"{t['least']:.2f} to {t['most']:.2f}" for t in record["targets"]], [
        *record["skipped"], *(f"{r['workload']}, batch {r['batch']}: {r['peer']} not run: "
                              f"{r['why']}" for r in record["not_run"]),
        *record["unmeasured"]]


def growth(rows: list[dict[str, Any]]) -> list[str]:
    """A line for each curve, and how far its ends are apart."""
    said = []
    for what, over in dict.fromkeys((r["what"], r["over"]) for r in rows):
        curve = [r for r in rows if (r["what"], r["over"]) == (what, over)]
        points = ", ".join(f"{r['number']:,}: {1e6 * r['seconds']:.1f} us "
                           f"(compiled in {r['compile_seconds']:.1f} s)" for r in curve)
        said.append(f"{what}, by {over}: {points}; last over first "
                    f"{curve[-1]['seconds'] / curve[0]['seconds']:.2f}")
    if rows:
        said.append("over devices: see `python -m benchmarks.speed.scaling`")
    return said


def text(record: dict[str, Any]) -> str:
    """For a terminal."""
    reached, not_run = _lines(record)
    return "\n\n".join([report.table(*_table(record["rows"])), "\n".join(reached),
                        "\n".join([*not_run, *growth(record["growth"])])])


def markdown(record: dict[str, Any]) -> str:
    """The page of results."""
    made, limits, given = record["environment"], record["limits"], record["arguments"]
    reached, not_run = _lines(record)
    versions = "; ".join(f"{k} {made[k]}" for k in made if ": " in k or k == "jax")
    clock = ("Seconds are of the processor, so that others on the machine count less"
             if given["clock"] == "cpu" else "Seconds are of the wall clock")
    parts = [
        "# Steps a second",
        f"`python -m benchmarks.speed.throughput --json --markdown --plot` on "
        f"{given['cores'] or 'all'} core(s) of: {made['processor']} ({made['platform']}); "
        f"{versions}.\n{clock}; read the ratios.\n"
        "`ratio`: the library's steps per second over the peer's, above 1 the library is faster; "
        "the median over rounds in which peers take turns, with its quartiles.\n"
        f"\"of the limit\": copying the rows at {limits['copy_bytes_per_second'] / 1e9:.1f} GB/s "
        f"(read and write), products at {limits['matmul_flops_per_second'] / 1e9:.0f} GFLOP/s, "
        f"noise at {1e9 * limits['seconds_per_normal']:.1f} ns a number, over the time taken.\n"
        "Peak memory: of JAX programs what the compiler allocates, of the others the growth of "
        "the resident set. Compile times are processor time.\n"
        "\"resident norms\": the rows' squared norms are computed once and kept with them. The "
        "library, jax_privacy and Opacus take norms from the layers' inputs, and cannot.",
        "```\n" + report.table(*_table(record["rows"])) + "\n```",
        "## Targets", "\n".join(f"- {line}" for line in reached),
        "## Not run", "\n".join(f"- {line}" for line in not_run) or "Nothing.",
        "## Growth", "\n".join(f"- {line}" for line in growth(record["growth"])) or "Not run."]
    return "\n\n".join(parts) + "\n"
