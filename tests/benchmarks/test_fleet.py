"""A fleet that is said to be there, and is not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks.fleet import running_fleet


def test_a_url_where_nobody_answers_is_one_line(free_port: Callable[[], int]) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with (
        pytest.raises(SystemExit, match=f"^--url: no gateway answers at {url}/v1/models: .*refused"),
        running_fleet(url, model="tiny"),
    ):
        pass


def test_a_url_without_a_port_does_not_tell_the_admin_port() -> None:
    with (
        pytest.raises(SystemExit, match=r"^--url http://gateway names no port, so --admin-url is wanted$"),
        running_fleet("http://gateway", model="tiny"),
    ):
        pass
