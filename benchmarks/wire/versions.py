"""Versions of the gateway's source: the working tree's, and that of a revision, unpacked elsewhere."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "gateway"


@dataclass(frozen=True, slots=True)
class Commit:
    hash: str
    subject: str

    def __str__(self) -> str:
        return f"{self.hash[:10]} “{self.subject}”"


def commit_of(revision: str, root: Path) -> Commit:
    """Raises ValueError where there is none."""
    if not revision or revision.startswith("-"):
        raise ValueError(f"{revision!r} is no revision")
    try:
        found = _git(root, "rev-parse", "--verify", f"{revision}^{{commit}}").strip()
        subject = _git(root, "log", "-1", "--format=%s", found).strip()
        _git(root, "cat-file", "-e", f"{found}:{PACKAGE}")
    except RuntimeError as error:
        raise ValueError(f"{revision} is no revision with a {PACKAGE} in it: {error}") from None
    return Commit(found, subject)


def changed(root: Path) -> bool:
    """The working tree's gateway is not its commit's."""
    return bool(_git(root, "status", "--porcelain", "--", PACKAGE).strip())


def same(commit: Commit, root: Path) -> bool:
    """The working tree's gateway is that of `commit`."""
    return not changed(root) and not _git(root, "diff", "--name-only", commit.hash, "--", PACKAGE).strip()


def unpacked(commit: Commit, root: Path, folder: Path) -> Path:
    """A folder, made here, with the commit's gateway in it: nothing that git would have to be told of when it
    goes."""
    folder.mkdir()
    packed = folder.with_suffix(".tar")
    _git(root, "archive", f"--output={packed}", commit.hash, PACKAGE)
    subprocess.run(["tar", "-xf", str(packed), "-C", str(folder)], check=True)
    packed.unlink()
    return folder


def copied(root: Path, folder: Path) -> Path:
    """The same of the working tree as it is: who goes on editing changes nothing that is measured."""
    shutil.copytree(root / PACKAGE, folder / PACKAGE, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def _git(root: Path, *words: str) -> str:
    """What it says. Raises RuntimeError with what it complains of."""
    try:
        ran = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise RuntimeError("git is not installed") from None
    if ran.returncode:
        raise RuntimeError(ran.stderr.strip().removeprefix("fatal: ") or f"git {words[0]} failed")
    return ran.stdout
