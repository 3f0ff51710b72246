"""Distributions with SciPy's names: `tinyjax.scipy.stats`."""

from tinyjax.scipy.stats import norm as norm
