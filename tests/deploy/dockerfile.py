"""A Dockerfile as data: stages of instructions, with `ARG`s and `ENV`s put in.

As much of the language as ours uses; anything else is an error, so that no step is passed over.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

_VARIABLE = re.compile(r"\$\{(\w+)\}|\$(\w+)")


@dataclass(frozen=True, slots=True)
class Run:
    command: str
    """For `/bin/sh -c`."""
    env: Mapping[str, str]
    """All that is set where it runs: ENVs, and the ARGs declared so far."""
    workdir: str


@dataclass(frozen=True, slots=True)
class Copy:
    sources: tuple[str, ...]
    target: str
    """Absolute; ends with a slash where several sources go into a folder."""
    stage: str | None
    """None: from the build context."""


@dataclass(slots=True)
class Stage:
    base: str
    name: str | None
    steps: list[Run | Copy] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    workdir: str = "/"
    user: str = "0:0"
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    healthcheck: list[str] = field(default_factory=list)
    stop_signal: str = "SIGTERM"
    ports: tuple[int, ...] = ()


def read(path: Path, args: Mapping[str, str] | None = None) -> list[Stage]:
    """`args`: as of `--build-arg`. Raises ValueError for an instruction that it does not know."""
    given = dict(args or {})
    before: dict[str, str] = {}
    """ARGs above the first FROM: for FROM lines alone."""
    local: dict[str, str] = {}
    stages: list[Stage] = []
    for word, rest in _instructions(path.read_text()):
        if word == "ARG":
            name, _, default = rest.partition("=")
            (local if stages else before)[name] = given.get(name, default)
        elif word == "FROM":
            image, *name_of = re.split(r"\s+AS\s+", rest)
            stages.append(Stage(_expand(image, before), name_of[0] if name_of else None))
            local = {}
        else:
            _apply(stages[-1], word, rest, local)
    return stages


def _apply(stage: Stage, word: str, rest: str, args: Mapping[str, str]) -> None:
    known = {**args, **stage.env}
    if word == "ENV":
        for pair in shlex.split(rest):
            name, _, value = pair.partition("=")
            stage.env[name] = _expand(value, known)
    elif word == "WORKDIR":
        stage.workdir = _expand(rest, known)
    elif word == "RUN":
        stage.steps.append(Run(rest, known, stage.workdir))
    elif word == "COPY":
        stage.steps.append(_copy(_expand(rest, known), stage.workdir))
    elif word == "USER":
        stage.user = rest
    elif word == "STOPSIGNAL":
        stage.stop_signal = rest
    elif word == "EXPOSE":
        stage.ports = tuple(int(port) for port in rest.split())
    elif word in ("ENTRYPOINT", "CMD"):
        setattr(stage, "entrypoint" if word == "ENTRYPOINT" else "command", json.loads(rest))
    elif word == "HEALTHCHECK":
        stage.healthcheck = json.loads(rest.partition("CMD ")[2])
    elif word != "LABEL":
        raise ValueError(f"{word}: not understood here")


def _copy(rest: str, workdir: str) -> Copy:
    words = rest.split()
    stage = None
    while words[0].startswith("--"):
        flag, _, value = words.pop(0).partition("=")
        if flag != "--from":
            raise ValueError(f"COPY {flag}: not understood here")
        stage = value
    *sources, target = words
    folder = target.endswith("/") or len(sources) > 1
    absolute = str(Path(workdir, target))
    return Copy(tuple(sources), absolute + "/" if folder else absolute, stage)


def _expand(text: str, values: Mapping[str, str]) -> str:
    # PATH is the base's, which is not known here
    return _VARIABLE.sub(lambda m: values.get(m[1] or m[2], m[0] if "PATH" in m[0] else ""), text)


def _instructions(text: str) -> list[tuple[str, str]]:
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in joined.splitlines())]
