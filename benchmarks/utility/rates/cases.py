"""The cases of `benchmarks.utility.rates`: exact gaps, schedules, promised rates, costs.

A family a file: `descent`, `games`, `recursive`, `groups`.
"""

from benchmarks.utility.rates import descent, games, groups, recursive
from benchmarks.utility.rates.base import DELTA as DELTA
from benchmarks.utility.rates.base import Case as Case
from benchmarks.utility.rates.base import Job as Job
from benchmarks.utility.rates.descent import gda_job as gda_job
from benchmarks.utility.rates.descent import pl_job as pl_job
from benchmarks.utility.rates.descent import sgda_job as sgda_job
from benchmarks.utility.rates.games import BOUND as BOUND
from benchmarks.utility.rates.games import DIM as DIM
from benchmarks.utility.rates.games import GAME as GAME
from benchmarks.utility.rates.games import NUMBERS as NUMBERS
from benchmarks.utility.rates.games import POPULATION as POPULATION
from benchmarks.utility.rates.games import START as START
from benchmarks.utility.rates.games import extragradient_job as extragradient_job
from benchmarks.utility.rates.games import game_gap as game_gap
from benchmarks.utility.rates.games import game_sample as game_sample
from benchmarks.utility.rates.games import proximal_job as proximal_job
from benchmarks.utility.rates.games import query as query
from benchmarks.utility.rates.groups import active_job as active_job
from benchmarks.utility.rates.groups import group_excess as group_excess
from benchmarks.utility.rates.groups import group_job as group_job
from benchmarks.utility.rates.groups import group_sample as group_sample
from benchmarks.utility.rates.recursive import SMALL as SMALL
from benchmarks.utility.rates.recursive import SMALL_MEAN as SMALL_MEAN
from benchmarks.utility.rates.recursive import SMALL_NUMBERS as SMALL_NUMBERS
from benchmarks.utility.rates.recursive import SMALL_START as SMALL_START
from benchmarks.utility.rates.recursive import descent_job as descent_job
from benchmarks.utility.rates.recursive import recursive_job as recursive_job
from benchmarks.utility.rates.recursive import small_gap as small_gap
from benchmarks.utility.rates.recursive import small_sample as small_sample
from benchmarks.utility.rates.recursive import solution_cost as solution_cost

CASES: tuple[Case, ...] = (*descent.CASES, *games.CASES, *recursive.CASES,
                           *groups.CASES)
