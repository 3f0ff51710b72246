"""Dtypes and promotion by JAX's names: `tinyjax.dtypes`."""

from ml_dtypes import bfloat16

from tinyjax.core.dtypes import (
    TypePromotionError,
    canonicalize_dtype,
    extended,
    finfo,
    float0,
    iinfo,
    issubdtype,
    prng_key,
    promote_types,
    result_type,
    scalar_type_of,
)
from tinyjax.core.dtypes import bit_width as itemsize_bits

__all__ = [
    "TypePromotionError",
    "bfloat16",
    "canonicalize_dtype",
    "extended",
    "finfo",
    "float0",
    "iinfo",
    "issubdtype",
    "itemsize_bits",
    "prng_key",
    "promote_types",
    "result_type",
    "scalar_type_of",
]
