"""Folders are layers: imports go one way, and a plain import loads nothing that is not needed."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "tinyjax"

CORE = {"core"}
MIDDLE = {"interpreters", "lowering", "runtime"}
USER_FUNCTIONS = {"numpy", "nn", "random", "scipy"}

# What a folder may import beside itself. A name that is not here is checked as the public surface,
# which may import everything.
ALLOWED: dict[str, set[str]] = {
    "core": set(),
    "interpreters": CORE,
    "runtime": CORE,
    "lowering": CORE | {"runtime"},  # for its plain data types
    "engine": CORE | MIDDLE,
    "lax": CORE | MIDDLE | {"engine"},
    **{name: CORE | MIDDLE | {"engine", "lax"} | USER_FUNCTIONS for name in sorted(USER_FUNCTIONS)},
}


def imported_modules(path: Path) -> set[str]:
    """Absolute names of the modules that a file imports, those inside functions included."""
    package = path.relative_to(PACKAGE.parent).parent.parts
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*base, *([node.module] if node.module else [])))
            found |= {f"{module}.{alias.name}" for alias in node.names}
    return found


def layers_of(modules: set[str]) -> set[str]:
    parts = [module.split(".") for module in modules]
    return {p[1] for p in parts if p[0] == "tinyjax" and len(p) > 1 and p[1] in ALLOWED}


@pytest.mark.parametrize("layer", list(ALLOWED))
def test_a_layer_imports_only_what_lies_below_it(layer: str):
    for path in sorted((PACKAGE / layer).rglob("*.py")):
        above = layers_of(imported_modules(path)) - ALLOWED[layer] - {layer}
        assert not above, f"{path.relative_to(PACKAGE)} imports from {above}"


def test_nothing_imports_the_oracle():
    for path in sorted(PACKAGE.rglob("*.py")):
        roots = {module.split(".")[0] for module in imported_modules(path)}
        assert not roots & {"jax", "jaxlib", "torch", "tinygrad"}, path


def test_an_import_inside_a_function_says_why():
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text()
        lines = text.splitlines()
        functions = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef)]
        for node in [n for f in functions for n in ast.walk(f)]:
            if isinstance(node, ast.Import | ast.ImportFrom):
                near = lines[node.lineno - 2 : node.lineno]  # the line, or the one before it
                assert any("#" in line for line in near), f"{path}:{node.lineno}"


def test_the_reader_of_imports_sees_every_form(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "PACKAGE", tmp_path / "tinyjax")
    folder = tmp_path / "tinyjax" / "core"
    folder.mkdir(parents=True)
    (folder / "example.py").write_text(
        "import tinyjax.engine.jit as j\nfrom tinyjax import lax\n"
        "from ..numpy import sin\ndef f():\n    from ..runtime.cpu import x\n"
    )
    assert layers_of(imported_modules(folder / "example.py")) == {
        "engine",
        "lax",
        "numpy",
        "runtime",
    }


SLOW_MODULES = ["jaxtyping", "llvmlite", "scipy", "jax", "matplotlib", "hypothesis"]


def test_importing_tinyjax_loads_no_slow_module():
    code = f"""
import sys
import tinyjax, tinyjax.numpy
print([name for name in {SLOW_MODULES} if name in sys.modules])
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=PACKAGE.parent, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_first_eager_result_loads_no_compiler():
    code = """
import sys
import tinyjax.numpy as jnp
print(float(jnp.sum(jnp.sin(jnp.arange(3.0)) ** 2)), "llvmlite" in sys.modules)
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=PACKAGE.parent, capture_output=True, text=True, check=True)
    assert done.stdout.split()[1] == "False"
