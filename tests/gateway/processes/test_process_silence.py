"""Whom nobody waits for: a process that says nothing."""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path

import anyio
import pytest

from gateway.errors import Unavailable
from gateway.processes.crew import Crew, heard
from gateway.processes.member import Member, Phase
from gateway.processes.relay import Line, Silent
from gateway.processes.silence import Silence
from gateway.processes.wire import Channel


def looks(silence: Silence, times: int) -> Silence:
    for _ in range(times):
        silence.look()
    return silence


def test_eight_looks_in_two_seconds_without_a_word_are_a_silence() -> None:
    silence = looks(Silence(), 7)
    assert (silence.seconds, silence.quiet) == (1.75, False)
    silence.look()
    assert (silence.seconds, silence.quiet) == (2.0, True)
    silence.broken()
    assert (silence.seconds, silence.quiet) == (0.0, False)


@pytest.mark.anyio
async def test_an_answer_is_waited_for_as_long_as_something_is_said() -> None:
    silence = Silence()

    async def slowly() -> str:
        await asyncio.sleep(2.6)  # longer than a silence lasts
        return "done"

    assert await silence.outlast(slowly()) == "done"


@pytest.mark.anyio
async def test_in_a_silence_the_question_is_given_up() -> None:
    ended = []

    async def never() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    with pytest.raises(TimeoutError):
        await looks(Silence(), 8).outlast(never())
    assert ended == [True]


@pytest.mark.anyio
async def test_one_that_was_quiet_may_still_answer_at_once() -> None:
    async def answer() -> str:
        return "here"

    assert await looks(Silence(), 99).outlast(answer()) == "here"


@pytest.mark.anyio
async def test_one_that_hangs_is_silent_and_one_that_has_gone_is_not(tmp_path: Path) -> None:
    path = tmp_path / "admin"
    silence = looks(Silence(), 8)
    line = Line(str(path), "process-0", silence)
    with pytest.raises(Unavailable) as gone:
        await line.get("/health")
    assert not isinstance(gone.value, Silent)
    with socket.socket(socket.AF_UNIX) as hangs:  # takes connections and never reads
        hangs.bind(str(path))
        hangs.listen()
        with pytest.raises(Silent, match="process-0 does not answer"):
            await line.get("/health")
    await line.close()


@pytest.fixture
async def pair(tmp_path: Path) -> list[Member]:
    """Two that serve and are ready."""
    members = []
    for number in range(2):
        ours, theirs = socket.socketpair()
        theirs.close()
        silence = Silence()
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", "")
        await process.wait()
        channel = await Channel.over(ours)
        line = Line(str(tmp_path / str(number)), f"process-{number}", silence)
        members.append(Member(number, number, 0.0, process, channel, line, silence, Phase.SERVING, None))
        await channel.close()
    return members


@pytest.mark.anyio
async def test_others_are_asked_and_it_is_not_ready(pair: list[Member]) -> None:
    crew = Crew(anyio.current_time, pair)
    first, second = pair
    assert crew.speakers() == [first, second]
    looks(first.silence, 9)
    assert crew.speakers() == heard(pair) == [second]
    assert first.not_ready == "has said nothing for 2 s"
    assert (first.ready, second.ready, crew.unready()) == (False, True, None)
    looks(second.silence, 40)
    assert heard(pair) == [first, second]  # nobody is better than the other
    assert crew.unready() == "has said nothing for 2 s"
    first.silence.broken()
    assert crew.unready() is None


@pytest.mark.anyio
async def test_a_start_takes_as_long_as_it_takes(pair: list[Member]) -> None:
    pair[0].phase, pair[0].unready = Phase.STARTING, "starting"
    looks(pair[0].silence, 100)
    assert (pair[0].quiet, pair[0].not_ready) == (False, "starting")
