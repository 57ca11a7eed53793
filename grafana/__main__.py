"""Writes the dashboards, or says which of those committed are not what the boards say (`--check`)."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from grafana.boards import BOARDS
from grafana.panels import dashboard

FOLDER = Path(__file__).parent / "dashboards"


def texts() -> dict[Path, str]:
    return {
        FOLDER / f"{board.uid}.json": json.dumps(dashboard(board), indent=1, ensure_ascii=False) + "\n"
        for board in BOARDS
    }


def main() -> int:
    wanted = texts()
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    stale += [path for path in FOLDER.glob("*.json") if path not in wanted]
    if "--check" in sys.argv[1:]:
        for path in stale:
            sys.stderr.write(f"{path.name} is not what the boards say: run `python -m grafana`\n")
        return 1 if stale else 0
    FOLDER.mkdir(exist_ok=True)
    for path in stale:
        if path in wanted:
            path.write_text(wanted[path])
        else:
            path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
