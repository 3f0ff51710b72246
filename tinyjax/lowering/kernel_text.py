"""Stage-2 kernels as text, for people and golden tests.

    for r0:64 loop, r1:32 loop
      a = load p1[32*r0 + r1]
      p0[32*r0 + r1] = exp(a)

Index arithmetic is written in place, guards as `if`; values used more than once get a name.
"""

from __future__ import annotations

from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp, const_value, toposort

SYMBOLS = {
    Op.ADD: "+", Op.SUB: "-", Op.MUL: "*", Op.DIV: "/", Op.IDIV: "//", Op.MOD: "%", Op.AND: "&",
    Op.OR: "|", Op.XOR: "^", Op.SHL: "<<", Op.SHRL: ">>", Op.CMPLT: "<", Op.CMPLE: "<=",
    Op.CMPEQ: "==", Op.CMPNE: "!=",
}  # fmt: skip


def kernel_text(sink: UOp) -> str:
    """A SINK as text: one block per store."""
    order = toposort([sink])
    uses: dict[UOp, int] = {}
    for node in order:
        for s in node.src:
            uses[s] = uses.get(s, 0) + 1
    shown: dict[UOp, str] = {}
    lines: list[str] = []
    names = 0
    for end in sink.src:
        store, ranges = end.src[0], end.src[1:]
        indent = ""
        if ranges:
            lines.append("for " + ", ".join(_range_text(r) for r in ranges))
            indent = "  "
        for node in toposort([store]):
            if node in shown or node.op in (Op.STORE, Op.INDEX):
                continue
            text = _expression(node, shown)
            trivial = (
                node.op in (Op.CONST, Op.RANGE, Op.PARAM)
                or getattr(node.aval, "dtype", None) == "int64"
            )
            if uses.get(node, 0) > 1 and not trivial:
                name = _name(names)
                names += 1
                lines.append(f"{indent}{name} = {text}")
                shown[node] = name
            else:
                shown[node] = text
        target, guard = _place(store.src[0], shown)
        when = f"{guard[1:]}: " if guard else ""
        lines.append(f"{indent}{when}{target} = {_bare(shown[store.src[1]])}")
    return "\n".join(lines)


def _name(number: int) -> str:
    letters = "abcdefghijklmnopqrstuvwxyz"
    return letters[number % 26] + (str(number // 26) if number >= 26 else "")


def _range_text(node: UOp) -> str:
    return f"r{node.arg[0]}:{const_value(node.src[0])} {node.arg[1]}"


def _bare(text: str) -> str:
    """Without the outermost parentheses."""
    if not (text.startswith("(") and text.endswith(")")):
        return text
    depth = 0
    for i, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if not depth and i + 1 < len(text):
            return text
    return text[1:-1]


def _place(index: UOp, shown: dict[UOp, str]) -> tuple[str, str]:
    place = f"p{index.src[0].arg[0]}[{_bare(shown[index.src[1]])}]"
    guard = f" if {_bare(shown[index.src[2]])}" if len(index.src) > 2 else ""
    return place, guard


def _expression(node: UOp, shown: dict[UOp, str]) -> str:
    op, src = node.op, node.src
    if op is Op.CONST:
        return str(const_value(node))
    if op is Op.RANGE:
        return f"r{node.arg[0]}"
    if op is Op.PARAM:
        return f"p{node.arg[0]}"
    if op is Op.LOAD:
        place, guard = _place(src[0], shown)
        other = f" else {shown[src[1]]}" if len(src) > 1 and guard else ""
        return f"(load {place}{guard}{other})" if guard else f"load {place}"
    if op in (Op.FOLD, Op.PREFIX):
        ranges = [s for s in src if s.op is Op.RANGE and s is not src[0]]
        values = [s for s in src if s not in ranges or s is src[0]]
        kind = node.arg if op is Op.FOLD else f"prefix {node.arg[0]}"
        over = ", ".join(_range_text(r) for r in ranges)
        return f"{kind}[{over}]({', '.join(_bare(shown[v]) for v in values)})"
    if op in SYMBOLS:
        return f"({f' {SYMBOLS[op]} '.join(shown[s] for s in src)})"
    if op is Op.GETTUPLE:
        return f"{shown[src[0]]}.{node.arg}"
    if op is Op.CAST:
        return f"{node.aval.dtype.name}({_bare(shown[src[0]])})"
    arg = "" if node.arg is None else f"[{node.arg}]"
    return f"{op.name.lower()}{arg}({', '.join(_bare(shown[s]) for s in src)})"
