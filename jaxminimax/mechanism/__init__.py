"""Descriptions of what a run does to the data, in the few numbers that decide its privacy.

The door (`release`) draws its sample and its noise from these descriptions; the accountant reads
the same ones. Neither has another source.
"""

from jaxminimax.mechanism._noise import (
    budget_split,
    check_noise,
    concrete,
    with_noise,
)
from jaxminimax.mechanism._numbers import (
    batch_lipschitz,
    batch_size,
    displacement,
    exact_sensitivity,
    group_batch_sizes,
    in_group,
    modulus,
    on_part,
    overflow_probability,
    phase_sizes,
    rounding,
    rows_read,
    solution_length,
    solution_smooth,
    split,
    weight_of_part,
)
from jaxminimax.mechanism._queries import (
    GroupGradients,
    Query,
    Resolvent,
)
from jaxminimax.mechanism._runs import (
    GroupLosses,
    GroupSolution,
    Leaf,
    Mechanism,
    Parallel,
    RecordLosses,
    Repeat,
    Sequence,
    Solution,
    Tree,
    leaves,
    releases,
)
from jaxminimax.mechanism._samplings import (
    OVERFLOW,
    Disjoint,
    FixedSize,
    Full,
    Poisson,
)

__all__ = [
    "OVERFLOW",
    "Disjoint",
    "FixedSize",
    "Full",
    "GroupGradients",
    "GroupLosses",
    "GroupSolution",
    "Leaf",
    "Mechanism",
    "Parallel",
    "Poisson",
    "Query",
    "RecordLosses",
    "Repeat",
    "Resolvent",
    "Sequence",
    "Solution",
    "Tree",
    "batch_lipschitz",
    "batch_size",
    "budget_split",
    "check_noise",
    "concrete",
    "displacement",
    "exact_sensitivity",
    "group_batch_sizes",
    "in_group",
    "leaves",
    "modulus",
    "on_part",
    "overflow_probability",
    "phase_sizes",
    "releases",
    "rounding",
    "rows_read",
    "solution_length",
    "solution_smooth",
    "split",
    "weight_of_part",
    "with_noise",
]
