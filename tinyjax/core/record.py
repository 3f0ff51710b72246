"""What the compiler did: logs of passes and rewrites, and counters.

    with tinyjax.record_rewrites() as log:
        jax.jit(f).lower(x).as_text("llvm")
    print(log)                 every pass as a diff, and the rules it applied
    print(log.table())         one line per pass: how often, milliseconds, nodes in and out
    log.save("passes.html")    the same as a page

A *pass* turns one form of the program into the next (lowering/passes.py); a *step* is one rule
applied to one node (core/rewrite.py). Nothing is kept, and no text is made, unless a log is open
in this thread.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tinyjax.core.uop import UOp


def expression_text(node: UOp, limit: int = 400) -> str:
    """A node as an expression."""
    from tinyjax.core.kernel_text import expression  # only for people who look

    return expression(node, limit)


@dataclass
class Counts:
    """What the walks of a thread did: walks, nodes offered to rules, rewrites."""

    walks: int = 0
    nodes: int = 0
    rewrites: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """One rewrite, as nodes; texts are made when read."""

    pass_name: str
    rule: str
    before: UOp
    after: UOp

    def __str__(self) -> str:
        return f"{self.rule}\n  - {expression_text(self.before)}\n  + {expression_text(self.after)}"


@dataclass(frozen=True, slots=True)
class PassRecord:
    """One run of a pass.

    `steps` are the rules it applied, `nodes` what it was given. `stage` is "body -> body" and so
    on for a pass of the lowering; `before` and `after` are then the texts, `made` the nodes of the
    result, `seconds` of processor time. A walk of `rewrite` on its own has none of these.
    """

    name: str
    nodes: int
    steps: tuple[Step, ...] = ()
    stage: str = ""
    made: int = 0
    seconds: float = 0.0
    before: str = ""
    after: str = ""

    @property
    def title(self) -> str:
        """The first line of the record."""
        rules = f", {len(self.steps)} rewrites" if self.steps or not self.stage else ""
        if not self.stage:
            return f"pass {self.name}: {self.nodes} nodes{rules}"
        if self.before == self.after:
            return f"pass {self.name} ({self.stage}): {self.nodes} nodes, unchanged"
        return f"pass {self.name} ({self.stage}): {self.nodes} -> {self.made} nodes{rules}"

    def diff(self) -> list[str]:
        """What the pass changed, line by line; the whole result where it is of another stage."""
        import difflib  # only for people who look

        before, after = self.before.splitlines(), self.after.splitlines()
        takes, _, gives = self.stage.partition(" -> ")
        if takes != gives:
            return ["  " + line for line in after]
        changes = difflib.ndiff(before, after)
        return [line for line in changes if not line.startswith("?")]

    def __str__(self) -> str:
        lines = [self.title]
        for step in self.steps:
            lines += ["  " + line for line in str(step).splitlines()]
        if self.stage and self.before != self.after:
            lines += ["  " + line for line in self.diff()]
        return "\n".join(line.rstrip() for line in lines)


@dataclass
class RewriteLog:
    """Every pass and rewrite while it was open, in order; iterates as (pass, rule, before, after)
    over the rewrites."""

    passes: list[PassRecord] = field(default_factory=list)

    @property
    def steps(self) -> list[Step]:
        """The rewrites of all passes."""
        return [step for record in self.passes for step in record.steps]

    def __iter__(self) -> Iterator[tuple[str, str, UOp, UOp]]:
        return iter((s.pass_name, s.rule, s.before, s.after) for s in self.steps)

    def __len__(self) -> int:
        return len(self.steps)

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.passes))

    def table(self) -> str:
        """A line per pass: runs, milliseconds, nodes in, nodes out, rewrites; and their sum."""
        rows: dict[str, list[float]] = {}
        for r in self.passes:
            row = rows.setdefault(r.name, [0, 0.0, 0, 0, 0])
            for i, x in enumerate((1, 1e3 * r.seconds, r.nodes, r.made, len(r.steps))):
                row[i] += x
        rows["total"] = [sum(column) for column in zip(*rows.values())] or [0] * 5
        lines = [f"{'pass':<20} {'runs':>5} {'ms':>8} {'nodes':>8} {'made':>8} {'rewrites':>8}"]
        lines += [
            f"{name:<20} {runs:>5.0f} {ms:>8.1f} {nodes:>8.0f} {made:>8.0f} {rewrites:>8.0f}"
            for name, (runs, ms, nodes, made, rewrites) in rows.items()
        ]
        return "\n".join(lines)

    def html(self, title: str = "tinyjax rewrites") -> str:
        """One static page: passes fold, each rewrite shows before and after. No outside assets."""
        import html  # only for people who look

        parts = []
        for record in self.passes:
            rows = []
            for i, s in enumerate(record.steps, 1):
                rows.append(
                    f"<tr><td>{i}</td><th>{html.escape(s.rule)}</th>"
                    f"<td><code class='b'>{html.escape(expression_text(s.before))}</code><br>"
                    f"<code class='a'>{html.escape(expression_text(s.after))}</code></td></tr>"
                )
            body = f"<table>{''.join(rows)}</table>" if rows else ""
            if record.stage and record.before != record.after:
                body += f"<pre>{''.join(_html_line(line) for line in record.diff())}</pre>"
            parts.append(
                f"<details{' open' if len(self.passes) == 1 else ''}>"
                f"<summary>{html.escape(record.title)}</summary>{body}</details>"
            )
        return PAGE.format(title=html.escape(title), body="\n".join(parts))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write `html()` to a file."""
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.html())


def _html_line(line: str) -> str:
    import html  # only for people who look

    kind = {"-": "b", "+": "a"}.get(line[:1], "")
    text = html.escape(line)
    return f"<code class='{kind}'>{text}</code>\n" if kind else f"{text}\n"


PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<style>
body {{ font: 14px/1.4 sans-serif; margin: 2em; }}
summary {{ cursor: pointer; font-weight: bold; }}
table {{ border-collapse: collapse; margin: .5em 0 1em 1em; }}
td, th {{ border-top: 1px solid #ddd; padding: .3em .6em; text-align: left; vertical-align: top; }}
code.b {{ color: #a00; }} code.a {{ color: #070; }}
</style></head><body><h1>{title}</h1>
{body}
</body></html>
"""


class _Watchers(threading.local):
    """Open logs and counters of this thread."""

    def __init__(self) -> None:
        self.logs: list[RewriteLog] = []
        self.counts: list[Counts] = []


_watchers = _Watchers()


def recording() -> bool:
    """Whether a log is open in this thread: results kept from before are then made again."""
    return bool(_watchers.logs)


def note_walk(name: str, nodes: int, rewrites: int, steps: list[Step] | None) -> None:
    """Count a walk of `rewrite` and put it into the open logs."""
    for counts in _watchers.counts:
        counts.walks += 1
        counts.nodes += nodes
        counts.rewrites += rewrites
    for log in _watchers.logs:
        log.passes.append(PassRecord(name, nodes, tuple(steps or ())))


@contextmanager
def inside_pass() -> Iterator[RewriteLog]:
    """What happens in this block goes into a log of its own, for the driver to put in order."""
    own, outer = RewriteLog(), _watchers.logs
    _watchers.logs = [own]
    try:
        yield own
    finally:
        _watchers.logs = outer


def note_pass(record: PassRecord) -> None:
    """Put a pass into the open logs."""
    for log in _watchers.logs:
        log.passes.append(record)


@contextmanager
def record_rewrites() -> Iterator[RewriteLog]:
    """Keep what the compiler does in this thread: `with record_rewrites() as log: ...; print(log)`.

    The log has every pass from the traced function to LLVM text that runs in the block, with its
    text before and after, the rules it applied and its time. A function that is already compiled
    is not compiled again by calling it; `jit(f).lower(x).as_text("llvm")` always runs the passes.
    """
    log = RewriteLog()
    _watchers.logs.append(log)
    try:
        yield log
    finally:
        _watchers.logs = [x for x in _watchers.logs if x is not log]


@contextmanager
def counting() -> Iterator[Counts]:
    """Count the walks, nodes and rewrites of this thread."""
    counts = Counts()
    _watchers.counts.append(counts)
    try:
        yield counts
    finally:
        _watchers.counts[:] = [c for c in _watchers.counts if c is not counts]
