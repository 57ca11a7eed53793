from __future__ import annotations

from pathlib import Path

from benchmarks.wire.__main__ import play
from benchmarks.wire.bench import Figures
from benchmarks.wire.dynamo import FASTOKENS, NAME, dynamo
from benchmarks.wire.routers import Part, Router, missing


def installed(folder: Path) -> Path:
    python = folder / "dynamo/bin/python"
    python.parent.mkdir(parents=True)
    python.touch()
    (folder / "dynamo/lib/python3.11/site-packages/dynamo/mocker").mkdir(parents=True)
    return folder


def test_two_kinds_of_workers_make_one_row(tmp_path: Path) -> None:
    """A chunk's cost needs workers that pace; a first byte behind those would wait for their steps."""
    paced, fast, *others = dynamo(installed(tmp_path / "peers"), 8080, tmp_path)
    assert paced.name == fast.name == NAME
    assert [(each.name, each.parts) for each in others] == [(FASTOKENS, paced.parts), (FASTOKENS, fast.parts)]
    assert (paced.parts, fast.parts) == ((Part.CHUNK,), (Part.JSON, Part.FIRST, Part.RATE))
    assert ["--decode-speedup-ratio" in router.beside[0] for router in (paced, fast)] == [True, False]
    assert paced.command == fast.command
    model = Path(fast.beside[0][fast.beside[0].index("--model-path") + 1])
    assert {"config.json", "tokenizer.json", "chat_template.jinja"} <= {file.name for file in model.iterdir()}
    assert "dynamo" not in missing([paced, fast])


def test_a_runtime_without_its_frontend_is_not_the_peer(tmp_path: Path) -> None:
    assert dynamo(tmp_path, 8080, tmp_path) == []
    assert "dynamo" in missing([])


class Scripted:
    """A bench on which a router called by ``bad`` does not start."""

    def measure(self, router: Router | None, known: Figures | None = None) -> Figures:
        if router is None:
            return {"idle": 0.0}
        if router.command == ["bad"]:
            raise RuntimeError("it ended")
        return {**(known or {}), router.parts[0]: 1.0}


def test_a_row_is_all_of_its_parts_or_none() -> None:
    whole = [Router("a", ["good"], parts=(part,)) for part in (Part.CHUNK, Part.JSON)]
    torn = [Router("b", [command], parts=(Part.CHUNK,)) for command in ("bad", "good")]
    late = [Router("c", [command], parts=(Part.CHUNK,)) for command in ("good", "bad")]
    (rows,) = play(Scripted(), [*whole, *torn, *late], 1)
    assert rows == {"direct": {"idle": 0.0}, "a": {"chunk": 1.0, "json": 1.0}}
