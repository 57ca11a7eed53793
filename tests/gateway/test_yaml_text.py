"""Files that people write: what is wrong is said by its line, and nothing of a secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.yaml_text import Document, Malformed, parse, read


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: 1\nb: 2\n'a': 3", "line 3: 'a' stands here again, after line 1"),
        ("keys: [{x: 1, x: 2}]", "line 1: 'x' stands here again, after line 1"),
        ("a: 1\nx: 2026-13-01", "line 2: what stands there is not a date"),
        ("x: !!bool hunter2", "line 1: what stands there is not true or false"),
        ("x: " + "9" * 5000, "line 1: what stands there is not a whole number"),
        (
            "a:\n  [1",
            "line 2: not YAML: while parsing a flow sequence, expected ',' or ']', but got '<stream end>'",
        ),
        ("x: *hunter2", "line 1: not YAML: found undefined alias …"),
        ("x: !hunter2 y", "line 1: not YAML: could not determine a constructor for the tag …"),
        ("a: 1\nb: \x07", "line 2: not YAML: a character that no text has"),
        ("[" * 3000, "not YAML: nested too deep"),
    ],
)
def test_what_is_wrong_is_said_by_its_line(text: str, says: str) -> None:
    with pytest.raises(Malformed) as error:
        parse(text)
    assert str(error.value) == says


def test_names_that_an_anchor_brings_in_may_be_said_anew() -> None:
    text = "first: &first {x: 1, y: 2}\nsecond: &second\n  <<: *first\n  x: 3\nthird: {<<: *second, z: 4}"
    assert parse(text).value["second"] == {"x": 3, "y": 2}


def test_lines_of_the_outermost_names() -> None:
    assert parse("# of mine\na: {b: 1}\n\nc-d: 2").lines == {"a": 2, "c-d": 4}
    assert parse("# nothing\n") == Document(None, {})


def test_other_encodings_are_named_as_such(tmp_path: Path) -> None:
    file = tmp_path / "file.yaml"
    file.write_bytes("a: 1\nb: häuser".encode("latin-1"))
    with pytest.raises(Malformed, match="line 2: not UTF-8"):
        read(file)
    file.write_bytes("a: häuser".encode("utf-8-sig"))  # as editors on Windows save it
    assert read(file).value == {"a": "häuser"}
