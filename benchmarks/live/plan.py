"""What is asked, and when: the same for every router. Times are seconds from the run's begin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from benchmarks.live.words import Words


@dataclass(frozen=True, slots=True)
class Turn:
    """`at` is when it is asked, but not before the answer to `after`, and `think_s` more, is there."""

    at: float
    text: str
    """The user's message."""
    answer_tokens: int
    session: str
    after: int | None = None
    think_s: float = 0.0
    system: str = ""
    goes_on: bool = False
    """The prompt is the whole conversation up to `after`'s answer, and then this message."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Turns, each behind the one it waits for, and the engines they are meant for."""

    name: str
    turns: tuple[Turn, ...]
    profile: str
    blocks: int
    slo_ttft_s: float
    about: str

    def faster(self, time_scale: float) -> Plan:
        """Engines take `time_scale` as long for a step, so arrivals and the limit shrink alike."""
        turns = tuple(
            Turn(
                at=t.at * time_scale,
                text=t.text,
                answer_tokens=t.answer_tokens,
                session=t.session,
                after=t.after,
                think_s=t.think_s * time_scale,
                system=t.system,
                goes_on=t.goes_on,
            )
            for t in self.turns
        )
        return Plan(self.name, turns, self.profile, self.blocks, self.slo_ttft_s * time_scale, self.about)


@dataclass(frozen=True, slots=True)
class ChatShape:
    """Eight turns to 8,000 tokens over eight system prompts. Each conversation pinned to one of four engines
    finds 0.865 of its tokens there: 8 messages and, a fifth of the time, the system prompt are computed."""

    name: str = "chats"

    conversations: int = 160
    turns: int = 8
    systems: int = 8
    in_turn: bool = False
    """Conversations have the system prompts in turn, so that an engine for two of them is an even load; else
    each draws its own."""
    system_words: int = 2400
    user_words: int = 640
    answer_tokens: int = 32
    rate: float = 24.0
    """Turns a second."""
    at_once: int = 16
    """Conversations under way on average."""


def chats(shape: ChatShape, words: Words, seed: int) -> Plan:
    """Conversations begin at random (Poisson); a turn is due at even steps of the conversation, or at once
    where the answer before it came later than that."""
    rng, draw = Random(f"chats/{seed}"), Random(f"chats/{seed}/systems")
    gap = shape.at_once / shape.rate
    turns: list[Turn] = []
    begin = 0.0
    for number in range(shape.conversations):
        begin += rng.expovariate(shape.rate / shape.turns)
        chosen = number % shape.systems if shape.in_turn else draw.randrange(shape.systems)
        system = words.text(f"{seed}/system/{chosen}", shape.system_words)
        for turn in range(shape.turns):
            turns.append(
                Turn(
                    at=begin + turn * gap,
                    text=words.text(f"{seed}/user/{number}/{turn}", shape.user_words),
                    answer_tokens=shape.answer_tokens,
                    session=f"user-{number}",
                    after=len(turns) - 1 if turn else None,
                    system="" if turn else system,
                    goes_on=turn > 0,
                )
            )
    about = (
        f"{shape.conversations} conversations × {shape.turns} turns over {shape.systems} system prompts"
        f"{' in turn' if shape.in_turn else ''}, {shape.rate:g} turns/s"
    )
    return Plan(shape.name, tuple(turns), "a100-8b", 4_000, 0.5, about)


def window(turns: Sequence[Turn]) -> float:
    """Seconds over which turns are due."""
    return max(turn.at for turn in turns) - min(turn.at for turn in turns)
