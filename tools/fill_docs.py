"""Write the outputs of the examples in the documentation anew, after an intended change.

    python tools/fill_docs.py docs/*.md

Each block of text directly after a block of Python gets what that Python prints. Read the diff: what
it shows is what `tests/test_docs.py` will hold for right.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.test_docs import BLOCK, placed


def fill(page: Path) -> None:
    """Run a page's blocks in one namespace, as the test does, and keep what they print."""
    names = {"__name__": "__main__"}

    def printed(found: re.Match[str]) -> str:
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(compile(placed(found), str(page), "exec"), names)
        if found[2] is None:
            return found[0]
        start, end = found.span(2)
        offset = found.start()
        return found[0][: start - offset] + output.getvalue() + found[0][end - offset :]

    page.write_text(BLOCK.sub(printed, page.read_text()))


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        fill(Path(argument).resolve())
