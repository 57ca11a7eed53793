"""Flags of `serve`, shared with `up`. Only flags that were given reach the settings, so that environment and
file keep their say."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from gateway.cli.discovery_options import discovery_options
from gateway.cli.security_options import security_options
from gateway.errors import ConfigError
from gateway.settings import Settings
from gateway.settings_file import ConfigFile
from gateway.settings_load import load

F = TypeVar("F", bound=Callable[..., Any])

_PAIRS = ("aliases", "tokenizers", "model_policies", "policy_params")


def settings_options(function: F) -> F:
    """Adds every settings flag. The command receives them as keyword arguments, None where not given."""
    options = [
        click.option("--config", type=click.Path(path_type=Path), help="YAML file of settings."),
        click.option("--host", help="Public address.  [127.0.0.1]"),
        click.option("--port", type=int, help="Public port.  [8080]"),
        click.option("--admin-host", help="Address of metrics and admin.  [127.0.0.1]"),
        click.option("--admin-port", type=int, help="Port of metrics and admin.  [the port after --port]"),
        click.option(
            "--processes", type=int,
            help="Gateway processes behind the one port; several need --redis-url.  [1]",
        ),
        click.option(
            "--worker", "workers", multiple=True, metavar="URL[,events=…][,replay=…][,…]",
            help="An engine; repeat. Other keys: topic, model, block_size, capacity, max_requests, weight.",
        ),
        click.option(
            "--worker-gateways/--no-worker-gateways", default=None,
            help="Workers may be gateways that serve other engines.  [off: a gateway is refused]",
        ),
        click.option("--workers-file", type=click.Path(path_type=Path), help="YAML or JSON list of workers."),
        *discovery_options(),
        click.option(
            "--redis-url", metavar="URL",
            help="Replicas share what they know there: redis://, rediss://, redis+sentinel://, "
            "redis+cluster://.",
        ),
        click.option("--redis-prefix", help="Of every key in Redis.  [pgw]"),
        click.option("--redis-timeout", type=float, help="Seconds for a command; no request waits.  [1]"),
        click.option(
            "--redis-wait/--no-redis-wait", default=None,
            help="Serve, and try on, where Redis refuses the password, is not trusted or would "
            "evict.  [exit]",
        ),
        click.option("--alias", "aliases", multiple=True, metavar="ALIAS=MODEL", help="Another name."),
        click.option(
            "--model-name", "models", multiple=True, metavar="MODEL",
            help="A model that exists even while nobody serves it: 503, not 404; repeat.",
        ),
        click.option(
            "--tokenizer", "tokenizers", multiple=True, metavar="MODEL=PATH",
            help="Tokenizer folder or GGUF file of a model; `engine` asks the engine, `bytes` does without.",
        ),
        click.option("--policy", help="Routing policy.  [estimated_ttft]"),
        click.option(
            "--policy-param", "policy_params", multiple=True, metavar="NAME=VALUE",
            help="Parameter of the policy.",
        ),
        click.option(
            "--model-policy", "model_policies", multiple=True, metavar="MODEL=POLICY",
            help="Policy of one model.",
        ),
        click.option("--shadow-policy", help="Decides beside the acting one; only metrics see what."),
        click.option("--index-max-blocks", type=int, help="Cap of the prefix index, in blocks.  [4000000]"),
        click.option("--tries", type=int, help="Workers tried before the first byte.  [3]"),
        click.option("--queue-size", type=int, help="Requests of one model that may wait.  [256]"),
        click.option("--queue-wait", type=float, help="Seconds that one may wait.  [10]"),
        click.option(
            "--max-ttft", type=float,
            help="Seconds; whose first token is expected later gets 429 at once.  [0: nobody]",
        ),
        click.option(
            "--slice-after", type=float,
            help="Seconds of prefill; prompts of more are sent in slices, so that others pass.  [0: none]",
        ),
        click.option("--slice-tokens", type=int, help="Of a slice.  [16000]"),
        click.option(
            "--worker-max-requests", type=int,
            help="Requests at once of a worker that names no bound of its own.  [learned from its refusals]",
        ),
        click.option("--connect-timeout", type=float, help="Seconds.  [2]"),
        click.option("--first-byte-timeout", type=float, help="Seconds.  [300]"),
        click.option("--whole-answer-timeout", type=float, help="The same, not streamed.  [900]"),
        click.option("--idle-timeout", type=float, help="Seconds between two chunks.  [120]"),
        click.option("--total-timeout", type=float, help="Seconds for a whole answer.  [3600]"),
        click.option("--max-body-bytes", type=int, help="Larger request bodies get 413.  [33554432]"),
        click.option(
            "--door", type=click.Choice(["strip", "refuse", "off"]),
            help="What becomes of fields that steer an engine's insides.  [strip]",
        ),
        click.option("--shutdown-grace", type=float, help="Seconds for open streams at shutdown.  [30]"),
        click.option("--otlp-endpoint", metavar="URL", help="Spans go there: http://collector:4318/v1/traces"),
        click.option("--trace-ratio", type=float, help="Of requests that come without a trace.  [0.1]"),
        click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"])),
        click.option("--access-log/--no-access-log", default=None, help="One JSON line a request.  [on]"),
        *security_options(),
    ]  # fmt: skip
    for option in reversed(options):
        function = option(function)
    return function


class Given:
    """The flags that a command with `settings_options` was called with. Called itself, it gives the settings:
    these flags over environment and file as they stand by then."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        """Raises ConfigError."""
        context = click.get_current_context(silent=True)
        options = [] if context is None else context.command.params
        self._spelled = {option.name: option.opts[0] for option in options if option.name is not None}
        flags = {name: value for name, value in given.items() if value is not None and value != ()}
        config = flags.pop("config", None)
        self._config = None if config is None else ConfigFile(config)
        self._flags = {
            name: _pairs(name, value) if name in _PAIRS else value for name, value in flags.items()
        }

    def __call__(self) -> Settings:
        """Raises ConfigError."""
        return load(self._flags, self._config, self._spelled)


def _pairs(name: str, texts: Iterable[str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in texts:
        key, value = _pair(name, text)
        if key in pairs:
            raise ConfigError(f"{name}: {key!r} is given twice")
        pairs[key] = value
    return pairs


def _pair(name: str, text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator or not key or not value:
        raise ConfigError(f"{name}: expected NAME=VALUE, got {text!r}")
    return key, value
