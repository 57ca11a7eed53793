"""Settings and their defaults; `settings_load` reads them from flags, environment and file.

Read by `__main__`, `cli` and `app` alone; everything else is handed plain values.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from gateway.settings_checks import checked_collector, checked_origin

PREFIX = "GATEWAY_"
LONGEST_S = 1e9
"""Thirty years, for ever. Multiples of much longer times are no numbers, and no header carries them."""
MOST = 1_000_000_000
"""Of what is counted: without a limit, and still exact where it meets floats."""
OF_DISCOVERY = {
    "kubernetes_selector": ("kubernetes",),
    "kubernetes_namespace": ("kubernetes",),
    "kubeconfig": ("kubernetes",),
    "dns_names": ("dns",),
    "dns_server": ("dns",),
    "discovery_port": ("kubernetes", "dns"),
    "discovery_events_port": ("kubernetes", "dns"),
    "discovery_replay_port": ("kubernetes", "dns"),
}
"""Which kinds of discovery a setting is for."""


def _named(value: object) -> object:
    """An empty text would be the folder that the gateway runs in."""
    if value == "":
        raise ValueError("a path is wanted; where there is none, the setting is left out")
    return value


_File = Annotated[Path | None, BeforeValidator(_named)]


class Settings(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_ignore_empty=True, extra="forbid", frozen=True, allow_inf_nan=False
    )

    # where it listens
    host: str = Field("127.0.0.1", description="address of the public port")
    port: int = Field(8080, ge=0, le=65535, description="public port; 0 takes a free one")
    admin_host: str = Field(
        "127.0.0.1", description="address of the admin port; off loopback it needs a credential"
    )
    admin_port: int = Field(-1, ge=-1, le=65535, description="metrics and admin; -1 is the port after `port`")

    processes: int = Field(
        1, ge=1, le=256, description="of the gateway, behind the one port; several share through redis_url"
    )

    # who may come in, and how
    api_keys_file: _File = Field(None, description="YAML list of API keys; clients must show one")
    api_keys: Annotated[tuple[str, ...], NoDecode] = Field((), description="id=hash of more API keys")
    limits_fail: Literal["open", "closed"] = Field(
        "open", description="keys' limits while Redis is away: counted by each replica alone, or refused"
    )
    admin_token: SecretStr | None = Field(None, description="the operator's token, or its sha256 hash")
    admin_token_file: _File = Field(None, description="file with the operator's token, or its hash")
    open_metrics: bool = Field(False, description="/metrics asks for no token")
    tls_cert: _File = Field(None, description="certificate chain of the public port, PEM")
    tls_key: _File = Field(None, description="its key, PEM, without a passphrase")
    tls_client_ca: _File = Field(None, description="clients must show a certificate signed by it")
    admin_tls_cert: _File = Field(None, description="certificate chain of the admin port, PEM")
    admin_tls_key: _File = Field(None, description="its key")
    admin_tls_client_ca: _File = Field(
        None, description="operators must show a certificate signed by it: as good as a token"
    )
    cors_origins: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="origins whose pages may call the API from a browser; others' requests are refused"
    )
    head_timeout: float = Field(
        10.0, gt=0, le=LONGEST_S, description="seconds for a request's line and headers"
    )
    body_timeout: float = Field(60.0, gt=0, le=LONGEST_S, description="seconds for a request's body")
    send_timeout: float = Field(
        120.0, gt=0, le=LONGEST_S, description="seconds that a client may take nothing of its answer"
    )
    keep_alive_timeout: int = Field(75, ge=1, description="seconds between two requests of a connection")
    max_head_bytes: int = Field(64 * 1024, ge=1024, description="larger request heads get 431")
    max_headers: int = Field(100, ge=10, description="more headers get 431")
    max_connections: int = Field(
        8192, ge=1, description="of clients, at each port; at the admin port 128 at most"
    )

    # the fleet
    workers: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="URL[,events=tcp://…][,replay=tcp://…][,model=…]…"
    )
    workers_file: _File = Field(None, description="YAML or JSON list of workers")
    worker_api_key_file: _File = Field(None, description="file with the key that engines ask for")
    worker_networks: Annotated[tuple[str, ...], NoDecode] = Field(
        (
            "127.0.0.0/8",
            "10.0.0.0/8",
            "172.16.0.0/12",
            "192.168.0.0/16",
            "100.64.0.0/10",
            "::1/128",
            "fc00::/7",
        ),
        description="where workers that are added through admin may be",
    )
    worker_gateways: bool = Field(
        False, description="a gateway that serves other engines may be a worker; off: none may"
    )
    worker_max_requests: int | None = Field(
        None,
        ge=1,
        le=MOST,
        description="requests at once of a worker that names no bound of its own; None: learned",
    )
    aliases: dict[str, str] = Field(default_factory=dict, description="alias → model name")
    models: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="models that exist even while nobody serves them: 503, not 404, at every replica"
    )
    models_remembered: float = Field(
        86_400.0,
        ge=0,
        le=LONGEST_S,
        description="seconds that a model whose last worker left stays known: 503, not 404",
    )
    discovery: Literal["static", "redis", "kubernetes", "dns"] = Field(
        "static", description="where workers come from beside the list: nowhere, Redis, Kubernetes, DNS"
    )
    discovery_port: str = Field(
        "", description="of found engines that declare no port `http`: name or number"
    )
    discovery_events_port: str = Field("", description="of their KV events, where it is not `kv-events`")
    discovery_replay_port: str = Field("", description="of their replay, where it is not `kv-replay`")
    kubernetes_selector: str = Field("", description="label selector of what stands for the engines")
    kubernetes_resource: Literal["pods", "endpointslices"] = Field("pods", description="what is watched")
    kubernetes_namespace: str = Field("", description="empty: the gateway's own")
    kubeconfig: _File = Field(None, description="None: the pod's service account")
    dns_names: Annotated[tuple[str, ...], NoDecode] = Field((), description="_http._tcp.NAME, or NAME:PORT")
    dns_server: str = Field("", description="host[:port]; empty: the system's")
    dns_interval: float = Field(5.0, ge=0.01, le=LONGEST_S, description="seconds between two look-ups")
    tokenizers: dict[str, str] = Field(
        default_factory=dict, description="model → tokenizer folder or GGUF file, `engine` or `bytes`"
    )

    # several replicas, one knowledge
    redis_url: str | None = Field(None, description="what replicas share goes there; None: one replica alone")
    redis_password: SecretStr | None = Field(
        None, description="its password, in place of one in the URL: as it is, nothing encoded"
    )
    redis_prefix: str = Field("pgw", description="of every key, so that fleets can share one Redis")
    redis_timeout: float = Field(1.0, gt=0, le=LONGEST_S, description="seconds that a command may take")
    redis_wait: bool = Field(
        False,
        description="serve, and try on, where Redis refuses the password, is not trusted or would evict",
    )

    # routing
    policy: str = Field("estimated_ttft", description="routing policy of all models that name none")
    policy_params: dict[str, Any] = Field(
        default_factory=dict,
        description="its parameters: numbers, each within its bounds (docs/configuration.md)",
    )
    model_policies: dict[str, str] = Field(default_factory=dict, description="model → policy name")
    shadow_policy: str = Field(
        "", description="decides beside the acting policy, and only metrics see what it would have done"
    )
    index_max_blocks: int = Field(4_000_000, ge=1, description="cap of the prefix index, in blocks")
    placement_ttl: float = Field(
        5.0, gt=0, le=LONGEST_S, description="seconds a promise lives without its event"
    )
    seed: int | None = Field(None, description="fixes tie-breaks; for tests")

    # one request
    tries: int = Field(3, ge=1, le=10, description="workers tried before the first byte")
    connect_timeout: float = Field(2.0, gt=0, le=LONGEST_S, description="seconds to connect to a worker")
    first_byte_timeout: float = Field(
        300.0, gt=0, le=LONGEST_S, description="seconds to the first byte of a stream"
    )
    whole_answer_timeout: float = Field(
        900.0, gt=0, le=LONGEST_S, description="seconds to the first byte of any other answer"
    )
    idle_timeout: float = Field(
        120.0, gt=0, le=LONGEST_S, description="seconds between two pieces of an answer"
    )
    total_timeout: float = Field(
        3600.0, gt=0, le=LONGEST_S, description="seconds for all of an answer, tries included"
    )
    retry_pause: float = Field(
        0.025, ge=0, le=LONGEST_S, description="seconds before the second try; doubles with each"
    )
    max_body_bytes: int = Field(
        32 * 1024 * 1024, ge=1024, description="larger bodies get 413, as sent and as decompressed"
    )
    tokenize_timeout: float = Field(0.5, gt=0, le=LONGEST_S, description="seconds for an engine's /tokenize")
    tokenize_concurrency: int = Field(
        8, gt=0, description="calls to /tokenize under way at once, for one model; others wait for their turn"
    )
    door: Literal["strip", "refuse", "off"] = Field(
        "strip", description="what becomes of fields that steer an engine's insides"
    )
    door_fields: Annotated[tuple[str, ...] | None, NoDecode] = Field(
        None, description="body fields that the door takes out, in place of the standard list"
    )
    door_headers: Annotated[tuple[str, ...] | None, NoDecode] = Field(
        None, description="the same for headers; `x-*` is a prefix"
    )
    door_answer_fields: Annotated[tuple[str, ...] | None, NoDecode] = Field(
        None, description="the same for fields of answers"
    )
    worker_header: bool = Field(
        True, description="answers say in X-Gateway-Worker which worker gave them: its URL"
    )
    passthrough_paths: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="more paths that are proxied by load"
    )

    # when there is more work than the fleet takes
    queue_size: int = Field(256, ge=0, le=MOST, description="requests of one model that may wait; 0: none")
    queue_wait: float = Field(10.0, gt=0, le=LONGEST_S, description="seconds that one may wait")

    max_ttft: float = Field(
        0.0,
        ge=0,
        le=LONGEST_S,
        description="seconds; whose first token is expected later gets 429 at once; 0: nobody",
    )

    slice_after: float = Field(
        0.0,
        ge=0,
        le=LONGEST_S,
        description="seconds of prefill; prompts of more are sent in slices, so that others pass; 0: none",
    )
    slice_tokens: int = Field(16_000, ge=1024, le=MOST, description="tokens of a slice")

    # workers that fail
    breaker_failures: int = Field(
        3, ge=1, le=MOST, description="in a row, until a worker gets no more requests"
    )
    breaker_rest: float = Field(
        5.0, gt=0, le=LONGEST_S, description="seconds; doubles with every probe that fails"
    )
    eject_ratio: float = Field(0.3, gt=0, le=1, description="share of failures that makes an outlier")
    eject_rest: float = Field(30.0, gt=0, le=LONGEST_S, description="seconds")
    eject_most: float = Field(0.34, ge=0, le=1, description="share of the fleet that may be ejected at once")
    slow_start: float = Field(
        30.0, ge=0, le=LONGEST_S, description="seconds in which a returning worker's share grows to the whole"
    )

    # health
    health_interval: float = Field(
        2.0, ge=0.01, le=LONGEST_S, description="seconds between two looks at a worker"
    )
    health_timeout: float = Field(2.0, gt=0, le=LONGEST_S, description="seconds that a look may take")

    # the process
    shutdown_grace: float = Field(
        30.0, ge=0, le=LONGEST_S, description="seconds that open streams may take at shutdown"
    )
    settle: float = Field(
        0.0, ge=0, le=LONGEST_S, description="seconds between not-ready and closing the door"
    )
    otlp_endpoint: str | None = Field(
        None, description="where traces go: http://collector:4318/v1/traces; needs the extra `otel`"
    )
    trace_ratio: float = Field(0.1, ge=0, le=1, description="share of requests without a trace that get one")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="of the log on stderr, JSON lines"
    )
    access_log: bool = Field(True, description="one line a request")

    @field_validator("discovery_port", "discovery_events_port", "discovery_replay_port", mode="before")
    @classmethod
    def _port_text(cls, value: object) -> object:
        """A name or a number: files give numbers as such."""
        return str(value) if isinstance(value, int) else value

    @field_validator(
        "workers",
        "passthrough_paths",
        "api_keys",
        "cors_origins",
        "models",
        "worker_networks",
        "dns_names",
        "door_fields",
        "door_headers",
        "door_answer_fields",
        mode="before",
    )
    @classmethod
    def _split(cls, value: object) -> object:
        """An environment variable holds several, separated by whitespace."""
        if not isinstance(value, str):
            return value
        if value.lstrip().startswith("["):
            raise ValueError("several are separated by blanks, without brackets")
        return tuple(value.split())

    @field_validator("cors_origins")
    @classmethod
    def _of_browsers(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(checked_origin, value))

    @field_validator("otlp_endpoint")
    @classmethod
    def _of_a_collector(cls, value: str | None) -> str | None:
        return None if value is None else checked_collector(value)

    @model_validator(mode="after")
    def _of_its_discovery(self) -> Settings:
        for name, kinds in OF_DISCOVERY.items():
            if getattr(self, name) and self.discovery not in kinds:
                raise ValueError(
                    f"{name} is for discovery: {' or '.join(kinds)}, and discovery is {self.discovery}"
                )
        return self

    @model_validator(mode="after")
    def _ports_differ(self) -> Settings:
        if self.resolved_admin_port > 65535:
            raise ValueError(f"no port comes after {self.port} for admin: give admin_port, or a lower port")
        if self.port != 0 and self.resolved_admin_port == self.port and self.admin_host == self.host:
            raise ValueError(f"port and admin_port are both {self.port}: give one of them another")
        return self

    @model_validator(mode="after")
    def _redis_is_named(self) -> Settings:
        if self.discovery == "redis" and self.redis_url is None:
            raise ValueError("discovery in Redis needs redis_url")
        return self

    @model_validator(mode="after")
    def _processes_share(self) -> Settings:
        if self.processes > 1 and self.redis_url is None:
            raise ValueError(
                f"{self.processes} processes need redis_url: there they share what the fleet holds, their "
                "load and the keys' limits. A Redis or Valkey on this machine is enough; without one, serve "
                "with one process"
            )
        return self

    @property
    def resolved_admin_port(self) -> int:
        if self.admin_port >= 0:
            return self.admin_port
        return 0 if self.port == 0 else self.port + 1
