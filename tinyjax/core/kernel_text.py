"""Kernels as text: stage 2 as loop nests, stage 3 as numbered lists, any node as an expression.

A kernel is printed as the loops it means, each value at the outermost loop it can stand in:

    kernel(p0: f32[8], p1: f32[8,32]):
      for r0 in 0..8 (loop):
        a = add of nothing
        for r1 in 0..32 (reduce):
          a += exp(p1[r0*32 + r1])
        p0[r0] = log(a)

Folds, and whatever is used twice or is long, get a letter; the rest is written where it is used.
Cost: linear in the number of nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tinyjax.core.avals import Aval
from tinyjax.core.ops import Op
from tinyjax.core.printer import arg_fields, aval_text, letters, literal_text, op_name
from tinyjax.core.uop import UOp, const_value, toposort

WIDEST = 60
"""Expressions longer than this are given a name."""

# Operator and how strongly it binds; operands that bind less are put in brackets.
INFIX: dict[Op, tuple[str, int]] = {
    Op.OR: ("|", 1), Op.XOR: ("^", 2), Op.AND: ("&", 3), Op.CMPLT: ("<", 4), Op.CMPLE: ("<=", 4),
    Op.CMPEQ: ("==", 4), Op.CMPNE: ("!=", 4), Op.SHL: ("<<", 5), Op.SHRA: (">>", 5),
    Op.ADD: ("+", 6), Op.SUB: ("-", 6), Op.MUL: ("*", 7), Op.DIV: ("/", 7), Op.IDIV: ("//", 7),
    Op.MOD: ("%", 7),
}  # fmt: skip
TIGHT = 9
UPDATES = {"add": "+=", "mul": "*=", "and": "&=", "or": "|=", "xor": "^="}

Text = tuple[str, int]
"""An expression and how strongly it binds."""


def node_text(node: UOp, src: Sequence[Text]) -> Text:
    """One node over the texts of its sources."""
    op = node.op
    if op is Op.CONST:
        text = literal_text(node, typed=False)
        return text, 6 if text.startswith("-") else TIGHT
    if op is Op.RANGE:
        return f"r{node.arg[0]}", TIGHT
    if op is Op.DIM:
        return str(node.arg), TIGHT
    if op is Op.PARAM:
        return f"p{node.arg[0]}", TIGHT
    if op in INFIX and len(src) == 2:
        sign, level = INFIX[op]
        left = src[0][0] if src[0][1] >= level else f"({src[0][0]})"
        right = src[1][0] if src[1][1] > level else f"({src[1][0]})"
        space = "" if level == 7 else " "
        return f"{left}{space}{sign}{space}{right}", level
    texts = [s[0] for s in src]
    if op is Op.INDEX:
        guard = f" if {texts[2]}" if len(texts) > 2 else ""
        return f"{texts[0]}[{texts[1]}{guard}]", TIGHT
    if op is Op.LOAD:
        return (f"{texts[0]} else {texts[1]}", 0) if len(texts) > 1 else src[0]
    if op is Op.CAST:
        return f"{aval_text(node.aval)[:-2]}({texts[0]})", TIGHT
    if op is Op.NEG:
        return f"-{texts[0] if src[0][1] >= 8 else '(' + texts[0] + ')'}", 7
    if op is Op.NOT:
        return f"~{texts[0] if src[0][1] >= 8 else '(' + texts[0] + ')'}", 7
    if op is Op.GETTUPLE:
        return f"{texts[0]}.{node.arg}", TIGHT
    if op is Op.STORE:
        return f"{texts[0]} = {texts[1]}", 0
    if op is Op.FOLD:
        return f"fold_{node.arg}({', '.join(texts)})", TIGHT
    fields = " ".join(f"{k}={v}" for k, v in arg_fields(node)) if op is not Op.PREFIX else ""
    name = op_name(node) + (f"[{fields}]" if fields else "")
    return f"{name}({', '.join(texts)})", TIGHT


def expression(node: UOp, limit: int = 400) -> str:
    """A node as one line of nested operators, shortened to about `limit` characters.

    Cost: bounded by `limit`, whatever hangs below the node.
    """
    texts: dict[UOp, Text] = {}
    budget = limit
    near: set[UOp] = set()
    front = [node]
    while front and budget > 0:  # breadth first, so that what is left out lies deepest
        layer: list[UOp] = []
        for n in front:
            if n not in near:
                near.add(n)
                budget -= 4
                layer += n.operands
        front = layer
    for n in toposort([node], keep=lambda m: m in near):
        found = node_text(n, [texts.get(s, ("...", TIGHT)) for s in n.operands])
        texts[n] = found if len(found[0]) <= limit else (found[0][: limit - 3] + "...", 0)
    return texts[node][0]


# --- stage 2 --------------------------------------------------------------------------------------


class _Block:
    """Statements at one loop level: lines, and inner blocks with their headers."""

    __slots__ = ("header", "items", "ranges")

    def __init__(self, header: str, ranges: frozenset[UOp]) -> None:
        self.header, self.ranges = header, ranges
        self.items: list[str | _Block] = []


def put(block: _Block, path: Sequence[_Block], item: str | _Block) -> None:
    """Add a statement to a block of `path`, before the loop of the current statement."""
    after = path[path.index(block) + 1 :]
    if after:
        block.items.insert(block.items.index(after[0]), item)
    else:
        block.items.append(item)


def range_text(node: UOp) -> str:
    """`for r1 in 0..32 (reduce):`, `for r1 in 0..min(d0, 32) (loop):`"""
    size = node.src[0]
    extent = str(int(const_value(size))) if size.op is Op.CONST else expression(size)
    for limit in node.src[1:]:
        extent = f"min({expression(limit)}, {extent})"
    return f"for r{node.arg[0]} in 0..{extent} ({node.arg[1]}):"


def closed_ranges(node: UOp) -> list[UOp]:
    """The ranges a FOLD, END or STAGE closes."""
    if node.op not in (Op.FOLD, Op.END, Op.STAGE):
        return []
    first = 2 if node.arg in ("argmax", "argmin") else 1  # an index may itself be a range
    return [s for s in node.src[first:] if s.op is Op.RANGE]


class _Kernel:
    """Prints one SINK."""

    def __init__(self, sink: UOp) -> None:
        self.order = toposort([sink])
        self.free: dict[UOp, frozenset[UOp]] = {}
        self.uses: dict[UOp, int] = {}
        for n in self.order:
            found = frozenset[UOp]().union(*(self.free[s] for s in n.src))
            if n.op is Op.RANGE:
                found |= {n}
            self.free[n] = found - frozenset(closed_ranges(n))
            for s in n.src:
                self.uses[s] = self.uses.get(s, 0) + 1
        self.count = 0
        self.names: dict[UOp, str] = {}

    def letter(self) -> str:
        self.count += 1
        return letters(self.count - 1)

    def value(self, root: UOp, path: list[_Block], texts: dict[UOp, Text]) -> Text:
        """The text of a value in the last block of `path`; what needs a name is put before."""
        wanted = toposort([root], keep=lambda n: n not in texts and n not in self.names)
        inside = self.inside_folds(wanted)
        for n in wanted:
            if n in inside:
                continue
            if n.op is Op.FOLD:
                self.fold(n, path, texts)
                continue
            src = [self.text_of(s, texts) for s in n.src]
            found = node_text(n, src)
            leaf = n.op in (Op.CONST, Op.RANGE, Op.PARAM, Op.INDEX, Op.GETTUPLE)
            often = self.uses.get(n, 0) > 1 and n is not root
            if not leaf and (often or len(found[0]) > WIDEST) and n.op is not Op.STORE:
                self.names[n] = self.letter()
                put(self.place(n, path), path, f"{self.names[n]} = {found[0]}")
            else:
                texts[n] = found
        return self.text_of(root, texts)

    def inside_folds(self, wanted: list[UOp]) -> set[UOp]:
        """Nodes that only folds among `wanted` need: they are printed in the loops of the fold."""
        outside: set[UOp] = set()
        for n in reversed(wanted):
            if n is wanted[-1] or n in outside:
                outside.add(n)
                if n.op is not Op.FOLD:
                    outside.update(n.src)
        return {n for n in wanted if n not in outside}

    def text_of(self, node: UOp, texts: dict[UOp, Text]) -> Text:
        name = self.names.get(node)
        return (name, TIGHT) if name is not None else texts[node]

    def place(self, node: UOp, path: list[_Block]) -> _Block:
        """The outermost block of `path` in which all ranges of a node are open."""
        for block in path:
            if self.free[node] <= block.ranges:
                return block
        return path[-1]

    def fold(self, node: UOp, path: list[_Block], texts: dict[UOp, Text]) -> None:
        """A name for the accumulator, and the loops that fill it, before the current statement."""
        block = self.place(node, path)
        name = self.names[node] = self.letter()
        ranges = closed_ranges(node)
        values = node.src[: len(node.src) - len(ranges)]
        put(block, path, f"{name} = {node.arg} of nothing")
        inner = path[: path.index(block) + 1]
        for i, r in enumerate(ranges):
            made = _Block(range_text(r), inner[-1].ranges | {r})
            put(inner[-1], path if i == 0 else inner, made)
            inner.append(made)
        local = {n: t for n, t in texts.items() if self.free[n] <= block.ranges}
        shown = [self.value(v, inner, local)[0] for v in values]
        update = UPDATES.get(node.arg)
        right = ", ".join(shown)
        if update is not None:
            inner[-1].items.append(f"{name} {update} {right}")
        else:
            inner[-1].items.append(f"{name} = {node.arg}({name}, {right})")

    def print(self, sink: UOp) -> str:
        params = sorted((n for n in self.order if n.op is Op.PARAM), key=lambda n: n.arg[0])
        heads = ", ".join(f"p{n.arg[0]}: {aval_text(n.aval)}" for n in params)
        top = _Block(f"kernel({heads}):", frozenset())
        for effect in sink.src:
            path, texts = [top], dict[UOp, Text]()
            for r in closed_ranges(effect):
                last = path[-1].items[-1] if path[-1].items else None
                if isinstance(last, _Block) and last.header == range_text(r):
                    path.append(last)  # the next store of the same loops
                    continue
                made = _Block(range_text(r), path[-1].ranges | {r})
                path[-1].items.append(made)
                path.append(made)
            statement = effect.src[0] if effect.op is Op.END else effect
            path[-1].items.append(self.value(statement, path, texts)[0])
        return "\n".join(_lines(top))


def _lines(top: _Block) -> list[str]:
    lines: list[str] = []
    stack: list[str | _Block] = [top]
    depths = [0]
    while stack:
        item, depth = stack.pop(), depths.pop()
        if isinstance(item, _Block):
            lines.append("  " * depth + item.header)
            stack += reversed(item.items)
            depths += [depth + 1] * len(item.items)
        else:
            lines.append("  " * depth + item)
    return lines


def print_kernel(sink: UOp) -> str:
    """A stage-2 SINK as the loop nest it means."""
    return _Kernel(sink).print(sink)


# --- stage 3 --------------------------------------------------------------------------------------

OPENS = frozenset({Op.RANGE, Op.IF})
CLOSES = frozenset({Op.END, Op.ENDIF})


def print_list(nodes: Sequence[UOp], note: Callable[[UOp], str] | None = None) -> str:
    """A stage-3 list: a numbered line per node, indented by loops and conditions."""
    numbers: dict[UOp, int] = {}
    lines: list[str] = []
    depth = 0
    for node in nodes:
        depth -= node.op in CLOSES
        args = []
        for s in node.src:
            if s.op is Op.CONST and s not in numbers:
                args.append(literal_text(s, typed=True))
            else:
                args.append(f"%{numbers[s]}" if s in numbers else f"<{s.op.name.lower()}>")
        fields = " ".join(f"{k}={v}" for k, v in list_fields(node))
        name = op_name(node) if node.op is not Op.PREFIX else "prefix"
        text = f"{name}[{fields}]" if fields else name
        kind = f":{aval_text(node.aval)}" if isinstance(node.aval, Aval) else ""
        extra = note(node) if note is not None else ""
        line = f"%{len(numbers)}{kind} = {' '.join([text, *args])}"
        lines.append("  " * depth + line + (f"  # {extra}" if extra else ""))
        numbers[node] = len(numbers)
        depth += node.op in OPENS
    return "\n".join(lines)


def list_fields(node: UOp) -> list[tuple[str, str]]:
    """Static data of a kernel- or program-stage node."""
    if node.op is Op.CONST:
        return [("value", literal_text(node, typed=False))]
    if node.op is Op.RANGE:
        return [("id", str(node.arg[0])), ("kind", str(node.arg[1]))]
    if node.op is Op.PARAM:
        return [("slot", str(node.arg[0]))]
    if node.op is Op.PREFIX:
        return [("kind", str(node.arg[0]))]
    return arg_fields(node)


__all__ = ["expression", "print_kernel", "print_list"]
