"""debug.breakpoint: a prompt in a running program, with the values of the user's variables."""

from __future__ import annotations

import cmd
import linecache
import pprint
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any, TextIO

from tinyjax.core.infos import CallbackInfo
from tinyjax.core.source import HIDDEN
from tinyjax.core.treedef import tree_flatten
from tinyjax.engine.array import Array
from tinyjax.engine.callbacks import HostFunction, effect

AROUND = 5
"""Source lines shown before and after the current one."""


@dataclass(frozen=True, slots=True)
class Place:
    """A line of the user's that was running when the breakpoint was traced."""

    filename: str
    line: int
    function: str

    def __str__(self) -> str:
        text = linecache.getline(self.filename, self.line).strip()
        return f"{self.filename}({self.line}) {self.function}\n-> {text}"

    def listing(self) -> list[str]:
        """The lines around it."""
        first = max(self.line - AROUND, 1)
        lines = [
            (n, linecache.getline(self.filename, n)) for n in range(first, self.line + AROUND + 1)
        ]
        return [
            f"{'->' if n == self.line else '  '} {n:4} {text.rstrip()}" for n, text in lines if text
        ]


class Prompt(cmd.Cmd):
    """Commands on the frames, innermost first."""

    prompt = "(jdb) "

    def __init__(
        self,
        places: Sequence[Place],
        scopes: Sequence[dict[str, Any]],
        namespaces: Sequence[dict[str, Any]],
        stdin: TextIO | None,
        stdout: TextIO | None,
    ) -> None:
        super().__init__(stdin=stdin, stdout=stdout)
        self.use_rawinput = stdin is None
        self.places, self.scopes, self.namespaces, self.at = places, scopes, namespaces, 0

    def say(self, text: object) -> None:
        self.stdout.write(f"{text}\n")

    def preloop(self) -> None:
        self.say(f"Entering jdb:\n> {self.places[self.at]}")

    def value(self, text: str) -> Any:
        return eval(text, self.namespaces[self.at], dict(self.scopes[self.at]))

    def do_p(self, text: str) -> None:
        """p expression: evaluate and print."""
        try:
            self.say(repr(self.value(text)))
        except Exception as error:
            self.say(f"*** {type(error).__name__}: {error}")

    def do_pp(self, text: str) -> None:
        """pp expression: evaluate and pretty-print."""
        try:
            self.say(pprint.pformat(self.value(text)))
        except Exception as error:
            self.say(f"*** {type(error).__name__}: {error}")

    def default(self, line: str) -> None:
        self.do_p(line)

    def emptyline(self) -> bool:
        return False

    def do_l(self, _: str) -> None:
        """l: list the source around the line."""
        self.say("\n".join(self.places[self.at].listing()))

    def do_bt(self, _: str) -> None:
        """bt: the calls that led here, outermost first."""
        for place in reversed(self.places):
            self.say(f"  {place}")

    def do_u(self, _: str) -> None:
        """u: one call out."""
        self.move(1)

    def do_d(self, _: str) -> None:
        """d: one call in."""
        self.move(-1)

    def move(self, by: int) -> None:
        if 0 <= self.at + by < len(self.places):
            self.at += by
            self.say(f"> {self.places[self.at]}")
        else:
            self.say("*** no further frame")

    def do_c(self, _: str) -> bool:
        """c: go on with the program."""
        return True

    def do_q(self, _: str) -> bool:
        """q: end the program."""
        raise SystemExit(0)

    do_list, do_where, do_up, do_down, do_continue, do_quit = do_l, do_bt, do_u, do_d, do_c, do_q
    do_EOF = do_c


class Debugger:
    """The callback: values of the frames' variables come in, in the order of their names."""

    def __init__(
        self,
        frames: Sequence[FrameType],
        stdin: TextIO | None,
        stdout: TextIO | None,
    ) -> None:
        self.places = [Place(f.f_code.co_filename, f.f_lineno, f.f_code.co_name) for f in frames]
        self.namespaces = [f.f_globals for f in frames]
        self.streams = stdin, stdout

    def __call__(self, scopes: Sequence[dict[str, Any]]) -> None:
        Prompt(self.places, scopes, self.namespaces, *self.streams).cmdloop()


def debug_breakpoint(
    *,
    backend: str | None = None,
    filter_frames: bool = True,
    num_frames: int | None = None,
    ordered: bool = False,
    stdin: TextIO | None = None,
    stdout: TextIO | None = None,
    **options: Any,
) -> None:
    """Stop here when the program runs, also in compiled code, with a prompt.

    The prompt evaluates expressions over the variables of the user's functions that were running
    when this line was traced, with their values at run time. Commands: p, pp, l(ist), bt, u(p),
    d(own), c(ontinue), q(uit). An effect, like `debug.callback`.
    `backend` changes nothing: there is one debugger.
    """
    frames: list[FrameType] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (num_frames is None or len(frames) < num_frames):
        if not (filter_frames and HIDDEN[frame.f_code.co_filename]):
            frames.append(frame)
        frame = frame.f_back
    scopes = [dict(f.f_locals) for f in frames]
    leaves, tree = tree_flatten((([*scopes],), {}))
    nodes = [x.node for x in leaves if type(x) is Array]
    statics = [(i, x) for i, x in enumerate(leaves) if type(x) is not Array]
    function = HostFunction(Debugger(frames, stdin, stdout), tree, statics)
    effect(nodes, CallbackInfo(function, (), "debug", ordered=ordered))
