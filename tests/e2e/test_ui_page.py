"""The live page in a real browser: it shows what the gateway knows, for eyes, keyboards and readers."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from tests.e2e.browser import browser
from tests.e2e.conftest import Fleet, start_fleet

pytestmark = pytest.mark.timeout(700)  # the first run downloads the browser

SECRET = "the code word is heliotrope"
LONG = "The quick brown fox jumps over the lazy dog, again and again and again. " * 6
WAIT_MS = 30_000


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with start_fleet(tmp_path_factory.mktemp("ui")) as made:
        yield made


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as made:
        yield made


@pytest.fixture
def page(fleet: Fleet, chromium: Browser) -> Iterator[Page]:
    with chromium.new_context() as context:
        made = context.new_page()
        faults: list[str] = []
        made.on("pageerror", lambda error: faults.append(str(error)))
        made.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
        made.goto(fleet.admin + "/ui")
        expect(made.locator("#ready")).to_have_text("ready", timeout=WAIT_MS)
        yield made
    assert faults == []  # the content security policy's complaints are among them


def ask(fleet: Fleet, content: str, **fields: object) -> httpx.Response:
    body = {"model": "tiny", "max_tokens": 4, "messages": [{"role": "user", "content": content}], **fields}
    return httpx.post(fleet.url + "/v1/chat/completions", json=body, trust_env=False, timeout=60)


def test_workers_are_those_of_the_admin_port(page: Page, fleet: Fleet) -> None:
    rows = page.locator("#workers tr")
    expect(rows).to_have_count(2)
    assert {row.locator("th").inner_text() for row in rows.all()} == {w["id"] for w in fleet.workers()}
    for row in rows.all():
        expect(row.locator("td").first).to_contain_text("ready")


def test_a_decision_appears_and_is_explained_in_a_click(page: Page, fleet: Fleet) -> None:
    ask(fleet, LONG + SECRET)
    fleet.settle()
    answer = ask(fleet, LONG + SECRET)
    matched = answer.headers["x-gateway-matched-tokens"]
    assert int(matched) > 0
    newest = page.locator("#decisions tr").first
    expect(newest).to_contain_text("match", timeout=WAIT_MS)
    expect(newest.locator("[data-label=Matched]")).to_have_text(matched)
    expect(newest.locator("[data-label=Cached]")).to_have_text(matched)
    expect(newest.locator("[data-label=Worker]")).to_have_text(answer.headers["x-gateway-worker"])
    newest.get_by_role("button").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("nobody holds more of it")
    expect(dialog).to_contain_text("estimated_ttft")
    expect(dialog.locator("tbody tr")).to_have_count(2)
    expect(dialog.locator("tr.chosen")).to_contain_text("chosen: lowest score")
    # prompts are never shown, nor sent
    assert "heliotrope" not in page.content()


def test_prompts_do_not_travel_to_the_page(fleet: Fleet) -> None:
    ask(fleet, SECRET)
    with httpx.stream("GET", fleet.admin + "/ui/live", trust_env=False, timeout=30) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        seen = ""
        for text in stream.iter_text():
            seen += text
            if "event: decisions" in seen and seen.endswith("\n\n"):
                break
    assert "heliotrope" not in seen


def test_rates_and_times_are_those_of_the_traffic(page: Page, fleet: Fleet) -> None:
    ask(fleet, LONG + "cold then warm", stream=True)
    fleet.settle()
    ask(fleet, LONG + "cold then warm", stream=True)
    tiles = page.locator("#tiles li")
    warm = tiles.filter(has_text="TTFT, warm")
    expect(warm).to_contain_text("ms", timeout=WAIT_MS)
    expect(warm).to_contain_text("answers")
    chart = page.locator("#rates svg[role=img]")
    label = chart.get_attribute("aria-label") or ""
    assert label.startswith("Line chart. Latest: reusable ")
    assert "delivered" in label


def test_keyboard_alone_opens_and_closes_an_explanation(page: Page, fleet: Fleet) -> None:
    ask(fleet, "a decision to look at")
    button = page.locator("#decisions tr").first.get_by_role("button")
    expect(button).to_be_visible(timeout=WAIT_MS)
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    page.get_by_role("button", name="Pause").focus()
    page.keyboard.press("Enter")  # paused: rows stay where they are
    expect(page.get_by_role("button", name="Go on")).to_have_attribute("aria-pressed", "true")
    page.keyboard.press("Tab")
    focused = page.locator("#decisions tr button:focus")
    expect(focused).to_have_count(1)
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible(timeout=WAIT_MS)
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    expect(focused).to_have_count(1)  # back where one was


def test_pause_holds_the_rows_and_going_on_brings_what_was_missed(page: Page, fleet: Fleet) -> None:
    ask(fleet, "before the pause")
    rows = page.locator("#decisions tr")
    newest = f"Explain decision {fleet.metric('gateway_requests_total'):.0f}"
    expect(page.get_by_role("button", name=newest, exact=True)).to_be_visible(timeout=WAIT_MS)
    page.get_by_role("button", name="Pause").click()
    before = rows.count()
    number = rows.first.get_by_role("button").get_attribute("aria-label")
    ask(fleet, "during the pause")
    page.wait_for_function("waiting.length > 0", timeout=WAIT_MS)
    assert rows.count() == before
    assert rows.first.get_by_role("button").get_attribute("aria-label") == number
    page.get_by_role("button", name="Go on").click()
    expect(rows).to_have_count(before + 1)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
def test_axe_finds_no_fault(fleet: Fleet, chromium: Browser, scheme: str, width: int) -> None:
    ask(fleet, LONG + "for axe")
    with chromium.new_context(
        color_scheme="dark" if scheme == "dark" else "light", viewport={"width": width, "height": 800},
        bypass_csp=True,
    ) as context:  # fmt: skip
        page = context.new_page()
        page.goto(fleet.admin + "/ui")
        button = page.locator("#decisions tr").first.get_by_role("button")
        expect(button).to_be_visible(timeout=WAIT_MS)
        page.get_by_role("button", name="Pause").click()
        found = Axe().run(page).response["violations"]
        button.click()
        expect(page.get_by_role("dialog")).to_be_visible()
        found += Axe().run(page).response["violations"]
        # nothing sticks out to the side
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert [(v["id"], [n["html"] for n in v["nodes"]][:3]) for v in found] == []


def test_nothing_comes_from_elsewhere(fleet: Fleet, chromium: Browser) -> None:
    asked: list[str] = []
    with chromium.new_context() as context:
        page = context.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.goto(fleet.admin + "/ui")
        expect(page.locator("#ready")).to_have_text("ready", timeout=WAIT_MS)
    outside = [url for url in asked if not url.startswith((fleet.admin + "/", "data:"))]
    assert outside == []
    assert len(asked) >= 4


def test_an_open_page_does_not_hold_up_a_shutdown(tmp_path_factory: pytest.TempPathFactory) -> None:
    with start_fleet(tmp_path_factory.mktemp("closing"), workers=1) as fleet:
        with httpx.stream("GET", fleet.admin + "/ui/live", trust_env=False, timeout=60) as stream:
            texts = stream.iter_text()
            assert "event: state" in next(texts)
            fleet.process.send_signal(2)
            for _ in texts:
                pass  # ends by itself
        assert fleet.process.wait(60) == 0
