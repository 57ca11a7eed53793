"""Memory in large pages: what is in use is moved there and stays as it was; what is not is left alone. In a
process of its own, since its pages stay as they are made."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.large_pages import use_large_pages

POLICY = Path("/sys/kernel/mm/transparent_hugepage/enabled")
HAS_SOME = POLICY.is_file() and "[never]" not in POLICY.read_text()

MEASURED = """
import json, re, threading
from pathlib import Path
from gateway.large_pages import use_large_pages

def kib(field, file):
    return sum(int(found) for found in re.findall(rf"^{field}: +([0-9]+) kB$", Path(file).read_text(), re.M))

held = [str(number) for number in range(1_000_000)]
threading.stack_size(64 << 20)
waits = threading.Event()
threads = [threading.Thread(target=waits.wait) for _ in range(4)]
for thread in threads:
    thread.start()
before = kib("Rss", "/proc/self/smaps_rollup")
made = use_large_pages()
grown = kib("Rss", "/proc/self/smaps_rollup") - before
again = use_large_pages()
large = kib("AnonHugePages", "/proc/self/smaps_rollup")
waits.set()
for thread in threads:
    thread.join()
print(json.dumps([made, again, large, grown, held == [str(number) for number in range(1_000_000)]]))
"""


@pytest.mark.skipif(not HAS_SOME, reason="this system has no large pages, or wants none")
def test_memory_in_use_is_moved_and_a_threads_unused_stack_is_not() -> None:
    ran = subprocess.run([sys.executable, "-c", MEASURED], capture_output=True, text=True, check=True)
    made, again, large, grown, same = json.loads(ran.stdout)
    # a million strings of 50 to 55 bytes, 64 as they are allocated, and a list of 8 MB: 68 MiB, some of which
    # lie between libraries where no whole large page has room
    assert 20 <= made <= 34
    assert again == made
    assert large == made * 2048
    assert grown < 4096
    assert same


@pytest.mark.skipif(not HAS_SOME, reason="this system has no large pages, or wants none")
def test_a_mapped_file_may_have_any_name(tmp_path: Path) -> None:
    mapped = os.fsencode(tmp_path) + b"/d\xe9j\xe0"  # Latin-1
    source = (
        "import mmap; from gateway.large_pages import use_large_pages; "
        f"file = open({mapped!r}, 'w+b'); file.truncate(4096); kept = mmap.mmap(file.fileno(), 4096); "
        "held = [str(number) for number in range(1_000_000)]; print(use_large_pages() >= 20)"
    )
    ran = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert ran.stdout == "True\n"


@pytest.mark.parametrize("policy", ["always madvise [never]\n", None])
def test_no_large_pages_where_the_administrator_or_the_system_has_none(
    policy: str | None, tmp_path: Path
) -> None:
    enabled = tmp_path / "enabled"
    if policy is not None:
        enabled.write_text(policy)
    assert use_large_pages(enabled) == 0
