"""What an operator writes of a worker: one line (a flag, an environment variable) or an entry of a file.

http://10.0.0.7:8000,events=tcp://10.0.0.7:5557,replay=tcp://10.0.0.7:5558,max_requests=64
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

from gateway import yaml_text
from gateway.errors import ConfigError
from gateway.fleet.worker import LEAST_WEIGHT, MOST_WEIGHT, WorkerSpec
from gateway.logins import without_login


def parse_worker(text: str) -> WorkerSpec:
    """`URL[,name=value]…` → WorkerSpec. Raises ConfigError that says what is wrong and what is wanted, and
    nothing that may be a password."""
    where = f"worker {without_login(text)!r}"
    url, *options = (part.strip() for part in text.split(","))
    fields: dict[str, object] = {"url": url}
    for option in options:
        name, equals, value = option.partition("=")
        if not equals:
            shown = without_login(option)
            raise ConfigError(f"{where}: {shown!r} is not name=value; known names: {_known()}")
        if name.strip() in fields:
            raise ConfigError(f"{where}: {name.strip()!r} is given twice")
        fields[name.strip()] = value.strip()
    return _spec(fields, where)


def worker_from(fields: Mapping[str, object]) -> WorkerSpec:
    """The same fields as a mapping (an entry of a workers file, an admin request)."""
    if "url" not in fields:
        raise ConfigError(f"a worker with {', '.join(map(str, fields)) or 'nothing'}: url is missing")
    return _spec(fields, f"worker {without_login(str(fields['url']))!r}")


def _spec(fields: Mapping[str, object], where: str) -> WorkerSpec:
    values: dict[str, Any] = {}
    for name, value in fields.items():
        if name not in _FIELDS:
            raise ConfigError(f"{where}: unknown field {name!r}; known: url, {_known()}")
        attribute, read = _FIELDS[name]
        if value is None:
            continue
        try:
            values[attribute] = read(str(value))
        except ValueError as error:
            shown = "url" if name == "url" else f"{name}={without_login(str(value))}"
            raise ConfigError(f"{where}: {shown}: {error}") from None
    return WorkerSpec(**values)


def read_workers_file(path: Path) -> list[WorkerSpec]:
    """A YAML or JSON list whose entries are lines as `parse_worker` reads them, or mappings of the same
    fields; also accepted under a top-level key ``workers``. Raises ConfigError."""
    try:
        data = yaml_text.read(path).value
    except OSError as error:
        raise ConfigError(f"workers file {path}: {error.strerror or error}") from error
    except yaml_text.Malformed as error:
        raise ConfigError(f"workers file {path}: {error}") from None
    entries = data.get("workers") if isinstance(data, dict) else data
    if not isinstance(entries, list):
        raise ConfigError(f"workers file {path}: a list of workers is wanted")
    try:
        specs = [_from_entry(number, entry) for number, entry in enumerate(entries, 1)]
        refuse_doubles(specs)
    except ConfigError as error:
        raise ConfigError(f"workers file {path}: {error.message}") from error
    return specs


def _from_entry(number: int, entry: object) -> WorkerSpec:
    if isinstance(entry, str):
        return parse_worker(entry)
    if isinstance(entry, dict):
        return worker_from(entry)
    raise ConfigError(f"entry {number} is neither a line nor a mapping")


def refuse_doubles(specs: list[WorkerSpec]) -> None:
    """Raises ConfigError where two specs name the same worker."""
    seen: set[str] = set()
    for spec in specs:
        if spec.id in seen:
            raise ConfigError(f"worker {spec.id!r} is listed twice")
        seen.add(spec.id)


def _http_url(text: str) -> str:
    if "@" in text:
        raise ValueError("credentials don't belong in a worker's URL")
    parts = _parts(text)
    if parts.scheme not in ("http", "https"):
        raise ValueError("a URL like http://127.0.0.1:8000 is wanted")
    if not parts.hostname or _bad_port(parts.port):
        raise ValueError("host or port is missing or wrong")
    if parts.query or parts.fragment:
        raise ValueError("a base URL has no query and no fragment")
    return text.rstrip("/")


def _zmq_endpoint(text: str) -> str:
    parts = _parts(text)
    if parts.scheme == "ipc" and len(text) > len("ipc://"):
        return text
    if "@" in text:
        raise ValueError("an endpoint has no credentials")
    if parts.scheme != "tcp" or not parts.hostname or parts.port is None or _bad_port(parts.port):
        raise ValueError("an endpoint like tcp://127.0.0.1:5557 is wanted")
    if parts.hostname == "*":
        raise ValueError("the engine binds to *, the gateway needs the host to connect to")
    return text


def _parts(text: str) -> SplitResult:
    """Raises ValueError in words of its own: the library's have pieces of the text."""
    try:
        parts = urlsplit(text)
        _ = parts.port  # read only now
    except ValueError:
        raise ValueError("host or port is missing or wrong") from None
    return parts


def _bad_port(port: int | None) -> bool:
    return port is not None and not 0 < port < 65536


def _positive(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 0 < len(text.lstrip("0")) <= 9:
        raise ValueError("a whole number from 1 to 999,999,999 is wanted")
    return int(text)


def _rank(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise ValueError("a whole number from 0 is wanted")
    return int(text)


def _weight(text: str) -> float:
    weight = float(text)
    if not LEAST_WEIGHT <= weight <= MOST_WEIGHT:
        raise ValueError(f"a number from {LEAST_WEIGHT:g} to {MOST_WEIGHT:,.0f} is wanted")
    return weight


_FIELDS: Mapping[str, tuple[str, Callable[[str], object]]] = {
    "url": ("url", _http_url),
    "events": ("events", _zmq_endpoint),
    "replay": ("replay", _zmq_endpoint),
    "topic": ("topic", str),
    "model": ("model", str),
    "block_size": ("block_size", _positive),
    "capacity": ("capacity_blocks", _positive),
    "max_requests": ("max_requests", _positive),
    "weight": ("weight", _weight),
    "dp_rank": ("dp_rank", _rank),
}


def _known() -> str:
    return ", ".join(name for name in _FIELDS if name != "url")
