"""Settings as they are given: flags over environment (`GATEWAY_…`) over file (`--config`) over defaults."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    InitSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
)

from gateway.errors import ConfigError
from gateway.settings import PREFIX, Settings
from gateway.settings_faults import fault_of, nearest
from gateway.settings_file import ConfigFile, Written

OF_COMMANDS = frozenset(("admin_url",))
"""Names in the environment that are no settings: commands that ask a running gateway read them."""
SECRET = frozenset(("api_keys", "admin_token", "redis_url", "redis_password"))
"""What no error repeats."""


def load(
    flags: dict[str, Any],
    config: ConfigFile | Path | None = None,
    flag_names: Mapping[str, str] | None = None,
) -> Settings:
    """Settings from the given `flags` (only those that were given), environment and file.

    Raises ConfigError with one line per fault, which begins with what is at fault: a flag (`flag_names` has
    their spelling), a variable, or a line of the file.
    """
    file = ConfigFile(config) if isinstance(config, Path) else config
    written = Written() if file is None else file.read()
    known = Settings.model_fields
    faults = [
        *_unknown(os.environ),
        *(f"{written.places[name]}: no such setting{nearest(name, known)}" for name in written.values
          if name not in known),
    ]  # fmt: skip
    from_file = {name: value for name, value in written.values.items() if name in known}

    class Layered(Settings):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return (
                init_settings,
                _Environment(settings_cls),
                InitSettingsSource(settings_cls, init_kwargs=from_file),
            )

    def place(name: str) -> str:
        if name in flags:
            return (flag_names or {}).get(name, name)
        return _variables(os.environ).get(name) or written.places.get(name, name)

    try:
        settings = Layered(**flags)
    except ValidationError as e:
        for error in e.errors():
            where = f"{place(str(error['loc'][0]))}: " if error["loc"] else ""
            faults.append(where + fault_of(error, secret=SECRET))
    if faults:
        raise ConfigError("\n".join(faults))
    return settings


class _Environment(EnvSettingsSource):
    """Mappings are JSON. Raises ConfigError for what is none."""

    def decode_complex_value(self, field_name: str, field: Any, value: Any) -> Any:
        if NoDecode in field.metadata:
            return value
        where = PREFIX + field_name.upper()

        def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
            found = dict(pairs)
            if len(found) < len(pairs):
                twice = next(name for at, (name, _) in enumerate(pairs) if name in dict(pairs[:at]))
                raise ConfigError(f"{where}: {twice!r} stands there twice")
            return found

        try:
            return json.loads(value, object_pairs_hook=once)
        except ValueError:
            raise ConfigError(f'{where}: a JSON object is wanted, like {{"name": "value"}}') from None


def _variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Setting → the variable that says something of it, as it is spelled."""
    return {
        name.lower().removeprefix(PREFIX.lower()): name
        for name, value in environment.items()
        if name.lower().startswith(PREFIX.lower()) and value
    }


def _unknown(variables: Iterable[str]) -> Iterator[str]:
    """A line for each variable with our prefix that names nothing. What Kubernetes writes for a service whose
    name happens to begin like ours (``GATEWAY_REDIS_SERVICE_HOST`` and its like) is nobody's mistake."""
    ours = sorted(name for name in variables if name.startswith(PREFIX))
    services = [name.removesuffix("_SERVICE_HOST") for name in ours if name.endswith("_SERVICE_HOST")]
    of_services = tuple(f"{service}_{kind}" for service in services for kind in ("SERVICE", "PORT"))
    known = {*Settings.model_fields, *OF_COMMANDS}
    for name in ours:
        key = name.removeprefix(PREFIX).lower()
        if key in known or name.startswith(of_services):
            continue
        near = nearest(key.upper(), {other.upper() for other in known}, PREFIX)
        yield f"{name}: no such setting{near}"
