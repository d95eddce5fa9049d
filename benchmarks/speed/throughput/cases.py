"""What is timed: the workloads in NumPy, closed-form norms, and the clock. Neither JAX nor torch.

One step of DP-SGDA on the saddle problem of `jaxminimax.problems.auc`, with w = (theta, a, b) and
a scalar v: rows drawn from N resident ones, per-example gradients of both players clipped to
`CLIP`, Gaussian noise of `NOISE` clip norms on each sum, division by the batch size, steps of
`STEP`, w projected to a ball and v to an interval. Every environment reads these numbers.
"""

import ctypes
import dataclasses
import functools
import gc
import json
import os
import pathlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

Arrays = dict[str, Any]  # by name: parameters, or their gradients
N = 60_000
PRIOR = 0.3
CLIP, NOISE, STEP, RADIUS = (4.0, 1.0), (1.0, 1.0), (0.05, 0.05), (10.0, 10.0)
TOKENS, WIDTH = 28, 32  # of the attention model
STEPS = 28  # of the recurrent network
# of the transformer; its tokens hold 12 numbers each
LAYERS, LORA, PLACES, HEADS, RANK, INNER = 4, 128, 64, 4, 8, 256
# of the residual network: channels into a block and out of it, stride; groups of its norms
STAGES, GROUPS = ((16, 16, 1), (16, 32, 2), (32, 64, 2)), 4
# of pictures of 32 x 32 x 3: channels of the convolutions; layers and width of ViT-tiny, and its
# heads, over 64 tokens, each a patch of 4 x 4 pixels
CHANNELS, DEPTH, BREADTH, VIEWS = (3, 32, 32, 64, 64, 128, 128), 12, 192, 3


def _residual() -> dict[str, tuple[int, ...]]:
    first, last = STAGES[0][0], STAGES[-1][1]
    made: dict[str, tuple[int, ...]] = {"K0": (3, 3, 1, first), "g0": (first,), "h0": (first,)}
    for i, (inputs, channels, _) in enumerate(STAGES, 1):
        for half, into in (("a", inputs), ("b", channels)):
            made |= {f"K{i}{half}": (3, 3, into, channels), f"g{i}{half}": (channels,),
                     f"h{i}{half}": (channels,)}
        if inputs != channels:
            made[f"K{i}s"] = (1, 1, inputs, channels)
    return {**made, "W2": (last,)}


SHAPES: dict[str, dict[str, tuple[int, ...]]] = {
    "linear 22": {"k": (22,)},
    "linear 784": {"k": (784,)},
    "mlp": {"W1": (784, 256), "b1": (256,), "W2": (256,)},
    "cnn": {"K1": (4, 4, 1, 16), "c1": (16,), "K2": (4, 4, 16, 32), "c2": (32,),
            "W1": (800, 32), "b1": (32,), "W2": (32,)},
    "attention": {"E": (28, WIDTH), "Q": (WIDTH, WIDTH), "K": (WIDTH, WIDTH), "V": (WIDTH, WIDTH),
                  "O": (WIDTH, WIDTH), "W2": (WIDTH,)},
    "rnn": {"U": (784 // STEPS, 256), "V": (256, 256), "W2": (256,)},
    "lora": {**{f"A{k}": (LAYERS, LORA, RANK) for k in "qkvo"},
             **{f"B{k}": (LAYERS, RANK, LORA) for k in "qkvo"}, "W2": (LORA,)},
    "resnet": _residual(),
}
WORKLOADS = tuple(SHAPES)
VIT = {"E": (48, BREADTH), "P": (PLACES, BREADTH),
       **dict.fromkeys("qkvo", (DEPTH, BREADTH, BREADTH)),
       "up": (DEPTH, BREADTH, 4 * BREADTH), "down": (DEPTH, 4 * BREADTH, BREADTH)}
# models of such pictures, which no peer of another library has
PICTURES: dict[str, dict[str, tuple[int, ...]]] = {
    "cifar": {**{f"K{i}": (3, 3, *CHANNELS[i:i + 2]) for i in range(6)}, "W1": (2048, 128),
              "b1": (128,), "W2": (128,)},
    "vit": {**VIT, "W2": (BREADTH,)},
    "vit-lora": {**{f"A{k}": (DEPTH, BREADTH, RANK) for k in "qkv"},
                 **{f"B{k}": (DEPTH, RANK, BREADTH) for k in "qkv"}, "W2": (BREADTH,)},
}


@dataclasses.dataclass(frozen=True)
class Case:
    """A workload and a batch size.

    Attributes:
      workload: one of `WORKLOADS` or `PICTURES`, or "mlp" followed by its hidden width, as in
        "mlp 64".
      batch: rows in a step.
      n: resident rows.
    """

    workload: str
    batch: int
    n: int = N

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the parameters theta."""
        if self.workload in SHAPES | PICTURES:
            return (SHAPES | PICTURES)[self.workload]
        name, hidden = self.workload.split()
        assert name == "mlp"
        return {"W1": (784, int(hidden)), "b1": (int(hidden),), "W2": (int(hidden),)}

    @property
    def model(self) -> str:
        """The first word of the workload: linear, mlp, cnn, ..."""
        return self.workload.split()[0]

    @property
    def features(self) -> int:
        """Numbers in a row."""
        return {"linear 22": 22, **dict.fromkeys(PICTURES, 3072)}.get(self.workload, 784)

    @property
    def resident(self) -> tuple[int, int]:
        """Shape of the resident rows."""
        return self.n, self.features

    @property
    def size(self) -> int:
        """Numbers in theta, a, b and v."""
        return sum(int(np.prod(s)) for s in self.shapes.values()) + 3


def rows(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """The resident rows, float32 `[n, features]` of norm near 1, and labels in {0, 1}."""
    return rows_like(*case.resident)


@functools.lru_cache(maxsize=1)
def rows_like(n: int, features: int) -> tuple[np.ndarray, np.ndarray]:
    """Those of a number and a width; kept until another is asked for."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n, features), np.float32)
    x *= np.float32(features**-0.5)
    y = (rng.random(n) < PRIOR).astype(np.float32)
    return x, y


def start(case: Case) -> dict[str, np.ndarray]:
    """Parameters with scores and gradients of the order of 1."""
    rng = np.random.default_rng(1)
    last = {"linear": "k"}.get(case.model, "W2")
    theta = {}
    for name, shape in case.shapes.items():
        inputs = int(np.prod(shape[case.model == "lora":-1])) if len(shape) > 1 else shape[0]
        scale = 1.0 if name == last and case.model == "linear" else inputs**-0.5
        if len(shape) == 1 and name != last:
            scale = 0.1
        around = 1.0 if name.startswith("g") else 0.0  # factors of a norm
        theta[name] = (around + scale * rng.standard_normal(shape)).astype(np.float32)
    return theta


@functools.lru_cache(maxsize=1)
def frozen() -> dict[str, np.ndarray]:
    """The base of the transformer, which is not trained."""
    rng = np.random.default_rng(2)
    shapes = {"E": (12, LORA), "P": (PLACES, LORA), **dict.fromkeys("qkvo", (LAYERS, LORA, LORA)),
              "up": (LAYERS, LORA, INNER), "down": (LAYERS, INNER, LORA)}
    return {name: (0.3 if name == "P" else shape[-2] ** -0.5) * rng.standard_normal(
        shape, np.float32) for name, shape in shapes.items()}


@functools.lru_cache(maxsize=1)
def frozen_vit() -> dict[str, np.ndarray]:
    """The base of ViT-tiny, where adapters alone are trained."""
    rng = np.random.default_rng(3)
    return {name: shape[-2] ** -0.5 * rng.standard_normal(shape, np.float32)
            for name, shape in VIT.items()}


def tokens(x: Any) -> Any:
    """Rows as sequences of the transformer: the last 16 numbers are left out."""
    return 28 * x[..., :12 * PLACES].reshape(*x.shape[:-1], PLACES, 12)


@dataclasses.dataclass
class Entry:
    """One peer on one case, ready to run.

    Attributes:
      advance: does `steps` steps and waits for them.
      steps: that it does.
      compile_seconds: what building it took, in processor time, apart from the steps.
      once: `(x, y) -> ` parameters by name after one noise-free step on exactly these rows.
      allocated: bytes that its programs allocate, where they can tell.
    """

    advance: Callable[[], None]
    steps: int
    compile_seconds: float
    once: Callable[[np.ndarray, np.ndarray], dict[str, np.ndarray]]
    allocated: Callable[[], int] | None = None


class Skipped(Exception):
    """Why a peer does not take part in a case."""


def building() -> float:
    """Processor time of this process and of those that it waited for: compilers are some."""
    return sum(os.times()[:4])


def clock(kind: str) -> Callable[[], float]:
    """"wall", or "cpu": the processor time of this process, for a machine that is shared."""
    return {"wall": time.perf_counter, "cpu": time.process_time}[kind]


def seconds(entry: Entry, kind: str) -> float:
    """Of one step."""
    now = clock(kind)
    began = now()
    entry.advance()
    return (now() - began) / entry.steps


def _resident(field: str) -> int:
    text = pathlib.Path("/proc/self/status").read_text(encoding="ascii")
    return 1024 * int(text.split(f"{field}:")[1].split()[0])


def peak_bytes(entry: Entry) -> int | None:
    """How far the resident set of this process grows in a run, at its highest; Linux only.

    Memory that was used before and kept by the allocator is missed, so programs that can tell what
    they allocate are asked instead: those of JAX, and torch on a device.
    """
    if entry.allocated is not None:
        entry.advance()
        return entry.allocated()
    try:
        gc.collect()
        ctypes.CDLL("libc.so.6").malloc_trim(0)  # what was freed is not what the run needs
        pathlib.Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        before = _resident("VmRSS")
    except OSError:
        return None
    entry.advance()
    return max(0, _resident("VmHWM") - before)


def flat(z: dict[str, Any]) -> dict[str, np.ndarray]:
    """Parameters by name, with those of theta beside the rest."""
    return {**{k: np.asarray(x) for k, x in z["theta"].items()},
            **{k: np.asarray(z[k]) for k in ("a", "b", "v")}}


def serve(make: Callable[[str, Case, int], Entry]) -> None:
    """Answers requests, a line of JSON each, until the input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever else prints does not mix with the answers
    entries: dict[int, Entry] = {}

    def answer(ask: dict[str, Any]) -> dict[str, Any]:
        match ask["do"]:
            case "make":
                case = Case(ask["workload"], ask["batch"], ask["n"])
                made = entries[ask["id"]] = make(ask["peer"], case, ask["steps"])
                return {"compile_seconds": made.compile_seconds, "steps": made.steps}
            case "time":
                return {"seconds": seconds(entries[ask["id"]], ask["clock"])}
            case "peak":
                return {"bytes": peak_bytes(entries[ask["id"]])}
            case "once":
                given = np.load(ask["rows"])
                answer: Any = entries[ask["id"]].once(given["x"], given["y"])
                np.savez(ask["answer"], **answer)
                return {}
            case "drop":
                entries.pop(ask["id"], None)
                gc.collect()
                return {}
        return {}

    for ask in _lines(sys.stdin):
        try:
            said = answer(ask)
        except Skipped as reason:
            said = {"skipped": str(reason)}
        except Exception as error:  # sent to the other end, which goes on with the next peer
            said = {"skipped": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"}
        print(json.dumps(said), file=answers, flush=True)


def _lines(stream: Any) -> Iterator[dict[str, Any]]:
    for line in stream:
        yield json.loads(line)
