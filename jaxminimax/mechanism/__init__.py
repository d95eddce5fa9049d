"""Descriptions of what a run does to the data, in the few numbers that decide its privacy.

A release draws its sample and its noise from these descriptions; the accountant asks the same ones
what they cost. Neither has another source. What a sampling or a description is stands in one file:
`sampling` and `description` list the questions that each answers, `costs` how answers add up.
"""

from jaxminimax.mechanism.composed import *
from jaxminimax.mechanism.correlated import *
from jaxminimax.mechanism.costs import *
from jaxminimax.mechanism.description import *
from jaxminimax.mechanism.factorisation import *
from jaxminimax.mechanism.fixed_size import *
from jaxminimax.mechanism.grid import *
from jaxminimax.mechanism.groups import *
from jaxminimax.mechanism.held_out import *
from jaxminimax.mechanism.poisson import *
from jaxminimax.mechanism.query import *
from jaxminimax.mechanism.repeat import *
from jaxminimax.mechanism.repetitions import *
from jaxminimax.mechanism.resolvent import *
from jaxminimax.mechanism.sampling import *
from jaxminimax.mechanism.solutions import *
