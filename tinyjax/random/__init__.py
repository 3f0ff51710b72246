"""tinyjax.random: keys and distributions with JAX's names and bits."""

from tinyjax.core.source import publish_functions as _publish_functions
from tinyjax.engine.devices import place_results as _place_results
from tinyjax.random.binomials import binomial as binomial
from tinyjax.random.binomials import multinomial as multinomial
from tinyjax.random.counts import f as f
from tinyjax.random.counts import poisson as poisson
from tinyjax.random.counts import triangular as triangular
from tinyjax.random.counts import wald as wald
from tinyjax.random.distributions import ball as ball
from tinyjax.random.distributions import bernoulli as bernoulli
from tinyjax.random.distributions import beta as beta
from tinyjax.random.distributions import bits as bits
from tinyjax.random.distributions import categorical as categorical
from tinyjax.random.distributions import cauchy as cauchy
from tinyjax.random.distributions import chisquare as chisquare
from tinyjax.random.distributions import choice as choice
from tinyjax.random.distributions import dirichlet as dirichlet
from tinyjax.random.distributions import double_sided_maxwell as double_sided_maxwell
from tinyjax.random.distributions import exponential as exponential
from tinyjax.random.distributions import gamma as gamma
from tinyjax.random.distributions import generalized_normal as generalized_normal
from tinyjax.random.distributions import geometric as geometric
from tinyjax.random.distributions import gumbel as gumbel
from tinyjax.random.distributions import laplace as laplace
from tinyjax.random.distributions import loggamma as loggamma
from tinyjax.random.distributions import logistic as logistic
from tinyjax.random.distributions import lognormal as lognormal
from tinyjax.random.distributions import maxwell as maxwell
from tinyjax.random.distributions import multivariate_normal as multivariate_normal
from tinyjax.random.distributions import normal as normal
from tinyjax.random.distributions import orthogonal as orthogonal
from tinyjax.random.distributions import pareto as pareto
from tinyjax.random.distributions import permutation as permutation
from tinyjax.random.distributions import rademacher as rademacher
from tinyjax.random.distributions import randint as randint
from tinyjax.random.distributions import rayleigh as rayleigh
from tinyjax.random.distributions import t as t
from tinyjax.random.distributions import truncated_normal as truncated_normal
from tinyjax.random.distributions import uniform as uniform
from tinyjax.random.distributions import weibull_min as weibull_min
from tinyjax.random.keys import PRNGKey as PRNGKey
from tinyjax.random.keys import clone as clone
from tinyjax.random.keys import fold_in as fold_in
from tinyjax.random.keys import key as key
from tinyjax.random.keys import key_data as key_data
from tinyjax.random.keys import key_dtype as key_dtype
from tinyjax.random.keys import key_impl as key_impl
from tinyjax.random.keys import split as split
from tinyjax.random.keys import wrap_key_data as wrap_key_data

_place_results(globals())
_publish_functions(globals())
