"""The data model that people are told is the one there is."""

from __future__ import annotations

import re
from inspect import getmembers, isfunction, signature

from gateway.store.keys import Keys
from gateway.types import WorkerId
from tests.conftest import ROOT


def test_every_key_stands_in_the_documentation_and_nothing_else() -> None:
    keys, made = Keys("pgw"), set()
    for name, method in getmembers(Keys, isfunction):
        if name.startswith("_"):
            continue
        takes = list(signature(method).parameters)[1:]
        value = method(keys, *(WorkerId("W") if taken == "worker" else "ID" for taken in takes))
        made |= {value} if isinstance(value, str) else set(value)
    page = (ROOT / "docs" / "redis.md").read_text()
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `pgw:")]
    assert {key for row in rows for key in re.findall(r"`([^`]+)`", row)} == made
