"""User lines, operands as written, name stacks and tracebacks without our frames."""

import inspect
import pickle
import sys
import threading
import traceback
import types

import jax
import numpy as np
import pytest

import tinyjax
from tinyjax.core import source
from tinyjax.core.config import config

OURS = '''
from tinyjax.core import source

def site():
    return source.call_site()

def deep(n):
    return site() if n == 0 else deep(n - 1)

def frame():
    return source.user_frame()

def operands(*args, **kwargs):
    f = source.user_frame()
    return source.operand_texts((f.f_code, f.f_lasti), f)

class Thing:
    __matmul__ = __lt__ = __getitem__ = __imatmul__ = __neg__ = operands
    op = operands

@source.api_boundary
def call(f, *args):
    """Call f."""
    return f(*args)

def fail(error):
    raise error

def fail_from(error):
    try:
        raise KeyError("inner")
    except KeyError as inner:
        raise error from inner

@source.api_boundary
def assert_false():
    assert False, "invariant"
'''


def module_at(path: str) -> types.ModuleType:
    """The module above as if it were in a file at `path`."""
    module = types.ModuleType("ours")
    exec(compile(OURS, path, "exec"), module.__dict__)
    return module


ours = module_at(source.PACKAGE + "/somewhere/below.py")


def line_here() -> int:
    return sys._getframe(1).f_lineno


# --- sites --------------------------------------------------------------------------------------


def test_a_site_is_the_nearest_user_frame():
    here, site = line_here(), ours.deep(5)
    location = source.locate(site)
    assert location.file == __file__ and location.line == here
    assert str(location) == f"test_source.py:{here} in test_a_site_is_the_nearest_user_frame"
    assert location.expression() == "ours.deep(5)"
    assert location.source_line() == "here, site = line_here(), ours.deep(5)"
    assert source.locate(ours.site()).line == line_here()
    assert ours.frame() is sys._getframe()


def test_sites_tell_expressions_on_one_line_apart():
    a, b = ours.site(), ours.deep(0)
    assert a[0] is b[0] and a != b
    assert [source.locate(s).expression() for s in (a, b)] == ["ours.site()", "ours.deep(0)"]


def test_an_expression_over_several_lines_in_unicode():
    é = 3
    site = ours.deep(
        é
    )  # fmt: skip
    assert source.locate(site).expression().split() == ["ours.deep(", "é", ")"]


def test_code_without_source_still_has_a_line():
    namespace = {"site": ours.site}
    exec("\n\nx = site()", namespace)
    location = source.locate(namespace["x"])
    assert str(location) == "<string>:3"
    assert location.source_line() == "" and location.expression() == ""


def test_no_user_frame():
    seen = []
    code = compile(
        "import _thread\ndef run(): seen.append(site())", source.PACKAGE + "/t.py", "exec"
    )
    namespace = {"seen": seen, "site": ours.site}
    exec(code, namespace)
    source.register_exclusion(threading.__file__)
    try:
        thread = threading.Thread(target=namespace["run"])
        thread.start()
        thread.join()
    finally:
        source._excluded.remove(threading.__file__)
        source.HIDDEN.clear()
    assert seen == [None]
    assert source.describe_source((None, ("a",))) == "an unknown line (a)"


def test_equal_code_in_two_files_is_told_apart(tmp_path):
    """Python compares code objects without their file names."""
    one, other = (module_at(str(tmp_path / name)) for name in ("one.py", "other.py"))
    sites = one.site(), other.site()
    assert sites[0] == sites[1]
    assert [source.locate(s).file for s in sites] == [
        str(tmp_path / "one.py"), str(tmp_path / "other.py"),
    ]  # fmt: skip


def test_register_exclusion_hides_a_file_or_a_folder(tmp_path):
    library = module_at(str(tmp_path / "lib" / "a.py"))
    sibling = module_at(str(tmp_path / "library.py"))
    assert source.locate(library.site()).file == str(tmp_path / "lib" / "a.py")
    source.register_exclusion(str(tmp_path / "lib"))
    try:
        assert source.locate(library.site()).file == __file__
        assert source.locate(sibling.site()).file == str(tmp_path / "library.py")
    finally:
        source._excluded.pop()
        source.HIDDEN.clear()


def test_generated_code_is_ours():
    assert source.HIDDEN["<tinyjax pytree>"] and not source.HIDDEN["<string>"]


def test_function_location():
    here = test_function_location.__code__.co_firstlineno
    assert source.function_location(test_function_location) == (
        f"test_function_location at test_source.py:{here}"
    )
    assert source.function_location(print) == "print"


# --- operands -----------------------------------------------------------------------------------


def test_operands_are_found_in_the_source():
    x, params = ours.Thing(), {"w1": ours.Thing()}
    assert params["w1"] @ x == [(None, "params['w1']"), (None, "x")]
    assert (x < params["w1"]) == [(None, "x"), (None, "params['w1']")]
    assert -x == [(None, "x")]
    assert x[1:2] == [(None, "x"), (None, "1:2")]
    assert ours.operands(x, b=params["w1"]) == [(None, "x"), ("b", "params['w1']")]
    assert x.op(3 + 4, 5) == [(None, "x"), (None, "3 + 4"), (None, "5")]
    assert params["w1"].op(x) == [(None, "params['w1']"), (None, "x")]
    y = x
    y @= params["w1"]
    assert y == [(None, "y"), (None, "params['w1']")]
    assert ours.operands(*[x, x]) == []


# --- name stacks --------------------------------------------------------------------------------


def test_named_scopes_nest_and_are_restored():
    assert source.name_stack() == ()
    with source.named_scope("outer"):
        with pytest.raises(ZeroDivisionError), source.named_scope("inner"):
            assert source.name_stack() == ("outer", "inner")
            raise ZeroDivisionError
        assert source.name_stack() == ("outer",)
    assert source.name_stack() == ()


def test_named_scope_decorates_recursive_functions():
    @source.named_scope("f")
    def f(n):
        return source.name_stack() if n == 0 else f(n - 1)

    assert f(2) == ("f", "f", "f") and source.name_stack() == ()
    assert f(0) == ("f",)


def test_named_scope_takes_a_string():
    with pytest.raises(TypeError, match="named_scope name argument must be a string"):
        source.named_scope(3)


def test_name_stacks_are_per_thread():
    seen = []
    with source.named_scope("mine"):
        thread = threading.Thread(target=lambda: seen.append(source.name_stack()))
        thread.start()
        thread.join()
    assert seen == [()]


def test_name_stack_text_agrees_with_jax():
    from jax._src.source_info_util import NameStack, Scope, Transform

    stacks = [
        "", "a", "a b", "jvp( a", "transpose( jvp( a vmap( b", "jvp(", "a jvp(", "a jvp( b c",
    ]  # fmt: skip
    for text in stacks:
        entries = text.split()
        mine = tuple(source.Transform(e[:-1]) if e.endswith("(") else e for e in entries)
        theirs = NameStack(
            tuple(Transform(e[:-1]) if e.endswith("(") else Scope(e) for e in entries)
        )
        assert source.name_stack_text(mine) == str(theirs), text
    assert jax.__version__.startswith("0.10")


def test_derived_nodes_wrap_the_users_names():
    stack = source.transformed("transpose", source.transformed("jvp", ("layer", "dense")))
    assert source.name_stack_text(stack) == "transpose(jvp(layer))/dense"
    with source.using_names(stack), source.extend_names("x"):
        site, names = source.current_source()
        assert names == (*stack, "x")
        described = source.describe_source((site, names))
    assert described.startswith("test_source.py:")
    assert described.endswith("dense/x)") and source.name_stack() == ()


# --- tracebacks ---------------------------------------------------------------------------------


def files_of(error: BaseException) -> list[str]:
    return [f.filename for f in traceback.extract_tb(error.__traceback__)]


def user(f, *args):
    return f(*args)


def test_our_frames_are_removed_from_what_users_see():
    with pytest.raises(ValueError) as caught:
        ours.call(user, ours.call, user, ours.fail, ValueError("x"))
    assert set(files_of(caught.value)) == {__file__}
    names = [f.name for f in traceback.extract_tb(caught.value.__traceback__)]
    assert names == ["test_our_frames_are_removed_from_what_users_see", "user", "user"]
    assert not getattr(caught.value, "__notes__", [])


def test_causes_are_filtered_too():
    with pytest.raises(ValueError) as caught:
        ours.call(ours.fail_from, ValueError("x"))
    assert caught.value.__cause__.__traceback__ is None
    assert files_of(caught.value) == [__file__]


def test_filtering_off_shows_everything():
    with option("off"), pytest.raises(ValueError) as caught:
        ours.call(ours.fail, ValueError("x"))
    assert any(f.startswith(source.PACKAGE) for f in files_of(caught.value))


class option:
    """Set the option for a block."""

    def __init__(self, mode):
        self.mode = mode

    def __enter__(self):
        self.old = config.jax_traceback_filtering
        config.update("jax_traceback_filtering", self.mode)

    def __exit__(self, *exc):
        config.update("jax_traceback_filtering", self.old)


def test_remove_frames_says_so_once():
    with option("remove_frames"), pytest.raises(ValueError) as caught:
        ours.call(ours.call, ours.fail, ValueError("x"))
    assert files_of(caught.value) == [__file__]
    assert caught.value.__notes__ == [source.REMOVED_NOTE]


def test_tracebackhide_marks_frames():
    with option("tracebackhide"), pytest.raises(ValueError) as caught:
        ours.call(ours.fail, ValueError("x"))
    tb, marked = caught.value.__traceback__, 0
    while tb is not None:
        hidden = "__tracebackhide__" in tb.tb_frame.f_locals
        assert hidden == source.HIDDEN[tb.tb_frame.f_code.co_filename]
        marked += hidden
        tb = tb.tb_next
    assert marked >= 3


def test_broken_invariants_keep_our_frames():
    with pytest.raises(AssertionError, match="invariant") as caught:
        ours.assert_false()
    assert files_of(caught.value)[-1].startswith(source.PACKAGE)
    with pytest.raises(AssertionError) as caught:  # the user's assertion is no bug of ours
        ours.call(user, user_assertion)
    assert set(files_of(caught.value)) == {__file__}


def user_assertion():
    raise AssertionError("theirs")


def test_a_boundary_looks_like_its_function():
    assert ours.call.__name__ == "call" and ours.call.__doc__ == "Call f."
    assert ours.call(user, len, "abc") == 3


def test_interrupts_pass_unchanged():
    with pytest.raises(KeyboardInterrupt) as caught:
        ours.call(ours.fail, KeyboardInterrupt())
    assert any(f.startswith(source.PACKAGE) for f in files_of(caught.value))


def raised_by(f, *args):
    with pytest.raises(Exception) as caught:
        f(*args)
    return caught


def test_the_users_line_stands_before_the_fix_and_is_named_once():
    text = str(raised_by(lambda: tinyjax.numpy.ones((2, 3)) @ tinyjax.numpy.ones(4)).value)
    assert text.count("\n  at ") == 1
    lines = str(raised_by(lambda: tinyjax.jit(tinyjax.jit)("no function")).value).splitlines()
    assert [line.startswith("  at test_source.py:") for line in lines] == [False, True, False]


def test_what_the_user_raises_is_left_alone():
    def fails(x):
        raise ValueError("mine")

    for f in (tinyjax.jit(fails), tinyjax.grad(fails), tinyjax.vmap(fails)):
        assert str(raised_by(f, np.ones(3)).value) == "mine"


def test_public_functions_leave_without_our_frames_and_can_be_pickled():
    for f, args in (
        (tinyjax.numpy.concatenate, ([],)),
        (tinyjax.numpy.linalg.inv, (np.ones(3),)),
        (tinyjax.lax.reshape, (np.ones(3), (2,))),
        (tinyjax.random.normal, (3,)),
        (tinyjax.nn.softmax, (np.ones(3), 4)),
        (tinyjax.tree.map, (max, [1], [1, 2])),
    ):
        caught = raised_by(f, *args)
        assert {frame.path.name for frame in caught.traceback} == {"test_source.py"}
        assert pickle.loads(pickle.dumps(f)) is f
        assert f.__module__.startswith("tinyjax") and inspect.signature(f)


def refused(f):
    with pytest.raises(Exception) as e:
        f()
    return str(e.value).split("\n")


def test_what_python_raises_in_our_code_is_shown_with_the_users_call():
    x = np.ones((2, 3), np.float32)
    first, call, line = refused(lambda: tinyjax.lax.round(x, None))
    assert first == "None is not a valid RoundingMethod"  # Python's enum says so
    assert call == "  in round(x = f32[2,3], rounding_method = None)"
    assert line.startswith("  at test_source.py:")
    _, call, _ = refused(lambda: tinyjax.numpy.stack([x, x], {}, zz=[x, 1]))
    assert call == "  in stack(arrays = [f32[2,3], f32[2,3]], axis = {}, zz = [f32[2,3], 1])"
    _, call, _ = refused(lambda: tinyjax.numpy.ones(3).sum(keep=True))
    assert call == "  in sum(a = f32[3], keep = True)"


def test_what_an_op_refuses_is_shown_with_the_users_call():
    where = np.ones(4, bool)
    first, call, _ = refused(lambda: tinyjax.numpy.nanmean(np.ones((2, 3)), where=where))
    assert first.startswith("expand: cannot broadcast to (2, 3)")
    assert call == "  in nanmean(a = f64[2,3], where = bool[4])"


def test_a_message_of_ours_needs_no_call():
    lines = refused(lambda: tinyjax.numpy.reshape(np.ones(3), (2, 2)))
    assert not any(line.startswith("  in ") for line in lines)


def test_an_argument_whose_repr_fails_is_named_by_its_type():
    class Odd:
        def __repr__(self):
            raise RuntimeError

    _, call, _ = refused(lambda: tinyjax.numpy.bartlett(Odd()))
    assert call == "  in bartlett(M = <Odd>)"


def test_where_our_functions_call_each_other_the_outer_one_is_shown():
    @source.api_boundary
    def inner(y):
        return y < None

    @source.api_boundary
    def outer(x):
        return inner(x + 1)

    inner.__wrapped__.__code__ = inner.__wrapped__.__code__.replace(co_filename=source.__file__)
    outer.__wrapped__.__code__ = outer.__wrapped__.__code__.replace(co_filename=source.__file__)
    assert refused(lambda: outer(2))[1:2] == ["  in outer(x = 2)"]
    assert refused(lambda: inner(2))[1:2] == ["  in inner(y = 2)"]

    def between(x):
        return inner(x + 1)

    @source.api_boundary
    def calls(f, x):
        return f(x)

    calls.__wrapped__.__code__ = calls.__wrapped__.__code__.replace(co_filename=source.__file__)
    assert refused(lambda: calls(between, 2))[1:2] == ["  in inner(y = 3)"]
