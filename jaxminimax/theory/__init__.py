"""What theorems promise, as numbers: stability, gaps, and what no private algorithm beats.

    gda_stability(population=n, modulus=rho, bound=G, rounds=T) -> bound on ||z(S) - z(S')||

An algorithm is gamma-stable if replacing a record of its data S moves its output by at most gamma,
the run's key being the same: neighbours share their samples and their noise. What is stable
generalises: its gap on the population is its gap on S and little more. Functions are of public
numbers, read no data and set nothing; `benchmarks.utility.stability` measures beside them. They are
upper
bounds for every problem with these constants, and often far from what one problem shows.

Sources: [K] Kang, Liu, Li and Wang, "Stability and generalization of differentially private minimax
problems", arXiv:2204.04858; [B] Boob and Guzman, arXiv:2104.02988; [Y] Yang, Hu, Lei, Varshney, Lyu
and Ying, "Differentially private SGDA for minimax problems", UAI 2022; [Z] Zhou and Bassily,
"Differentially private worst-group risk minimization", ICML 2024. Where a formula here differs from
the printed one, its function says how.
"""

from jaxminimax.theory.gaps import extragradient_gap as extragradient_gap
from jaxminimax.theory.gaps import gda_empirical_gap as gda_empirical_gap
from jaxminimax.theory.gaps import group_lower_bound as group_lower_bound
from jaxminimax.theory.gaps import lower_bound as lower_bound
from jaxminimax.theory.gaps import proximal_gap as proximal_gap
from jaxminimax.theory.stability import extragradient_expansion as extragradient_expansion
from jaxminimax.theory.stability import extragradient_stability as extragradient_stability
from jaxminimax.theory.stability import gda_stability as gda_stability
from jaxminimax.theory.stability import pl_generalisation as pl_generalisation
from jaxminimax.theory.stability import proximal_stability as proximal_stability
from jaxminimax.theory.stability import strong_gap as strong_gap
from jaxminimax.theory.stability import weak_gap as weak_gap
