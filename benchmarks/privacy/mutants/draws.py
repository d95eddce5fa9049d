"""Planted bugs of random numbers that are drawn before a table's release, and what finds them."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxminimax as jmm
from benchmarks.privacy.mutants.detectors import Finding
from jaxminimax import Saddle
from jaxminimax.base import programs
from jaxminimax.releases import noisy_sums, sums

AIMS: dict[str, tuple[Any, str]] = {"draws of a table's release": (noisy_sums, "_draw")}
_ROWS, _NUMBERS, _RELEASES = 8, 1000, 8
_NOTHING = jmm.Problem(lambda z, x: Saddle(0 * z.w + 0 * x, None))


def quieter(draw: Any) -> Any:
    """The noise is a tenth less."""
    def changed(*args: Any) -> Any:
        drawn = draw(*args)
        return drawn._replace(noise=(drawn.noise * 0.9).astype(jnp.int32))

    return changed


def of_the_first_key(draw: Any) -> Any:
    """Every release has the noise of one key, under the name that it asks for."""
    def changed(key: jax.Array, *args: Any) -> Any:
        return draw(jax.random.key(0), *args)._replace(name=draw(key, *args).name)

    return changed


def _noises() -> np.ndarray:
    """Noise over what is charged, of releases of zeros with keys of their own, `[k, d]`."""
    query = jmm.Query(clip=Saddle(1.0, None), noise_multiplier=Saddle(2.0, None), population=_ROWS)
    z = Saddle(jnp.zeros(_NUMBERS), ())
    with programs.briefly(True):
        answers = [sums.compiled_release(key, jmm.Repeat(query=query, times=1), _NOTHING, z,
                                         jnp.zeros(_ROWS)).w
                   for key in jax.random.split(jax.random.key(4), _RELEASES)]
    return np.stack(answers) * _ROWS / 2.0


def size_of_noise() -> Finding:
    """The charged standard deviation over the measured one, whose standard error is 0.8 %."""
    return Finding(1 / float(np.std(_noises())), 1.04)


def shared_noise() -> Finding:
    """The largest correlation of two releases, whose standard error is 3 %."""
    correlations = np.corrcoef(_noises())
    return Finding(float(np.max(np.abs(correlations - np.eye(_RELEASES)))), 0.2)


BUGS: tuple[tuple[str, str, str, Callable[[Any], Any], Callable[[], Finding], str], ...] = (
    ("noise drawn before a release a tenth low", "standard deviation",
     "draws of a table's release", quieter, size_of_noise, "charged noise over the measured"),
    ("noise drawn before a release is that of another key", "one key for one release",
     "draws of a table's release", of_the_first_key, shared_noise, "correlation of two releases"),
)
