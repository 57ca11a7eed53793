"""What several processes answer as one."""

from __future__ import annotations

import httpx
import pytest

from gateway.errors import Unavailable
from gateway.processes.asking import Asked, of_all

FAILED = httpx.Response(500, json={"error": {"message": "not sound"}})
UNCLEAN = httpx.Response(200, json={"clean": False})
CLEAN = httpx.Response(200, json={"clean": True})


def asked(*answers: httpx.Response, unanswered: tuple[int, ...] = ()) -> Asked:
    return Asked([(None, answer) for answer in answers], unanswered)  # type: ignore[misc]


@pytest.mark.parametrize("unanswered", [(), (2,)])
def test_the_worst_answer_is_that_of_all(unanswered: tuple[int, ...]) -> None:
    assert of_all(asked(CLEAN, FAILED, UNCLEAN, unanswered=unanswered)) is FAILED
    assert of_all(asked(CLEAN, UNCLEAN, CLEAN, unanswered=unanswered)) is UNCLEAN


def test_all_is_well_only_where_all_answered() -> None:
    assert of_all(asked(CLEAN, CLEAN)) is CLEAN
    assert asked(CLEAN).headers() == {}
    partly = asked(CLEAN, unanswered=(1, 3))
    assert partly.headers() == {"X-Gateway-Unanswered": "1, 3"}
    with pytest.raises(Unavailable, match="no answer from process 1, 3; it was done in the others"):
        of_all(partly)
