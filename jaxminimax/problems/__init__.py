"""Saddle problems: a loss, a projection and, where it exists, the exact solution."""

from jaxminimax.base import public_names as _public_names
from jaxminimax.base.types import People as People
from jaxminimax.problems._adversarial import adversarial as adversarial
from jaxminimax.problems._adversarial import linear_start as linear_start
from jaxminimax.problems._adversarial import robust_accuracy as robust_accuracy
from jaxminimax.problems._auc import auc as auc
from jaxminimax.problems._auc import auc_score as auc_score
from jaxminimax.problems._auc import auc_start as auc_start
from jaxminimax.problems._auc import linear_scorer as linear_scorer
from jaxminimax.problems._auc import mlp_init as mlp_init
from jaxminimax.problems._auc import mlp_scorer as mlp_scorer
from jaxminimax.problems._auc import release_prior as release_prior
from jaxminimax.problems._bounded_games import bounded_bilinear as bounded_bilinear
from jaxminimax.problems._bounded_games import cournot as cournot
from jaxminimax.problems._bounded_games import matrix_game as matrix_game
from jaxminimax.problems._fair import fermi as fermi
from jaxminimax.problems._fair import fermi_bound as fermi_bound
from jaxminimax.problems._fair import fermi_start as fermi_start
from jaxminimax.problems._fair import parity as parity
from jaxminimax.problems._fair import parity_bound as parity_bound
from jaxminimax.problems._fair import parity_start as parity_start
from jaxminimax.problems._games import bilinear_game as bilinear_game
from jaxminimax.problems._games import kinked_game as kinked_game
from jaxminimax.problems._games import quadratic_game as quadratic_game
from jaxminimax.problems._gan import FreshLatents as FreshLatents
from jaxminimax.problems._gan import cosine_discriminator as cosine_discriminator
from jaxminimax.problems._gan import generator_init as generator_init
from jaxminimax.problems._gan import image_generator as image_generator
from jaxminimax.problems._gan import latents as latents
from jaxminimax.problems._gan import limited as limited
from jaxminimax.problems._gan import mlp_generator as mlp_generator
from jaxminimax.problems._gan import wgan as wgan
from jaxminimax.problems._groups import GLM_LOSSES as GLM_LOSSES
from jaxminimax.problems._groups import by_group as by_group
from jaxminimax.problems._groups import group_glm as group_glm
from jaxminimax.problems._groups import group_means as group_means
from jaxminimax.problems._groups import group_means_optimum as group_means_optimum
from jaxminimax.problems._groups import worst_group as worst_group
from jaxminimax.problems._mdp import mdp as mdp
from jaxminimax.problems._mdp import mdp_policy as mdp_policy
from jaxminimax.problems._mdp import mdp_start as mdp_start
from jaxminimax.problems._people import by_person as by_person
from jaxminimax.problems._people import per_person as per_person
from jaxminimax.problems._regression import bounded_glm as bounded_glm
from jaxminimax.problems._regression import robust_regression as robust_regression
from jaxminimax.problems._robust import reweighted as reweighted
from jaxminimax.problems._robust import reweighted_risk as reweighted_risk
from jaxminimax.problems._robust import reweighted_start as reweighted_start
from jaxminimax.problems._robust import squared_loss as squared_loss
from jaxminimax.problems._robust import worst_mixture as worst_mixture
from jaxminimax.problems._sets import Set as Set
from jaxminimax.problems._sets import ball as ball
from jaxminimax.problems._sets import box as box
from jaxminimax.problems._sets import product as product
from jaxminimax.problems._sets import simplex as simplex
from jaxminimax.problems._shares import release_shares as release_shares
from jaxminimax.problems._vi import Bounded as Bounded
from jaxminimax.problems._vi import affine as affine
from jaxminimax.problems._vi import sanitise as sanitise
from jaxminimax.problems._vi import variational_inequality as variational_inequality


def __dir__() -> list[str]:
    return _public_names(globals())
