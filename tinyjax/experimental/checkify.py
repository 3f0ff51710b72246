"""Errors as values: `tinyjax.experimental.checkify`, as `jax.experimental.checkify`."""

import numpy as np

from tinyjax.engine.checks import DivisionByZeroError as DivisionByZeroError
from tinyjax.engine.checks import Error as Error
from tinyjax.engine.checks import FailedCheckError as FailedCheckError
from tinyjax.engine.checks import JaxException as JaxException
from tinyjax.engine.checks import JaxRuntimeError as JaxRuntimeError
from tinyjax.engine.checks import NaNError as NaNError
from tinyjax.engine.checks import OOBError as OOBError
from tinyjax.engine.checks import all_checks as all_checks
from tinyjax.engine.checks import automatic_checks as automatic_checks
from tinyjax.engine.checks import check as check
from tinyjax.engine.checks import check_error as check_error
from tinyjax.engine.checks import checkify as checkify
from tinyjax.engine.checks import debug_check as debug_check
from tinyjax.engine.checks import div_checks as div_checks
from tinyjax.engine.checks import error_if as error_if
from tinyjax.engine.checks import float_checks as float_checks
from tinyjax.engine.checks import index_checks as index_checks
from tinyjax.engine.checks import nan_checks as nan_checks
from tinyjax.engine.checks import user_checks as user_checks

init_error = Error(np.int32(0), (), ())
"""No error: what a checked function gives when nothing fails, as a start to `lax.scan` say."""
