"""Trees of numbers: what is materialised is computed once, for all of its readers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxminimax.base.tree import materialise


def _sines(held):
    """The number of sines in the compiled program of three readers of one array."""
    def readers(x, y):
        wave = held(lambda: jnp.sin(x) * y + np.float32(1 / 3))
        return jnp.cumsum(wave * wave), (wave[::2] - x[::2]).reshape(64, 32).sum(0), jnp.sort(wave)

    x = np.linspace(1, 2, 4096, dtype=np.float32)
    return jax.jit(readers).lower(x, x[::-1].copy()).compile().as_text().count(" sine(")


@pytest.mark.slow
@pytest.mark.optimised
def test_what_is_materialised_is_computed_once_in_a_compiled_program():
    assert _sines(materialise) == 1
    assert _sines(lambda f: f()) > 1  # readers compute it anew
    assert _sines(lambda f: jax.lax.optimization_barrier(f())) > 1  # CPUs drop barriers
