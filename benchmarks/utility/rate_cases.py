"""The cases of `benchmarks.rates`: problems with exact gaps, schedules, promised rates, costs.

A family a file: `rate_descent`, `rate_games`, `rate_recursive`, `rate_groups`.
"""

from benchmarks import rate_descent, rate_games, rate_groups, rate_recursive
from benchmarks.rate_base import DELTA as DELTA
from benchmarks.rate_base import Case as Case
from benchmarks.rate_base import Job as Job
from benchmarks.rate_descent import gda_job as gda_job
from benchmarks.rate_descent import pl_job as pl_job
from benchmarks.rate_descent import sgda_job as sgda_job
from benchmarks.rate_games import BOUND as BOUND
from benchmarks.rate_games import DIM as DIM
from benchmarks.rate_games import GAME as GAME
from benchmarks.rate_games import NUMBERS as NUMBERS
from benchmarks.rate_games import POPULATION as POPULATION
from benchmarks.rate_games import START as START
from benchmarks.rate_games import extragradient_job as extragradient_job
from benchmarks.rate_games import game_gap as game_gap
from benchmarks.rate_games import game_sample as game_sample
from benchmarks.rate_games import proximal_job as proximal_job
from benchmarks.rate_games import query as query
from benchmarks.rate_groups import active_job as active_job
from benchmarks.rate_groups import group_excess as group_excess
from benchmarks.rate_groups import group_job as group_job
from benchmarks.rate_groups import group_sample as group_sample
from benchmarks.rate_recursive import SMALL as SMALL
from benchmarks.rate_recursive import SMALL_MEAN as SMALL_MEAN
from benchmarks.rate_recursive import SMALL_NUMBERS as SMALL_NUMBERS
from benchmarks.rate_recursive import SMALL_START as SMALL_START
from benchmarks.rate_recursive import descent_job as descent_job
from benchmarks.rate_recursive import recursive_job as recursive_job
from benchmarks.rate_recursive import small_gap as small_gap
from benchmarks.rate_recursive import small_sample as small_sample
from benchmarks.rate_recursive import solution_cost as solution_cost

CASES: tuple[Case, ...] = (*rate_descent.CASES, *rate_games.CASES, *rate_recursive.CASES,
                           *rate_groups.CASES)
