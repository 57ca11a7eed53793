"""What a client is told, in the words of docs/faults.md's tables."""

from __future__ import annotations

import json

import httpx

from tests.gateway.api.rig import http

OWN = b'{"error":{"message":"its own words","type":"t","param":null,"code":"c"}}'


async def ask(url: str, *, stream: bool = False) -> str:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": stream}
    async with http() as client:
        try:
            answer = await client.post(url + "/v1/chat/completions", json=body)
        except httpx.RemoteProtocolError:
            return "cut"
        except httpx.DecodingError:
            return "200, as it came"
    if answer.headers.get("content-type", "").startswith("text/event-stream"):
        assert answer.status_code == 200
        errors = answer.text.count('"error"')
        return "tokens, error event" if errors == 1 else "stream" if errors == 0 else "?"
    told = str(answer.status_code)
    if answer.status_code != 200:
        told += (
            ", its own words" if answer.content == OWN else f", {json.loads(answer.content)['error']['type']}"
        )
    if "retry-after" in answer.headers:
        told += f", Retry-After: {answer.headers['retry-after']}"
    return told
