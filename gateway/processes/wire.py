"""What supervisor and processes say to each other, over a pair of sockets that only they have.

Each message is its length in four bytes and msgpack. The end of the channel is a message too: the other side
is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from pathlib import Path
from typing import Any, Self, TypeAlias

import msgspec
from pydantic import SecretStr
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from gateway.processes.families import Family
from gateway.settings import Settings


class Begin(msgspec.Struct, tag=True, frozen=True):
    """The first word to a process: what it is to be."""

    settings: dict[str, Any]
    number: int
    seat: int
    """On the board."""
    seats: int
    admin: str
    """Path of the Unix socket where its admin port is to be."""
    log: str | None
    """A file; None is stderr."""
    name: str
    """Of all of them."""


class Accept(msgspec.Struct, tag=True, frozen=True):
    """Take connections from now on."""


class Reload(msgspec.Struct, tag=True, frozen=True):
    settings: dict[str, Any]


class Drain(msgspec.Struct, tag=True, frozen=True):
    """End. `replaced`: another one has taken over, so clients should come to it by themselves."""

    replaced: bool


class Refused(msgspec.Struct, tag=True, frozen=True):
    """It can't begin with these settings, or not take them up."""

    reason: str


class Beat(msgspec.Struct, tag=True, frozen=True):
    """It lives; the first one says that its admin port answers."""

    unready: str | None
    """Why it should get no requests; None where it may."""
    connections: int


class Reloaded(msgspec.Struct, tag=True, frozen=True):
    waiting: list[str]
    """Settings that wait for a restart."""


class Last(msgspec.Struct, tag=True, frozen=True):
    """Its metrics as they are after its last request."""

    families: list[Family]


Message: TypeAlias = Begin | Accept | Reload | Drain | Refused | Beat | Reloaded | Last


def _plain(value: object) -> object:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError(f"no way to send a {type(value).__name__}")


_encoder = msgspec.msgpack.Encoder(enc_hook=_plain)
_decoder = msgspec.msgpack.Decoder(Message)


class _Given(Settings):
    """As they were sent: this process's own environment has no say."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)


def outgoing(settings: Settings) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in Settings.model_fields}


def incoming(values: dict[str, Any]) -> Settings:
    return _Given(**values)


class Channel:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, sock: socket.socket) -> Self:
        return cls(*await asyncio.open_unix_connection(sock=sock))

    def send(self, message: Message) -> None:
        """Says nothing where the other side is gone: `receive` tells."""
        if not self._writer.is_closing():
            data = _encoder.encode(message)
            self._writer.write(len(data).to_bytes(4, "little") + data)

    async def receive(self) -> Message | None:
        """None where the other side is gone."""
        try:
            size = int.from_bytes(await self._reader.readexactly(4), "little")
            message: Message = _decoder.decode(await self._reader.readexactly(size))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        return message

    async def close(self) -> None:
        """What was sent is out when this returns, if somebody takes it."""
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()
