"""Several runs' results as one: `python -m benchmarks.live.merge OUT.json IN.json …`, medians anew."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.live.report import Row, markdown, medians


def merged(documents: Sequence[Row]) -> Row:
    """Rows one after another. Raises ValueError where they were not made on the same kind of machine, with as
    many engines and the same seed."""
    first = documents[0]
    for other in documents[1:]:
        for name in ("machine", "engines", "seed"):
            if other[name] != first[name]:
                raise ValueError(f"{name} differs: {first[name]} and {other[name]}")
    rows = [row for document in documents for row in document["rows"]]
    workloads = {name: about for document in documents for name, about in document["workloads"].items()}
    return {**first, "workloads": workloads, "medians": medians(rows), "rows": rows}


def main(out: Path, *parts: Path) -> None:
    document = merged([json.loads(part.read_text()) for part in parts])
    out.write_text(json.dumps(document, indent=1) + "\n")
    out.with_suffix(".md").write_text(markdown(document["medians"]))


if __name__ == "__main__":
    main(*(Path(argument) for argument in sys.argv[1:]))
