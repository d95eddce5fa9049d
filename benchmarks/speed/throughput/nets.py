"""The workloads' models in PyTorch, with layers that Opacus knows; layouts as elsewhere."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from opacus.layers import DPRNN
from torch import nn

from benchmarks.speed.throughput import cases
from benchmarks.speed.throughput.cases import (
    GROUPS,
    HEADS,
    LAYERS,
    LORA,
    RANK,
    STAGES,
    STEPS,
    TOKENS,
    WIDTH,
    Case,
)

# of a parameter: its name, how it is laid out here, and back
Layout = list[tuple[str, Callable[..., Any], Callable[..., Any]]]


class Mixer(nn.Module):
    """The attention model."""

    def __init__(self) -> None:
        super().__init__()
        self.e = nn.Linear(784 // TOKENS, WIDTH, bias=False)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.out = nn.Linear(WIDTH, 1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores `[b, 1]`."""
        h = self.e(x.reshape(len(x), TOKENS, -1))
        q, k, v = self.q(h), self.k(h), self.v(h)
        mixed = torch.softmax(q @ k.transpose(1, 2) * WIDTH**-0.5, -1) @ v
        return self.out(torch.relu(h + self.o(mixed)).mean(1))


class Picture(nn.Module):
    """Rows as pictures, channels first."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`[b, 1, 28, 28]`."""
        return x.reshape(len(x), 1, 28, 28)


class ChannelsLast(nn.Module):
    """Flattened in the order of the other environments."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`[b, height * width * channels]`."""
        return x.permute(0, 2, 3, 1).reshape(len(x), -1)


class Recurrent(nn.Module):
    """Opacus's own recurrent network over the lines of a picture."""

    def __init__(self) -> None:
        super().__init__()
        hidden = cases.SHAPES["rnn"]["W2"][0]
        self.cells = DPRNN(784 // STEPS, hidden, bias=False, batch_first=True)
        self.out = nn.Linear(hidden, 1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores `[b, 1]`."""
        return self.out(self.cells(x.reshape(len(x), STEPS, -1))[0][:, -1])


def _frozen(weight: np.ndarray) -> nn.Linear:
    made = nn.Linear(*weight.shape, bias=False)
    with torch.no_grad():
        made.weight.copy_(torch.from_numpy(np.ascontiguousarray(weight.T)))
    return made.requires_grad_(False)


class Adapted(nn.Module):
    """A frozen map beside one of low rank."""

    def __init__(self, weight: np.ndarray) -> None:
        super().__init__()
        self.base = _frozen(weight)
        self.low = nn.Linear(LORA, RANK, bias=False)
        self.high = nn.Linear(RANK, LORA, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of tokens."""
        return self.base(x) + self.high(self.low(x))


class Layer(nn.Module):
    """One of the transformer."""

    def __init__(self, own: dict[str, np.ndarray]) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (Adapted(own[name]) for name in "qkvo")
        self.up, self.down = _frozen(own["up"]), _frozen(own["down"])

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        """Of tokens `[b, tokens, LORA]`."""
        u = F.layer_norm(h, (LORA,))
        q, k, v = (f(u).unflatten(-1, (HEADS, -1)).transpose(1, 2)
                   for f in (self.q, self.k, self.v))
        mixed = torch.softmax(q @ k.transpose(2, 3) * q.shape[-1] ** -0.5, -1) @ v
        h = h + self.o(mixed.transpose(1, 2).flatten(2))
        return h + self.down(torch.relu(self.up(F.layer_norm(h, (LORA,)))))


class Transformer(nn.Module):
    """Its base frozen beneath adapters."""

    def __init__(self) -> None:
        super().__init__()
        base = cases.frozen()
        self.embed = _frozen(base["E"])
        self.places = nn.Parameter(torch.from_numpy(base["P"]), requires_grad=False)
        self.layers = nn.ModuleList(
            Layer({k: base[k][i] for k in ("q", "k", "v", "o", "up", "down")})
            for i in range(LAYERS))
        self.out = nn.Linear(LORA, 1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores `[b, 1]`."""
        h = self.embed(cases.tokens(x)) + self.places
        for layer in self.layers:
            h = layer(h)
        return self.out(F.layer_norm(h, (LORA,)).mean(1))


class Block(nn.Module):
    """Two convolutions and a way around them."""

    def __init__(self, inputs: int, channels: int, stride: int) -> None:
        super().__init__()
        self.one = nn.Conv2d(inputs, channels, 3, stride, 1, bias=False)
        self.norm_one = nn.GroupNorm(GROUPS, channels)
        self.two = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.norm_two = nn.GroupNorm(GROUPS, channels)
        self.short = (nn.Identity() if inputs == channels
                      else nn.Conv2d(inputs, channels, 1, stride, bias=False))

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        """`[b, channels, height, width]`."""
        inner = torch.relu(self.norm_one(self.one(h)))
        return torch.relu(self.norm_two(self.two(inner)) + self.short(h))


class Residual(nn.Module):
    """Convolutions with residuals."""

    def __init__(self) -> None:
        super().__init__()
        first = STAGES[0][0]
        self.stem = nn.Conv2d(1, first, 3, 1, 1, bias=False)
        self.norm = nn.GroupNorm(GROUPS, first)
        self.blocks = nn.Sequential(*(Block(*stage) for stage in STAGES))
        self.out = nn.Linear(STAGES[-1][1], 1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores `[b, 1]`."""
        h = torch.relu(self.norm(self.stem(x.reshape(len(x), 1, 28, 28))))
        return self.out(self.blocks(h).mean((2, 3)))


def same(name: str) -> tuple[str, Callable[..., Any], Callable[..., Any]]:
    """A vector."""
    return name, lambda a: a, lambda a: a


def turned(name: str) -> tuple[str, Callable[..., Any], Callable[..., Any]]:
    """A matrix."""
    return name, lambda a: a.T, lambda a: a.T


def row(name: str) -> tuple[str, Callable[..., Any], Callable[..., Any]]:
    """A vector, as a matrix of one line."""
    return name, lambda a: a.reshape(1, -1), lambda a: a.reshape(-1)


def kernel(name: str) -> tuple[str, Callable[..., Any], Callable[..., Any]]:
    """Of a convolution."""
    return name, lambda a: a.transpose(3, 2, 0, 1), lambda a: a.transpose(2, 3, 1, 0)


def sliced(name: str, i: int) -> tuple[str, Callable[..., Any], Callable[..., Any]]:
    """Layer i of stacked matrices."""
    return name, lambda a: a[i].T, lambda a: a.T[None]


def network(case: Case) -> tuple[nn.Module, Layout]:
    """The scorer as layers, and the layouts of what is trained, in the order of the layers."""
    match case.model:
        case "linear":
            return nn.Linear(case.features, 1, bias=False), [row("k")]
        case "mlp":
            hidden = case.shapes["b1"][0]
            return nn.Sequential(nn.Linear(784, hidden), nn.ReLU(),
                                 nn.Linear(hidden, 1, bias=False)
                                 ), [turned("W1"), same("b1"), row("W2")]
        case "cnn":
            return nn.Sequential(
                Picture(), nn.Conv2d(1, 16, 4, 2), nn.ReLU(), nn.Conv2d(16, 32, 4, 2), nn.ReLU(),
                ChannelsLast(), nn.Linear(800, 32), nn.ReLU(), nn.Linear(32, 1, bias=False)), [
                    kernel("K1"), same("c1"), kernel("K2"), same("c2"), turned("W1"), same("b1"),
                    row("W2")]
        case "attention":
            return Mixer(), [*(turned(k) for k in "EQKVO"), row("W2")]
        case "rnn":
            return Recurrent(), [turned("U"), turned("V"), row("W2")]
        case "lora":
            return Transformer(), [*(sliced(f"{side}{k}", i) for i in range(LAYERS) for k in "qkvo"
                                     for side in "AB"), row("W2")]
    layout = [kernel("K0"), same("g0"), same("h0")]
    for i, (inputs, channels, _) in enumerate(STAGES, 1):
        for half in "ab":
            layout += [kernel(f"K{i}{half}"), same(f"g{i}{half}"), same(f"h{i}{half}")]
        if inputs != channels:
            layout.append(kernel(f"K{i}s"))
    return Residual(), [*layout, row("W2")]


def trained(net: nn.Module) -> list[nn.Parameter]:
    """Parameters that are not frozen."""
    return [p for p in net.parameters() if p.requires_grad]


@torch.no_grad()
def load(net: nn.Module, layout: Layout, theta: dict[str, np.ndarray]) -> None:
    """Sets what is trained."""
    for p, (name, here, _) in zip(trained(net), layout, strict=True):
        p.copy_(torch.from_numpy(np.ascontiguousarray(here(theta[name]))))


def named(net: nn.Module, layout: Layout) -> dict[str, np.ndarray]:
    """What is trained by name, in the layout of the other environments."""
    result: dict[str, Any] = {}
    for p, (name, _, back) in zip(trained(net), layout, strict=True):
        result.setdefault(name, []).append(back(p.detach().cpu().numpy()))
    return {name: parts[0] if len(parts) == 1 else np.concatenate(parts)
            for name, parts in result.items()}
