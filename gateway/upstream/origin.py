"""Where a worker listens, read from its base URL once."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from gateway.errors import ConfigError
from gateway.logins import without_login


@dataclass(frozen=True, slots=True)
class Origin:
    """One host and port: what a keep-alive pool is kept for."""

    host: str
    """As the resolver takes it: an IPv6 address has no brackets."""
    port: int
    tls: bool
    host_header: bytes
    prefix: bytes
    """Path that the base URL brings along, without a trailing slash."""

    @classmethod
    def parse(cls, url: str) -> Origin:
        """``http(s)://host[:port][/prefix]``. Raises ConfigError for anything else."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise ConfigError(f"worker URL {without_login(url)!r}: no such host or port") from error
        if parts.scheme not in ("http", "https") or not host:
            raise ConfigError(f"worker URL {without_login(url)!r} must look like http://host:port")
        tls = parts.scheme == "https"
        standard = 443 if tls else 80
        literal = f"[{host}]" if ":" in host else host
        named = literal if port in (None, standard) else f"{literal}:{port}"
        return cls(host, port or standard, tls, named.encode("idna" if not literal.isascii() else "ascii"),
                   parts.path.rstrip("/").encode())  # fmt: skip

    def __str__(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.host_header.decode()}"
