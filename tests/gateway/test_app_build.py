"""What settings that cannot work leave behind: nothing."""

from __future__ import annotations

import gc

import pytest

from gateway.app import build
from gateway.errors import ConfigError
from gateway.settings import Settings


def test_a_gateway_that_could_not_be_built_leaves_nothing_open() -> None:
    with pytest.raises(ConfigError, match="must start with /"):
        build(Settings(workers=("http://127.0.0.1:1",), passthrough_paths=("v1/x",)))
    gc.collect()  # a context that nobody closed would be an error here
