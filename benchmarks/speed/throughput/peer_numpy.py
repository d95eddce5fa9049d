"""The step written by hand in NumPy, with closed-form norms.

It can answer from a process of its own too, as the peers of other environments do.
"""


import numpy as np

from benchmarks.speed.throughput import cases, closed
from benchmarks.speed.throughput.cases import CLIP, NOISE, RADIUS, STEP, Arrays, Case, Entry


def move(case: Case, z: Arrays, g: Arrays) -> Arrays:
    """The step along the clipped mean operator, and the projections."""
    w = {**z["theta"], "a": z["a"], "b": z["b"]}
    slope = {**g["theta"], "a": g["a"], "b": g["b"]}
    w = {k: x - STEP[0] * slope[k] for k, x in w.items()}
    norm = np.sqrt(sum(np.sum(x * x) for x in w.values()))
    if norm > RADIUS[0]:
        w = {k: x * np.float32(RADIUS[0] / norm) for k, x in w.items()}
    v = np.clip(z["v"] - STEP[1] * (g["v"] + 2 * z["v"]), -RADIUS[1], RADIUS[1])
    return {"theta": {k: w[k] for k in z["theta"]}, "a": w["a"], "b": w["b"], "v": v}


def step(case: Case, z: Arrays, x: np.ndarray, y: np.ndarray,
         rng: np.random.Generator | None, square_x: np.ndarray | None = None) -> Arrays:
    """One step on these rows; without noise where there is no generator."""
    total = closed.clipped_sums(case, np, z, x, y, square_x)

    def add_noise(a: np.ndarray, clip: float, noise: float) -> np.ndarray:
        e = 0 if rng is None else rng.standard_normal(np.shape(a), np.float32)
        return (a + np.float32(clip * noise) * e) / np.float32(len(y))

    theta = {k: add_noise(a, CLIP[0], NOISE[0]) for k, a in total["theta"].items()}
    a, b = (add_noise(total[k], CLIP[0], NOISE[0]) for k in "ab")
    return move(case, z, {"theta": theta, "a": a, "b": b,
                          "v": add_noise(total["v"], CLIP[1], NOISE[1])})


def point(case: Case) -> Arrays:
    """The starting point."""
    return {"theta": cases.start(case), **dict.fromkeys("abv", np.float32(0))}


def make(case: Case, data: tuple[np.ndarray, np.ndarray], steps: int, norms: bool = False
         ) -> Entry:
    """The loop; with `norms`, the rows' squared norms are computed once and kept."""
    if case.model not in ("linear", "mlp"):
        raise cases.Skipped("written for the linear and the MLP scorer only")
    x, y = data
    z, rng = point(case), np.random.default_rng(0)
    kept = closed.squares(np, x) if norms else None

    def advance() -> None:
        nonlocal z
        for _ in range(steps):
            picked = rng.integers(0, case.n, case.batch, np.int32)
            z = step(case, z, x[picked], y[picked], rng, None if kept is None else kept[picked])

    return Entry(advance, steps, 0.0,
                 lambda x, y: cases.flat(step(case, point(case), x, y, None,
                                              closed.squares(np, x) if norms else None)))


if __name__ == "__main__":
    cases.serve(lambda peer, case, steps: make(case, cases.rows(case), steps))
