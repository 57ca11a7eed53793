"""TLS of a listener: one context that new connections are switched to when certificates are renewed."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from gateway.errors import ConfigError


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files. With `client_ca`, clients must show a certificate that it signed (mutual TLS)."""

    cert: Path
    key: Path
    client_ca: Path | None = None


class Tls:
    """`context` is what a server listens with."""

    def __init__(self, files: TlsFiles) -> None:
        """Raises ConfigError."""
        self._current = _context(files)
        self.context = self._current
        # asked at each handshake, with or without a server name
        self.context.sni_callback = self._switch

    @staticmethod
    def prepare(files: TlsFiles) -> ssl.SSLContext:
        """Raises ConfigError."""
        return _context(files)

    def switch(self, context: ssl.SSLContext) -> None:
        """Handshakes from now on use it; connections that are open stay."""
        self._current = context

    def _switch(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        connection.context = self._current


def _context(files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(files.cert, files.key, password=_no_password)
    except (OSError, ValueError) as error:
        raise ConfigError(f"TLS certificate {files.cert} with key {files.key}: {error}") from error
    if files.client_ca is not None:
        try:
            context.load_verify_locations(files.client_ca)
        except OSError as error:
            raise ConfigError(f"TLS client CA {files.client_ca}: {error}") from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _no_password() -> str:
    """In place of a prompt on the terminal, that nobody would see."""
    raise ValueError("it is encrypted; a key without a passphrase is wanted")
