"""Tables of mistakes: a call, the exception, words of what happened, and the line that says what to do."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

Mistake = tuple[Callable[[], Any], type[Exception], str, str]


def tells(mistake: Mistake, file: str) -> None:
    """The message says what happened, then names the line of the user, then the fix, and ends."""
    call, expected, what, fix = mistake
    with pytest.raises(expected) as caught:
        call()
    message = str(caught.value)
    happened, line, last = message.rsplit("\n", 2)
    assert what in happened, message
    assert line.startswith(f"  at {os.path.basename(file)}:"), message
    assert last == f"  {fix}", message
