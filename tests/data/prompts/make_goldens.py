"""Writes the expected prompts of the tests with vLLM's own code, in an environment that has vLLM:

    python make_goldens.py FOLDER_WITH_TOKENIZER TEMPLATE_OR_- CASES.json OUT.json

FOLDER_WITH_TOKENIZER is loaded by transformers, as vLLM does. For each case the request body goes through
vLLM's request model, its message parser, its template renderer and its tokenizer. A case that vLLM refuses
is written with `"refused": true`.
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

from transformers import AutoTokenizer
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.renderers.hf import resolve_chat_template_content_format, safe_apply_chat_template
from vllm.renderers.params import merge_kwargs

try:
    from vllm.renderers.chat_utils import parse_chat_messages
except ImportError:  # up to 0.28
    from vllm.entrypoints.chat_utils import parse_chat_messages


def render(body, tokenizer, template, model_config):
    request = ChatCompletionRequest.model_validate(json.loads(json.dumps(body)))
    tools = None if request.tools is None else [tool.model_dump() for tool in request.tools]
    params = request.build_chat_params(template, "auto").with_defaults(
        merge_kwargs({}, {"tools": tools, "tokenize": False})
    )
    content_format = resolve_chat_template_content_format(
        chat_template=params.chat_template,
        tools=params.chat_template_kwargs.get("tools"),
        given_format="auto",
        tokenizer=tokenizer,
        model_config=model_config,
    )
    conversation, _, _ = parse_chat_messages(request.messages, model_config, content_format=content_format)
    text = safe_apply_chat_template(
        model_config, tokenizer, conversation, **params.get_apply_chat_template_kwargs()
    )
    ids = tokenizer(text, add_special_tokens=request.add_special_tokens)["input_ids"]
    return {"content_format": content_format, "text": text, "ids": ids}


def main(folder, template_file, cases_file, out_file):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    template = None if template_file == "-" else Path(template_file).read_text()
    model_config = SimpleNamespace(
        multimodal_config=None,
        enable_prompt_embeds=False,
        tokenizer_revision=None,
        revision=None,
        code_revision=None,
        trust_remote_code=False,
        tokenizer=folder,
        model=folder,
        allowed_local_media_path="",
        allowed_media_domains=None,
        is_multimodal_model=False,
        hf_config=SimpleNamespace(model_type="llama"),
    )
    goldens = []
    for case in json.loads(Path(cases_file).read_text()):
        try:
            expected = render(case["body"], tokenizer, template, model_config)
        except Exception as error:  # noqa: BLE001
            print(case["name"], "refused:", type(error).__name__, str(error)[:200])
            expected = {"refused": True}
        goldens.append({**case, **expected})
    lines = ",\n".join(json.dumps(golden, ensure_ascii=False) for golden in goldens)
    Path(out_file).write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
