"""Our Dockerfile as `make image-steps` reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.deploy.dockerfile import Copy, Run, Stage, read
from tests.deploy.tools import ROOT


def test_stages_steps_and_settings(tmp_path: Path) -> None:
    file = tmp_path / "Dockerfile"
    file.write_text("""\
# a comment
ARG BASE=debian:12
FROM ${BASE} AS build
ENV A=1 B="two words"
WORKDIR /src
ARG MODEL=
COPY one two lists/
RUN if [ "${MODEL}" = x ]; then \\
      echo $A; \\
    # inside
    fi
FROM ${BASE}
COPY --from=build /opt/x /opt/x
ENV PATH=/opt/x/bin:${PATH}
LABEL a="b"
USER 7:8
EXPOSE 80 81
HEALTHCHECK --interval=1s CMD ["true"]
ENTRYPOINT ["x"]
CMD ["serve", "--host", "0.0.0.0"]
""")
    build, last = read(file, {"MODEL": "x"})
    env = {"A": "1", "B": "two words", "MODEL": "x"}
    assert build.steps == [
        Copy(("one", "two"), "/src/lists/", None),
        Run('if [ "${MODEL}" = x ]; then  echo $A;  fi', env, "/src"),
    ]
    assert (build.base, build.name, build.user) == ("debian:12", "build", "0:0")
    assert last == Stage(
        "debian:12", None, [Copy(("/opt/x",), "/opt/x", "build")], {"PATH": "/opt/x/bin:${PATH}"}, "/", "7:8",
        ["x"], ["serve", "--host", "0.0.0.0"], ["true"], "SIGTERM", (80, 81),
    )  # fmt: skip


def test_what_it_does_not_know_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "Dockerfile"
    for line in ("ADD x y", "COPY --chown=1 x y", "VOLUME /x"):
        file.write_text(f"FROM a\n{line}\n")
        with pytest.raises(ValueError, match="not understood"):
            read(file)


def test_ours_is_read_whole() -> None:
    build, last = read(ROOT / "deploy" / "Dockerfile", {"MODEL": "smollm2"})
    runs = [step for step in build.steps if isinstance(step, Run)]
    pip = "/opt/prefix-gateway/bin/pip"
    assert [step.command.split()[0] for step in runs] == ["python", pip, "if", pip]
    assert runs[2].env["MODEL"] == "smollm2"
    assert (last.user, last.workdir, last.ports) == ("10001:10001", last.env["HOME"], (8080, 8081))
    assert [*last.entrypoint, *last.command] == ["prefix-gateway", "serve", "--host", "0.0.0.0"]
