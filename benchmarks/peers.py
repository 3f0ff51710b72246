"""What the harness needs to know of each library: arrays in, jit, wait, arrays out."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np


class Library(ABC):
    """A library in this process. `family` keys the programs of a row that it runs."""

    family: str
    name: str
    module: Any

    @abstractmethod
    def array(self, x: np.ndarray) -> Any: ...

    @abstractmethod
    def jit(self, f: Callable) -> Callable: ...

    @abstractmethod
    def to_numpy(self, leaf: Any) -> np.ndarray: ...

    def arrays(self, tree: Any) -> Any:
        """The tree of NumPy arrays as one of this library's."""
        return map_arrays(self.array, tree)

    def wait(self, out: Any) -> None:  # noqa: B027, most libraries need none
        """Until `out` is computed; at once, if operations are done when they return."""


class JaxLike(Library):
    """tinyjax, JAX, and JAX in float64, which is the reference of rows without their own."""

    family = "jax"

    def __init__(self, name: str) -> None:
        self.name = name
        self.wide = name == "jax-float64"
        self.module = importlib.import_module("tinyjax" if name == "tinyjax" else "jax")
        self.numpy = importlib.import_module(self.module.__name__ + ".numpy")
        if self.wide:
            self.module.config.update("jax_enable_x64", True)

    def array(self, x: np.ndarray) -> Any:
        if self.wide and self.numpy.issubdtype(x.dtype, self.numpy.floating):
            x = x.astype(np.float64)
        return self.numpy.array(x)

    def jit(self, f: Callable) -> Callable:
        return self.module.jit(f)

    def wait(self, out: Any) -> None:
        self.module.block_until_ready(out)

    def to_numpy(self, leaf: Any) -> np.ndarray:
        return np.asarray(leaf)


class Torch(Library):
    family = "torch"

    def __init__(self, name: str) -> None:
        self.name = name
        self.module = importlib.import_module("torch")
        self.compiled = name == "torch-compiled"

    def array(self, x: np.ndarray) -> Any:
        if x.dtype.name == "bfloat16":
            return self.module.from_numpy(x.astype(np.float32)).to(self.module.bfloat16)
        return self.module.from_numpy(x.copy())

    def jit(self, f: Callable) -> Callable:
        return self.module.compile(f) if self.compiled else f

    def to_numpy(self, leaf: Any) -> np.ndarray:
        leaf = leaf.detach()
        return (leaf.float() if leaf.dtype == self.module.bfloat16 else leaf).numpy()


class Tinygrad(Library):
    family = "tinygrad"

    def __init__(self, name: str) -> None:
        self.name = name
        self.module = importlib.import_module("tinygrad")
        importlib.import_module("tinygrad.nn.optim")
        self.module.Tensor([1.0]).numpy()  # raises where no compiler is to be found

    def array(self, x: np.ndarray) -> Any:
        if x.dtype.name == "bfloat16":
            tensor = self.module.Tensor(x.astype(np.float32))
            return tensor.cast(self.module.dtypes.bfloat16).contiguous().realize()
        return self.module.Tensor(x).realize()

    def jit(self, f: Callable) -> Callable:
        def realized(*arrays: Any) -> Any:
            out = f(*arrays)
            tensors = list(leaves(out))
            tensors[0].realize(*tensors[1:])
            return out

        return self.module.TinyJit(realized)

    def wait(self, out: Any) -> None:
        self.module.Device[self.module.Device.DEFAULT].synchronize()

    def to_numpy(self, leaf: Any) -> np.ndarray:
        return (leaf.float() if leaf.dtype == self.module.dtypes.bfloat16 else leaf).numpy()


class NumPy(Library):
    family = "numpy"

    def __init__(self, name: str) -> None:
        self.name = name
        self.module = np

    def array(self, x: np.ndarray) -> np.ndarray:
        return x

    def jit(self, f: Callable) -> Callable:
        return f

    def to_numpy(self, leaf: Any) -> np.ndarray:
        return np.asarray(leaf)


PEERS: dict[str, Callable[[str], Library]] = {
    "tinyjax": JaxLike,
    "jax": JaxLike,
    "torch": Torch,
    "torch-compiled": Torch,
    "tinygrad": Tinygrad,
    "numpy": NumPy,
}
REFERENCE = "jax-float64"


def make_peer(name: str) -> Library:
    return JaxLike(name) if name == REFERENCE else PEERS[name](name)


def family_of(name: str) -> str:
    """The key of a row's programs that this peer runs."""
    return {"tinyjax": "jax", "torch-compiled": "torch", REFERENCE: "jax"}.get(name, name)


def leaves(tree: Any) -> Iterator[Any]:
    """The arrays of nested tuples, lists and dicts, in an order all libraries share."""
    if isinstance(tree, dict):
        for key in sorted(tree):
            yield from leaves(tree[key])
    elif isinstance(tree, tuple | list):
        for item in tree:
            yield from leaves(item)
    elif tree is not None:
        yield tree


def map_arrays(f: Callable[[Any], Any], tree: Any) -> Any:
    """The same tree with `f` applied to each leaf."""
    if isinstance(tree, dict):
        return {key: map_arrays(f, item) for key, item in tree.items()}
    if isinstance(tree, tuple | list):
        return type(tree)(map_arrays(f, item) for item in tree)
    return f(tree)
