"""Looking into compiled programs: `tinyjax.debug`."""

from tinyjax.engine.breakpoint import debug_breakpoint as breakpoint
from tinyjax.engine.callbacks import debug_callback as callback
from tinyjax.engine.callbacks import debug_log as log
from tinyjax.engine.callbacks import debug_print as print

__all__ = ["breakpoint", "callback", "log", "print"]
