"""The admin port of several processes: one port that tells and changes all of them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import httpx
import msgspec
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client.exposition import choose_encoder

from gateway.api.admin_errors import in_one_shape
from gateway.api.doctor import doctor_routes
from gateway.api.errors import error_answer
from gateway.api.while_there import while_there
from gateway.errors import BodyTooLarge, GatewayError, Unavailable
from gateway.processes.asking import ask_all, of_all
from gateway.processes.crew import Crew, heard
from gateway.processes.families import metrics_of
from gateway.processes.fleet_rows import merged_rows
from gateway.processes.journal import Journal, Reach, Write, reach
from gateway.processes.member import Member
from gateway.processes.relay import Receive, Scope, Send
from gateway.processes.scrape import Scrape, supervisor_gauges
from gateway.processes.supervisor import Supervisor
from gateway.types import SERVER

log = logging.getLogger("gateway.processes")

MAX_BODY = 32 * 1024 * 1024


def create_front(supervisor: Supervisor) -> FastAPI:
    app = FastAPI(title="prefix-gateway admin", openapi_url=None, docs_url=None, redoc_url=None)
    in_one_shape(app)
    crew = supervisor.crew
    scrape = Scrape(
        crew,
        supervisor.care.ended,
        lambda: supervisor_gauges(crew, supervisor.settings.processes, supervisor.crashes),
    )

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok", "server": SERVER}

    @app.get("/ready")
    async def ready() -> JSONResponse:
        reason = crew.unready()
        if reason is None:
            return JSONResponse({"status": "ready"})
        return JSONResponse({"status": "not ready", "reason": reason}, status_code=503)

    @app.get("/metrics")
    async def metrics(request: Request) -> Response:
        families = await scrape.families()
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        # a text of megabytes takes seconds, and beats must be heard meanwhile
        text = await asyncio.to_thread(encode, _Collected(lambda: metrics_of(families)))
        return Response(text, media_type=content_type)

    @app.get("/admin/processes")
    async def processes() -> dict[str, Any]:
        """Each process: which, since when, what it is at."""
        return {"processes": [_row(member, crew.clock()) for member in crew.members]}

    @app.get("/admin/workers")
    async def workers() -> Response:
        asked = await ask_all(crew.serving() or crew.answering(), lambda m: m.line.get("/admin/workers"))
        rows = [answer.json()["workers"] for _, answer in asked.answers if answer.is_success]
        if not rows:
            raise Unavailable("no process answers yet", retry_after=1.0)
        body = msgspec.json.encode({"workers": merged_rows(rows)})
        return Response(body, headers=asked.headers(), media_type="application/json")

    def looked_at(_: Request) -> tuple[Sequence[str], httpx.AsyncBaseTransport]:
        lines = [member.line for member in heard(crew.serving()) or crew.speakers()]
        return [line.url for line in lines], _ByName({line.name: line.transport for line in lines})

    app.include_router(doctor_routes(lambda: crew.stopping, looked_at))
    app.mount("/", _Rest(crew, supervisor.journal))
    return app


class _Rest:
    """Everything else: asked of one process, or done in all."""

    def __init__(self, crew: Crew, journal: Journal) -> None:
        self._crew = crew
        self._journal = journal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            body = await _body(receive)
            far = reach(scope["method"], scope["path"])
            if far is Reach.ONE:
                await self._by_one(scope, body, receive, send)
                return
            request = Request(scope)
            write = Write(scope["method"], scope["path"], dict(request.query_params), body)
            if far is Reach.EACH:
                answer, headers = await while_there(receive, self._of_each(write))
            else:
                answer, headers = await self._everywhere(write, kept=far is Reach.KEPT)
        except GatewayError as error:
            refusal = error_answer(error)
            await Response(refusal.body, error.status, media_type="application/json")(scope, receive, send)
            return
        media = answer.headers.get("content-type")
        await Response(answer.content, answer.status_code, headers, media)(scope, receive, send)

    async def _by_one(self, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        *others, last = self._crew.speakers()
        for member in others:
            with contextlib.suppress(Unavailable):  # nothing was sent: another one is as good
                await member.line.pass_on(scope, body, receive, send)
                return
        await last.line.pass_on(scope, body, receive, send)

    async def _of_each(self, question: Write) -> tuple[httpx.Response, dict[str, str]]:
        """As `_everywhere`, but it may take long, and changes may be made meanwhile."""
        asked = await ask_all(self._crew.answering(), lambda m: m.line.write(question, patient=True))
        if not asked.answers:
            raise Unavailable("no process answers", retry_after=1.0)
        return of_all(asked), asked.headers()

    async def _everywhere(self, write: Write, *, kept: bool) -> tuple[httpx.Response, dict[str, str]]:
        """The answer, and headers that go with it."""
        async with self._crew.writing:
            asked = await ask_all(self._crew.answering(), lambda m: m.line.write(write))
            if not asked.answers:
                raise Unavailable("no process answers", retry_after=1.0)
            headers = asked.headers()
            if not kept:
                return of_all(asked), headers
            done = [(member, answer) for member, answer in asked.answers if answer.is_success]
            if not done:
                return asked.answers[0][1], headers
            answer = done[0][1]
            self._journal.add(write, answer.content)
            there = {member for member, _ in done}
            for member in self._crew.members:
                if member not in there:
                    member.behind.append(write)
            if asked.unanswered:
                log.warning(
                    "a change through admin waits for processes that do not answer",
                    extra={"change": f"{write.method} {write.path}", "numbers": asked.unanswered},
                )
            return answer, headers


async def _body(receive: Receive) -> bytes:
    pieces, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Unavailable("the client left")
        pieces.append(message.get("body", b""))
        size += len(pieces[-1])
        if size > MAX_BODY:
            raise BodyTooLarge(f"the body is larger than {MAX_BODY} bytes")
        if not message.get("more_body"):
            return b"".join(pieces)


def _row(member: Member, now: float) -> dict[str, Any]:
    return {
        "number": member.number,
        "pid": member.process.pid,
        "state": member.phase.value,
        "not_ready": member.not_ready,
        "connections": member.connections,
        "age_s": now - member.began,
    }


class _Collected:
    """In place of a registry, for the encoders."""

    def __init__(self, collect: Callable[[], Any]) -> None:
        self.collect = collect


class _ByName(httpx.AsyncBaseTransport):
    """Each host is a process."""

    def __init__(self, transports: Mapping[str, httpx.AsyncBaseTransport]) -> None:
        self._transports = transports

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return await self._transports[request.url.host].handle_async_request(request)
