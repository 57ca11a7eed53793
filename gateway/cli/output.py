"""Where commands write their tables."""

from __future__ import annotations

import sys

from rich.console import Console


def tables(width: int) -> Console:
    """Standard output; piped, it has no width of its own and gets `width` columns: no table is cut."""
    return Console(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else width)
