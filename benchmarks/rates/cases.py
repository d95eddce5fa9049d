"""The cases of `benchmarks.rates`: exact gaps, schedules, promised rates, costs.

A family a file: `descent`, `games`, `recursive`, `groups`.
"""

from benchmarks.rates import descent, games, groups, recursive
from benchmarks.rates.base import DELTA as DELTA
from benchmarks.rates.base import Case as Case
from benchmarks.rates.base import Job as Job
from benchmarks.rates.descent import gda_job as gda_job
from benchmarks.rates.descent import pl_job as pl_job
from benchmarks.rates.descent import sgda_job as sgda_job
from benchmarks.rates.games import BOUND as BOUND
from benchmarks.rates.games import DIM as DIM
from benchmarks.rates.games import GAME as GAME
from benchmarks.rates.games import NUMBERS as NUMBERS
from benchmarks.rates.games import POPULATION as POPULATION
from benchmarks.rates.games import START as START
from benchmarks.rates.games import extragradient_job as extragradient_job
from benchmarks.rates.games import game_gap as game_gap
from benchmarks.rates.games import game_sample as game_sample
from benchmarks.rates.games import proximal_job as proximal_job
from benchmarks.rates.games import query as query
from benchmarks.rates.groups import active_job as active_job
from benchmarks.rates.groups import group_excess as group_excess
from benchmarks.rates.groups import group_job as group_job
from benchmarks.rates.groups import group_sample as group_sample
from benchmarks.rates.recursive import SMALL as SMALL
from benchmarks.rates.recursive import SMALL_MEAN as SMALL_MEAN
from benchmarks.rates.recursive import SMALL_NUMBERS as SMALL_NUMBERS
from benchmarks.rates.recursive import SMALL_START as SMALL_START
from benchmarks.rates.recursive import descent_job as descent_job
from benchmarks.rates.recursive import recursive_job as recursive_job
from benchmarks.rates.recursive import small_gap as small_gap
from benchmarks.rates.recursive import small_sample as small_sample
from benchmarks.rates.recursive import solution_cost as solution_cost

CASES: tuple[Case, ...] = (*descent.CASES, *games.CASES, *recursive.CASES,
                           *groups.CASES)
