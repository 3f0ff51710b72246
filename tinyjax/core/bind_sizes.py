"""Sizes for symbolic dimensions: a body traced for every size -> the body of one, or of others that
are symbolic.

Nodes keep their ops; avals, the sizes in their static data and the bodies inside follow. What was
decided while tracing stays decided, so the result is what the one trace means at these sizes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from tinyjax.core import sites
from tinyjax.core.avals import Aval, TupleAval, aval, tuple_aval
from tinyjax.core.build import scalar
from tinyjax.core.dims import Atom, DimExpr, Size, evaluate
from tinyjax.core.infos import Backward, each_backward
from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp, toposort, tuple_of

INDEX_DTYPE = np.dtype(np.int64)


def bind_sizes(body: UOp, sizes: Mapping[Atom, Size]) -> UOp:
    """The closed body with the value of each dimension in place of it.

    Bodies that a derivative rule holds are bound too, those made on demand when they are made.
    Cost: one walk over all distinct nodes; a body that is called twice is walked once.
    Raises: KeyError for a dimension without a size.
    """
    return _Binder(sizes).body(body)


class _Binder:
    """What is bound already, for one choice of sizes."""

    def __init__(self, sizes: Mapping[Atom, Size]) -> None:
        self.sizes = sizes
        self.nodes: dict[UOp, UOp] = {}
        self.args: dict[Any, Any] = {}

    def body(self, body: UOp) -> UOp:
        nodes = self.nodes
        for node in toposort([body], keep=lambda n: n not in nodes, bodies=True):
            nodes[node] = self.node(node)
            sites.rewritten(nodes[node], node)
        return nodes[body]

    def node(self, node: UOp) -> UOp:
        if node.op is Op.DIM:
            return scalar(evaluate(node.arg, self.sizes), INDEX_DTYPE)
        src = tuple(self.nodes[s] for s in node.src)
        return tuple_of(src) if node.op is Op.TUPLE else UOp(node.op, src, self.arg(node.arg))

    def arg(self, x: Any) -> Any:
        """Static data of a node: sizes, and what may hold sizes."""
        if isinstance(x, DimExpr):
            return evaluate(x, self.sizes)
        if type(x) is tuple:
            return tuple(map(self.arg, x))
        if isinstance(x, (Aval, TupleAval, UOp, Backward)) or (
            dataclasses.is_dataclass(x) and not isinstance(x, type)
        ):
            if x not in self.args:
                self.args[x] = self.held(x)
            return self.args[x]
        return x

    def held(self, x: Any) -> Any:
        if isinstance(x, Aval):
            return aval(self.arg(x.shape), x.dtype, x.weak_type)
        if isinstance(x, TupleAval):
            return tuple_aval(self.arg(x.elts))
        if isinstance(x, UOp):
            return self.body(x)
        if isinstance(x, Backward):
            return each_backward(x, lambda made, _: self.body(made))
        fields = {f.name: getattr(x, f.name) for f in dataclasses.fields(x) if f.init}
        bound = {name: self.arg(value) for name, value in fields.items()}
        changed = {name: v for name, v in bound.items() if v is not fields[name]}
        return dataclasses.replace(x, **changed) if changed else x
