"""The door policy: what steers an engine's insides never comes from a client, and never goes to one.

On a real engine with a transfer connector, a client's `kv_transfer_params` taken from another prompt left
wrong blocks in the prefix cache, and a malformed one stopped the engine. Which fields and headers these are
is configuration.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.errors import InvalidRequest
from gateway.upstream.redact import Redactor, in_any_spelling

BODY_FIELDS = (
    "kv_transfer_params",
    "ec_transfer_params",
    "kv_hints",
    "disaggregated_params",
    "bootstrap_host",
    "bootstrap_port",
    "bootstrap_room",
    "routed_dp_rank",
    "data_parallel_rank",
    "disagg_prefill_dp_rank",
    "cache_hit_threshold",
    "vllm_xargs.kv_cache_report_mode",
)
HEADERS = (
    "x-data-parallel-rank",
    "x-prefiller-host-port",
    "x-encoder-hosts-ports",
    "x-kv-cache-source-host-port",
    "x-data-parallel-host-port",
    "x-gateway-destination-endpoint*",
    "epp-profile",
    "x-smg-*",
)
EXTRA = "vllm_xargs"
"""vLLM reads this object's fields as its `extra_args`, and transfer parameters from there too."""
ANSWER_FIELDS = ("kv_transfer_params", "ec_transfer_params", "disaggregated_params")


@dataclass(frozen=True, slots=True)
class Door:
    """`refuse`: answer 400 in place of taking the field out. A name with a dot is a field of an object; every
    field counts inside `EXTRA` as well. A header that ends in ``*`` is a prefix."""

    body_fields: tuple[str, ...] = BODY_FIELDS
    headers: tuple[str, ...] = HEADERS
    answer_fields: tuple[str, ...] = ANSWER_FIELDS
    refuse: bool = False
    redactor: Redactor = field(init=False, compare=False, repr=False)
    _flat: frozenset[str] = field(init=False, compare=False, repr=False)
    _nested: tuple[tuple[str, tuple[str, ...]], ...] = field(init=False, compare=False, repr=False)
    _outer: frozenset[str] = field(init=False, compare=False, repr=False)
    """Names of the objects that `_nested` looks into."""
    _named: frozenset[str] = field(init=False, compare=False, repr=False)
    """A body with none of these fields says nothing that is judged."""
    _spelled: Mapping[str, re.Pattern[bytes]] = field(init=False, compare=False, repr=False)
    _exact: frozenset[bytes] = field(init=False, compare=False, repr=False)
    _prefixes: tuple[bytes, ...] = field(init=False, compare=False, repr=False)
    _initials: frozenset[int] = field(init=False, compare=False, repr=False)
    """What the listed headers begin with: most headers are passed by their first byte."""

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "redactor", Redactor(self.answer_fields))
        put(self, "_flat", frozenset(name for name in self.body_fields if "." not in name))
        inner = [name for name in self.body_fields if "." in name]
        inner += [f"{EXTRA}.{name}" for name in self.body_fields if not name.startswith(EXTRA)]
        put(self, "_nested", tuple((name, tuple(name.split("."))) for name in inner))
        put(self, "_outer", frozenset(path[0] for _, path in self._nested))
        put(self, "_named", self._flat | self._outer)
        steps = {step for _, path in self._nested for step in path[:-1]}
        put(self, "_spelled", {step: re.compile(in_any_spelling(step)) for step in steps})
        names = [name.lower().encode() for name in self.headers]
        put(self, "_exact", frozenset(name for name in names if not name.endswith(b"*")))
        put(self, "_prefixes", tuple(name[:-1] for name in names if name.endswith(b"*")))
        initials = {name[0] for name in (*self._exact, *self._prefixes) if name}
        # an underscore stands for a hyphen, and a bare * for anything
        initials |= {ord("_")} if ord("-") in initials else set()
        put(self, "_initials", frozenset(range(256) if b"" in self._prefixes else initials))

    @property
    def names(self) -> tuple[str, ...]:
        """All that can be taken out, as it is then called."""
        return (*sorted(self._flat), *(name for name, _ in self._nested), *map(str.lower, self.headers))

    @classmethod
    def open(cls) -> Door:
        """Lets everything through."""
        return cls((), (), ())

    def letting(self, names: Iterable[str]) -> Door:
        """One that lets `names`, of fields or of headers, through as well."""
        let = frozenset(name.lower() for name in names)

        def kept(known: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(name for name in known if name.lower() not in let)

        return Door(kept(self.body_fields), kept(self.headers), kept(self.answer_fields), self.refuse)

    def fields_in(self, fields: Mapping[str, Any]) -> list[str]:
        """Names of what a body must not say. Raises InvalidRequest where the door refuses."""
        if self._flat.isdisjoint(fields) and self._outer.isdisjoint(fields):
            return []
        found = [name for name in fields if name in self._flat]
        found += [name for name, path in self._nested if _has(fields, path)]
        if found and self.refuse:
            raise InvalidRequest(f"{found[0]!r} is not accepted from clients", param=found[0])
        return found

    def judged(self, body: bytes, fields: Mapping[str, Any]) -> tuple[list[str], list[str]]:
        """`fields_in` and `doubtful_in` of the JSON `body`. Raises InvalidRequest where the door refuses."""
        if self._named.isdisjoint(fields):
            return [], []
        return self.fields_in(fields), self.doubtful_in(body, fields)

    def doubtful_in(self, body: bytes, fields: Mapping[str, Any]) -> list[str]:
        """Names of fields in objects that the JSON `body` may hold twice. Only the last was judged, and
        an engine may take the first: a body without these fields, written anew, has one."""
        if self._outer.isdisjoint(fields):
            return []
        return [
            name
            for name, path in self._nested
            if path[0] in fields and any(_twice(self._spelled[step], body) for step in path[:-1])
        ]

    def headers_in(self, headers: Iterable[tuple[bytes, bytes]]) -> list[bytes]:
        """Names of headers that must not pass, as they were given: some servers read ``_`` as ``-``. Raises
        InvalidRequest where the door refuses."""
        initials = self._initials
        found = [
            name
            for name, _ in headers
            if name[:1] and name[0] in initials
            if self._lists(name) or self._lists(name.replace(b"_", b"-"))
        ]
        if found and self.refuse:
            name = found[0].decode("latin-1")
            raise InvalidRequest(f"the header {name!r} is not accepted from clients", param=name)
        return found

    def listed_as(self, header: bytes) -> str:
        """The entry that `header`, one of `headers_in`, fell under: clients must not make metrics' names."""
        name = header.replace(b"_", b"-")
        for prefix in self._prefixes:
            if name not in self._exact and name.startswith(prefix):
                return prefix.decode("latin-1") + "*"
        return name.decode("latin-1")

    def _lists(self, header: bytes) -> bool:
        return header in self._exact or header.startswith(self._prefixes)


def _twice(pattern: re.Pattern[bytes], body: bytes) -> bool:
    found = pattern.finditer(body)
    return next(found, None) is not None and next(found, None) is not None


def _has(fields: Any, path: tuple[str, ...]) -> bool:
    for step in path:
        if not isinstance(fields, dict) or step not in fields:
            return False
        fields = fields[step]
    return True
