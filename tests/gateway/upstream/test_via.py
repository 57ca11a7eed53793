"""A request that has come through this gateway before is told from others."""

from __future__ import annotations

import pytest

from gateway.errors import LoopDetected
from gateway.upstream.headers import Headers
from gateway.upstream.via import MOST, Via

ME = Via("0a1b")
OTHERS = [(b"via", b"1.1 prefix-gateway-%d" % number) for number in range(MOST)]


@pytest.mark.parametrize(
    "headers",
    [
        [(b"via", ME.value)],
        [(b"via", b"1.1 nginx"), (b"x-other", b"1"), (b"via", ME.value)],
        [(b"via", b"1.0 fred, 1.1 prefix-gateway-0a1b (a comment),1.1 nginx")],
        OTHERS,
    ],
)
def test_who_was_here_or_at_too_many_others_goes_no_further(headers: Headers) -> None:
    with pytest.raises(LoopDetected) as found:
        ME.check(headers)
    assert (found.value.status, found.value.code) == (508, "loop_detected")


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"x-via", ME.value)],
        [(b"via", b"")],
        [(b"via", b",, 1.1 ,prefix-gateway-0a1b")],
        [(b"via", b"1.1 prefix-gateway-0a1bc")],
        [(b"via", b"1.1 nginx") for _ in range(20)],
        OTHERS[1:],
    ],
)
def test_all_others_pass(headers: Headers) -> None:
    ME.check(headers)
