"""What the process has built by the time it serves, in large pages of memory.

What a request reads lies all over the heap (code, classes, their dicts), and a processor that has rested
between two requests looks the place of each page up anew, which takes more steps in a virtual machine. In
pages of 2 MiB there are some twenty to look up (docs/performance.md tells what that saves).
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from pathlib import Path

LARGE = 2 << 20
"""Bytes of a large page on x86-64 and, with pages of 4 KiB, on arm64."""
_HUGEPAGE, _COLLAPSE = 14, 25
"""Advice of madvise(2): may be made large in the background; make it large now (Linux 6.1)."""
_RESIDENT = 0.9
"""Of a mapping that is worth it: what is not in use yet (a thread's stack) would take memory."""
_POLICY = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_MAPPING = re.compile(
    r"^([0-9a-f]+)-([0-9a-f]+) rw-p [0-9a-f]+ \S+ 0 *(?:\[heap\])?\nSize: .*?^Rss: +(\d+) kB$",
    re.MULTILINE | re.DOTALL,
)


def use_large_pages(policy: Path = _POLICY) -> int:
    """Moves the memory in use to large pages and tells how many it has: none where the system has none, its
    administrator wants none (`never`), its kernel is older than 6.1 (which may make some by and by), or it is
    no Linux. Some 1 to 5 ms a page."""
    try:
        if "[never]" in policy.read_text():
            return 0
        mappings = Path("/proc/self/smaps").read_text(errors="replace")  # a file's name may be any bytes
    except OSError:
        return 0
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return sum(
        madvise(page, LARGE, _HUGEPAGE) == 0 and madvise(page, LARGE, _COLLAPSE) == 0
        for page in _whole_pages(mappings)
    )


def _whole_pages(mappings: str) -> Iterator[int]:
    """Addresses of the large pages that lie within one private mapping of no file that is in use."""
    for found in _MAPPING.finditer(mappings):
        begin, end = (int(bound, 16) for bound in found.group(1, 2))
        if int(found[3]) * 1024 >= _RESIDENT * (end - begin):
            yield from range(-(-begin // LARGE) * LARGE, end // LARGE * LARGE, LARGE)
