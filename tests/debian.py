"""Programs of Debian packages, unpacked into `.cache/debian` where the machine does not have them installed.

Needs `apt-get` with its lists (`apt-get update`), and no root.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache" / "debian"


@dataclass(frozen=True)
class Program:
    path: Path
    env: dict[str, str] = field(default_factory=dict)
    """What it needs beside the environment of the tests."""


def program(package: str, *names: str, folder: str = "usr/bin", alone: bool = False) -> dict[str, Program]:
    """The programs `names` of `package`, with the libraries that this machine lacks. `folder` is where they
    lie in it; one that needs no libraries comes `alone`."""
    installed = {name: shutil.which(name) for name in names}
    if all(installed.values()):
        return {name: Program(Path(str(path))) for name, path in installed.items()}
    root = CACHE / package
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{package}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # test processes side by side unpack once
        if not root.exists():
            _unpack(package, root, alone)
    libraries = sorted({str(library.parent) for library in root.rglob("*.so*")})
    env = {"LD_LIBRARY_PATH": ":".join(libraries)} if libraries else {}
    return {name: Program(root / folder / name, env) for name in names}


def _unpack(package: str, root: Path, alone: bool) -> None:
    download = CACHE / f"{package}.download"
    part = CACHE / f"{package}.part"
    for folder in (download, part):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
    wanted = [package, *([] if alone else _missing(package))]
    subprocess.run(
        ["apt-get", "download", "-qq", *dict.fromkeys(wanted)], cwd=download, check=True, timeout=600
    )
    for archive in download.glob("*.deb"):
        subprocess.run(["dpkg", "-x", str(archive), str(part)], check=True, timeout=120)
    shutil.rmtree(download)
    part.rename(root)


def _missing(package: str) -> list[str]:
    """Packages that installing it would bring along."""
    plan = subprocess.run(
        ["apt-get", "install", "--simulate", "--no-install-recommends", package],
        capture_output=True, text=True, timeout=120, env={**os.environ, "LC_ALL": "C"},
    )  # fmt: skip
    return re.findall(r"^Inst (\S+)", plan.stdout, re.MULTILINE)
