"""Is a Redis that does not answer one that speaks TLS, or does not, where the other was expected?"""

from __future__ import annotations

import asyncio
import contextlib
import ssl

from gateway.store.url import StoreUrl

PROBE_S = 1.0
"""For the connection and the first bytes, each."""


async def other_scheme(url: StoreUrl, timeout: float = PROBE_S) -> str:
    """What to write in place of the URL's scheme, in words for a person; empty where it is not that."""
    scheme, _, rest = str(url).partition("://")
    _, plus, kind = scheme.partition("+")
    for host, port in url.nodes:
        if url.tls is None and await _speaks_tls(host, port, timeout):
            return f"{host}:{port} speaks TLS: rediss{plus}{kind}://{rest}"
        if url.tls is not None and await _speaks_plainly(host, port, timeout):
            return f"{host}:{port} does not speak TLS: redis{plus}{kind}://{rest}"
    return ""


async def _speaks_tls(host: str, port: int, timeout: float) -> bool:
    """Whether it greets as TLS does, whoever it may be: nothing is said to it."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        async with asyncio.timeout(2 * timeout):
            # one that is cancelled in a handshake is left open
            _, writer = await asyncio.open_connection(host, port, ssl=context, ssl_handshake_timeout=timeout)
    except ssl.SSLError as error:
        # a server that wants a certificate of ours speaks it, too
        return error.reason not in (None, "WRONG_VERSION_NUMBER")
    except (OSError, TimeoutError):
        return False
    writer.transport.abort()
    return True


async def _speaks_plainly(host: str, port: int, timeout: float) -> bool:
    """Whether it answers a PING as Redis does, be it with an error."""
    try:
        async with asyncio.timeout(timeout):
            reader, writer = await asyncio.open_connection(host, port)
    except (OSError, TimeoutError):
        return False
    try:
        writer.write(b"PING\r\n")
        async with asyncio.timeout(timeout):
            return await reader.read(1) in (b"+", b"-")
    except (OSError, TimeoutError):
        return False
    finally:
        with contextlib.suppress(OSError):
            writer.transport.abort()
