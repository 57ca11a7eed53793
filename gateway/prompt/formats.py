"""Which form of content a chat template expects, told from its syntax tree as vLLM tells it: a template that
loops over a message's content takes a list of parts ("openai"), any other takes a text ("string").
"""

from __future__ import annotations

from collections.abc import Iterator

from jinja2 import nodes

from gateway.prompt.content import ContentFormat


def detect_content_format(template: nodes.Template) -> ContentFormat:
    """Where a loop that matters unpacks its items (`for a, b in …`), vLLM gives up and takes "string"."""
    conversations = _aliases(template)
    if conversations is None:
        return "string"
    messages: set[str] = set()
    for loop in template.find_all(nodes.For):
        if any(_refers(loop.iter, name) for name in conversations):
            if not isinstance(loop.target, nodes.Name):
                return "string"
            messages.add(loop.target.name)
    for loop in _content_loops(template, messages):
        return "openai" if isinstance(loop.target, nodes.Name) else "string"
    return "string"


def _content_loops(template: nodes.Template, messages: set[str]) -> Iterator[nodes.For]:
    in_macro: dict[int, set[str]] = {}
    for macro in template.find_all(nodes.Macro):
        parameters = _content_parameters(template, macro, messages)
        for loop in macro.find_all(nodes.For):
            in_macro.setdefault(id(loop), set()).update(parameters)
    for loop in template.find_all(nodes.For):
        if any(_refers(loop.iter, name, "content") for name in messages):
            yield loop
        elif isinstance(loop.iter, nodes.Name):
            parameters = in_macro.get(id(loop), {"content"})
            if loop.iter.name in parameters:
                yield loop


def _content_parameters(template: nodes.Template, macro: nodes.Macro, messages: set[str]) -> set[str]:
    """Names of the macro's parameters that some call of it fills with a message's content."""
    names = [arg.name for arg in macro.args]
    found: set[str] = set()
    for call in template.find_all(nodes.Call):
        if not isinstance(call.node, nodes.Name) or call.node.name != macro.name:
            continue
        arguments = [*zip(names, call.args, strict=False), *((kw.key, kw.value) for kw in call.kwargs)]
        for name, value in arguments:
            if name in names and any(_refers(value, message, "content") for message in messages):
                found.add(name)
    return found


def _aliases(template: nodes.Template) -> set[str] | None:
    """`messages` and every name assigned from it or from a part of it; None where one is unpacked."""
    found = {"messages"}
    pending = ["messages"]
    while pending:
        name = pending.pop(0)
        for assign in template.find_all(nodes.Assign):
            if not _refers(assign.node, name):
                continue
            if not isinstance(assign.target, nodes.Name):
                return None
            if assign.target.name not in found:
                found.add(assign.target.name)
                pending.append(assign.target.name)
    return found


def _refers(node: nodes.Node | None, name: str, attribute: str | None = None) -> bool:
    """`name`, or `name.attribute`, seen through filters, tests and slices."""
    while isinstance(node, nodes.Filter | nodes.Test | nodes.Getitem):
        if isinstance(node, nodes.Getitem) and not isinstance(node.arg, nodes.Slice):
            break
        node = node.node
    if attribute is not None:
        if isinstance(node, nodes.Getitem):
            if not isinstance(node.arg, nodes.Const) or node.arg.value != attribute:
                return False
        elif not isinstance(node, nodes.Getattr) or node.attr != attribute:
            return False
        node = node.node
    return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == name
