"""Writes `system_first.json` with vLLM's own code, in an environment that has vLLM 0.32:

    python make_system_first.py CASES.json OUT.json

Each case is a chat template; added is whether vLLM merges system messages that stand between others into the
first one when the Messages API becomes a chat for it.
"""

import json
import sys
from pathlib import Path

from vllm.entrypoints.anthropic.serving import AnthropicServingMessages


def main(cases_file, out_file):
    merges = AnthropicServingMessages._detect_merge_inline_system
    cases = [
        {"template": case["template"], "merges": merges(case["template"])}
        for case in json.loads(Path(cases_file).read_text())
    ]
    lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases)
    Path(out_file).write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
