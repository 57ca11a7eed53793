"""`make pictures`: those of docs/images, of fleets that are started for it.

    python -m tests.e2e.pictures FOLDER [MINUTES]

Two simulated engines behind two replicas (one of two processes) that share through a Valkey; chats over one
system prompt, strangers, forms of which half is new, mistakes, clients that leave; a rush, and an engine that
dies and comes back. Boards are drawn from what a real Prometheus saw of it, the live page is photographed in
a browser, and a fleet of a hundred workers gets the board of workers once more.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from grafana.boards.workers import WORKERS
from grafana.pictures import draw
from grafana.source import Source
from tests.e2e.hundred import hundred
from tests.e2e.page_pictures import advice_picture, page_pictures
from tests.e2e.watched import CLIENTS, Kind, Traffic, Watched, watched
from workers.model.resolve import locate_model

ENGINE = "sim:500us-per-token,15ms-per-step,num_blocks=1600"
"""A cold prompt of 1,000 tokens takes half a second, a warm one a tenth of it; 25,600 tokens of cache fill
up soon."""
KIND = Kind(system=3, stranger=1000)
"""Of traffic that shares as chatbots' does: a thousand tokens of instructions in front of each chat."""
RUSH_CLIENTS = 9


def _lived_through(fleet: Watched, minutes: float, images: Path) -> None:
    """A fifth of the time each: calm, a rush, calm, an engine less, calm. The live page is photographed while
    all is well."""
    fifth = 60 * minutes / 5
    time.sleep(fifth)
    with _more(fleet, RUSH_CLIENTS, first=2 * CLIENTS):
        time.sleep(fifth)
    time.sleep(fifth)
    print("the live page", flush=True)
    page_pictures(fleet.replicas[0].admin, images)
    fleet.site.kill(fleet.engines[0].process)
    time.sleep(fifth)
    fleet.site.restart(fleet.engines[0])
    fleet.site.wait(*fleet.replicas, workers=2)
    time.sleep(fifth)


@contextmanager
def _more(fleet: Watched, clients: int, first: int) -> Iterator[None]:
    traffic = Traffic(fleet.replicas, KIND)
    traffic.start(clients, first)
    try:
        yield
    finally:
        traffic.stop()


def main() -> int:
    if len(sys.argv) not in (2, 3):
        sys.stderr.write(f"{__doc__}\n")
        return 2
    images, minutes = Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) == 3 else 5.0
    images.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        tokenizer = f"sim={locate_model('tiny')}"  # whose the simulated engines speak
        with (
            watched(folder / "two", ENGINE, (1, 2), ("--tokenizer", tokenizer), KIND) as fleet,
            _more(fleet, CLIENTS, first=CLIENTS),
        ):
            # before the time that boards show: nothing of its third worker is in them
            advice_picture(fleet.replicas[0].admin, images)
            print(f"five spells of traffic, {minutes:g} minutes", flush=True)
            began = time.monotonic()
            _lived_through(fleet, minutes, images)
            draw(Source(fleet.prometheus.url, (time.monotonic() - began) / 60), images)
        print("a hundred workers, two minutes", flush=True)
        with hundred(folder / "hundred") as watcher:
            time.sleep(90)
            draw(Source(watcher.url, 2), folder, [WORKERS])
            (folder / f"{WORKERS.uid}.png").replace(images / f"{WORKERS.uid}-100.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
