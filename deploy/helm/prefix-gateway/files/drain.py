"""preStop of an engine's pod: waits until it answers nobody any more, SECONDS at most.

The gateway leaves a terminating pod out from the moment on that its deletion is known, so what runs here
only gets less. Engines cut running answers short at SIGTERM; this is what lets them end. Standard library
alone: it runs in every engine's image.
"""

import re
import sys
import time
import urllib.request

RUNNING = re.compile(
    r"^(?:vllm:num_requests_(?:running|waiting)|sglang:num_(?:running|queue)_reqs)(?:\{[^}]*\})?\s+(\S+)",
    re.MULTILINE,
)


def busy(metrics: str) -> float:
    """Requests that run or wait, by the engine's own metrics."""
    return sum(float(value) for value in RUNNING.findall(metrics))


def main(url: str, seconds: float, notice: float) -> None:
    """`notice` is how long it takes until every gateway knows that this pod goes."""
    began = time.monotonic()
    time.sleep(min(notice, seconds))
    while time.monotonic() - began < seconds:
        try:
            with urllib.request.urlopen(url, timeout=3) as answer:  # noqa: S310 - our own engine
                if busy(answer.read().decode()) == 0:
                    return
        except OSError:
            return  # it does not answer any more: there is nothing left to wait for
        time.sleep(0.5)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), float(sys.argv[3]) if len(sys.argv) > 3 else 3.0)
