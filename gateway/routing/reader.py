"""What a request asks for: which model, by whom it is served, which tokens, which keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gateway.errors import GatewayError, InvalidRequest, ModelNotFound, Unavailable, brief
from gateway.fleet.pool import Target
from gateway.fleet.registry import Registry
from gateway.fleet.worker import Worker
from gateway.kv.keys import root_key
from gateway.kv.known_runs import KnownRuns
from gateway.prompt.base import PromptEncoder, PromptRequest, TokenPrompt, not_tokenised
from gateway.routing.caller import ANYBODY, Caller
from gateway.routing.candidates import RETRY_AFTER_S
from gateway.routing.keys import prompts_keys
from gateway.routing.media import MediaMemory, media_marks
from gateway.routing.policy import RequestShape
from gateway.routing.weighing import Reading
from gateway.types import CacheScope


class Reader:
    """`encoders` gives a base model's way to tokens, or None where there is none."""

    def __init__(
        self,
        registry: Registry,
        encoders: Callable[[str], PromptEncoder | None],
        media: MediaMemory,
    ) -> None:
        self._registry = registry
        self._encoders = encoders
        self._media = media
        self._runs = KnownRuns()

    async def read(self, request: PromptRequest, caller: Caller = ANYBODY) -> Reading:
        """Resolve, tokenise, hash. Raises ModelNotFound, InvalidRequest, or Unavailable where nobody could
        take it anyway, before any work is spent on it."""
        target = self._registry.resolve(request.model)
        if target is None:
            raise self._unknown(request.model)
        if not target.workers:
            raise Unavailable(
                f"model {brief(request.model)!r} has no worker now", retry_after=RETRY_AFTER_S, param="model"
            )
        encoder = self._encoders(target.model)
        prompts = await encoder.encode(request) if encoder is not None else ()
        scope = CacheScope(target.model, target.adapter or request.lora_path, request.salt)
        root = root_key(scope)
        known = True
        for prompt in prompts:
            known &= prompt.exact_tokens >= len(prompt.tokens)
        exact = encoder is not None and encoder.exact and known
        media = () if prompts and known else media_marks(request, root)
        truncated = request.truncate_prompt_tokens is not None
        keep_last = _truncation(request, target) if truncated else None
        keyed = await prompts_keys(
            prompts, root, self._runs, unit=target.unit, keep_last=keep_last, most_tokens=target.most_tokens
        )
        keys, tokens = [], 0
        for one in keyed:
            keys.append(one.cacheable)
            tokens += one.tokens
        shape = RequestShape(
            prompt_tokens=self._media.size(media, tokens) if media else tokens,
            keys=keys[0] if keys else (),
            max_tokens=request.max_tokens,
            session=caller.session,
            block_size=target.unit,
        )
        return Reading(
            request.model, target, scope, keyed, keys, shape,
            encoder.name if encoder is not None else "", exact,
            comparable=encoder is not None and encoder.exact,
            media=media,
            not_tokenised="" if prompts else _why_none(prompts, encoder, request),
            # a slice would not lie where the prompt looks for it
            whole=request.wants_prompt or bool(request.extra_key or request.lora_path),
            skips_cache=request.skips_cache,
            bound_to=caller.worker,
        )  # fmt: skip

    def workers_now(self, reading: Reading) -> tuple[Worker, ...]:
        """The fleet may have changed while the prompt was read or the request queued."""
        target, before = self._registry.resolve(reading.asked), reading.target
        if target is None:
            return ()
        if target is not before and (target.model, target.unit) != (before.model, before.unit):
            return ()
        if reading.bound_to is None:
            return target.workers
        bound = tuple(worker for worker in target.workers if worker.id == reading.bound_to)
        return bound or target.workers

    def _unknown(self, name: str) -> GatewayError:
        known = ", ".join(self._registry.names())
        if not known:
            # the fleet is only just being found: nobody can say what it will serve
            return Unavailable("no worker has said yet what it serves", retry_after=RETRY_AFTER_S)
        if not name:
            return InvalidRequest(f"the request names no model; there are: {known}", param="model")
        return ModelNotFound(f"model {brief(name)!r} does not exist; there are: {known}", param="model")


def _why_none(prompts: Sequence[TokenPrompt], encoder: PromptEncoder | None, request: PromptRequest) -> str:
    if encoder is None:
        return "the model's tokenizer is not found yet"
    none = not_tokenised(prompts, request)
    return "" if none is None else none.why


def _truncation(request: PromptRequest, target: Target) -> int | None:
    """Tokens that engines keep from the end of a prompt. A negative figure means the model's longest, but for
    one that is left for the answer, where there is to be any."""
    keep = request.truncate_prompt_tokens
    if keep is None or keep > 0:
        return keep
    lengths = [w.info.max_model_len for w in target.workers if w.info is not None and w.info.max_model_len]
    longest = min(lengths, default=None) if keep < 0 else None
    return longest if longest is None or request.max_tokens == 0 else longest - 1
