"""A proxied request from its first byte to its record: the request path, top to bottom.

may it come in? → read the body → understand it → route (a lease is taken) → one try on that worker → its
lease released → another worker where nothing has been sent yet and the failure was the worker's → answer →
record.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

import msgspec

from gateway.api.beginnings import Beginnings, ask_for_beginning
from gateway.api.body import ClientLeft, check_length, read_body, within
from gateway.api.call import Call, ReadPrompt, understand
from gateway.api.caller import anonymous
from gateway.api.client_watch import ClientWatch, Receive
from gateway.api.direct import DIRECT, DirectOutlet
from gateway.api.door import Door
from gateway.api.endpoints import ProxiedEndpoint
from gateway.api.errors import Answer, error_answer, error_event
from gateway.api.gate import NOBODY, Gate, OpenGate, Visit
from gateway.api.head_reading import HeadReading, head_reading
from gateway.api.headers import RequestIds, answer_headers, own_headers
from gateway.api.pages import Pages
from gateway.api.record import Recorder, Story
from gateway.api.response_pins import Pin, ResponsePins, named_response, without_a_model
from gateway.api.retry import RetryPolicy, outcome_of, retry_after_of
from gateway.api.slices import Ask, InVain, Slices
from gateway.api.tracing import Trace, Tracer
from gateway.errors import (
    ClientError,
    Forbidden,
    GatewayError,
    InvalidRequest,
    LoopDetected,
    ModelNotFound,
    NotFound,
    Overloaded,
    Unavailable,
    UpstreamError,
    UpstreamGivenUp,
    UpstreamTimeout,
    brief,
)
from gateway.routing.route import Outcome, Route, RouterProtocol
from gateway.routing.slice_refusals import SliceRefusals
from gateway.routing.slicing import Sliced
from gateway.types import Clock, WorkerId
from gateway.upstream.client import UpstreamClient
from gateway.upstream.headers import Headers, value_of
from gateway.upstream.outlet import AsgiOutlet, ClientGone, Outlet, Send
from gateway.upstream.proxy import AnswerPlan, Exchange
from gateway.upstream.timeouts import Timeouts
from gateway.upstream.via import Via
from gateway.upstream.wire import UpstreamRequest

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServeOptions:
    timeouts: Timeouts = field(default_factory=Timeouts)
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    door: Door = field(default_factory=Door)
    max_body: int = 32 * 1024 * 1024
    """Bytes of a request's body, as sent and as decompressed."""
    body_timeout: float = 60.0
    """Seconds in which a body has to arrive."""
    max_answer: int = 64 * 1024 * 1024
    forward_authorization: bool = True
    """Off where the gateway checks keys itself: a client's key is then nothing for a worker."""
    worker_authorization: bytes | None = None
    """What the gateway itself shows to workers, in place of what a client sent."""
    worker_header: bool = True
    """A client is told which worker answered: its URL, as operators gave it."""
    ask_for_usage: bool = True
    """Asks for usage in streams whose client did not, and keeps it from the client."""


class ProxyService:
    """Serves every proxied endpoint. All it needs is handed in."""

    def __init__(
        self,
        router: RouterProtocol,
        client: UpstreamClient,
        recorder: Recorder,
        read_prompt: ReadPrompt,
        *,
        options: ServeOptions,
        clock: Clock,
        rng: Random,
        gate: Gate | OpenGate | None = None,
        tracer: Tracer | None = None,
        pins: ResponsePins | None = None,
        pages: Pages | None = None,
        new_id: Callable[[], str] | None = None,
        via: Via | None = None,
        slice_refusals: SliceRefusals | None = None,
    ) -> None:
        """Without a `gate`, whoever comes is served, but for pages of other sites. Without a `tracer`, what a
        client says of its trace is passed on. Without `via`, a request may go in circles."""
        self._via = via
        self._gate = gate if gate is not None else OpenGate()
        self._pages = pages if pages is not None else Pages()
        self._tracer = tracer
        self._pins = pins if pins is not None else ResponsePins(clock)
        self._router = router
        self._client = client
        self._slices = Slices(clock, slice_refusals)
        self._recorder = recorder
        self._read_prompt = read_prompt
        self._options = options
        self._clock = clock
        self._rng = rng
        self._new_id = new_id if new_id is not None else RequestIds()

    def reconfigure(self, options: ServeOptions) -> None:
        """For requests from now on."""
        self._options = options

    async def __call__(self, endpoint: ProxiedEndpoint, scope: Any, receive: Receive, send: Send) -> None:
        direct: DirectOutlet | None = scope.get(DIRECT)
        head = head_reading(scope, direct)
        name = self._new_id() if head.given_id is None else head.given_id.decode()
        identifier = name.encode()
        story = Story(name, endpoint.name, self._clock(), trace_id=head.trace_id)
        trace: Trace | None = None
        if self._tracer is not None:
            trace = self._tracer.begin(head.headers, endpoint.name)
            story.trace_headers = trace.headers
        outlet: Outlet = AsgiOutlet(send) if direct is None else direct
        watch: ClientWatch | DirectOutlet | None = None
        visit = NOBODY
        try:
            if self._via is not None and b"via" in head.lookup:
                self._via.check(head.headers)
            if b"origin" in head.lookup:
                self._pages.check(head.lookup)
            if not self._gate.open:
                visit = await self._gate.enter(scope["headers"], endpoint)
                story.key = visit.key_id
            whole = None if direct is None else direct.whole_body()
            if whole is None:
                body = await self._body(scope["headers"], receive)
            else:
                body = within(whole, self._options.max_body)
            if direct is None:
                watch = ClientWatch(receive, outlet)
            else:
                watch = direct
                direct.on_gone(direct.leave)
            await self._answer(endpoint, head, body, visit, identifier, story, outlet)
        except (ClientLeft, ClientGone):
            story.client_left()
        except asyncio.CancelledError:
            # whoever cancelled, the watch or a server that ends, waits for the end of this task alone
            if watch is not None and watch.gone:
                story.client_left()
                watch.absolve()
            else:
                self._cut_off(endpoint, identifier, story, outlet)
        except GatewayError as error:
            # it may not come in, or its body could not even be read
            self._refuse(error, endpoint, identifier, story, outlet)
        except Exception:
            # a fault of our own: its client gets a shape that it can read, and we a trace
            logger.exception("request %s failed", story.request_id)
            self._refuse(GatewayError("internal error"), endpoint, identifier, story, outlet)
        finally:
            if watch is not None and watch is not direct:
                watch.stop()
            outlet.close()
            record = story.end(self._clock())
            if visit is not NOBODY:
                visit.leave(record.tokens)
            if trace is not None:
                trace.end(record)
            self._recorder.record(record)

    async def _body(self, headers: Headers, receive: Receive) -> bytes:
        options = self._options
        check_length(value_of(headers, b"content-length"), options.max_body)
        return await read_body(receive, options.max_body, options.body_timeout)

    async def _answer(
        self,
        endpoint: ProxiedEndpoint,
        head: HeadReading,
        body: bytes,
        visit: Visit,
        identifier: bytes,
        story: Story,
        outlet: Outlet,
    ) -> None:
        options = self._options
        try:
            call = await understand(
                endpoint,
                head,
                body,
                door=options.door if visit is NOBODY else visit.door(options.door),
                read_prompt=self._read_prompt,
                max_body=options.max_body,
                ask_for_usage=options.ask_for_usage,
            )
            story.asked_model = brief(call.prompt.model)
            if call.dropped_fields or call.dropped_entries:
                story.stripped = call.stripped
            pin = await self._pinned(call, visit) if endpoint.names_answers else None
            if visit is NOBODY:
                call.caller = anonymous(head.lookup, call.fields)
            else:
                visit.admit(call)
            if pin is not None:
                call.caller = msgspec.structs.replace(call.caller, worker=pin.worker)
            await self._proxy(call, identifier, story, outlet)
        except GatewayError as error:
            if isinstance(error, Forbidden):
                visit.give_back()
            self._refuse(error, endpoint, identifier, story, outlet)
            await outlet.drained()

    async def _pinned(self, call: Call, visit: Visit) -> Pin | None:
        """Who gave the response that it names; None where it names none, or nobody knows."""
        name = named_response(call)
        pin = await self._pins.find(name, visit.key_id) if name else None
        if pin is not None and not call.prompt.model:
            call.prompt = msgspec.structs.replace(call.prompt, model=pin.model)
        return pin

    async def _proxy(self, call: Call, identifier: bytes, story: Story, outlet: Outlet) -> None:
        """Tries worker after worker; raises GatewayError where none of them answered."""
        retry = self._options.retry
        loop = asyncio.get_running_loop()
        total, own = self._options.timeouts.total, call.caller.deadline_s
        deadline = loop.time() + (total if own is None else min(total, own))
        tried: frozenset[WorkerId] = frozenset()
        failed: Exchange | None = None
        wait: float | None = None
        untrusted: Unavailable | None = None
        while len(tried) < retry.tries and loop.time() < deadline:
            began = self._clock()
            try:
                route = await self._router.route(call.prompt, exclude=tried, caller=call.caller)
            except InvalidRequest as error:
                raise without_a_model(call, error) from None
            except (Unavailable, ModelNotFound):
                if failed is None:
                    raise
                break
            finally:
                story.routing_s += self._clock() - began
            exchange = await self._try(call, route, identifier, deadline, story, outlet)
            if exchange is None:
                # once all who were promised the same in vain have taken their own promises back
                await asyncio.sleep(0)
                continue
            if exchange.committed:
                return
            failed, tried = exchange, tried | {route.worker}
            untrusted = route.notes.otherwise
            wait = max(wait or 0.0, retry_after_of(exchange.headers) or 0.0)
            if len(tried) < retry.tries:
                await asyncio.sleep(min(retry.pause(len(tried), self._rng.random), deadline - loop.time()))
        if untrusted is not None and failed is not None and failed.withheld is None:
            # it was asked for want of a better one, and has nothing to say itself
            raise untrusted
        self._give_up(failed, wait, story, outlet)

    async def _try(
        self, call: Call, route: Route, identifier: bytes, deadline: float, story: Story, outlet: Outlet
    ) -> Exchange | None:
        """One worker's turn; None where it was not asked, since what it was chosen for will not be there.
        However it ends, the router is told and the lease released."""
        endpoint, options = call.endpoint, self._options
        plan = AnswerPlan(
            headers=answer_headers(route, identifier, worker=options.worker_header),
            readable=endpoint.generates,
            error_event=partial(error_event, dialect=endpoint.dialect),
            unserved=partial(_unserved, route, call),
            on_start=self._pins.watch(call, route.worker, story.key) if endpoint.names_answers else None,
            hide_usage=call.inject_usage,
            ends_with_done=endpoint.ends_with_done,
            redactor=call.redactor,
            max_answer=options.max_answer,
        )
        sliced = route.notes.sliced
        ahead = None if sliced is None else self._slices.enter(sliced, route)
        followed = in_vain = False
        exchange = Exchange(outlet, plan, self._clock, route.lease.first_byte)
        outcome = Outcome.CANCELLED
        began = self._clock()
        try:
            request = self._request(call, route, identifier, story.trace_headers)
            if ahead is not None and sliced is not None:
                await ahead.run(self._asking(sliced, call, route, request, deadline), deadline)
            elif self._slices.queues:
                followed = await self._slices.follow(route, deadline)
            await exchange.run(self._client, route.url, request, options.timeouts, deadline)
            outcome = outcome_of(
                exchange.status,
                exchange.headers,
                exchange.error,
                stream_error=exchange.stream_error,
                body=exchange.withheld.body if exchange.withheld is not None else b"",
            )
        except InVain:
            in_vain = True
        except UpstreamGivenUp as error:
            # a slice of it
            exchange.error, outcome = error, Outcome.TIMEOUT
        except ClientGone:
            raise
        except Exception:
            outcome = Outcome.INTERNAL
            raise
        finally:
            first = exchange.first_byte_at if exchange.streamed and not followed else None
            if ahead is not None:
                ahead.over()
                exchange.usage, first = ahead.left_to(exchange.usage), None
                story.slices += ahead.sent
            if not in_vain:
                story.tried(route, exchange, outcome)
            try:
                self._router.finish(
                    route,
                    outcome,
                    exchange.usage,
                    first - began if first is not None else None,
                    retry_after=retry_after_of(exchange.headers) if exchange.status >= 400 else None,
                    blameless=outcome is Outcome.TIMEOUT and _hasty(call, exchange, options.timeouts),
                )
            finally:
                route.lease.release()
        return None if in_vain else exchange

    def _asking(
        self, sliced: Sliced, call: Call, route: Route, request: UpstreamRequest, deadline: float
    ) -> Ask:
        """How the beginnings of a very long prompt are asked for."""
        priority = None if call.fields is None else call.fields.get("priority")
        beginnings = Beginnings(request, sliced, route.model, call.prompt.cache_salt, priority)
        timeouts = self._options.timeouts
        return partial(ask_for_beginning, self._client, route.url, beginnings, timeouts, deadline)

    def _request(
        self, call: Call, route: Route, identifier: bytes, trace_headers: Headers
    ) -> UpstreamRequest:
        head, options = call.head, self._options
        written = head.for_workers(
            call.dropped_headers,
            call.endpoint.generates or bool(call.redactor.names),
            options.forward_authorization,
            options.worker_authorization,
            bool(trace_headers),
            None if self._via is None else self._via.value,
        )
        headers = own_headers(identifier, trace_headers, route.dp_rank)
        return UpstreamRequest(
            head.method, head.target, headers, call.body_for(route.model), call.prompt.stream, written
        )

    def _give_up(self, failed: Exchange | None, wait: float | None, story: Story, outlet: Outlet) -> None:
        """What the client is told when the last worker has failed it."""
        if failed is None or story.outcome is Outcome.BUSY:
            raise Overloaded("every worker that serves this model is busy", retry_after=wait)
        withheld = failed.withheld
        if withheld is None:
            raise failed.error or UpstreamError("the worker did not answer")
        if (value_of(withheld.headers, b"content-type") or b"").startswith(b"application/json"):
            _send(outlet, Answer(withheld.status, withheld.body, withheld.headers))
            return
        # a page of some proxy in between: an API client could not read it
        error = UpstreamError(f"the worker answered {withheld.status}")
        error.status = withheld.status
        raise error

    def _cut_off(self, endpoint: ProxiedEndpoint, identifier: bytes, story: Story, outlet: Outlet) -> None:
        """The server ends, and the grace for open answers is over."""
        error = Unavailable("the server is shutting down", retry_after=1.0)
        streamed = story.exchange is not None and story.exchange.streamed
        begun = story.status if outlet.started else error.status
        if outlet.started and streamed and not outlet.ended:
            outlet.body(error_event(error, endpoint.dialect), last=True)
        self._refuse(error, endpoint, identifier, story, outlet)
        story.status, story.outcome = begun, Outcome.SHUT_DOWN

    def _refuse(
        self, error: GatewayError, endpoint: ProxiedEndpoint, identifier: bytes, story: Story, outlet: Outlet
    ) -> None:
        if not story.tries:
            story.outcome = _outcome_of(error)
        story.status, story.error = error.status, error.message
        if not outlet.started:
            answer = error_answer(error, endpoint.dialect)
            answer.headers.append((b"x-request-id", identifier))
            answer.headers.append((b"content-length", b"%d" % len(answer.body)))
            _send(outlet, answer)


def _send(outlet: Outlet, answer: Answer) -> None:
    outlet.start(answer.status, answer.headers)
    outlet.body(answer.body, last=True)


def _unserved(route: Route, call: Call) -> bytes:
    path = call.head.target.partition(b"?")[0].decode("latin-1")
    error = NotFound(f"the engine of model {route.model!r} does not serve {path}")
    return error_answer(error, call.endpoint.dialect).body


def _hasty(call: Call, exchange: Exchange, timeouts: Timeouts) -> bool:
    """Its client's own limit was over, and not ours: nobody could be asked to be that quick."""
    own, error = call.caller.deadline_s, exchange.error
    return (
        own is not None
        and own < timeouts.total
        and isinstance(error, UpstreamTimeout)
        and error.phase == "total"
    )


def _outcome_of(error: GatewayError) -> Outcome:
    if isinstance(error, ClientError):
        return Outcome.CLIENT_ERROR
    if isinstance(error, Overloaded):
        return Outcome.BUSY
    upstream = isinstance(error, Unavailable | UpstreamError | LoopDetected)
    return Outcome.UPSTREAM_ERROR if upstream else Outcome.INTERNAL
