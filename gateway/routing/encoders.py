"""One prompt encoder per model, found as soon as an engine says which model it serves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from gateway.errors import ConfigError
from gateway.fleet.registry import Registry
from gateway.fleet.worker import Worker, WorkerState
from gateway.lasting import Lasting
from gateway.prompt.approx import BytesEncoder
from gateway.prompt.base import PromptEncoder
from gateway.prompt.engine import EngineEncoder
from gateway.prompt.resolve import EncoderChoice, choose_encoder
from gateway.types import AskEngine, Clock

log = logging.getLogger(__name__)

FROM_ENGINE = "engine"
FROM_BYTES = "bytes"


@dataclass(frozen=True, slots=True)
class TokenizerState:
    """What a person may know of a model's encoder."""

    source: str
    reason: str


class EncoderBook:
    """A fleet listener. Reading tokenizer files takes up to seconds, so it happens in a thread; until then a
    model has no encoder and its requests are routed by load."""

    def __init__(
        self,
        registry: Registry,
        ask: AskEngine,
        *,
        configured: Mapping[str, str],
        clock: Clock,
        deadline: float,
        concurrency: int = 8,
        lasting: Lasting | None = None,
    ) -> None:
        """`configured`: model → path, ``engine`` or ``bytes``. `deadline`, in seconds, and
        `concurrency` are an engine's own tokenizer's."""
        self._registry = registry
        self._ask = ask
        self._configured = configured
        self._clock = clock
        self._deadline = deadline
        self._concurrency = concurrency
        self._lasting = lasting or Lasting()
        self._choices: dict[str, EncoderChoice] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def get(self, model: str) -> PromptEncoder | None:
        choice = self._choices.get(model)
        return None if choice is None else choice.encoder

    def states(self) -> dict[str, TokenizerState]:
        return {m: TokenizerState(c.encoder.name, c.reason) for m, c in self._choices.items()}

    @property
    def searching(self) -> bool:
        return any(model not in self._choices for model in self._tasks)

    def added(self, worker: Worker) -> None:
        self.changed(worker)

    def changed(self, worker: Worker) -> None:
        if worker.info is None or worker.info.model in self._tasks:
            return
        model = worker.info.model
        path = worker.info.model_path
        self._tasks[model] = self._lasting.begin(
            lambda: self._find(model, path),
            "tokenizer",
            about=model,
            lost="prompts are tokenised by the engine meanwhile",
            failed=lambda error: self._do_without(model, error),
        )

    def removed(self, worker: Worker) -> None:
        """Another worker of the model may come; its encoder stays."""

    async def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        for choice in self._choices.values():
            await choice.encoder.close()

    async def _find(self, model: str, model_path: str | None) -> None:
        try:
            choice = await asyncio.to_thread(self._choose, model, model_path)
        except ConfigError as error:
            # checked at start for configured paths; a file that broke since must not take the model down
            choice = self._instead(model, error.message)
        self._choices[model] = choice
        log.info(
            "tokenizer found", extra={"model": model, "source": choice.encoder.name, "why": choice.reason}
        )

    def _do_without(self, model: str, error: Exception) -> None:
        """Until the search, begun again, comes to an end."""
        if model not in self._choices:
            self._choices[model] = self._instead(model, f"{type(error).__name__}: {error}")

    def _instead(self, model: str, reason: str) -> EncoderChoice:
        return EncoderChoice(self._from_engine(model), f"the engine's /tokenize: {reason}")

    def _choose(self, model: str, model_path: str | None) -> EncoderChoice:
        configured = self._configured.get(model)
        if configured == FROM_BYTES:
            return EncoderChoice(BytesEncoder(), "bytes, as configured")
        if configured == FROM_ENGINE:
            return EncoderChoice(self._from_engine(model), "the engine's /tokenize, as configured")
        return choose_encoder(
            tokenizer_path=configured,
            model_path=model_path,
            engine=partial(self._from_engine, model),
            longest=partial(self._longest, model),
        )

    def _from_engine(self, model: str) -> EngineEncoder:
        return EngineEncoder(
            self._ask,
            partial(self._urls, model),
            clock=self._clock,
            deadline=self._deadline,
            concurrency=self._concurrency,
        )

    def _longest(self, model: str) -> int | None:
        """Tokens of a prompt that one of the model's engines takes; None where one does not say."""
        infos = [w.info for w in self._registry.workers() if w.info is not None and w.info.model == model]
        said = [info.max_model_len for info in infos if info.max_model_len]
        return max(said) if said and len(said) == len(infos) else None

    def _urls(self, model: str) -> list[str]:
        return [
            w.spec.url
            for w in self._registry.workers()
            if w.state is WorkerState.READY and w.info is not None and w.info.model == model
        ]
