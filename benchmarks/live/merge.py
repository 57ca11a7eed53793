"""Several runs' results as one: `python -m benchmarks.live.merge OUT.json IN.json …`, medians anew."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click

from benchmarks.asked import OutputFile
from benchmarks.ending import in_one_line, write
from benchmarks.live.report import Row, check_page, into_page, markdown, medians


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


@click.command()
@click.argument("out", type=OutputFile())
@click.argument(
    "parts", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.option("--page", type=click.Path(exists=True, path_type=Path), help="Put the tables into it.")
@in_one_line("nothing was written")
def main(out: Path, parts: tuple[Path, ...], page: Path | None) -> None:
    """Write what PARTS say together to OUT."""
    try:
        document = merged([json.loads(part.read_text()) for part in parts])
        if page is not None:
            check_page(page)
    except (ValueError, KeyError) as error:
        raise click.UsageError(f"these cannot become one: {error}") from None
    table = markdown(document["medians"])
    write(out, json.dumps(document, indent=1) + "\n")
    if page is not None:
        into_page(page, table)
    click.echo(table)


if __name__ == "__main__":
    main()
