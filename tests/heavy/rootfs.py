"""Carries out a Dockerfile's steps without a container engine: folders for file systems, `chroot` and a mount
namespace for each step. Needs root, Debian's `debootstrap`, and util-linux.

What differs from an image: the base is a fresh Debian with Debian's own Python of the same minor version.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from packaging.markers import Marker

from tests.debian import CACHE, program
from tests.deploy.dockerfile import Copy, Run, Stage

MIRROR = os.environ.get("DEBIAN_MIRROR", "http://deb.debian.org/debian")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
WHEELS = "/wheels"


def debian(suite: str) -> Path:
    """A minimal Debian with Python, made once."""
    made = CACHE / f"{suite}-python"
    if made.exists():
        return made
    tool = program("debootstrap", "debootstrap", folder="usr/sbin", alone=True)["debootstrap"]
    scripts = tool.path.parents[1] / "share" / "debootstrap"
    part = CACHE / f"{suite}-python.part"
    shutil.rmtree(part, ignore_errors=True)
    packages = "python3,python3-venv,python-is-python3"
    subprocess.run(
        [str(tool.path), "--variant=minbase", f"--include={packages}", suite, str(part), MIRROR],
        check=True, stdout=subprocess.DEVNULL, timeout=1200,
        env={**os.environ, "DEBOOTSTRAP_DIR": str(scripts)},
    )  # fmt: skip
    # the host's stands in its place; and copying /dev/zero would not end
    shutil.rmtree(part / "dev")
    (part / "dev").mkdir()
    part.rename(made)
    return made


def wheels(requirements: Sequence[Path], base: Path, folder: Path) -> None:
    """What the build will install, fetched and checked here: the build itself gets no network."""
    # markers are judged for the Python in there, which is another one than ours
    python = subprocess.run(
        ["chroot", str(base), "python", "-c", "import platform; print(platform.python_version())"],
        check=True, capture_output=True, text=True,
    ).stdout.strip()  # fmt: skip
    wanted = folder / "requirements.txt"
    wanted.write_text(_chosen("\n".join(path.read_text() for path in requirements), python))
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--require-hashes",
         "--no-deps", "--only-binary=:all:", "--python-version", python, "-r", str(wanted),
         "-d", str(folder)],
        check=True, timeout=1200,
    )  # fmt: skip


def _chosen(locked: str, python: str) -> str:
    """The requirements whose markers hold, without their markers."""
    environment = {"python_full_version": python, "python_version": ".".join(python.split(".")[:2])}
    lines = []
    for line in locked.replace("\\\n", " ").splitlines():
        requirement, hashes, digests = line.partition(" --hash")
        name, semicolon, marker = requirement.partition(";")
        if not semicolon or Marker(marker).evaluate(environment):
            lines.append(name + hashes + digests)
    return "\n".join(lines)


def build(
    stage: Stage, base: Path, root: Path, context: Path, offered: Path, others: Mapping[str, Path]
) -> None:
    """`root` becomes the stage's file system. `others`: those of earlier stages, by name."""
    subprocess.run(["cp", "--archive", "--one-file-system", str(base), str(root)], check=True, timeout=600)
    for step in stage.steps:
        if isinstance(step, Copy):
            _copy(step, root, context if step.stage is None else others[step.stage])
        else:
            _run(step, root, offered)


def _copy(step: Copy, root: Path, source: Path) -> None:
    target = root / step.target.lstrip("/")
    for name in step.sources:
        found = source / name.lstrip("/")
        if found.is_dir():
            # a folder's content, without what .dockerignore leaves out
            leave = shutil.ignore_patterns("__pycache__", "*.pyc") if step.stage is None else None
            shutil.copytree(found, target, symlinks=True, ignore=leave, dirs_exist_ok=True)
        else:
            inside = target / found.name if step.target.endswith("/") else target
            inside.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(found, inside)


def _run(step: Run, root: Path, offered: Path) -> None:
    (root / step.workdir.lstrip("/")).mkdir(parents=True, exist_ok=True)
    (root / WHEELS.lstrip("/")).mkdir(exist_ok=True)
    env = {"PATH": PATH, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": WHEELS, **step.env}
    mounts = [*_mounts(root), f"mount --bind {_q(offered)} {_q(root)}{WHEELS}"]
    command = f"cd {shlex.quote(step.workdir)} && {step.command}"
    subprocess.run(
        ["unshare", "--mount", "--net", "sh", "-ec", "\n".join([*mounts, 'exec "$@"']), "sh",
         "chroot", str(root), "env", "-i", *(f"{k}={v}" for k, v in env.items()), "/bin/sh", "-c", command],
        check=True, timeout=1200, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    (root / WHEELS.lstrip("/")).rmdir()


def container(stage: Stage, root: Path, argv: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """A command line that runs `argv` as a container of this image would: as its user, without capabilities,
    its root read-only but for /tmp. It stays one process: signals reach the program."""
    user, _, group = stage.user.partition(":")
    path = stage.env["PATH"].replace("${PATH}", PATH)
    given = {**stage.env, "PATH": path, **env}
    mounts = [
        *_mounts(root),
        f"mount -t tmpfs -o mode=1777 tmpfs {_q(root / 'tmp')}",
        # not the submounts above: they have modes of their own
        f"mount -o remount,ro,bind {_q(root)}",
    ]
    return [
        "unshare", "--mount", "sh", "-ec", "\n".join([*mounts, 'exec "$@"']), "sh",
        "chroot", str(root), "setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups",
        "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all", "env", "-i", "-C", stage.workdir,
        *(f"{key}={value}" for key, value in given.items()), *argv,
    ]  # fmt: skip


def _mounts(root: Path) -> list[str]:
    """In a namespace of their own: they are gone with the last process in it."""
    return [
        "mount --make-rprivate /",
        f"mount --bind {_q(root)} {_q(root)}",
        f"mount -t proc proc {_q(root)}/proc",
        f"mount --rbind /dev {_q(root)}/dev",
    ]


def _q(path: Path) -> str:
    return shlex.quote(str(path))
