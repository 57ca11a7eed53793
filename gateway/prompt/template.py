"""A chat template, compiled once and rendered in a sandbox with the semantics of Hugging Face transformers
(filters, globals, whitespace, `continue_final_message`), which is what engines render with.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment

from gateway.prompt.base import PromptError
from gateway.prompt.content import Message
from gateway.prompt.formats import detect_content_format
from gateway.types import Clock

_CONTINUE_TAG = "CONTINUE_FINAL_MESSAGE_TAG "


class _GenerationTag(Extension):
    """`{% generation %}` marks an assistant's text for training; for rendering it is its body, no more."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Macro) -> str:
        return str(caller())


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # unlike Jinja's own filter: no HTML escapes, and the caller's order of keys
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _environment(now: Callable[[], datetime]) -> ImmutableSandboxedEnvironment:
    # autoescape would write HTML entities into prompts
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, autoescape=False, extensions=[_GenerationTag, loopcontrols]
    )
    env.filters["tojson"] = _to_json
    env.globals["raise_exception"] = _raise_exception
    env.globals["strftime_now"] = lambda form: now().strftime(form)
    return env


class ChatTemplate:
    """One template. `special_tokens` are the tokenizer's named ones (`bos_token`, `eos_token`, …), visible to
    the template. Rendering is bounded: `max_chars` of output, `max_seconds` by `clock`.

    Raises PromptError where the source is no template.
    """

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str],
        *,
        now: Callable[[], datetime] = datetime.now,
        clock: Clock = time.monotonic,
        max_chars: int = 32 * 1024 * 1024,
        max_seconds: float = 5.0,
    ) -> None:
        env = _environment(now)
        try:
            self.content_format = detect_content_format(env.parse(source))
            self._compiled = env.from_string(source)
            # each rendering copies them, and a chain of two dicts is copied name by name
            self._compiled.globals = dict(self._compiled.globals)
        except jinja2.TemplateError as error:
            raise PromptError(f"the chat template does not compile: {error}") from error
        self.knows_developer = '"developer"' in source or "'developer'" in source
        self._source = source
        self._special_tokens = dict(special_tokens)
        self._clock = clock
        self._max_chars = max_chars
        self._max_seconds = max_seconds

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Any = None,
        documents: Any = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt's text. `variables` win over the special tokens of the same name. Raises PromptError for
        whatever goes wrong inside the template, for it is the client's data that it goes wrong with.
        """
        if not messages:
            raise PromptError("there are no messages", param="messages")
        final = ""
        if continue_final_message:
            if add_generation_prompt:
                raise PromptError("continue_final_message and add_generation_prompt exclude each other")
            messages, final = self._tagged(messages)
        context = {
            **self._special_tokens,
            **(variables or {}),
            "messages": messages,
            "tools": tools,
            "documents": documents,
            "add_generation_prompt": add_generation_prompt,
        }
        text = self._bounded(context)
        return _cut_at_tag(text, final) if continue_final_message else text

    def _bounded(self, context: Mapping[str, Any]) -> str:
        chunks: list[str] = []
        room = self._max_chars
        deadline = self._clock() + self._max_seconds
        try:
            for chunk in self._compiled.generate(context):
                chunks.append(chunk)
                room -= len(chunk)
                if room < 0 or self._clock() > deadline:
                    raise PromptError("the chat template writes too much or takes too long")
        except PromptError:
            raise
        except Exception as error:
            raise PromptError(f"the chat template refuses this request: {error}") from error
        return "".join(chunks)

    def _tagged(self, messages: Sequence[Message]) -> tuple[list[Message], str]:
        """The messages with a tag behind the last text, by which its end is found again in the rendering."""
        if "content" not in self._source:
            raise PromptError("this chat template cannot continue a message")
        tagged = [*messages[:-1], deepcopy(messages[-1])]
        content = tagged[-1].get("content")
        if isinstance(content, str):
            tagged[-1]["content"] = content + _CONTINUE_TAG
            return tagged, content
        for part in reversed(content or []):
            if "text" in part:
                text: str = part["text"]
                part["text"] = text + _CONTINUE_TAG
                return tagged, text
        raise PromptError("the final message has no text to continue", param="continue_final_message")


def _cut_at_tag(text: str, final: str) -> str:
    tag = _CONTINUE_TAG.strip()
    if final.strip() not in text or tag not in text:
        raise PromptError("the chat template changes the final message, so it cannot be continued")
    at = text.rindex(tag)
    kept = text[:at]
    # the template trimmed the message: then what stands before the tag ends where the trimmed text ends
    return kept if text.startswith(_CONTINUE_TAG, at) else kept.rstrip()
