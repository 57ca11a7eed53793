"""From a chat request to the text that the engine's template makes of it (vLLM's `HfRenderer`)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any, Literal

from gateway.prompt.base import Endpoint, PromptError, PromptRequest
from gateway.prompt.content import ContentFormat, conversation, has_media, tool_definitions, without_developer
from gateway.prompt.files import TokenizerFiles
from gateway.prompt.messages_template import effort_without_thinking, system_first, wants_system_first
from gateway.prompt.template import ChatTemplate

MEDIA_MARK = "\ue0f1media\ue0f1"
"""Stands in a rendered text where the first media item begins. Private-use characters: a client who writes
them himself only makes less of his prompt matchable."""

_REQUEST_TEMPLATES_KEPT = 16
# arguments of transformers' apply_chat_template that never reach the template
_CONSUMED = ("padding", "truncation", "max_length", "return_tensors", "return_dict", "tokenizer_kwargs")
_REFUSED = (
    "chat_template",
    "tokenize",
    "messages",
    "conversation",
    "conversations",
    "return_assistant_tokens_mask",
)


@dataclass(frozen=True, slots=True)
class RenderOptions:
    """The engine's own flags that decide prompts (vLLM's names). Defaults are vLLM's."""

    chat_template: str | None = None
    """Source of the template that the engine was given in place of the model's own."""
    chat_template_content_format: Literal["auto", "string", "openai"] = "auto"
    trust_request_chat_template: bool = False
    exclude_tools_when_tool_choice_none: bool = False
    default_chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)


class ChatRenderer:
    """Renders chats for one model. Raises PromptError where the engine would refuse, or where it cannot be
    told what the engine does.
    """

    def __init__(
        self,
        files: TokenizerFiles,
        options: RenderOptions | None = None,
        *,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        self._options = options or RenderOptions()
        self._special_tokens = files.special_tokens
        self._now = now
        sources = dict(files.chat_templates)
        if self._options.chat_template is not None:
            sources = {"default": self._options.chat_template}
        self._sources = sources
        self._templates = {name: self._compile(source) for name, source in sources.items()}
        self._from_requests: OrderedDict[str, ChatTemplate] = OrderedDict()

    def render(self, request: PromptRequest) -> str:
        """The prompt's text; MEDIA_MARK in it where the first media item begins."""
        if request.messages is None:
            raise PromptError("there are no messages", param="messages")
        args, given = request.template_args, request.messages
        if request.endpoint is Endpoint.MESSAGES:
            args, given = self._as_messages_api(args, given)
        kwargs = self._variables(args)
        tools = kwargs.pop("tools", None)
        template = self._template(args, tools)
        chosen = self._options.chat_template_content_format
        form: ContentFormat = template.content_format if chosen == "auto" else chosen
        mark = MEDIA_MARK if has_media(given) else ""
        messages = conversation(given, form, mark)
        if not template.knows_developer and any(message["role"] == "developer" for message in messages):
            messages = without_developer(messages)
        return template.render(
            messages,
            tools=tools,
            documents=kwargs.pop("documents", None),
            add_generation_prompt=kwargs.pop("add_generation_prompt"),
            continue_final_message=kwargs.pop("continue_final_message"),
            variables=kwargs,
        )

    def _as_messages_api(
        self, args: Mapping[str, Any], messages: Sequence[Mapping[str, Any]]
    ) -> tuple[Mapping[str, Any], Sequence[Mapping[str, Any]]]:
        if args.get("reasoning_effort") == "none":
            args = {**args, "reasoning_effort": self._effort_without_thinking}
        late = any(message.get("role") == "system" for message in messages[1:])
        return args, system_first(messages) if late and self._wants_system_first else messages

    @cached_property
    def _wants_system_first(self) -> bool:
        used = [source for name, source in self._sources.items() if name in ("default", "tool_use")]
        return any(map(wants_system_first, used))

    @cached_property
    def _effort_without_thinking(self) -> str:
        def text(effort: str) -> str:
            hi = [{"role": "user", "content": "Hi"}]
            args = {"reasoning_effort": effort}
            return self.render(PromptRequest(Endpoint.CHAT, "", messages=hi, template_args=args))

        return effort_without_thinking(text)

    def _variables(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """vLLM's order of precedence: the engine's defaults, the request's `chat_template_kwargs`, then the
        request's own fields. A value of None or "auto" counts as unset.
        """
        of_request = dict(args.get("chat_template_kwargs", {}))
        if refused := [name for name in _REFUSED if of_request.get(name) is not None]:
            raise PromptError(f"chat_template_kwargs may not set {refused[0]}", param="chat_template_kwargs")
        effort = args.get("reasoning_effort")
        if effort is not None and "enable_thinking" not in of_request:
            of_request["enable_thinking"] = effort != "none"
        of_request["add_generation_prompt"] = args.get("add_generation_prompt", True)
        of_request["continue_final_message"] = args.get("continue_final_message", False)
        for name, value in (("documents", args.get("documents")), ("reasoning_effort", effort)):
            if value is not None:
                of_request[name] = value
        merged = dict(self._options.default_chat_template_kwargs)
        if (tools := self._tools(args)) is not None:
            merged["tools"] = tools
        merged |= {name: value for name, value in of_request.items() if value is not None and value != "auto"}
        for name in _CONSUMED:
            merged.pop(name, None)
        return merged

    def _tools(self, args: Mapping[str, Any]) -> list[dict[str, Any]] | None:
        tools = args.get("tools")
        if tools is None:
            return None
        if not tools:
            raise PromptError("tools must not be empty", param="tools")
        if args.get("tool_choice") == "none" and self._options.exclude_tools_when_tool_choice_none:
            return None
        return tool_definitions(tools)

    def _template(self, args: Mapping[str, Any], tools: object) -> ChatTemplate:
        if (source := args.get("chat_template")) is not None:
            if not self._options.trust_request_chat_template:
                raise PromptError("the request brings its own chat_template", param="chat_template")
            return self._request_template(source)
        wanted = "tool_use" if tools is not None and "tool_use" in self._templates else "default"
        template = self._templates.get(wanted)
        if template is None:
            raise PromptError("this model has no chat template")
        return template

    def _request_template(self, source: str) -> ChatTemplate:
        if source in self._templates:
            return self._templates[source]
        template = self._from_requests.get(source)
        if template is None:
            template = self._from_requests[source] = self._compile(source)
        self._from_requests.move_to_end(source)
        while len(self._from_requests) > _REQUEST_TEMPLATES_KEPT:
            self._from_requests.popitem(last=False)
        return template

    def _compile(self, source: str) -> ChatTemplate:
        return ChatTemplate(source, self._special_tokens, now=self._now)
