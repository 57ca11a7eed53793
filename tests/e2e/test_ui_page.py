"""The live page in a real browser: it shows what the gateway knows, for eyes, keyboards and readers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from tests.e2e.browser import browser
from tests.e2e.conftest import Fleet, start_fleet, wait_until

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
    # a refused plan is no fault of the page
    faults = [fault for fault in faults if "status of 400" not in fault]
    assert faults == []  # the content security policy's complaints are among them


def ask(fleet: Fleet, content: str, **fields: object) -> httpx.Response:
    body = {"model": "tiny", "max_tokens": 4, "messages": [{"role": "user", "content": content}], **fields}
    return httpx.post(fleet.url + "/v1/chat/completions", json=body, trust_env=False, timeout=60)


@pytest.fixture
def dead_worker(fleet: Fleet, free_port: Callable[[], int]) -> Iterator[str]:
    """One that the fleet is told of, and that does not exist."""
    url = f"http://127.0.0.1:{free_port()}"
    answer = httpx.post(fleet.admin + "/admin/workers", json={"url": url}, trust_env=False, timeout=30)
    assert answer.status_code == 201, answer.text
    yield url
    remove(fleet, url)


def remove(fleet: Fleet, worker: str) -> None:
    httpx.delete(fleet.admin + "/admin/workers", params={"id": worker}, trust_env=False, timeout=30)


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


OF_EACH_SHARE = re.compile(r"Latest: cold .+, partial [0-9.]+ m?s, warm [0-9.]+ m?s\.")


def test_rates_and_times_are_those_of_the_traffic(page: Page, fleet: Fleet) -> None:
    ask(fleet, LONG + "cold then warm", stream=True)
    fleet.settle()
    ask(fleet, LONG + "cold then warm", stream=True)
    ask(fleet, LONG + "of which the end is new. " * 40, stream=True)
    tiles = page.locator("#tiles li")
    for share in ("warm", "partial"):
        tile = tiles.filter(has_text=f"TTFT, {share}")
        expect(tile).to_contain_text("ms", timeout=WAIT_MS)
        expect(tile).to_contain_text("answers")
    drawn = page.locator("#ttft svg[role=img]")
    expect(drawn).to_have_attribute("aria-label", OF_EACH_SHARE, timeout=WAIT_MS)
    chart = page.locator("#rates svg[role=img]")
    label = chart.get_attribute("aria-label") or ""
    assert label.startswith("Line chart. Latest: reusable ")
    assert "delivered" in label


def test_keyboard_alone_opens_and_closes_an_explanation(page: Page, fleet: Fleet) -> None:
    ask(fleet, "a decision to look at")
    button = page.locator("#decisions tr").first.get_by_role("button")
    expect(button).to_be_visible(timeout=WAIT_MS)
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the fleet")).to_be_focused()
    page.get_by_role("button", name="Pause").focus()
    page.keyboard.press("Enter")  # paused: rows stay where they are
    expect(page.get_by_role("button", name="Go on")).to_have_attribute("aria-pressed", "true")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip the decisions")).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.get_by_role("region", name="The last decisions")).to_be_focused()
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
    wait_until(lambda: bool(page.evaluate("waiting.length > 0")), what="a decision held back")
    assert rows.count() == before
    assert rows.first.get_by_role("button").get_attribute("aria-label") == number
    page.get_by_role("button", name="Go on").click()
    expect(rows).to_have_count(before + 1)


def test_the_doctor_finds_a_dead_worker_and_then_nothing(page: Page, fleet: Fleet, dead_worker: str) -> None:
    button = page.get_by_role("button", name="Examine the fleet")
    status = page.locator("#doctor-status")
    button.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("progressbar", name="Watched so far")).to_be_visible()
    expect(status).to_have_text("2 findings (3 engines, 5 s, 21 rules).", timeout=WAIT_MS)
    expect(page.locator("#doctor-progress")).to_be_hidden()
    expect(button).to_be_focused()
    found = page.locator("[data-finding=worker-down]")
    expect(found.get_by_role("heading")).to_contain_text(dead_worker)
    expect(found.get_by_role("list", name="Evidence")).to_contain_text("state: ")
    expect(found).to_contain_text("no request is sent to this worker")
    expect(found).to_contain_text("confidence 90 %")
    expect(found.get_by_role("list", name="Remedy")).to_contain_text("read the engine's log")
    expect(found).to_contain_text("docs/runbooks/worker-down.md")
    remove(fleet, dead_worker)
    button.click()
    expect(status).to_have_text("Nothing ails this fleet (2 engines, 5 s, 21 rules).", timeout=WAIT_MS)
    expect(page.locator("#findings li")).to_have_count(0)


def test_a_plan_and_its_refusal(page: Page) -> None:
    expect(page.get_by_role("combobox", name="GPU", exact=True)).to_have_value("t4", timeout=WAIT_MS)
    page.get_by_role("combobox", name="Model", exact=True).fill("qwen2-7b")
    page.get_by_role("combobox", name="GPU", exact=True).select_option("a100-80")
    page.get_by_label("Concurrent requests").fill("10")
    page.keyboard.press("Enter")
    figures = page.locator("#plan-figures")
    # 2 × 28 layers × 4 heads × 128 × 2 bytes; 16 tokens a block: 917,504 bytes
    expect(figures).to_contain_text("56 KiB (57,344 bytes), fp16", timeout=WAIT_MS)
    expect(figures).to_contain_text("896 KiB (16 tokens)")
    expect(page.locator("#plan-vllm")).to_contain_text("--max-model-len ")
    expect(page.locator("#plan-status")).to_have_text("qwen2-7b (GQA) on 1 GPU NVIDIA A100 80GB SXM.")
    # one byte an element
    page.get_by_role("combobox", name="K/V precision").select_option("fp8")
    page.get_by_role("button", name="Plan", exact=True).click()
    expect(figures).to_contain_text("28 KiB (28,672 bytes), fp8", timeout=WAIT_MS)
    page.get_by_role("combobox", name="Model", exact=True).fill("no-such-model")
    page.get_by_role("button", name="Plan", exact=True).click()
    expect(page.locator("#plan-refusal")).to_contain_text("no model 'no-such-model'", timeout=WAIT_MS)
    expect(page.locator("#plan-result")).to_be_hidden()
    expect(page.get_by_role("combobox", name="Model", exact=True)).to_be_focused()
    expect(page.get_by_role("combobox", name="Model", exact=True)).to_have_attribute("aria-invalid", "true")
    # 70 billion weights of 2 bytes, on 24 GB: how many it takes is said
    page.get_by_role("combobox", name="Model", exact=True).fill("llama-3.1-70b")
    page.get_by_role("combobox", name="GPU", exact=True).select_option("l4")
    page.get_by_label("Tensor parallel").fill("1")
    page.get_by_role("button", name="Plan", exact=True).click()
    expect(page.locator("#plan-refusal")).to_contain_text("It needs 8 of them", timeout=WAIT_MS)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
def test_axe_finds_no_fault(
    fleet: Fleet, chromium: Browser, dead_worker: str, scheme: str, width: int
) -> None:
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
        page.get_by_role("button", name="Examine the fleet").click()
        page.get_by_role("combobox", name="Model", exact=True).fill("qwen2-7b")
        page.get_by_role("combobox", name="GPU", exact=True).select_option("h100")
        page.get_by_role("button", name="Plan", exact=True).click()
        expect(page.locator("#plan-result")).to_be_visible(timeout=WAIT_MS)
        expect(page.locator("[data-finding=worker-down]")).to_contain_text(dead_worker, timeout=WAIT_MS)
        found = Axe().run(page).response["violations"]
        button.click()
        expect(page.get_by_role("dialog")).to_be_visible()
        found += Axe().run(page).response["violations"]
        # nothing sticks out to the side
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert [(v["id"], [n["html"] for n in v["nodes"]][:3]) for v in found] == []


@pytest.mark.parametrize("width", [1280, 320])
def test_tables_stay_tables_and_the_keyboard_walks_down_the_page(
    fleet: Fleet, chromium: Browser, width: int
) -> None:
    """320 px: 1280 at four times the size. What the browser itself tells screen readers, not the markup."""
    ask(fleet, "a row to look at")
    with chromium.new_context(viewport={"width": width, "height": 800}) as context:
        page = context.new_page()
        page.goto(fleet.admin + "/ui")
        expect(page.locator("#decisions tr").first).to_be_visible(timeout=WAIT_MS)
        page.get_by_role("button", name="Pause").click()
        nodes = context.new_cdp_session(page).send("Accessibility.getFullAXTree")["nodes"]
        roles = [node["role"]["value"] for node in nodes if not node.get("ignored")]
        rows = page.locator("#workers tr").count() + page.locator("#decisions tr").count()
        assert (roles.count("table"), roles.count("row"), roles.count("columnheader")) == (2, rows + 2, 7 + 9)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        stops = ("a", "button", "select", "input", "[tabindex='0']")
        focusable = page.locator(", ".join(f"{stop}:visible" for stop in stops)).count()
        where = (
            "(e => [[...document.querySelectorAll('*')].indexOf(e), getComputedStyle(e).outlineStyle])"
            "(document.activeElement)"
        )
        page.locator(".skip").first.focus()
        walked = []
        for _ in range(focusable - 1):
            page.keyboard.press("Tab")
            walked.append(page.evaluate(where))
        places, outlines = zip(*walked, strict=True)
        assert list(places) == sorted(set(places))  # each once, in the order of the page
        assert set(outlines) == {"solid"}  # and one sees where one is


@pytest.mark.parametrize("width", [1280, 390])
def test_many_decisions_are_in_nobody_s_way(fleet: Fleet, chromium: Browser, width: int) -> None:
    for number in range(52):
        ask(fleet, f"one of many, {number}", max_tokens=1)
    with chromium.new_context(viewport={"width": width, "height": 800}) as context:
        page = context.new_page()
        page.goto(fleet.admin + "/ui")
        expect(page.locator("#decisions tr")).to_have_count(50, timeout=WAIT_MS)
        page.get_by_role("button", name="Pause").click()
        # the page is as long as with a dozen of them; the rest is scrolled to, by keys as well
        region = page.get_by_role("region", name="The last decisions")
        assert page.evaluate("document.documentElement.scrollHeight") < 5000
        assert region.evaluate("e => e.scrollHeight > 2 * e.clientHeight")
        region.focus()
        page.keyboard.press("End")
        wait_until(lambda: region.evaluate("e => e.scrollTop") > 1000, 30, "the end of the decisions")
        # two keys from the button above to what comes behind
        page.get_by_role("button", name="Go on").focus()
        page.keyboard.press("Tab")
        expect(page.get_by_role("link", name="Skip the decisions")).to_be_in_viewport()
        page.keyboard.press("Enter")
        page.keyboard.press("Tab")
        expect(page.get_by_role("combobox", name="Watch for")).to_be_focused()


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
