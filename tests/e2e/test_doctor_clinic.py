"""One gateway before many engines, each with an illness of its own; the doctor tells them apart."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

import httpx
import pytest

from tests.e2e.sick import (
    ROOT,
    EngineSpec,
    Examined,
    chat_body,
    engines,
    evidence,
    examine,
    finding,
    gateway,
    of,
    text,
)
from tests.ports import free_port

# whole fleets start here: what they need on busy cores
pytestmark = pytest.mark.timeout(400)

ILL = (
    EngineSpec("well"),
    EngineSpec("uncached", ["--no-prefix-caching"]),
    EngineSpec("mute", events=False),
    EngineSpec("unheard", events_at=9),  # the discard port: nobody publishes there
    EngineSpec("discreet", ["--no-prompt-tokens-details"]),
    EngineSpec("mistaken"),
    EngineSpec("sizes", ["--block-size", "16"]),
    EngineSpec("sizes", ["--block-size", "24"]),
    EngineSpec("ahead", clock_ahead_s=60),
)


@dataclass(frozen=True)
class Clinic:
    lines: list[str]
    examined: Examined

    def address(self, model: str) -> str:
        place = next(i for i, spec in enumerate(ILL) if spec.model == model)
        return self.lines[place].partition(",")[0]


@pytest.fixture(scope="module")
def clinic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clinic]:
    folder = tmp_path_factory.mktemp("clinic")
    wrong = ROOT / "tests" / "data" / "tokenizers" / "vllm-tiny"
    with (
        engines(folder, ILL, free_port) as lines,
        gateway(folder, lines, free_port, "--tokenizer", f"mistaken={wrong}") as fleet,
    ):
        done = threading.Event()

        def visits() -> None:
            with httpx.Client(trust_env=False, timeout=90) as client:
                for n in count():
                    for model in dict.fromkeys(spec.model for spec in ILL):
                        if done.is_set():
                            return
                        body = {"model": model, **chat_body(text(n % 2, 30))}
                        client.post(fleet.url + "/v1/chat/completions", json=body).raise_for_status()

        busy = threading.Thread(target=visits)
        busy.start()
        try:
            # an engine counts as silent only some seconds after its events were due
            examined = examine(fleet.admin, window=8.0, interval=0.5)
        finally:
            done.set()
            busy.join()
        yield Clinic(lines, examined)


def test_the_healthy_one_has_nothing(clinic: Clinic) -> None:
    assert of(clinic.examined, clinic.address("well")) == of(clinic.examined, "well") == set()


def test_prefix_caching_off(clinic: Clinic) -> None:
    assert of(clinic.examined, clinic.address("uncached")) == {"prefix-caching-off"}


def test_events_off(clinic: Clinic) -> None:
    assert of(clinic.examined, clinic.address("mute")) == {"events-off"}
    assert "--kv-events-config" in finding(clinic.examined, "events-off")["remedy"][0]


def test_events_that_do_not_arrive(clinic: Clinic) -> None:
    assert of(clinic.examined, clinic.address("unheard")) == {"events-silent"}
    assert finding(clinic.examined, "events-silent")["severity"] in ("warning", "critical")


def test_prompt_token_details_off(clinic: Clinic) -> None:
    assert of(clinic.examined, clinic.address("discreet")) == {"token-details-off"}
    assert evidence(finding(clinic.examined, "token-details-off"), "tokens generated") > 0


def test_tokenizer_mismatch(clinic: Clinic) -> None:
    found = finding(clinic.examined, "tokenizer-mismatch")
    assert (found["subject"], found["severity"]) == ("mistaken", "critical")
    assert evidence(found, "share of those checked") == "100 %"


def test_block_size_mismatch(clinic: Clinic) -> None:
    found = finding(clinic.examined, "block-size-mismatch")
    assert (found["subject"], found["severity"]) == ("sizes", "critical")
    assert evidence(found, "common unit") == "none"
    # the one that came second is refused, and said to be
    refused = [f for f in clinic.examined[1] if f["id"] == "worker-down"]
    assert len(refused) == 1
    assert "block sizes [16, 24] can't share one pool" in refused[0]["cause"]


def test_clock_skew(clinic: Clinic) -> None:
    found = finding(clinic.examined, "clock-skew")
    assert found["subject"] == clinic.address("ahead")
    assert 40 <= evidence(found, "ahead by") <= 62


def test_critical_findings_exit_with_3(clinic: Clinic) -> None:
    assert clinic.examined[0] == 3
    ranks = [{"critical": 3, "warning": 2, "note": 1}[f["severity"]] for f in clinic.examined[1]]
    assert ranks == sorted(ranks, reverse=True)
