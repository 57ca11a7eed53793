"""The live page of a running gateway as pictures, in headless Chromium."""

from __future__ import annotations

from pathlib import Path

import httpx
from playwright.sync_api import Browser, Page, ViewportSize, expect

from tests.e2e.browser import browser
from tests.ports import free_port

WAIT_MS = 60_000
_DESK: ViewportSize = {"width": 1280, "height": 1250}
_PHONE: ViewportSize = {"width": 390, "height": 844}


def page_pictures(admin: str, folder: Path) -> None:
    """`live-{light,dark,phone,explain}.png` of the gateway whose admin port is at `admin`."""
    with browser() as chromium:
        _taken(chromium, admin, folder / "live-light.png", "light", _DESK)
        _taken(chromium, admin, folder / "live-dark.png", "dark", _DESK)
        _taken(chromium, admin, folder / "live-phone.png", "light", _PHONE)
        with chromium.new_context(color_scheme="light", viewport=_DESK) as context:
            _explained(_opened(context.new_page(), admin), folder / "live-explain.png")


def advice_picture(admin: str, folder: Path) -> None:
    """`live-advice.png`: that gateway is told of a worker that does not exist, for its doctor to find, and
    told to forget it."""
    with browser() as chromium, chromium.new_context(color_scheme="light", viewport=_DESK) as context:
        _advised(_opened(context.new_page(), admin), admin, folder / "live-advice.png")


def _opened(page: Page, admin: str) -> Page:
    page.goto(admin + "/ui")
    expect(page.locator("#ready")).to_have_text("ready", timeout=WAIT_MS)
    expect(page.locator("#decisions tr").nth(20)).to_be_attached(timeout=WAIT_MS)
    # rows stand still, and charts are drawn
    expect(page.locator("#ttft svg[role=img]")).to_be_attached(timeout=WAIT_MS)
    page.get_by_role("button", name="Pause").click()
    return page


def _taken(chromium: Browser, admin: str, file: Path, scheme: str, size: ViewportSize) -> None:
    with chromium.new_context(color_scheme="dark" if scheme == "dark" else "light", viewport=size) as context:
        _opened(context.new_page(), admin).screenshot(path=file)


def _explained(page: Page, file: Path) -> None:
    """Of the newest decision that went by a match."""
    row = page.locator("#decisions tr").filter(has_text="match").first
    row.get_by_role("button").click()
    expect(page.get_by_role("dialog").locator("tbody tr")).to_have_count(2, timeout=WAIT_MS)
    page.screenshot(path=file)


def _advised(page: Page, admin: str, file: Path) -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    with httpx.Client(base_url=admin, trust_env=False, timeout=30) as http:
        http.post("/admin/workers", json={"url": nobody}).raise_for_status()
        try:
            page.get_by_role("button", name="Examine the fleet").click()
            expect(page.locator("[data-finding=worker-down]")).to_contain_text(nobody, timeout=WAIT_MS)
        finally:
            http.delete("/admin/workers", params={"id": nobody}).raise_for_status()
    page.get_by_role("combobox", name="Model", exact=True).fill("qwen2-7b")
    page.get_by_role("combobox", name="GPU", exact=True).select_option("l4")
    page.get_by_role("button", name="Plan", exact=True).click()
    expect(page.locator("#plan-result")).to_be_visible(timeout=WAIT_MS)
    # both sections, as one picture
    page.evaluate(
        "document.querySelector('main').replaceChildren(...document.querySelectorAll("
        "'section:has(#doctor-title), section:has(#plan-title)')); document.querySelector('header').remove()"
    )
    page.screenshot(path=file, full_page=True)
