"""`python -m gateway` and the console script `prefix-gateway`."""

from __future__ import annotations

from gateway.cli.main import main

if __name__ == "__main__":
    main()
