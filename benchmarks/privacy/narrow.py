"""A sampling whose larger samples do not fit: what is then released is nothing, and that is tested.

Poisson samples are drawn again until they fit, and subsets of a fixed size do not fit once in
10^17 releases. Samplings of a user's own may not fit more often.
"""

import jax
import jax.numpy as jnp
from scipy import stats

from jaxminimax import Poisson
from jaxminimax.mechanism.sampling import Sample, SampleKeys
from jaxminimax.types import pytree_dataclass


@pytree_dataclass
class Narrow(Poisson):
    """Poisson samples that do not fit if they have more than `most` records."""

    most: int = jax.tree.static()

    def draw(self, keys: SampleKeys, release: jax.Array, population: int) -> Sample:
        """As Poisson's; larger ones do not fit."""
        sample = Poisson.draw(self, keys, release, population)
        return sample._replace(fits=jnp.sum(jnp.asarray(sample.valid)) <= self.most)

    def overflow(self, population: int) -> float:
        """P[a sample has more records], if none of them were drawn again."""
        return float(stats.binom.sf(self.most, population, self.rate))
