"""The step between a request's head and its body: who asks, and may they now?

What a key may do beyond that is decided when the body is understood: its models, its cache_salt, what the
door lets through for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Protocol

import msgspec

from gateway.api.body import Fields
from gateway.api.call import Call
from gateway.api.caller import anonymous
from gateway.api.door import Door
from gateway.api.endpoints import ProxiedEndpoint
from gateway.auth.authenticator import Authenticator
from gateway.auth.keys import ApiKey, Limits
from gateway.auth.limits import Ticket
from gateway.errors import Forbidden, InvalidRequest, RateLimited, Unauthorized, brief
from gateway.routing.caller import Caller
from gateway.upstream.headers import Headers, value_of

TENANT = "tenant:"
"""How the salts of keys begin at the engine. No client's own word may."""
_LONGEST_SALT = 128
"""What vLLM takes (0.32)."""
_MODEL_PARTS = re.compile(rb"""name\s*=\s*["']?model["']?\s*[;\r\n]""", re.IGNORECASE)
_BYTES_A_TOKEN = 4
"""Of English text; an estimate that the engine's count puts right."""


class Limiter(Protocol):
    """gateway.auth.limits.LocalLimiter, or one that replicas share."""

    async def take(self, key: str, limits: Limits, tokens: int) -> Ticket: ...

    def settle(self, ticket: Ticket, tokens: int) -> None: ...

    def give_back(self, ticket: Ticket) -> None: ...


class GateObserver(Protocol):
    def known(self, keys: Iterable[str]) -> None:
        """Ids of keys that may be shown from now on."""
        ...

    def unauthorized(self) -> None: ...

    def limited(self, key: str) -> None: ...

    def ended(self, key: str, tokens: int) -> None: ...


class Visit(msgspec.Struct):
    """One request's stay: what its key allows, and its hold on the key's limits."""

    key: ApiKey | None = None
    """None where nobody has to show one."""
    _gate: Gate | None = None
    _ticket: Ticket | None = None

    @property
    def key_id(self) -> str:
        return "" if self.key is None else self.key.id

    def caller(self, headers: Mapping[bytes, bytes], fields: Fields | None) -> Caller:
        """As the request says itself, within what its key allows."""
        said = anonymous(headers, fields)
        key = self.key
        if key is None:
            return said
        # sessions of two keys are two sessions, whatever they call them
        session = f"{key.id}\x1f{said.session}" if said.session else ""
        return Caller(
            key=key.id,
            weight=key.weight,
            priority=max(key.priority, said.priority),
            session=session,
            deadline_s=said.deadline_s,
        )

    def door(self, door: Door) -> Door:
        if self.key is None or not self.key.allow or self._gate is None:
            return door
        return self._gate.door_for(door, self.key.allow)

    def admit(self, call: Call) -> None:
        """Lets an understood request on, as its key has it. Raises Forbidden or InvalidRequest."""
        call.caller = self.caller(call.head.lookup, call.fields)
        if self.key is None:
            return
        self.check_model(call.prompt.model)
        if self.key.restricted and call.fields is None and len(_MODEL_PARTS.findall(call.body)) > 1:
            # a form that names two: which of them counts is the engine's choice
            raise Forbidden("this API key is for certain models: name one", param="model")
        self.check_adapters(None if call.fields is None else call.fields.get("lora_path"))
        for own in call.form_salts:
            _check_salt(own)
        if call.endpoint.caches and call.fields is not None:
            given = call.fields.get("cache_salt")
            if isinstance(given, list):  # SGLang takes one for each prompt
                for own in given:
                    _check_salt(own if isinstance(own, str) else "")
            salt = self.salt_for(given if isinstance(given, str) else "")
            if salt is not None:
                call.imposed["cache_salt"] = salt
                call.prompt = msgspec.structs.replace(call.prompt, cache_salt=salt)

    def check_model(self, model: str) -> None:
        """Raises Forbidden. A key with a list of models must name one: what goes without a name would be
        decided by the fleet of that moment."""
        if self.key is None or not self.key.restricted:
            return
        if not model:
            raise Forbidden("this API key is for certain models: name one", param="model")
        if not self.key.serves(model):
            raise Forbidden(f"this API key may not use the model {brief(model)!r}", param="model")

    def check_adapters(self, named: object) -> None:
        """SGLang's `lora_path`: adapters that a request names beside its model. Raises Forbidden."""
        if self.key is None or not self.key.restricted:
            return
        for adapter in named if isinstance(named, list) else [named]:
            if isinstance(adapter, str) and adapter and not self.key.serves(adapter):
                raise Forbidden(f"this API key may not use the adapter {brief(adapter)!r}", param="lora_path")

    def salt_for(self, own: str) -> str | None:
        """The cache_salt to send in place of the client's `own`; None leaves it. Raises InvalidRequest where
        a client claims a name of the gateway's."""
        if self.key is None:
            return None
        if not self.key.cache_salt:
            _check_salt(own)
            return None
        salt = TENANT + self.key.cache_salt
        if not own:
            return salt
        salt += "|" + own
        if len(salt) > _LONGEST_SALT:
            raise InvalidRequest("cache_salt is too long", param="cache_salt")
        return salt

    def give_back(self) -> None:
        """It is forbidden: the key's limits are as if it had not come."""
        if self._gate is not None and self._ticket is not None:
            self._gate.forbade(self._ticket)

    def leave(self, tokens: int) -> None:
        """On every exit; `tokens` is what the request has used."""
        if self._gate is not None and self._ticket is not None:
            self._gate.left(self._ticket, tokens)
            self._ticket = None


class Gate:
    """`authenticator` may be exchanged; while it is None, nobody has to show a key."""

    open: bool
    """Nobody has to show a key."""

    def __init__(self, authenticator: Authenticator | None, limiter: Limiter, observer: GateObserver) -> None:
        self._limiter = limiter
        self._observer = observer
        self.authenticator = authenticator
        self._doors: dict[tuple[Door, tuple[str, ...]], Door] = {}

    @property
    def authenticator(self) -> Authenticator | None:
        return self._authenticator

    @authenticator.setter
    def authenticator(self, authenticator: Authenticator | None) -> None:
        self._authenticator = authenticator
        self.open = authenticator is None
        if authenticator is not None:
            self._observer.known(key.id for key in authenticator.keyring.keys)

    async def enter(self, headers: Headers, endpoint: ProxiedEndpoint) -> Visit:
        """Raises Unauthorized or RateLimited. Who enters must leave."""
        if self.authenticator is None:
            return NOBODY
        key = await self.identify(headers)
        if key is None:
            return NOBODY
        if not key.limits.any:
            return Visit(key, self, Ticket(key.id, key.limits, 0))
        try:
            ticket = await self._limiter.take(key.id, key.limits, _estimate(headers, endpoint))
        except RateLimited:
            self._observer.limited(key.id)
            raise
        return Visit(key, self, ticket)

    async def identify(self, headers: Headers) -> ApiKey | None:
        """Raises Unauthorized."""
        if self._authenticator is None:
            return None
        try:
            return await self._authenticator(headers)
        except Unauthorized:
            self._observer.unauthorized()
            raise

    def left(self, ticket: Ticket, tokens: int) -> None:
        if ticket.limits.any:
            self._limiter.settle(ticket, tokens)
        self._observer.ended(ticket.key, tokens)

    def forbade(self, ticket: Ticket) -> None:
        if ticket.limits.any:
            self._limiter.give_back(ticket)

    def door_for(self, door: Door, allow: tuple[str, ...]) -> Door:
        found = self._doors.get((door, allow))
        if found is None:
            found = self._doors[door, allow] = door.letting(allow)
        return found


NOBODY = Visit()
"""Of whoever has shown no key, and need not: there is nothing to hold."""


class OpenGate:
    """Where no keys are asked for."""

    open = True

    async def enter(self, headers: Headers, endpoint: ProxiedEndpoint) -> Visit:
        return NOBODY

    async def identify(self, headers: Headers) -> ApiKey | None:
        return None


def _check_salt(own: str) -> None:
    """Raises InvalidRequest."""
    if own.startswith(TENANT):
        raise InvalidRequest(f"cache_salt must not begin with {TENANT!r}", param="cache_salt")


def _estimate(headers: Headers, endpoint: ProxiedEndpoint) -> int:
    if not endpoint.generates:
        return 0
    length = value_of(headers, b"content-length") or b""
    return int(length) // _BYTES_A_TOKEN if length.isdigit() and len(length) < 16 else 0
