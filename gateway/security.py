"""From settings to what guards the two ports: keys, the operator's credential, TLS, bounds."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gateway.api.connection_limits import ConnectionLimits
from gateway.api.gate import Gate, GateObserver, Limiter
from gateway.api.tls import Tls, TlsFiles
from gateway.auth.admin import AdminGuard, is_loopback, token_hash
from gateway.auth.authenticator import Authenticator
from gateway.auth.limits import LocalLimiter
from gateway.auth.shared_limits import SharedLimiter
from gateway.auth.source import load_keyring
from gateway.errors import ConfigError
from gateway.fleet.addresses import AddressRules, system_resolve, vetted
from gateway.fleet.worker import WorkerSpec
from gateway.settings import Settings
from gateway.store.connection import Store
from gateway.types import Clock


@dataclass(slots=True)
class Security:
    """What can be exchanged while it runs stays behind one object each; `prepare` exchanges it."""

    gate: Gate
    rules: AddressRules
    public_tls: Tls | None
    admin_tls: Tls | None
    bounds: ConnectionLimits
    _admin_host: str
    """Where the admin port is bound, whatever settings say later."""
    _admin_stored: str | None
    _admin_certified: bool
    """Every connection of the admin port has shown a certificate, since the first."""
    _open_paths: tuple[str, ...] = ()
    _guards: list[AdminGuard] = field(default_factory=list)

    def guarded(self, admin: Any) -> AdminGuard:
        """The admin app, behind the operator's credential."""
        guard = AdminGuard(
            admin, self._admin_stored, certified=self._admin_certified, open_paths=self._open_paths
        )
        self._guards.append(guard)
        return guard

    async def vet(self, spec: WorkerSpec) -> WorkerSpec:
        """A worker that somebody wants to add through admin. Raises Forbidden or InvalidRequest."""
        return await vetted(spec, self.rules, system_resolve)

    def prepare(self, settings: Settings) -> Callable[[], set[str]]:
        """Reads keys, token and certificates anew. What it gives takes them up, and gives the names of
        settings that wait for a restart. Raises ConfigError, and then all stays as it was."""
        # connections that are open have shown what was asked of them then: a port that asks for
        # certificates only now may have others
        certified = self._admin_certified and settings.admin_tls_client_ca is not None
        stored = _admin_credential(settings)
        if stored is None and not certified and not is_loopback(self._admin_host):
            raise ConfigError(
                f"the admin port stays on {self._admin_host} until a restart, and needs there the credential "
                "that it has: an admin token, or the client certificates that it was started with"
            )
        authenticator = _authenticator(settings)
        waiting: set[str] = set()
        fresh: list[tuple[Tls, ssl.SSLContext]] = []
        for name, tls, files in (
            ("tls_cert", self.public_tls, _public_files(settings)),
            ("admin_tls_cert", self.admin_tls, _admin_files(settings)),
        ):
            if tls is not None and files is not None:
                fresh.append((tls, tls.prepare(files)))
            elif (tls is None) != (files is None):
                waiting.add(name)  # a port can't begin or cease to speak TLS

        def take_up() -> set[str]:
            for tls, context in fresh:
                tls.switch(context)
            self._admin_certified = certified
            for guard in self._guards:
                guard.stored, guard.certified = stored, certified
            self.gate.authenticator = authenticator
            return waiting

        return take_up

    @staticmethod
    def files(settings: Settings) -> list[Path]:
        """Files whose change is a reason to reload."""
        named = (
            settings.api_keys_file, settings.admin_token_file,
            settings.tls_cert, settings.tls_key, settings.tls_client_ca,
            settings.admin_tls_cert, settings.admin_tls_key, settings.admin_tls_client_ca,
        )  # fmt: skip
        return [path for path in named if path is not None]


def make_limiter(settings: Settings, store: Store | None, clock: Clock) -> LocalLimiter | SharedLimiter:
    """Replicas count together where they share a Redis."""
    local = LocalLimiter(clock)
    if store is None:
        return local
    return SharedLimiter(
        store, local, store.keys.limits, clock=clock, fail_open=settings.limits_fail == "open"
    )


def secure(settings: Settings, limiter: Limiter, observer: GateObserver) -> Security:
    """Raises ConfigError for what would leave a port open by mistake."""
    stored = _admin_credential(settings)
    public, admin = _public_files(settings), _admin_files(settings)
    return Security(
        gate=Gate(_authenticator(settings), limiter, observer),
        rules=AddressRules.of(
            settings.worker_networks,
            own=((settings.host, settings.port), (settings.admin_host, settings.resolved_admin_port)),
        ),
        public_tls=None if public is None else Tls(public),
        admin_tls=None if admin is None else Tls(admin),
        bounds=ConnectionLimits(
            head_timeout=settings.head_timeout,
            send_timeout=settings.send_timeout,
            max_head=settings.max_head_bytes,
            max_headers=settings.max_headers,
            max_connections=settings.max_connections,
        ),
        _admin_host=settings.admin_host,
        _admin_stored=stored,
        _admin_certified=settings.admin_tls_client_ca is not None,
        _open_paths=("/metrics",) if settings.open_metrics else (),
    )


def asks_for_keys(settings: Settings) -> bool:
    return settings.api_keys_file is not None or bool(settings.api_keys)


def worker_authorization(settings: Settings) -> bytes | None:
    """What engines are shown. Raises ConfigError."""
    path = settings.worker_api_key_file
    return None if path is None else bearer(path)


def bearer(path: Path) -> bytes:
    """The header's value for the key in a file that engines ask for. Raises ConfigError."""
    try:
        key = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"worker_api_key_file {path}: cannot be read") from error
    if not key or any(character.isspace() for character in key):
        raise ConfigError(f"worker_api_key_file {path}: one key is wanted, and nothing else")
    return b"Bearer " + key.encode()


def _authenticator(settings: Settings) -> Authenticator | None:
    if not asks_for_keys(settings):
        return None
    return Authenticator(load_keyring(settings.api_keys_file, settings.api_keys), time.time)


def _admin_credential(settings: Settings) -> str | None:
    token = None if settings.admin_token is None else settings.admin_token.get_secret_value()
    stored = token_hash(token, settings.admin_token_file)
    if stored is None and not is_loopback(settings.admin_host) and settings.admin_tls_client_ca is None:
        raise ConfigError(
            f"admin_host {settings.admin_host} is reachable from elsewhere: give GATEWAY_ADMIN_TOKEN, "
            "--admin-token-file or --admin-tls-client-ca, or leave it on 127.0.0.1"
        )
    return stored


def _public_files(settings: Settings) -> TlsFiles | None:
    return _tls_files("tls", settings.tls_cert, settings.tls_key, settings.tls_client_ca)


def _admin_files(settings: Settings) -> TlsFiles | None:
    return _tls_files(
        "admin_tls", settings.admin_tls_cert, settings.admin_tls_key, settings.admin_tls_client_ca
    )


def _tls_files(name: str, cert: Path | None, key: Path | None, client_ca: Path | None) -> TlsFiles | None:
    if cert is None and key is None and client_ca is None:
        return None
    if cert is None or key is None:
        raise ConfigError(f"{name}_cert and {name}_key are wanted together")
    return TlsFiles(cert, key, client_ca)
