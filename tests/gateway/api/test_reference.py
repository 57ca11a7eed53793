"""The admin port's API page: every call there is, and nothing from outside."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from pydantic import BaseModel, Field

from gateway.api.reference import add_reference, described

pytestmark = pytest.mark.anyio


class Weight(BaseModel):
    id: str = Field(description="as <listed>")
    weight: float = 1.5
    notes: dict[str, list[int]] | None = None


def make() -> FastAPI:
    app = FastAPI(title="a fleet", version="7", docs_url=None, redoc_url=None)
    add_reference(app)

    @app.post("/weight", tags=["fleet"])
    async def weigh(change: Weight, dry: bool = False) -> Weight:
        """Its speed."""
        return change

    return app


class Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, str]] = []
        self.ids: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            if name in ("href", "src") and value is not None:
                self.found.append((tag, value))
            if name == "id" and value is not None:
                self.ids.append(value)


async def page(app: Any) -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        return await client.get("/docs")


async def test_the_page_has_calls_parameters_and_fields() -> None:
    answer = await page(make())
    assert answer.status_code == 200
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", answer.text))
    assert "a fleet 7" in text
    assert "POST /weight Its speed. parameter type default meaning dry boolean false" in text
    assert "body Weight 200 Successful Response: Weight 422" in text
    assert "id string required as &lt;listed&gt;" in text
    assert "weight number 1.5" in text
    assert "notes map of list of integer or null" in text


async def test_it_loads_nothing_from_elsewhere_and_runs_nothing() -> None:
    answer = await page(make())
    links = Links()
    links.feed(answer.text)
    assert "script" not in links.tags
    assert {value for tag, value in links.found if tag == "link"} == {"data:,", "ui/page.css"}
    inner = {value for tag, value in links.found if tag == "a"} - {"openapi.json"}
    assert inner <= {f"#{name}" for name in links.ids}
    assert len(links.ids) == len(set(links.ids))
    assert answer.headers["content-security-policy"].startswith("default-src 'none'; style-src 'self';")


def test_a_document_by_tags() -> None:
    groups = described(make().openapi())["groups"]
    assert {tag: [call["call"] for call in calls] for tag, calls in groups.items()} == {
        "fleet": ["POST /weight"]
    }
