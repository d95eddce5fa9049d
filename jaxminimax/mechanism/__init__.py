"""Descriptions of what a run does to the data, in the few numbers that decide its privacy.

The door draws its sample and its noise from these descriptions; the accountant asks the same ones
what they cost. Neither has another source. What a sampling or a description is stands in one file:
`sampling` and `description` list the questions that each answers, `costs` how answers add up.
"""

from jaxminimax.base import public_names as _public_names
from jaxminimax.mechanism._grid import BLOCK as BLOCK
from jaxminimax.mechanism._grid import DITHER_FAILURE as DITHER_FAILURE
from jaxminimax.mechanism._grid import MOST_BITS as MOST_BITS
from jaxminimax.mechanism._grid import PARAMETERS as PARAMETERS
from jaxminimax.mechanism._grid import charged_multiplier as charged_multiplier
from jaxminimax.mechanism._grid import finer_bits as finer_bits
from jaxminimax.mechanism._grid import grid_bits as grid_bits
from jaxminimax.mechanism.adaptive import REACH as REACH
from jaxminimax.mechanism.adaptive import AdaptiveClip as AdaptiveClip
from jaxminimax.mechanism.adaptive import count_grid as count_grid
from jaxminimax.mechanism.adaptive import count_multiplier as count_multiplier
from jaxminimax.mechanism.composed import Parallel as Parallel
from jaxminimax.mechanism.composed import Repeat as Repeat
from jaxminimax.mechanism.composed import Sequence as Sequence
from jaxminimax.mechanism.composed import disjoint_parts as disjoint_parts
from jaxminimax.mechanism.composed import parts_of_data as parts_of_data
from jaxminimax.mechanism.correlated import CorrelatedSums as CorrelatedSums
from jaxminimax.mechanism.correlated import PrefixSums as PrefixSums
from jaxminimax.mechanism.correlated import sums_for as sums_for
from jaxminimax.mechanism.costs import NEIGHBOURS as NEIGHBOURS
from jaxminimax.mechanism.costs import Charge as Charge
from jaxminimax.mechanism.costs import PrivacyLoss as PrivacyLoss
from jaxminimax.mechanism.costs import budget_split as budget_split
from jaxminimax.mechanism.costs import concrete as concrete
from jaxminimax.mechanism.description import Answered as Answered
from jaxminimax.mechanism.description import Description as Description
from jaxminimax.mechanism.description import Leaf as Leaf
from jaxminimax.mechanism.description import Mechanism as Mechanism
from jaxminimax.mechanism.description import OneRelease as OneRelease
from jaxminimax.mechanism.description import charges as charges
from jaxminimax.mechanism.description import check as check
from jaxminimax.mechanism.description import check_noise as check_noise
from jaxminimax.mechanism.description import is_exact as is_exact
from jaxminimax.mechanism.description import leaves as leaves
from jaxminimax.mechanism.description import releases as releases
from jaxminimax.mechanism.description import with_noise as with_noise
from jaxminimax.mechanism.difference import Difference as Difference
from jaxminimax.mechanism.difference import Windows as Windows
from jaxminimax.mechanism.factorisation import FRACTION as FRACTION
from jaxminimax.mechanism.factorisation import TOGETHER as TOGETHER
from jaxminimax.mechanism.factorisation import coefficients as coefficients
from jaxminimax.mechanism.factorisation import planned_bands as planned_bands
from jaxminimax.mechanism.fixed_size import FixedSize as FixedSize
from jaxminimax.mechanism.group_losses import GroupLosses as GroupLosses
from jaxminimax.mechanism.group_solution import GroupSolution as GroupSolution
from jaxminimax.mechanism.group_solution import exact_sensitivity as exact_sensitivity
from jaxminimax.mechanism.group_solution import phase_sizes as phase_sizes
from jaxminimax.mechanism.group_solution import solution_length as solution_length
from jaxminimax.mechanism.group_solution import solution_rounding as solution_rounding
from jaxminimax.mechanism.group_solution import solution_smooth as solution_smooth
from jaxminimax.mechanism.group_solution import solution_steps as solution_steps
from jaxminimax.mechanism.groups import GroupGradients as GroupGradients
from jaxminimax.mechanism.groups import group_batch_sizes as group_batch_sizes
from jaxminimax.mechanism.groups import in_group as in_group
from jaxminimax.mechanism.passes import Disjoint as Disjoint
from jaxminimax.mechanism.passes import Full as Full
from jaxminimax.mechanism.poisson import Poisson as Poisson
from jaxminimax.mechanism.query import Query as Query
from jaxminimax.mechanism.query import batch_size as batch_size
from jaxminimax.mechanism.query import check_correlated as check_correlated
from jaxminimax.mechanism.query import rows_read as rows_read
from jaxminimax.mechanism.repetitions import Repetitions as Repetitions
from jaxminimax.mechanism.resolvent import ASSUMES as ASSUMES
from jaxminimax.mechanism.resolvent import Resolvent as Resolvent
from jaxminimax.mechanism.resolvent import batch_lipschitz as batch_lipschitz
from jaxminimax.mechanism.resolvent import inner_steps as inner_steps
from jaxminimax.mechanism.resolvent import modulus as modulus
from jaxminimax.mechanism.resolvent import noise_unit as noise_unit
from jaxminimax.mechanism.resolvent import on_part as on_part
from jaxminimax.mechanism.resolvent import rounding as rounding
from jaxminimax.mechanism.resolvent import split as split
from jaxminimax.mechanism.resolvent import weight_of_part as weight_of_part
from jaxminimax.mechanism.sampling import OVERFLOW as OVERFLOW
from jaxminimax.mechanism.sampling import InGroups as InGroups
from jaxminimax.mechanism.sampling import Sample as Sample
from jaxminimax.mechanism.sampling import SampleKeys as SampleKeys
from jaxminimax.mechanism.sampling import Sampling as Sampling
from jaxminimax.mechanism.sampling import WorstCase as WorstCase
from jaxminimax.mechanism.sampling import overflow_probability as overflow_probability
from jaxminimax.mechanism.selection import Selection as Selection
from jaxminimax.mechanism.settings import check_charged as check_charged
from jaxminimax.mechanism.settings import descriptions as descriptions
from jaxminimax.mechanism.settings import with_noise_of_all as with_noise_of_all
from jaxminimax.mechanism.stream import RecordLosses as RecordLosses
from jaxminimax.mechanism.stream import Solution as Solution
from jaxminimax.mechanism.stream import TreeSums as TreeSums

# for whoever describes a run or asks about one; the other names are for other floors of the house
__all__ = [
    "NEIGHBOURS", "PARAMETERS", "AdaptiveClip", "CorrelatedSums", "Description", "Difference",
    "Disjoint", "FixedSize", "Full", "GroupGradients", "GroupLosses", "GroupSolution", "Leaf",
    "Parallel", "Poisson", "Query", "RecordLosses", "Repeat", "Repetitions", "Resolvent",
    "Sampling", "Selection", "Sequence", "Solution", "TreeSums", "Windows", "batch_size",
    "budget_split", "group_batch_sizes", "is_exact", "leaves", "overflow_probability",
    "phase_sizes", "planned_bands", "releases", "rows_read", "sums_for", "with_noise",
]


def __dir__() -> list[str]:
    return _public_names(globals())
