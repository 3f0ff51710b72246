"""The Python in README.md and docs/ runs, and prints what the page says it prints.

The ```python blocks of a page run one after the other in one namespace. A ```text block directly
after one is its expected output; without it the output is free. `tools/fill_docs.py` writes the
outputs anew.
"""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n?```text\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
FENCED = re.compile(r"^```.*?^```\n", re.DOTALL | re.MULTILINE)


def placed(found: re.Match[str]) -> str:
    """The code of a block on the lines that it has in the page, as errors name them."""
    return "\n" * found.string.count("\n", 0, found.start(1)) + found[1]


def blocks(page: Path) -> list[tuple[str, str]]:
    """(code, expected output) of each block."""
    return [(placed(found), found[2] or "") for found in BLOCK.finditer(page.read_text())]


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p)], ids=lambda page: page.name)
def test_the_examples_of_a_page_print_what_it_says(page: Path):
    names = {"__name__": "__main__"}
    for code, expected in blocks(page):
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(compile(code, str(page), "exec"), names)
        if expected:
            assert output.getvalue() == expected


def links(page: Path) -> list[str]:
    """Relative links of the text; code may look like one."""
    return LINK.findall(FENCED.sub("", page.read_text()))


def test_the_index_links_every_page():
    linked = links(ROOT / "docs" / "index.md")
    assert set(linked) == {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_of_a_page_lead_somewhere(page: Path):
    for target in links(page):
        assert (page.parent / target).exists(), target


def test_the_readme_begins_with_a_short_example():
    code, expected = blocks(ROOT / "README.md")[0]
    assert expected
    assert len([line for line in code.splitlines() if line.strip()]) <= 15
