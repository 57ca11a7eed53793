"""Bytes in place of tokens, for engines whose tokenizer nobody will tell."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import msgspec

from gateway.prompt.base import PromptRequest, TokenPrompt

_BYTES_PER_TOKEN = 4


class BytesEncoder:
    """Four UTF-8 bytes stand for one token, so that 64 bytes fill a block of 16. Equal prefixes still give
    equal leading tokens, which is all that affinity needs; counts are estimates.
    """

    name = "bytes"
    exact = False

    async def encode(self, request: PromptRequest) -> Sequence[TokenPrompt]:
        try:
            if request.messages is not None:
                return [_token_prompt(_chat_bytes(request))]
            return [_token_prompt(prompt) for prompt in request.prompts or ()]
        except (TypeError, OverflowError, UnicodeEncodeError):
            return []

    async def close(self) -> None:
        return None


def _chat_bytes(request: PromptRequest) -> bytes:
    # one JSON document per message: a next turn only appends
    parts = [request.template_args.get("tools"), *(request.messages or ())]
    return b"\n".join([msgspec.json.encode(part) for part in parts if part is not None])


def _token_prompt(prompt: str | bytes | Sequence[int]) -> TokenPrompt:
    if isinstance(prompt, str):
        prompt = prompt.encode()
    if isinstance(prompt, bytes):
        tokens = array("I")
        tokens.frombytes(prompt + bytes(-len(prompt) % _BYTES_PER_TOKEN))
    else:
        tokens = array("I", prompt)
    return TokenPrompt(tokens, len(tokens))
