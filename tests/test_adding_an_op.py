"""docs/adding_an_op.md, followed to the letter in a copy of the tree, adds an op that passes its tests.

The page says what to write and into which table; the rows below say where in the table. The lines
themselves are read from the page.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "adding_an_op.md"
SNIPPETS = re.findall(r"^```text\n(.*?)^```\n", PAGE.read_text(), re.DOTALL | re.MULTILINE)
ROWS = re.findall(r"^\| (?:`(tests/\S+)`|the same), `(\w+)` \| (.+?) \|", PAGE.read_text(), re.M)

BEFORE = [  # snippet of the page, file, the line that it is written before
    (0, "tinyjax/core/ops.py", "    TANH ="),
    (1, "tinyjax/interpreters/evaluate.py", "    Op.TANH:"),
    (2, "docs/ops.md", "| TANH |"),
    (3, "tinyjax/interpreters/jvp.py", "    Op.TANH:"),
    (4, "tinyjax/lowering/math.py", '    "TANH":'),
    (5, "tinyjax/lowering/interpret.py", "    Op.TANH:"),
]
LISTED = [  # file, the first text of a list of names that gets the op's
    ("tinyjax/core/ops.py", '"NEG ABS '),  # UNARY
    ("tinyjax/core/rules.py", '"SQRT RSQRT '),  # FLOAT_ONLY
    ("tinyjax/core/rules.py", '"FLOOR CEIL ROUND TRUNC CBRT '),  # NOT_COMPLEX
    ("tests/lowering/test_codegen_elementwise.py", '"RSQRT CBRT '),  # TRANSCENDENTAL
]
TESTS = [
    "tests/test_coverage.py", "tests/interpreters/test_evaluate.py",
    "tests/interpreters/test_ops_table.py", "tests/lowering/test_math.py",
    "tests/lowering/test_codegen_elementwise.py", "tests/nn/test_nn.py",
    "tests/engine/test_jaxprs.py",
]  # fmt: skip
CHOSEN = "SOFTSIGN or soft_sign or coverage or every_primitive or every_listed_dtype"


def replaced(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text, (file, old)
    file.write_text(text.replace(old, new, 1))


def line_for(table: str) -> str:
    """What the page's last table adds to a table of the tests."""
    (cell,) = [cell for _, name, cell in ROWS if name == table]
    return cell.strip("`")


def follow(root: Path) -> None:
    for i, file, line in BEFORE:
        indent = line[: len(line) - len(line.lstrip())]
        replaced(root / file, "\n" + line, f"\n{indent}{SNIPPETS[i].strip()}\n{line}")
    for file, names in LISTED:
        replaced(root / file, names, names + "SOFTSIGN ")
    replaced(root / "tests/test_coverage.py", "Op.DIGAMMA,", "Op.DIGAMMA, Op.SOFTSIGN,")
    activations = root / "tinyjax/nn/activations.py"
    (present,) = re.findall(r"^def soft_sign.*?\n(?=\n\n)", activations.read_text(), re.M | re.S)
    replaced(activations, present, SNIPPETS[6])
    evaluator = root / "tests/interpreters/test_evaluate.py"
    replaced(evaluator, "\nUNARY = {", "\nUNARY = {\n    " + line_for("UNARY"))
    accuracy = root / "tests/lowering/test_math.py"
    replaced(accuracy, '\n    "EXP": (', f'\n    {line_for("BOUNDS")}\n    "EXP": (')
    replaced(accuracy, '\n    "EXP": mp', f'\n    {line_for("EXACT")}\n    "EXP": mp')
    replaced(root / "tests/engine/test_jaxprs.py", "ours = {", f"ours = {{{line_for('ours')}, ")


def test_the_page_leads_to_an_op_that_passes_its_tests(tmp_path: Path):
    for folder in ("tinyjax", "tests", "docs"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("*.pyc"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    follow(tmp_path)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", CHOSEN, *TESTS]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:]
    assert int(re.findall(r"(\d+) passed", done.stdout)[0]) > 40
