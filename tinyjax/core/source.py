"""Where the user's code is: source lines of operations, name stacks, and clean tracebacks.

A *site* is what identifies a line: the user's code object and the offset of its current
instruction. Taking one is a walk over frames that skips our files (0.2 µs and 0.05 µs a frame of
ours); file, line, function, and even the operands' own text are worked out only when something is
printed. Name stacks (`named_scope`, and marks of transformations) are per thread.

Our frames, and those of libraries that called `register_exclusion`, are left out of tracebacks that
reach the user; the option `jax_traceback_filtering` says how.
"""

from __future__ import annotations

import ast
import dis
import functools
import itertools
import linecache
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ContextDecorator
from dataclasses import dataclass
from types import CodeType, FrameType, FunctionType, ModuleType, TracebackType
from typing import Any, TypeVar, cast

from tinyjax.core.describe import describe_call, describe_operand, parameter_names

F = TypeVar("F", bound=Callable[..., Any])
Call = tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]]
"""A function of ours and the arguments that the user gave it."""

Site = tuple[CodeType, int]
"""A user's code object and instruction offset. Not a key: Python compares code objects without
their file names; `locate(site)` is one."""

# --- whose frame is it --------------------------------------------------------------------------

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
STANDARD = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
NUMPY = f"{os.sep}site-packages{os.sep}numpy{os.sep}"
"""Where the files of Python's library and of NumPy are, which our code calls."""
RULES = os.path.join(PACKAGE, "core", "rules.py")
GENERATED = "<tinyjax"
"""File names of code that we compile begin so."""

_excluded: list[str] = [PACKAGE]


class HiddenFiles(dict[str, bool]):
    """File name -> whether its frames are hidden, worked out once per file."""

    def __missing__(self, filename: str) -> bool:
        hidden = filename.startswith(GENERATED) or any(
            filename == path or filename.startswith(path + os.sep) for path in _excluded
        )
        self[filename] = hidden
        return hidden


HIDDEN = HiddenFiles()


def register_exclusion(path: str) -> None:
    """Treat a file, or all files below a folder, as ours: never the user's line, and hidden in
    tracebacks. A library built on tinyjax calls `register_exclusion(__file__)`.
    """
    _excluded.append(os.fspath(path).rstrip(os.sep))
    HIDDEN.clear()


# --- sites --------------------------------------------------------------------------------------


def user_frame() -> FrameType | None:
    """The innermost frame of user code, or None if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and HIDDEN[frame.f_code.co_filename]:
        frame = frame.f_back
    return frame


def call_site() -> Site | None:
    """The user's code object and instruction. Cost: about 0.2 µs, and 0.05 µs a frame of ours."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if not HIDDEN[code.co_filename]:
            return code, frame.f_lasti
        frame = frame.f_back
    return None


@dataclass(frozen=True, slots=True)
class Location:
    """A site in words. Columns are UTF-8 byte offsets, -1 where Python has none."""

    file: str
    line: int
    function: str
    column: int = -1
    end_line: int = -1
    end_column: int = -1

    def __str__(self) -> str:
        """`train.py:31 in layer` (no function at module level)."""
        where = f"{os.path.basename(self.file)}:{self.line}"
        return where if self.function == "<module>" else f"{where} in {self.function}"

    def source_line(self) -> str:
        """The text of the line, stripped; empty if the source is not at hand."""
        return linecache.getline(self.file, self.line).strip()

    def expression(self) -> str:
        """The text of the expression being evaluated; empty if not known."""
        if self.column < 0 or self.end_column < 0:
            return ""
        lines = [
            linecache.getline(self.file, n).encode() for n in range(self.line, self.end_line + 1)
        ]
        if not lines or not lines[-1]:
            return ""
        lines[-1] = lines[-1][: self.end_column]
        lines[0] = lines[0][self.column :]
        return b"".join(lines).decode(errors="replace")


def locate(site: Site) -> Location:
    """File, line, function and columns of a site."""
    code, offset = site
    return locate_in(code.co_filename, code, offset)


@functools.lru_cache(maxsize=4096)
def locate_in(filename: str, code: CodeType, offset: int) -> Location:
    """`locate`, remembered. Code objects compare without their file name: equal functions on the
    same line of two files are equal code, so the name is part of the key.
    """
    line, end_line, column, end_column = code_position(code, offset)
    return Location(filename, line, code.co_qualname, column, end_line, end_column)


def code_position(code: CodeType, offset: int) -> tuple[int, int, int, int]:
    """(line, end line, column, end column) of an instruction."""
    for index, (line, end_line, column, end_column) in enumerate(code.co_positions()):
        if index == offset // 2:
            start = code.co_firstlineno if line is None else line
            end = start if end_line is None else end_line
            return (
                start,
                end,
                -1 if column is None else column,
                -1 if end_column is None else end_column,
            )
    return code.co_firstlineno, code.co_firstlineno, -1, -1


def function_location(f: Any) -> str:
    """`loss at train.py:12`: how messages name a user's function."""
    f = getattr(f, "func", f) if isinstance(f, functools.partial) else f
    name = getattr(f, "__qualname__", None) or getattr(f, "__name__", None) or repr(f)
    code = getattr(getattr(f, "__wrapped__", f), "__code__", None)
    if code is None:
        return str(name)
    return f"{name} at {os.path.basename(code.co_filename)}:{code.co_firstlineno}"


def user_line(site: Site | None) -> str:
    """`  at train.py:31 in layer:  h = params['w1'] @ x`; empty if no user code is running."""
    if site is None:
        return ""
    location = locate(site)
    text = location.source_line()
    return f"  at {location}:  {text}" if text else f"  at {location}"


# --- the operands as the user wrote them --------------------------------------------------------


def operand_texts(site: Site, frame: FrameType | None = None) -> list[tuple[str | None, str]]:
    """(keyword or None, text) of each operand of the expression at a site; empty if not known.

    `a @ b` gives a, b; `jnp.dot(a, b=y)` gives a and b=y; `a.dot(b)` gives a, b, the receiver
    counting as an operand unless it is a module (which only the live `frame` can tell).
    """
    return [(name, ast.unparse(part)) for name, part in operand_parts(site, frame)]


def operand_parts(site: Site, frame: FrameType | None) -> list[tuple[str | None, ast.AST]]:
    """The same, parsed."""
    text = locate(site).expression()
    if not text:
        return []
    try:
        tree = ast.parse(text.strip())
    except (SyntaxError, ValueError):
        return []
    if len(tree.body) != 1:
        return []
    node: ast.AST = tree.body[0]
    if isinstance(node, ast.Expr):
        node = node.value
    return operand_nodes(node, frame)


def operand_nodes(node: ast.AST, frame: FrameType | None) -> list[tuple[str | None, ast.AST]]:
    """The operands of one expression."""
    match node:
        case ast.BinOp(left=left, right=right):
            return [(None, left), (None, right)]
        case ast.AugAssign(target=target, value=value):
            return [(None, target), (None, value)]
        case ast.Compare(left=left, ops=[ast.In() | ast.NotIn()], comparators=[right]):
            return [(None, right), (None, left)]
        case ast.Compare(left=left, comparators=[right]):
            return [(None, left), (None, right)]
        case ast.UnaryOp(operand=operand):
            return [(None, operand)]
        case ast.Subscript(value=value, slice=index):
            return [(None, value), (None, index)]
        case ast.Call(func=func, args=args, keywords=keywords):
            if any(isinstance(a, ast.Starred) for a in args):
                return []
            if getattr(known_value(func, frame), "__module__", "") == "builtins":
                return []  # max, sum, ... call operators with operands of their own
            receiver: list[tuple[str | None, ast.AST]] = []
            if isinstance(func, ast.Attribute) and not is_module(func.value, frame):
                receiver = [(None, func.value)]
            positional = [(None, a) for a in args]
            return [*receiver, *positional, *[(k.arg, k.value) for k in keywords if k.arg]]
        case _:
            return []


def is_module(node: ast.AST, frame: FrameType | None) -> bool:
    """Whether a name or dotted name stands for a module (assumed if there is no frame)."""
    if frame is not None:
        return isinstance(known_value(node, frame), ModuleType)
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name)


UNKNOWN = object()
"""The value of an expression that cannot be told without running the user's code."""


def known_value(node: ast.AST, frame: FrameType | None) -> Any:
    """What an expression stands for in a live frame, or `UNKNOWN`.

    Names, what they hold as attributes, and elements of plain containers are looked up; a list or
    tuple that is written down counts as an empty one.
    """
    if frame is None:
        return UNKNOWN
    match node:
        case ast.Name(id=name):
            for names in (frame.f_locals, frame.f_globals, frame.f_builtins):
                if name in names:
                    return names[name]
        case ast.Attribute(value=of, attr=name):
            return getattr(known_value(of, frame), "__dict__", {}).get(name, UNKNOWN)
        case ast.Subscript(value=of, slice=index):
            container = known_value(of, frame)
            if type(container) in (dict, list, tuple):
                try:
                    return container[ast.literal_eval(index)]
                except (ValueError, TypeError, LookupError):
                    return UNKNOWN
        case ast.Constant(value=value):
            return value
        case ast.List() | ast.Tuple():
            return ()
    return UNKNOWN


def fits(node: ast.AST, value: Any, frame: FrameType) -> bool:
    """Whether an expression can stand for an operand: its value, if known, has that shape."""
    known = known_value(node, frame)
    if known is UNKNOWN or known is value:
        return True
    number = isinstance(known, bool | int | float | complex)
    shape = () if number else getattr(known, "shape", None)
    return shape is not None and str(shape) == str(getattr(value, "shape", None))


OF_SHAPES = re.compile(r"\b(ndim|ranks?|dimensions|features)\b")
"""Words of messages to which the shapes of the operands belong."""

Given = tuple[str, Any, ast.AST | None]
"""The name of a parameter, what the user gave for it, and how that is written."""


def operands_of(call: Call, message: str | None = None) -> str:
    """`  x = params['w']  f32[3,4]      y = v  f32[5]`: the arrays that the user gave a function.

    What the user wrote for them is at the line that is running; it is left out if one of the
    expressions stands for something else. Nothing if there is a message that neither names the
    shape of one of them nor speaks of dimensions: it is about something else.
    """
    fun, args, kwargs = call
    frame = user_frame()
    parts = [] if frame is None else operand_parts((frame.f_code, frame.f_lasti), frame)
    positional = [part for keyword, part in parts if keyword is None]
    written = positional if len(positional) == len(args) else [None] * len(args)
    keywords = {keyword: part for keyword, part in parts if keyword is not None}
    names = itertools.chain(parameter_names(fun), itertools.repeat(""))
    given = [*zip(names, args, written), *((k, x, keywords.get(k)) for k, x in kwargs.items())]
    arrays = [array for each in given for array in arrays_in(*each)]
    if not arrays or not (
        message is None
        or OF_SHAPES.search(message)
        or any(x.shape and str(x.shape) in message for _, x, _ in arrays)
    ):
        return ""
    fit = frame is not None and all(p is None or fits(p, x, frame) for _, x, p in arrays)
    shown = [
        describe_operand(name, ast.unparse(p) if p is not None and fit else "", x)
        for name, x, p in arrays
    ]
    return f"  {'      '.join(shown)}"


def arrays_in(name: str, value: Any, part: ast.AST | None) -> Iterator[Given]:
    """The arrays of one argument, which may be a sequence of them."""
    if type(value) in (list, tuple) and len(value) <= 8:
        written: Sequence[ast.AST | None] = ()
        if isinstance(part, ast.List | ast.Tuple):
            written = part.elts
        if len(written) != len(value) or any(isinstance(e, ast.Starred) for e in written):
            written = [None] * len(value)
        for i, (x, element) in enumerate(zip(value, written, strict=True)):
            yield from arrays_in(f"{name}[{i}]" if name else "", x, element)
    elif isinstance(getattr(value, "shape", None), tuple) and hasattr(value, "dtype"):
        yield name, value, part


# --- name stacks --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Transform:
    """Mark of a transformation in a name stack; it wraps the scopes that follow it."""

    name: str


NameStack = tuple[str | Transform, ...]
Source = tuple[Site | None, NameStack]
"""What an open node remembers: the user's instruction and the names around it."""


class Names(threading.local):
    """The current name stack of each thread."""

    stack: NameStack = ()


_names = Names()


def name_stack() -> NameStack:
    """The name stack of this thread."""
    return _names.stack


def current_source() -> Source:
    """Site and name stack here, for a node made now."""
    return call_site(), _names.stack


def name_stack_text(stack: NameStack) -> str:
    """`transpose(jvp(layer1))/dense`: a mark wraps the next scope, or nothing."""
    parts: list[str] = []
    marks: list[str] = []
    for entry in (*stack, None):
        if isinstance(entry, Transform):
            marks.append(entry.name)
        elif entry is not None or marks:
            text = entry or ""
            for mark in reversed(marks):
                text = f"{mark}({text})"
            parts.append(text)
            marks = []
    return "/".join(parts)


def transformed(mark: str, stack: NameStack) -> NameStack:
    """The stack of a node derived by a transformation: `transpose(…)` of the user's names."""
    return (Transform(mark), *stack)


class using_names(ContextDecorator):
    """`with using_names(stack):` run under another name stack (a rewrite replaying nodes)."""

    def __init__(self, stack: NameStack) -> None:
        self._stack = stack

    def _recreate_cm(self) -> using_names:  # as a decorator: a fresh one for every call
        return using_names(self._stack)

    def __enter__(self) -> None:
        self._saved = _names.stack
        _names.stack = self._stack

    def __exit__(self, *exc: object) -> None:
        _names.stack = self._saved


class extend_names(ContextDecorator):
    """`with extend_names(entry):` push a scope or a `Transform` on the name stack."""

    def __init__(self, entry: str | Transform) -> None:
        self._entry = entry

    def _recreate_cm(self) -> extend_names:  # as a decorator: a fresh one for every call
        return extend_names(self._entry)

    def __enter__(self) -> None:
        self._saved = _names.stack
        _names.stack = (*_names.stack, self._entry)

    def __exit__(self, *exc: object) -> None:
        _names.stack = self._saved


def named_scope(name: str) -> extend_names:
    """Name the operations made inside; a context manager and a decorator.

    Names appear in jaxprs, profiles, `explain` and error messages; they change no result.
    """
    if not isinstance(name, str):
        raise TypeError(f"named_scope name argument must be a string, got {name!r}")
    return extend_names(name)


def describe_source(source: Source) -> str:
    """`train.py:31 in layer (jvp(dense))`."""
    site, stack = source
    where = "an unknown line" if site is None else str(locate(site))
    names = name_stack_text(stack)
    return f"{where} ({names})" if names else where


# --- tracebacks ---------------------------------------------------------------------------------


def filtering_mode() -> str:
    """How our frames are hidden. Read from the option when an exception passes, not before."""
    module = sys.modules.get("tinyjax.core.config")
    config = getattr(module, "config", None)
    mode = getattr(config, "jax_traceback_filtering", None) or "auto"
    if getattr(config, "tinyjax_traceback", 0):
        return "off"
    if mode != "auto":
        return str(mode)
    return "tracebackhide" if under_ipython() else "quiet_remove_frames"


def under_ipython() -> bool:
    """Whether IPython shows the traceback (it leaves out frames that say `__tracebackhide__`)."""
    ipython: Any = sys.modules.get("IPython")
    try:
        return ipython is not None and ipython.get_ipython() is not None
    except Exception:
        return False


def filter_traceback(tb: TracebackType | None) -> TracebackType | None:
    """The traceback without hidden frames."""
    kept: list[TracebackType] = []
    while tb is not None:
        if not HIDDEN[tb.tb_frame.f_code.co_filename]:
            kept.append(tb)
        tb = tb.tb_next
    result: TracebackType | None = None
    for entry in reversed(kept):
        result = TracebackType(result, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return result


def is_our_bug(error: BaseException) -> bool:
    """A failed assertion in our own code: the frames are what a report needs."""
    if not isinstance(error, AssertionError):
        return False
    tb = error.__traceback__
    while tb is not None and tb.tb_next is not None:
        tb = tb.tb_next
    return tb is not None and HIDDEN[tb.tb_frame.f_code.co_filename]


def related(error: BaseException) -> list[BaseException]:
    """The exception, its causes and contexts."""
    found: list[BaseException] = []
    pending: list[BaseException | None] = [error]
    while pending:
        e = pending.pop()
        if e is None or any(e is seen for seen in found):
            continue
        found.append(e)
        pending += [e.__cause__, None if e.__suppress_context__ else e.__context__]
    return found


REMOVED_NOTE = (
    "tinyjax's own frames are left out of this traceback; "
    'tinyjax.config.update("jax_traceback_filtering", "off") shows them.'
)


USER_LINE = re.compile(r"^  at \S+:\d+", re.MULTILINE)
"""How a message names a line (`user_line`)."""

FIX = re.compile(r"  [A-Z]")
"""How the last line of a message begins if it says what to do: the user's line stands before it."""

RAISE = dis.opmap["RAISE_VARARGS"]

NAMES_LINE = (
    TypeError,
    ValueError,
    IndexError,
    NameError,
    AttributeError,
    RuntimeError,
    ArithmeticError,
)


def is_library(filename: str) -> bool:
    """Whether a file belongs to Python's library or to NumPy."""
    standard = filename.startswith(STANDARD) and f"{os.sep}site-packages{os.sep}" not in filename
    return standard or NUMPY in filename or filename.startswith("<frozen ")


def innermost(error: BaseException) -> tuple[TracebackType | None, bool, Site | None]:
    """Where it was raised, whether by us (or by a library that we called), and the last user line."""
    tb, last, ours, site = error.__traceback__, None, True, None
    while tb is not None:
        code = tb.tb_frame.f_code
        if not (ours and is_library(code.co_filename)):
            ours = HIDDEN[code.co_filename]
            site = site if ours else (code, tb.tb_lasti)
        last, tb = tb, tb.tb_next
    return last, ours, site


def is_deliberate(tb: TracebackType | None) -> bool:
    """Whether a `raise` of ours made the exception, whose message is then for users.

    Those of the aval rules are not: they speak of ops and of operands that we made.
    """
    if tb is None or not HIDDEN[tb.tb_frame.f_code.co_filename]:
        return False
    if tb.tb_frame.f_code.co_filename == RULES:
        return False
    return tb.tb_frame.f_code.co_code[tb.tb_lasti] == RAISE


HANDLED = "_tinyjax_call"
"""Attribute of an exception that has left one of our functions: the line of its message that names the
call or its operands, or nothing if none does."""

WANTS_OPERANDS = "_tinyjax_operands"
"""Attribute of an exception: whether its message needs a line with the operands. `ShapeError` says it
does; any other does if it names the shape of one."""

IN_CALL = "  in "


def name_user_line(error: BaseException, call: Call | None) -> None:
    """Add the user's line to the message of an exception that our code raised without one.

    It is the innermost line of user code that was running: in a function that we called, or the one
    that called us. What Python or NumPy raised in our code knows nothing of the user's arguments: the
    `call` with its arguments is added too. Where we raised and shapes matter, the operands are. If one
    of our functions called another, they are those of the outer one.
    """
    named = isinstance(error, NAMES_LINE) or type(error).__module__ == "tinyjax.errors"
    if not named or len(error.args) != 1:
        return
    message, (tb, ours, site) = error.args[0], innermost(error)
    if not ours or not isinstance(message, str):
        return
    inner, lines = getattr(error, HANDLED, None), message.rstrip("\n").split("\n")
    if inner is not None:
        if call is None or site is not None:
            return
        lines = [text for text in lines if text != inner]
    shown = ""
    if call is not None and (
        inner.startswith(IN_CALL) if inner is not None else not is_deliberate(tb)
    ):
        shown = IN_CALL + describe_call(*call)
    elif call is not None and site is None:
        wanted = getattr(error, WANTS_OPERANDS, None)
        shown = "" if wanted is False else operands_of(call, None if wanted else message)
    setattr(error, HANDLED, shown)
    place = len(lines) - (len(lines) > 1 and FIX.match(lines[-1]) is not None)
    line = user_line(call_site() if site is None else site)
    if USER_LINE.search(message):
        line = ""
        place = next((i for i, text in enumerate(lines) if i and USER_LINE.match(text)), place)
    lines[place:place] = [text for text in (shown, line) if text]
    error.args = ("\n".join(lines),)


def hide_frames(error: BaseException, call: Call | None = None) -> None:
    """Filter the tracebacks of an exception that is about to leave us, in place, and see to it that
    its message names the user's line, and the `call` if it says nothing of the arguments.

    Use as `except Exception as e: hide_frames(e); raise`: from Python 3.11 on, a bare `raise`
    adds no entry for the frame it stands in, so ours is gone too.
    """
    name_user_line(error, call)
    mode = filtering_mode()
    if mode == "off" or is_our_bug(error):
        return
    for e in related(error):
        if mode == "tracebackhide":
            mark_hidden(e.__traceback__)
            continue
        e.__traceback__ = filter_traceback(e.__traceback__)
    if mode == "remove_frames" and REMOVED_NOTE not in getattr(error, "__notes__", ()):
        error.add_note(REMOVED_NOTE)


def mark_hidden(tb: TracebackType | None) -> None:
    """Ask pytest and IPython to leave our frames out."""
    while tb is not None:
        if HIDDEN[tb.tb_frame.f_code.co_filename]:
            tb.tb_frame.f_locals["__tracebackhide__"] = True
        tb = tb.tb_next


def api_boundary(fun: F) -> F:
    """Decorate a public function: exceptions leave it without our frames.

    Cost: one more call when nothing is raised. Functions on the hot path use `hide_frames` in
    their own `except` instead.
    """

    @functools.wraps(fun)
    def boundary(*args: Any, **kwargs: Any) -> Any:
        try:
            return fun(*args, **kwargs)
        except Exception as error:
            hide_frames(error, (fun, args, kwargs))
            raise

    boundary.__boundary__ = True  # type: ignore[attr-defined]
    return cast(F, boundary)


def publish_functions(namespace: dict[str, Any]) -> None:
    """Make the functions of a public module boundaries (`globals()` at its end).

    Those are what `__all__` lists; without it, all that a package re-exports, or what a module
    defines. Where they are re-exported, ours call each other past the boundaries. Pickle finds a
    function by module and name, so these become the public ones. Cost: 0.1 µs a call, 1 µs a
    function at import.
    """
    module, listed = namespace["__name__"], namespace.get("__all__")
    made: dict[Any, Any] = {}
    for name, f in list(namespace.items()):
        if name.startswith("_") or type(f) is not FunctionType or hasattr(f, "__boundary__"):
            continue
        if listed is None:
            public = "__path__" in namespace or f.__module__ == module
        else:
            public = name in listed
        if public and HIDDEN[f.__code__.co_filename]:
            if f not in made:
                made[f] = api_boundary(f)
                made[f].__module__, made[f].__qualname__ = module, name
            namespace[name] = made[f]


__all__: Sequence[str] = [
    "Location", "NameStack", "Site", "Source", "Transform", "api_boundary", "call_site",
    "current_source", "describe_source", "extend_names", "filter_traceback", "function_location",
    "hide_frames", "locate", "name_stack", "name_stack_text", "named_scope", "operand_texts",
    "publish_functions", "register_exclusion", "transformed", "user_frame", "user_line",
    "using_names",
]  # fmt: skip
