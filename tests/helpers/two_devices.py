"""Releases on a mesh of two devices, for `test_privacy_quick`: a process has one number of devices.

    python two_devices.py        prints them as JSON
"""

import functools
import json
import os
import pathlib
import sys

if __name__ == "__main__":  # before JAX is imported
    os.environ |= {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": "1", "XLA_FLAGS": (
        os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2")}
    sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

import jax
import jax.numpy as jnp
import numpy as np

import jaxminimax as jmm
from jaxminimax import Saddle
from jaxminimax.mechanism import Repeat
from jaxminimax.placement import sharding
from jaxminimax.releases.sums import release

N = 7  # so that the last of four shards has a row that is padding
ROWS = np.outer(1.0 + np.arange(N), [1e-3, -2e-3, 3e-3])
BOTH = jmm.Problem(lambda z, x: Saddle(x, -x))
Z = Saddle(jnp.ones(3), jnp.ones(3))


@functools.partial(jax.jit, static_argnames="sampling")
def released(key, noise, data, sampling):
    query = jmm.Query(clip=Saddle(1.0, 1.0), noise_multiplier=Saddle(noise, noise), population=N,
                      sampling=sampling)
    return jnp.concatenate(release(key, Repeat(query=query, times=1), jnp.int32(0), BOTH, Z, data))


def answers(data):
    """With noise, and without, of all rows and of a batch: `[2, 2, 6]`."""
    key = jax.random.key(0, impl="threefry2x32")
    return [[released(key, noise, data, sampling).tolist() for noise in (1.0, 0.0)]
            for sampling in (jmm.Full(), jmm.Disjoint(batch=6))]


if __name__ == "__main__":  # two shards on each device
    print(json.dumps(answers(sharding.shard(ROWS, jax.make_mesh((2,), ("data",)), shards=4))))
