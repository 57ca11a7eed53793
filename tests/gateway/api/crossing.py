"""A request of a client through the gateway to an engine, and what the engine gets of it."""

from __future__ import annotations

from gateway.api.serve import ServeOptions
from tests.faults import FaultyEngine, Seen, answers
from tests.gateway.api.rig import QUICK, http, serving

PATH = "/v1/chat/completions"
BODY = b'{"model":"m","messages":[{"role":"user","content":"h\\u00e9"}], "x_unknown": {"b": 1.50} }'


async def through(
    body: bytes = BODY,
    headers: dict[str, str] | list[tuple[str, str]] | None = None,
    path: str = PATH,
    options: ServeOptions = QUICK,
    models: dict[str, str] | None = None,
) -> Seen:
    """What an engine gets when a client sends this."""
    async with (
        FaultyEngine(answers()) as engine,
        serving(engine.url, options=options, models=models) as door,
        http() as client,
    ):
        answer = await client.post(door.url + path, content=body, headers=headers)
        assert answer.status_code == 200, answer.text
        return engine.seen[0]
