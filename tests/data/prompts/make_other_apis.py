"""Writes the chats of `other_apis.json` with vLLM's own code, in an environment that has vLLM 0.32:

    python make_other_apis.py CASES.json OUT.json

Each case has a name, the API's path and a request body; added is the chat that vLLM makes of it before the
template: messages, tools, and those fields that a template may see. Where another chat is made for templates
that want system messages first, it stands under `system_first`.
"""

import copy
import json
import sys
from pathlib import Path
from types import SimpleNamespace

from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.openai.responses.utils import construct_input_messages, construct_tool_dicts


def of_messages(body, system_first=False):
    request = AnthropicServingMessages.to_chat_completion_request(
        AnthropicMessagesRequest.model_validate(body), merge_inline_system=system_first
    )
    chat = {"messages": request.messages}
    if request.tools:
        chat["tools"] = [tool.model_dump() for tool in request.tools]
    if request.reasoning_effort is not None:
        chat["reasoning_effort"] = request.reasoning_effort
    if request.tool_choice == "none":
        chat["tool_choice"] = "none"
    if request.chat_template_kwargs:
        chat["chat_template_kwargs"] = request.chat_template_kwargs
    return chat


def of_responses(body):
    request = ResponsesRequest.model_validate(body)
    chat = {
        "messages": construct_input_messages(
            request_instructions=request.instructions, request_input=request.input
        )
    }
    if tools := construct_tool_dicts(request.tools, request.tool_choice):
        chat["tools"] = tools
    variables = request.build_chat_params(None, "auto").chat_template_kwargs
    for name in ("reasoning_effort", "add_generation_prompt", "continue_final_message"):
        if variables.get(name) is not None:
            chat[name] = variables[name]
    if request.tool_choice == "none":
        chat["tool_choice"] = "none"
    cut = request.build_tok_params(SimpleNamespace(max_model_len=512)).truncate_prompt_tokens
    if cut is not None:
        chat["truncate_prompt_tokens"] = cut
    return chat


def plain(value):
    return value.model_dump() if hasattr(value, "model_dump") else list(value)


def main(cases_file, out_file):
    goldens = []
    for case in json.loads(Path(cases_file).read_text()):
        convert = of_messages if case["api"] == "/v1/messages" else of_responses
        golden = {**case, "chat": convert(copy.deepcopy(case["body"]))}
        if convert is of_messages:
            merged = of_messages(copy.deepcopy(case["body"]), system_first=True)
            if merged["messages"] != golden["chat"]["messages"]:
                golden["system_first"] = merged
        goldens.append(golden)
    lines = ",\n".join(json.dumps(golden, ensure_ascii=False, default=plain) for golden in goldens)
    Path(out_file).write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
