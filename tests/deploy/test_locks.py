"""The locks: what is installed by `make install` and in the image can do all that settings ask for."""

from __future__ import annotations

import re
import sys
import tomllib

import pytest

from gateway.errors import MissingExtra
from gateway.fleet.discovery.build import _need
from gateway.parts import make_tracer
from gateway.settings import Settings
from tests.conftest import ROOT

EXTRAS: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
    "optional-dependencies"
]


def names(lines: str) -> set[str]:
    return {
        re.sub(r"[-_.]+", "-", name).lower()
        for name in re.findall(r"^([A-Za-z0-9_.-]+)==", lines, re.MULTILINE)
    }


@pytest.mark.parametrize("extra", sorted(set(EXTRAS) - {"dev"}))
def test_the_lock_of_the_image_and_of_make_install_has_every_extra(extra: str) -> None:
    locked = names((ROOT / "requirements" / "run.txt").read_text())
    wanted = names("\n".join(re.split(r"[><=\[; ]", each)[0] + "==" for each in EXTRAS[extra]))
    assert len(wanted) == len(EXTRAS[extra])
    assert wanted <= locked


def test_both_locks_agree() -> None:
    pins = [
        dict(re.findall(r"^(\S+)==(\S+)", (ROOT / "requirements" / name).read_text(), re.MULTILINE))
        for name in ("run.txt", "dev.txt")
    ]
    run, dev = pins
    assert {name: dev[name] for name in run if name in dev} == {
        name: run[name] for name in run if name in dev
    }
    assert {"httptools", "opentelemetry-sdk", "redis"} <= set(run) & set(dev)


def test_a_missing_extra_says_how_a_source_is_installed_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "gateway.api.otel", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace.export", None)
    with pytest.raises(MissingExtra) as error:
        make_tracer(Settings(otlp_endpoint="http://collector:4318/v1/traces"))
    assert error.value.message == (
        "otlp_endpoint needs the extra `otel`: `pip install '.[otel]'` in the project's folder; its lock "
        "requirements/run.txt, `make install` and the image have it"
    )
    with pytest.raises(
        MissingExtra, match=r"discovery by dns needs the extra `dns`: `pip install '\.\[dns\]'`"
    ):
        _need("no_such_module", "dns")
