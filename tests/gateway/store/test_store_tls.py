"""rediss:// against a real TLS endpoint in front of a real server; its certificate is known or it is not."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.errors import ConfigError, StoreError
from gateway.shared_index import check_store
from gateway.store.connection import Store
from gateway.store.scheme import other_scheme
from gateway.store.url import parse_store_url
from tests.servers import free_tcp_port, standalone

pytestmark = pytest.mark.anyio


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """Certificate of localhost, its own authority; the key lies beside it."""
    return make_certificate(tmp_path)


def make_certificate(folder: Path) -> Path:
    tool = shutil.which("openssl")
    if tool is None:
        pytest.skip("no openssl here to make a certificate with")
    folder.mkdir(exist_ok=True)
    path = folder / "ca.pem"
    options = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    subprocess.run(
        [tool, *options.split(), "-addext", "subjectAltName=DNS:localhost",
         "-keyout", folder / "key.pem", "-out", path],
        check=True, capture_output=True,
    )  # fmt: skip
    return path


@asynccontextmanager
async def tls_front(certificate: Path, port: int) -> AsyncIterator[int]:
    """Ends TLS and passes bytes on to the server at `port`; gives its own port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.parent / "key.pem")

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind_reader, behind_writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.wait(
            {
                asyncio.create_task(copy(reader, behind_writer)),
                asyncio.create_task(copy(behind_reader, writer)),
            },
            return_when=asyncio.FIRST_COMPLETED,
        )
        for each in (behind_writer, writer):
            each.close()
            with contextlib.suppress(OSError):
                await each.wait_closed()

    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context) as server:
        yield server.sockets[0].getsockname()[1]


async def test_a_certificate_that_is_known_and_one_that_is_not(certificate: Path, tmp_path: Path) -> None:
    with standalone(tmp_path / "server") as server:
        async with tls_front(certificate, server.port) as port:
            for query in (f"?ca={certificate}", "?verify=no"):
                store = Store(parse_store_url(f"rediss://localhost:{port}/0{query}"), timeout=10)
                assert await store.command("SET", "x", 1) is True
                await store.close()
            stranger = Store(parse_store_url(f"rediss://localhost:{port}/0"), timeout=10)
            with pytest.raises(StoreError, match="certificate") as caught:
                await stranger.command("SET", "x", 1)
            assert caught.value.kind == "certificate"
            await stranger.close()


@pytest.mark.parametrize("scheme", ["rediss", "rediss+sentinel", "rediss+cluster"])
async def test_a_certificate_that_is_not_trusted_is_said_at_the_start(
    certificate: Path, tmp_path: Path, scheme: str
) -> None:
    """No outage: waiting does not mend it. Nor does it where the name is another."""
    path = "/main" if scheme.endswith("sentinel") else ""
    with standalone(tmp_path / "server") as server:
        async with tls_front(certificate, server.port) as port:
            store = Store(parse_store_url(f"{scheme}://localhost:{port}{path}"), timeout=10)
            with pytest.raises(
                ConfigError, match=r"the certificate of Redis at .* is not trusted: .*CERTIFICATE"
            ):
                await check_store(store, wait=False)
            await check_store(store, wait=True)
            assert (store.status.up, store.status.failures) == (False, 2)
            await store.close()


@contextlib.contextmanager
def wants_certificates(certificate: Path, newest: ssl.TLSVersion) -> Iterator[int]:
    """Port of a server that takes nobody without a certificate that it trusts, and lets its alert arrive."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.parent / "key.pem")
    context.load_verify_locations(certificate)
    context.verify_mode, context.maximum_version = ssl.CERT_REQUIRED, newest

    def refuse(plain: socket.socket) -> None:
        with plain.dup() as raw:
            with pytest.raises(ssl.SSLError):
                context.wrap_socket(plain, server_side=True)
            raw.shutdown(socket.SHUT_WR)
            while raw.recv(65_536):
                pass  # to close before all was read would take the alert back

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                refuse(listening.accept()[0])

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join(30)


@pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.TLSv1_2])
@pytest.mark.parametrize("given", ["none", "a stranger's"])
async def test_a_certificate_of_ours_that_the_server_misses_is_said_at_the_start(
    certificate: Path, tmp_path: Path, newest: ssl.TLSVersion, given: str
) -> None:
    query = f"?ca={certificate}"
    if given != "none":
        path = make_certificate(tmp_path / "other")
        query += f"&cert={path}&key={path.parent / 'key.pem'}"
    with wants_certificates(certificate, newest) as port:
        store = Store(parse_store_url(f"rediss://localhost:{port}{query}"), timeout=10)
        with pytest.raises(
            ConfigError, match=r"wants a certificate of ours that it trusts: .*alert.*\?cert="
        ):
            await check_store(store, wait=False)
        await check_store(store, wait=True)
        assert not store.status.up
        await store.close()


@pytest.mark.parametrize(
    "query", ["ca=/nowhere.pem", "cert=/nowhere.pem", "ca={file}", "cert={file}&key={file}"]
)
def test_files_that_can_not_be_used_are_said_at_once(tmp_path: Path, query: str) -> None:
    file = tmp_path / "no-certificate.pem"
    file.write_text("nothing")
    with pytest.raises(ConfigError, match=r"\.pem can't be used for TLS"):
        Store(parse_store_url("rediss://127.0.0.1:1?" + query.format(file=file)))


async def test_a_refusal_that_ends_the_process_is_said_once(
    certificate: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By the error alone: no line says that requests go on."""
    with standalone(tmp_path / "server") as server:
        async with tls_front(certificate, server.port) as port:
            store = Store(parse_store_url(f"rediss://localhost:{port}"), timeout=10)
            with pytest.raises(ConfigError):
                await check_store(store, wait=False)
            assert caplog.messages == []
            await check_store(store, wait=True)
            assert caplog.messages == [
                "Redis is degraded: requests go on with what is known here, replicas drift apart"
            ]
            await store.close()


async def test_the_other_scheme_is_named_where_it_is_the_right_one(
    certificate: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with standalone(tmp_path / "server") as server:
        async with tls_front(certificate, server.port) as port:
            store = Store(parse_store_url(f"redis://localhost:{port}"), timeout=1, without="nothing goes on")
            await check_store(store, wait=False)
            (record,) = caplog.records
            assert record.message == "Redis is degraded: nothing goes on"
            assert vars(record)["reason"].endswith(
                f"; localhost:{port} speaks TLS: rediss://localhost:{port}"
            )
            await store.close()

        port = server.port
        assert await other_scheme(parse_store_url(f"redis://localhost:{port}")) == ""
        assert await other_scheme(parse_store_url(f"rediss+sentinel://localhost:{port}/main")) == (
            f"localhost:{port} does not speak TLS: redis+sentinel://localhost:{port}/main"
        )


async def test_no_scheme_is_named_where_nobody_answers(caplog: pytest.LogCaptureFixture) -> None:
    store = Store(parse_store_url(f"redis://127.0.0.1:{free_tcp_port()}"), timeout=1)
    await check_store(store, wait=False)
    (record,) = caplog.records
    assert "TLS" not in vars(record)["reason"]
    await store.close()
