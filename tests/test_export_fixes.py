"""What to do about a mistake: the last line of the message, after the user's line.

One row per message: the call, the exception, words of what happened, and the fix.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tinyjax as jax
import tinyjax.numpy as jnp
from tests.messages import Mistake, tells
from tinyjax import export

X = np.ones(3, np.float32)
TEXT: Any = "abc"


def exported(x: Any = X) -> export.Exported:
    return export.export(jax.jit(lambda x: jnp.sin(x)))(x)


def of_another_release() -> Any:
    blob = exported().serialize()
    place = len(export.MAGIC)
    return export.deserialize(blob[:place] + (99).to_bytes(4, "little") + blob[place + 4 :])


def of_a_traced_value() -> Any:
    return jax.jit(lambda y: export.export(jax.jit(lambda x: x * y))(X) and y)(X)


CASES: dict[str, Mistake] = {
    "export of a function": (
        lambda: export.export(jnp.sin),
        ValueError,
        "Function to be exported must be the result of `jit` but is: <function sin",
        "Wrap it: export(jax.jit(f))(*args).",
    ),
    "export for another platform": (
        lambda: export.export(jax.jit(jnp.sin), platforms=["tpu"]),
        ValueError,
        "cannot export for platforms ['tpu']",
        "Leave `platforms` out.",
    ),
    "export of a traced value": (
        lambda: of_a_traced_value(),
        ValueError,
        "cannot export <lambda>: it closes over a traced value",
        "Pass the value as an argument, or export outside of the function that is traced.",
    ),
    "scope and constraints": (
        lambda: export.symbolic_args_specs(
            (X,), "n", constraints=["n > 1"], scope=export.SymbolicScope()
        ),
        ValueError,
        "Cannot specify both a `scope` and `constraints`.",
        "Give the constraints to the scope: SymbolicScope(constraints).",
    ),
    "text for bytes": (
        lambda: export.deserialize(TEXT),
        TypeError,
        "takes the bytes of `serialize`, got str",
        "Pass what exported.serialize() returned, read from a file in binary mode.",
    ),
    "other bytes": (
        lambda: export.deserialize(b"abc"),
        ValueError,
        "these bytes are not an exported function",
        "Pass what exported.serialize() returned, read from a file in binary mode.",
    ),
    "bytes of another release": (
        lambda: of_another_release(),
        ValueError,
        "the exported function has format version 99",
        "Export the function again with this release.",
    ),
    "bytes that are cut off": (
        lambda: export.deserialize(exported().serialize()[:-1]),
        ValueError,
        "its checksum does not match",
        "Write the bytes of `serialize` again, to a file in binary mode.",
    ),
    "call with another structure": (
        lambda: exported().call(x=X),
        ValueError,
        "must have the same pytree structure",
        "Call it with the containers and keywords of the export.",
    ),
    "call with another shape": (
        lambda: exported().call(X[:2]),
        ValueError,
        "Shape mismatch for args[0]: expected (3,) and called with (2,)",
        "Pad it, or export with jax.export.symbolic_shape for an axis that varies.",
    ),
    "call with another dtype": (
        lambda: exported().call(np.ones(3, np.int32)),
        ValueError,
        "Dtype mismatch for args[0]: expected float32 and called with int32",
        "Convert it with .astype('float32').",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_mistake_comes_with_what_to_do(name: str) -> None:
    tells(CASES[name], __file__)
