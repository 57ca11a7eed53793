"""TLS at both ports of a gateway as it is started, and renewed while it runs."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path

import httpx
import trustme

from tests.conftest import Spawn
from tests.e2e.conftest import wait_until


def write(ca: trustme.CA, folder: Path, name: str) -> tuple[Path, Path]:
    cert, key = folder / f"{name}.crt", folder / f"{name}.key"
    leaf = ca.issue_cert("127.0.0.1")
    cert.write_bytes(b"".join(pem.bytes() for pem in leaf.cert_chain_pems))
    key.write_bytes(leaf.private_key_pem.bytes())
    return cert, key


def trusting(ca: trustme.CA, shown: trustme.CA | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    ca.configure_trust(context)
    if shown is not None:
        shown.issue_cert("operator@example.org").configure_cert(context)
    return context


def status(url: str, context: ssl.SSLContext) -> int | None:
    """None where the handshake fails."""
    try:
        with httpx.Client(verify=context, trust_env=False, timeout=20) as client:
            return client.get(url).status_code
    except (httpx.TransportError, ssl.SSLError):
        return None


def test_both_ports_speak_tls_and_admin_asks_for_a_certificate(
    spawn: Spawn, free_port: Callable[[], int], tmp_path: Path
) -> None:
    ca, operators, port, admin_port = trustme.CA(), trustme.CA(), free_port(), free_port()
    cert, key = write(ca, tmp_path, "server")
    client_ca = tmp_path / "operators.crt"
    operators.cert_pem.write_to_path(client_ca)
    process = spawn(
        "-m", "gateway", "serve", "--worker", "http://127.0.0.1:9", "--port", str(port),
        "--admin-host", "0.0.0.0", "--admin-port", str(admin_port),
        "--tls-cert", str(cert), "--tls-key", str(key),
        "--admin-tls-cert", str(cert), "--admin-tls-key", str(key), "--admin-tls-client-ca", str(client_ca),
    )  # fmt: skip
    public, admin = f"https://127.0.0.1:{port}/health", f"https://127.0.0.1:{admin_port}/admin/workers"

    def answers() -> bool:
        assert process.popen.poll() is None, process.output()
        return status(public, trusting(ca)) == 200

    wait_until(answers, 100, "an answer over TLS")
    assert status(public, trusting(trustme.CA())) is None
    assert status(public.replace("https", "http"), trusting(ca)) is None
    assert status(admin, trusting(ca, operators)) == 200
    assert status(admin, trusting(ca)) is None
    assert status(admin, trusting(ca, trustme.CA())) is None
    renewed = trustme.CA()
    write(renewed, tmp_path, "server")  # the same files, as a certificate manager renews them
    wait_until(lambda: status(public, trusting(renewed)) == 200, 60, "the renewed certificate")
    assert status(admin, trusting(renewed, operators)) == 200
    assert status(public, trusting(ca)) is None
    assert process.stop() == 0
