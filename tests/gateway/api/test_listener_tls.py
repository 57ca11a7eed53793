"""TLS and mutual TLS of a port, and certificates that are renewed while it runs."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trustme

from gateway.api.connection_limits import ConnectionLimits
from gateway.api.listener import ListenerOptions, bind, make_listener, url_of
from gateway.api.tls import Tls, TlsFiles
from gateway.errors import ConfigError

pytestmark = pytest.mark.anyio


async def hello(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
    await send({"type": "http.response.body", "body": b"hello"})


@dataclass
class Pki:
    ca: trustme.CA
    folder: Path

    def server(self, name: str = "server") -> tuple[Path, Path]:
        cert, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        leaf = self.ca.issue_cert("localhost", "127.0.0.1")
        cert.write_bytes(b"".join(pem.bytes() for pem in leaf.cert_chain_pems))
        key.write_bytes(leaf.private_key_pem.bytes())
        return cert, key

    def root(self, name: str = "ca") -> Path:
        path = self.folder / f"{name}.pem"
        self.ca.cert_pem.write_to_path(path)
        return path

    def client(self, trusting: trustme.CA | None = None, shown: trustme.CA | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context()
        (trusting or self.ca).configure_trust(context)
        if shown is not None:
            shown.issue_cert("somebody@example.org").configure_cert(context)
        return context


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    return Pki(trustme.CA(), tmp_path)


@contextlib.asynccontextmanager
async def listening(tls: Tls, **bounds: Any) -> AsyncIterator[int]:
    sock = bind("127.0.0.1", 0, "--port")
    server = make_listener(hello, ListenerOptions(ConnectionLimits(**bounds)), tls)
    assert url_of(sock, tls).startswith("https://127.0.0.1:")
    server.lifespan = server.config.lifespan_class(server.config)
    await server.startup([sock])
    try:
        yield sock.getsockname()[1]
    finally:
        server.force_exit = True
        await server.shutdown([sock])


async def get(port: int, context: ssl.SSLContext) -> bytes:
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=context, server_hostname="localhost"
    )
    try:
        writer.write(b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        answer = await reader.read()
        if not answer:
            raise ConnectionError("closed without a word")
        return answer
    finally:
        writer.close()
        with contextlib.suppress(OSError, ssl.SSLError):
            await writer.wait_closed()


async def test_tls_with_a_certificate_that_a_client_can_check(pki: Pki) -> None:
    async with listening(Tls(TlsFiles(*pki.server()))) as port:
        assert (await get(port, pki.client())).endswith(b"hello")
        with pytest.raises(ssl.SSLCertVerificationError):
            await get(port, pki.client(trusting=trustme.CA()))


async def test_who_begins_no_handshake_is_let_go(pki: Pki) -> None:
    async with listening(Tls(TlsFiles(*pki.server())), head_timeout=0.3) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await asyncio.wait_for(reader.read(), 20) == b""
        writer.close()


async def test_connections_count_from_the_start_of_their_handshake(pki: Pki) -> None:
    bounds: dict[str, Any] = {"head_timeout": 3600.0, "max_connections": 2}
    async with listening(Tls(TlsFiles(*pki.server())), **bounds) as port:
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await asyncio.wait_for(reader.read(), 20) == b""
        writer.close()
        assert [one.at_eof() for one, _ in silent] == [False, False]
        silent[0][1].close()
        answer = b""
        while not answer:  # the server hears of it in its own time
            with contextlib.suppress(OSError, ssl.SSLError):
                answer = await get(port, pki.client())
        assert answer.endswith(b"hello")
        silent[1][1].close()


async def test_old_versions_of_the_protocol_are_refused(pki: Pki) -> None:
    async with listening(Tls(TlsFiles(*pki.server()))) as port:
        old = pki.client()
        old.set_ciphers("DEFAULT:@SECLEVEL=0")
        with pytest.warns(DeprecationWarning, match="deprecated"):
            old.minimum_version = ssl.TLSVersion.TLSv1
        with pytest.warns(DeprecationWarning, match="deprecated"):
            old.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await get(port, old)


async def test_mutual_tls_lets_in_whom_its_ca_signed_and_nobody_else(pki: Pki) -> None:
    friends, strangers = trustme.CA(), trustme.CA()
    ca = Pki(friends, pki.folder).root("friends")
    async with listening(Tls(TlsFiles(*pki.server(), ca))) as port:
        assert (await get(port, pki.client(shown=friends))).endswith(b"hello")
        for context in (pki.client(), pki.client(shown=strangers)):
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await get(port, context)


async def test_plain_http_on_a_tls_port_gets_no_answer(pki: Pki) -> None:
    async with listening(Tls(TlsFiles(*pki.server()))) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            assert b"hello" not in await reader.read()
        writer.close()


async def test_renewed_certificates_and_authorities_count_from_the_next_handshake(pki: Pki) -> None:
    friends, newcomers = trustme.CA(), trustme.CA()
    tls = Tls(TlsFiles(*pki.server(), Pki(friends, pki.folder).root("friends")))
    async with listening(tls) as port:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=pki.client(shown=friends), server_hostname="localhost"
        )

        async def open_since() -> bytes:
            writer.write(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
            return await reader.readuntil(b"hello")

        assert b" 200 " in await open_since()
        assert (await get(port, pki.client(shown=friends))).endswith(b"hello")
        other = Pki(trustme.CA(), pki.folder)
        files = TlsFiles(*other.server("renewed"), Pki(newcomers, pki.folder).root("newcomers"))
        tls.switch(tls.prepare(files))
        assert (await get(port, other.client(shown=newcomers))).endswith(b"hello")
        with pytest.raises((ssl.SSLError, ConnectionError)):  # whom the old authority signed
            await get(port, other.client(shown=friends))
        with pytest.raises(ssl.SSLCertVerificationError):  # who trusts the old certificate
            await get(port, pki.client(shown=newcomers))
        assert b" 200 " in await open_since()  # what is open stays
        writer.close()


async def test_files_that_do_not_fit_are_named(pki: Pki) -> None:
    cert, key = pki.server()
    other_cert, _ = pki.server("other")
    rubbish = pki.folder / "rubbish"
    rubbish.write_text("rubbish")
    for files, name in (
        (TlsFiles(pki.folder / "absent", key), "absent"),
        (TlsFiles(other_cert, key), "other.pem"),
        (TlsFiles(cert, rubbish), "rubbish"),
        (TlsFiles(cert, key, rubbish), "rubbish"),
    ):
        with pytest.raises(ConfigError, match=name):
            Tls(files)
