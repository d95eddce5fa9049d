"""Sixteen releases of masses on a lattice, composed by convolution of positive numbers."""

import numpy as np


def sixteen(part, h: float) -> tuple[np.ndarray, np.ndarray]:
    """Masses and losses of the composition; `part` has its losses at multiples of `h`."""
    cells = np.rint(part.loss / h).astype(int)
    power = np.zeros(2 * abs(cells).max() + 1)
    power[cells + abs(cells).max()] = np.exp(part.log_mass)
    for _ in range(4):  # 2, 4, 8, 16
        power = np.convolve(power, power)
    return power, h * (np.arange(len(power)) - (len(power) - 1) // 2)
