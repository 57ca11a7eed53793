"""What pages and the doctor tell people to look for in a log is what the gateway writes there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from gateway.errors import STORE_FAILURES

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs" / "runbooks").rglob("*.md")) + [
    ROOT / "docs" / f"{name}.md" for name in ("operations", "redis", "processes", "security", "kubernetes")
]
_QUOTED = re.compile(r"[`\"]([A-Za-z][^`\"]* [^`\"]*)[`\"]")
"""Of several words: a name in code is no message."""


def logged() -> list[str]:
    """The messages of every `log.…("…")`."""
    return [
        node.args[0].value
        for path in (ROOT / "gateway").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("debug", "info", "warning", "error", "exception")
        and node.args
        and isinstance(node.args[0], ast.Constant)
        and isinstance(node.args[0].value, str)
    ]


def quoted(text: str) -> Iterator[str]:
    """What stands in quotes in a sentence that speaks of a log of ours."""
    for sentence in re.split(r"\.\s|\|", " ".join(text.split())):
        if re.search(r"\blog\b", sentence) and not re.search(r"(engine's (own )?|access )log\b", sentence):
            yield from _QUOTED.findall(sentence)


def of_pages() -> dict[str, list[str]]:
    """Paragraph by paragraph, code blocks left out."""
    found = {}
    for page in PAGES:
        text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        found[page.name] = [each for part in re.split(r"\n\n|\n(?=\d\. |- )", text) for each in quoted(part)]
    return found


def of_the_doctor() -> list[str]:
    return [
        each
        for path in (ROOT / "gateway" / "diagnosis").glob("*_rules.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for each in quoted(node.value)
    ]


def test_texts_to_look_for_are_written() -> None:
    messages = logged()
    pages = of_pages()
    assert "a task failed; it is begun again" in pages["task-fails.md"]
    assert set(pages["discovery-stale.md"]) == {
        "workers can't be listed", "DNS can't be asked", "registrations can't be read",
    }  # fmt: skip
    assert of_the_doctor() == ["Redis is degraded"]
    for page, texts in [*pages.items(), ("doctor", of_the_doctor())]:
        for text in texts:
            assert any(text in message for message in messages), f"{page}: nothing logs {text!r}"


def test_the_page_on_redis_names_every_kind_that_is_logged() -> None:
    told = (ROOT / "docs" / "runbooks" / "redis-degraded.md").read_text()
    named = re.search(r"its `kind` \(([^)]*)\)", told)
    assert named is not None
    assert set(re.findall(r"\w+", named[1])) == set(STORE_FAILURES)
