"""docs/configuration.md has every setting as it is; each setting says what it means."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from gateway.cli.main import cli
from gateway.reload import LIVE
from gateway.settings import Settings

PAGE = Path(__file__).resolve().parents[2] / "docs" / "configuration.md"


def test_the_page_is_what_the_command_prints() -> None:
    printed = CliRunner().invoke(cli, ["settings", "--markdown"]).output
    text = PAGE.read_text(encoding="utf-8")
    table = text[text.index("| setting |") :]
    assert table == printed, "run `prefix-gateway settings --markdown` and put it into docs/configuration.md"


def test_every_setting_has_its_meaning() -> None:
    assert [name for name, field in Settings.model_fields.items() if not field.description] == []
    assert set(Settings.model_fields) >= LIVE
