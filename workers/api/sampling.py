"""From the fields of a body to the engine's sampling parameters."""

from __future__ import annotations

from workers.api.errors import BadRequest, bad_value
from workers.api.schema import ChatBody, CompletionBody, GenerationBody
from workers.types import SamplingParams

DEFAULT_COMPLETION_TOKENS = 16
_MAX_LOGPROBS = 20
_GREEDY_BELOW = 1e-5


def asked_tokens(body: GenerationBody) -> tuple[int | None, str]:
    """(max output tokens asked for, the field that says so); None is the rest of the context."""
    if isinstance(body, ChatBody):
        if body.max_completion_tokens is not None:
            return body.max_completion_tokens, "max_completion_tokens"
        return body.max_tokens, body.length_field
    return (DEFAULT_COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens), body.length_field


def asked_logprobs(body: GenerationBody) -> int | None:
    """Alternatives to report beside each chosen token; None reports nothing. Raises BadRequest."""
    if isinstance(body, ChatBody):
        count, field = (body.top_logprobs or 0) if body.logprobs else None, "top_logprobs"
    elif isinstance(body, CompletionBody):
        count, field = body.logprobs, "logprobs"
    else:
        return None
    if count is not None and not 0 <= count <= _MAX_LOGPROBS:
        raise bad_value(f"{field} must be in [0, {_MAX_LOGPROBS}], got {count}.", field, count)
    return count


def check_output_length(body: GenerationBody, max_model_len: int) -> None:
    """Refuses, before the prompt is looked at, what no prompt could leave room for."""
    asked, field = asked_tokens(body)
    if asked is not None and asked > max_model_len:
        raise bad_value(
            f"{field}={asked} cannot be greater than max_model_len={max_model_len}. "
            "Please request fewer output tokens.",
            field,
            asked,
        )


def sampling_params(body: GenerationBody, *, prompt_len: int, max_model_len: int) -> SamplingParams:
    """Raises BadRequest for values out of range. The prompt and its output share the context."""
    asked, _ = asked_tokens(body)
    room = max_model_len - prompt_len
    max_tokens = room if asked is None else min(asked, room)
    if isinstance(body, CompletionBody) and body.echo and body.max_tokens == 0:
        max_tokens = min(1, room)  # only the prompt is wanted, yet a sequence ends with a token
    if max_tokens < 1:
        raise bad_value(f"max_tokens must be at least 1, got {max_tokens}.", "max_tokens", max_tokens)
    min_tokens = body.min_tokens or 0
    if not 0 <= min_tokens <= max_tokens:
        raise bad_value(
            f"min_tokens must be in [0, {max_tokens}], got {min_tokens}.", "min_tokens", min_tokens
        )
    temperature = _within(body.temperature, "temperature", 0.0, 2.0, default=1.0)
    top_p = _within(body.top_p, "top_p", 0.0, 1.0, default=1.0)
    if top_p == 0.0:
        raise bad_value("top_p must be in (0, 1], got 0.0.", "top_p", body.top_p)
    top_k = body.top_k or 0
    if top_k < -1:
        raise bad_value(f"top_k must be 0 (disable), or at least 1, got {top_k}.", "top_k", top_k)
    repetition = 1.0 if body.repetition_penalty is None else body.repetition_penalty
    if not repetition > 0.0:
        raise bad_value("repetition_penalty must be greater than zero.", "repetition_penalty", repetition)
    if temperature < _GREEDY_BELOW:
        if body.choices > 1:
            raise BadRequest(f"n must be 1 when using greedy sampling, got {body.choices}.", param="n")
        temperature, top_p, top_k = 0.0, 1.0, 0
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=max(top_k, 0),
        seed=body.seed,
        stop_token_ids=tuple(body.stop_token_ids or ()),
        ignore_eos=bool(body.ignore_eos),
        min_tokens=min_tokens,
        logprobs=asked_logprobs(body),
        presence_penalty=_within(body.presence_penalty, "presence_penalty", -2.0, 2.0, default=0.0),
        frequency_penalty=_within(body.frequency_penalty, "frequency_penalty", -2.0, 2.0, default=0.0),
        repetition_penalty=repetition,
    )


def _within(value: float | None, field: str, low: float, high: float, *, default: float) -> float:
    if value is None:
        return default
    if not low <= value <= high:
        raise bad_value(f"{field} must be in [{low:g}, {high:g}], got {value}.", field, value)
    return value
