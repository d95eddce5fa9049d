"""PyTorch and Opacus in an own environment: answers `benchmarks.speed.throughput` in JSON.

Opacus with hooks, functorch and ghost clipping, one optimiser for each player; the dual variable's
gradient of one row is a number, which ghost clipping leaves to three lines of PyTorch. By hand:
closed-form norms, and `torch.func.vmap(grad)`; both compiled.
"""

import functools
import os
import types
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from opacus.grad_sample import (
    GradSampleModule,
    register_grad_sampler,
    register_norm_sampler,
)
from opacus.grad_sample.grad_sample_module_fast_gradient_clipping import (
    GradSampleModuleFastGradientClipping,
)
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPTensorFastGradientClipping
from torch import nn

from benchmarks.speed.throughput import cases, closed, nets
from benchmarks.speed.throughput.cases import (
    CLIP,
    NOISE,
    PRIOR,
    RADIUS,
    STEP,
    Arrays,
    Case,
    Entry,
    Skipped,
)

warnings.filterwarnings("ignore")
torch.backends.cudnn.allow_tf32 = False  # products of all digits, as in the library's sums
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Head(nn.Module):
    """The loss of every row given its score; parameters a, b and v."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.v = (nn.Parameter(torch.zeros(1)) for _ in range(3))

    def forward(self, scores_and_labels: torch.Tensor) -> torch.Tensor:
        """`[b]` from `[b, 2]`: one argument, as functorch's hooks want it."""
        s, y = scores_and_labels.unbind(1)
        plus, minus = y / PRIOR, (1 - y) / (1 - PRIOR)
        return plus * (s - self.a) ** 2 + minus * (s - self.b) ** 2 + 2 * (1 + self.v) * s * (
            minus - plus)


def _head_gradients(head: Head, activations: list[Any], backprops: torch.Tensor) -> Arrays:
    s, y = activations[0].unbind(1)
    plus, minus = y / PRIOR, (1 - y) / (1 - PRIOR)
    given = {head.a: -2 * plus * (s - head.a), head.b: -2 * minus * (s - head.b),
             head.v: 2 * s * (minus - plus)}
    return {p: (g.detach() * backprops)[:, None] for p, g in given.items() if p.requires_grad}


register_grad_sampler(Head)(_head_gradients)


@register_norm_sampler(Head)
def _head_norms(head: Head, activations: list[Any], backprops: torch.Tensor) -> Arrays:
    return {p: g.abs()[:, 0] for p, g in _head_gradients(head, activations, backprops).items()}


class Whole(nn.Module):
    """Losses of rows."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.net, self.layout = nets.network(case)
        self.head = Head()
        nets.load(self.net, self.layout, cases.start(case))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """`[b]`."""
        return self.head(torch.stack([self.net(x)[:, 0], y], 1))

    def w(self) -> list[nn.Parameter]:
        """Parameters of the first player."""
        return [*nets.trained(self.net), self.head.a, self.head.b]

    def named(self) -> dict[str, np.ndarray]:
        """Parameters by name, in the layout of the other environments."""
        return nets.named(self.net, self.layout) | {
            k: getattr(self.head, k).detach().cpu().numpy()[0] for k in "abv"}


@torch.no_grad()
def project(whole: Whole) -> None:
    """Both players' projections."""
    norm = torch.sqrt(sum((p * p).sum() for p in whole.w()))
    scale = torch.clamp(RADIUS[0] / norm, max=1.0)
    for p in whole.w():
        p.mul_(scale)
    whole.head.v.clamp_(-RADIUS[1], RADIUS[1])


def opacus_step(case: Case, mode: str, noisy: float) -> tuple[Whole, Callable[..., Any]]:
    """`(x, y)` does a step of the model."""
    full = Whole(case).to(DEVICE)
    ghost = mode == "ghost"
    if ghost:
        full.head.v.requires_grad_(False)
        wrapped = GradSampleModuleFastGradientClipping(full, loss_reduction="mean",
                                                       max_grad_norm=CLIP[0])
    else:
        wrapped = GradSampleModule(full, loss_reduction="mean",
                                   force_functorch=mode == "functorch")
    make = DPOptimizerFastGradientClipping if ghost else DPOptimizer
    shared = dict(expected_batch_size=case.batch, loss_reduction="mean")
    w = make(torch.optim.SGD(full.w(), lr=STEP[0]), noise_multiplier=noisy * NOISE[0],
             max_grad_norm=CLIP[0], **shared)
    v: Any = None if ghost else make(torch.optim.SGD([full.head.v], lr=STEP[1]),
                                noise_multiplier=noisy * NOISE[1], max_grad_norm=CLIP[1], **shared)

    def dual_by_hand(x: torch.Tensor, y: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        g = 2 * s[:, 0] * (y / PRIOR - (1 - y) / (1 - PRIOR))
        noise = noisy * CLIP[1] * NOISE[1] * torch.randn((), device=DEVICE)
        return (g.clamp(-CLIP[1], CLIP[1]).sum() + noise) / case.batch

    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        before = full.head.v.detach().clone()
        w.zero_grad()
        if ghost:
            scores = []
            hook = full.net.register_forward_hook(lambda *a: scores.append(a[2].detach()))
            losses = wrapped(x, y)
            hook.remove()
            g_v = dual_by_hand(x, y, scores[0])
            DPTensorFastGradientClipping(wrapped, w, losses, "mean").backward()
        else:
            v.zero_grad()
            wrapped(x, y).mean().backward()
        w.step()
        with torch.no_grad():
            if ghost:
                full.head.v.copy_(before - STEP[1] * (g_v + 2 * before))
            else:
                v.step()  # descends; the dual player ascends, and has its public term
                full.head.v.copy_(2 * before - full.head.v - 2 * STEP[1] * before)
        project(full)

    return full, step


def _moved(z: Arrays, total: Arrays, noise: torch.Tensor, batch: int) -> Arrays:
    """The step, with noise from a flat vector."""
    parts, at = {}, 1
    flat = {**total["theta"], "a": total["a"], "b": total["b"]}
    old = {**z["theta"], "a": z["a"], "b": z["b"]}
    for k, a in flat.items():
        e = noise[at:at + a.numel()].reshape(a.shape)
        parts[k] = old[k] - STEP[0] * (a + CLIP[0] * NOISE[0] * e) / batch
        at += a.numel()
    norm = torch.sqrt(sum((a * a).sum() for a in parts.values()))
    scale = torch.clamp(RADIUS[0] / norm, max=1.0)
    parts = {k: a * scale for k, a in parts.items()}
    g_v = (total["v"] + CLIP[1] * NOISE[1] * noise[0]) / batch
    v = torch.clamp(z["v"] - STEP[1] * (g_v + 2 * z["v"]), -RADIUS[1], RADIUS[1])
    return {"theta": {k: parts[k] for k in z["theta"]}, "a": parts["a"], "b": parts["b"], "v": v}


def _scorer(case: Case) -> Callable[[Arrays, torch.Tensor], torch.Tensor]:
    """One row's score."""
    if case.model == "linear":
        return lambda theta, x: x @ theta["k"]
    if case.model == "mlp":
        return lambda theta, x: F.relu(x @ theta["W1"] + theta["b1"]) @ theta["W2"]
    raise Skipped("by hand for the linear and the MLP scorer only")


def _vmap_sums(case: Case, z: Arrays, x: torch.Tensor, y: torch.Tensor) -> Arrays:
    score = _scorer(case)

    def loss(w: Arrays, v: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        s = score(w["theta"], x)
        plus, minus = y / PRIOR, (1 - y) / (1 - PRIOR)
        return plus * (s - w["a"]) ** 2 + minus * (s - w["b"]) ** 2 + 2 * (1 + v) * s * (
            minus - plus)

    w = {k: z[k] for k in ("theta", "a", "b")}
    g, g_v = torch.func.vmap(torch.func.grad(loss, (0, 1)), (None, None, 0, 0))(w, z["v"], x, y)
    leaves = [*g["theta"].values(), g["a"], g["b"]]
    norm = torch.sqrt(sum((a * a).reshape(len(y), -1).sum(1) for a in leaves))
    weight = torch.clamp(CLIP[0] / norm, max=1.0)
    theta = {k: torch.tensordot(weight, a, 1) for k, a in g["theta"].items()}
    return {"theta": theta, "a": weight @ g["a"], "b": weight @ g["b"],
            "v": -g_v.clamp(-CLIP[1], CLIP[1]).sum()}


def by_hand(case: Case, mode: str) -> Callable[..., Any]:
    """`(z, x, y, noise, squared norms of rows or None) -> z`, compiled."""
    _scorer(case)

    def step(z: Arrays, x: torch.Tensor, y: torch.Tensor, noise: torch.Tensor,
             square_x: torch.Tensor | None) -> Arrays:
        sums = _vmap_sums(case, z, x, y) if mode == "vmap" else closed.clipped_sums(
            case, torch, z, x, y, square_x)
        return _moved(z, sums, noise, case.batch)

    # compiled programs are kept by code object, and become general, then eager, as shapes change:
    # every case has a code object of its own
    own = types.FunctionType(step.__code__.replace(), step.__globals__, "step",
                             closure=step.__closure__)
    return torch.compile(own, dynamic=False)


def _point(case: Case) -> Arrays:
    theta = {k: torch.from_numpy(a).to(DEVICE) for k, a in cases.start(case).items()}
    return {"theta": theta, **{k: torch.zeros((), device=DEVICE) for k in "abv"}}


@functools.lru_cache(maxsize=1)
def _data(n: int, features: int) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = cases.rows_like(n, features)
    return torch.from_numpy(x).to(DEVICE), torch.from_numpy(y).to(DEVICE)


def _wait() -> None:
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


PEERS = {
    "Opacus hooks": "hooks", "Opacus functorch": "functorch", "Opacus ghost": "ghost",
    "PyTorch by hand, compiled": "closed", "PyTorch by hand, resident norms": "kept",
    "torch.func vmap, compiled": "vmap",
}


def make(peer: str, case: Case, steps: int) -> Entry:
    """A peer of this module, by its name."""
    if peer not in PEERS:
        raise Skipped(f"unknown peer {peer!r}")
    mode, (x, y) = PEERS[peer], _data(*case.resident)
    opacus = mode in ("hooks", "functorch", "ghost")
    began = cases.building()
    if opacus:
        _, step = opacus_step(case, mode, 1.0)
    else:
        compiled, z = by_hand(case, mode), _point(case)
        kept = (closed.squares(torch, x),) if mode == "kept" else ()

        def step(x: torch.Tensor, y: torch.Tensor, square_x: torch.Tensor | None = None) -> None:
            nonlocal z
            with torch.no_grad():
                z = compiled(z, x, y, torch.randn(case.size, device=DEVICE), square_x)

    rows = (x, y) if opacus else (x, y, *kept)

    def advance(count: int = steps) -> None:
        for _ in range(count):
            picked = torch.randint(0, case.n, (case.batch,), device=DEVICE)
            step(*(a[picked] for a in rows))
        _wait()

    if not opacus:
        advance(2)

    def once(x: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
        few = Case(case.workload, len(y), case.n)
        x, y = torch.from_numpy(x).to(DEVICE), torch.from_numpy(y).to(DEVICE)
        if opacus:
            full, quiet = opacus_step(few, mode, 0.0)
            quiet(x, y)
            return full.named()
        sums = _vmap_sums(few, _point(few), x, y) if mode == "vmap" else closed.clipped_sums(
            few, torch, _point(few), x, y, closed.squares(torch, x) if mode == "kept" else None)
        after = _moved(_point(few), sums, torch.zeros(few.size, device=DEVICE), len(y))
        return cases.flat({k: {n: a.cpu() for n, a in v.items()} if k == "theta" else v.cpu()
                           for k, v in after.items()})

    def on_device() -> int:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        advance()
        return torch.cuda.max_memory_allocated() - before

    took = 0.0 if opacus else cases.building() - began  # Opacus compiles nothing
    return Entry(advance, steps, took, once, on_device if DEVICE.type == "cuda" else None)


if __name__ == "__main__":
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    cases.serve(make)
