"""The page in a real Chromium: what it shows, how it is used, how it follows the run, and what it never does."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from ops.serve.figures import COLUMNS, ROWS
from store.wire import Manifest, Problem
from tests.ops.browser import CHROMIUM, Tab, browser
from tests.ops.conftest import Scripted
from tests.ops.serving import HARD, MIXED, NEW, NEWEST, SAID, SCRIPT, Served, commit, ids_of, make_run, serving

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: the page was not tested")
DESK, PHONE = (1440, 900), (390, 844)
LIVE = "document.body.dataset.live === 'yes'"
MANY = 100_000


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def text_of(tab: Tab, selector: str) -> str:
    return str(tab.evaluate(f"document.querySelector({selector!r}).innerText"))


def test_the_front_page_is_one_screen_and_asks_nobody_else(tab: Tab, served: Served) -> None:
    tab.look(*DESK)
    tab.asked.clear()
    tab.said.clear()
    tab.open(served.url)
    tab.until(LIVE)
    assert tab.evaluate("document.documentElement.scrollHeight") <= DESK[1]
    assert tab.evaluate("document.documentElement.scrollWidth") <= DESK[0]
    status = " ".join(text_of(tab, "#status").split())
    assert "served running" in status.replace("● ", "")
    assert "step 6/1000 version 6 problems 5 attempted 4 solved 3" in status
    changes = " ".join(text_of(tab, "#changes").split())
    assert f"1 newly solved {MIXED}" in changes
    assert "1 lost again lost" in changes
    assert text_of(tab, "#strips").startswith("reward")
    assert f"actor {SCRIPT}" in text_of(tab, "#actors")
    assert "pass@k" in text_of(tab, "#curve")
    evaluated = " ".join(text_of(tab, "#evaluations").split())
    assert evaluated.startswith("pass@k on held-out problems")
    assert "3 problems, 64 completions of each" in evaluated
    assert tab.evaluate("[...document.querySelectorAll('.evaluations .tick')].map((e) => e.textContent)") == [
        "0", "0.25", "0.5", "0.75", "1", "0", "3", "6", "k = 64", "k = 16", "k = 1",
    ]  # fmt: skip
    heights = "[...document.querySelectorAll('.area-curve .plot')].map((plot) => plot.getBoundingClientRect().height)"
    assert min(tab.evaluate(heights)) > 60
    assert tab.asked
    assert all(url.startswith(served.url) for url in tab.asked)
    assert tab.said == []


@pytest.mark.parametrize("path", ["", "problems", "problem?id=hard"])
def test_on_a_phone_nothing_is_wider_than_the_screen(tab: Tab, served: Served, path: str) -> None:
    tab.look(*PHONE, phone=True)
    tab.open(served.url + path)
    tab.until(LIVE)
    assert tab.evaluate("document.documentElement.scrollWidth") <= PHONE[0]
    overlapping = """[...document.querySelectorAll('.plot-box')].filter((box) => {
        const ticks = [...box.querySelectorAll('.tick.end')].map((tick) => tick.getBoundingClientRect());
        return ticks.some((tick) => tick.left < box.getBoundingClientRect().left - 1);
    }).length"""
    assert tab.evaluate(overlapping) == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", ["", "problem?id=hard"])
def test_text_can_be_read_in_light_and_dark(tab: Tab, served: Served, scheme: str, path: str) -> None:
    tab.look(*DESK, scheme)
    tab.open(served.url + path)
    tab.until(LIVE)
    # The contrast of WCAG 2 between each text's colour and the panel (or page) it stands on.
    faint = """(() => {
      const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
      const light = (colour) => parts(colour).slice(0, 3).map((v) => v / 255)
        .map((v) => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
        .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
      const ground = (e) => {
        while (e) {
          const colour = getComputedStyle(e).backgroundColor;
          if ((parts(colour)[3] ?? 1) === 1) return colour;
          e = e.parentElement;
        }
        return "rgb(255, 255, 255)";
      };
      const texts = [...document.querySelectorAll("body *")].filter((e) =>
        [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()) && e.getClientRects().length
        && e.tagName !== "TITLE" && e.tagName !== "title");
      return texts.map((e) => {
        const style = getComputedStyle(e);
        const [a, b] = [light(e instanceof SVGElement ? style.fill : style.color), light(ground(e))];
        return [(Math.max(a, b) + .05) / (Math.min(a, b) + .05), e.textContent.trim().slice(0, 40)];
      }).filter(([contrast]) => contrast < 4.5);
    })()"""
    assert tab.evaluate(faint) == []


def test_a_click_on_the_map_leads_to_a_problem_and_its_completions(tab: Tab, served: Served) -> None:
    tab.look(*DESK)
    tab.open(served.url)
    tab.until(LIVE)
    cell = tab.evaluate(
        "[...document.querySelectorAll('.map a')].findIndex((link) => link.ariaLabel.includes('<script>'))"
    )
    tab.evaluate(f"document.querySelectorAll('.map a')[{cell}].id = 'wanted'")
    tab.click("#wanted")
    tab.until("location.pathname.endsWith('/problem') && document.readyState === 'complete'")
    assert parse_qs(urlsplit(tab.evaluate("location.href")).query)["id"] == [MIXED]
    assert text_of(tab, "h2") == MIXED
    completions = text_of(tab, ".completions")
    assert completions.count(SAID) == 4
    assert completions.count("correct") == 3
    assert (
        tab.evaluate("[...document.querySelectorAll('.completions .lag1')].map((e) => e.title)")
        == ["tokens 0–6, version 5, lag 1"] * 4
    )
    assert tab.evaluate("document.querySelectorAll('.history circle').length") == 4


def test_the_map_is_walked_with_the_keyboard(tab: Tab, served: Served) -> None:
    tab.look(*DESK)
    tab.open(served.url)
    tab.until(LIVE)
    focused = "document.activeElement.closest('.map') ? document.activeElement.ariaLabel : ''"
    for _ in range(20):
        tab.press("Tab")
        if tab.evaluate(focused):
            break
    first = tab.evaluate(focused)
    assert first, "Tab reaches the map"
    assert tab.evaluate("document.querySelectorAll('.map a[tabindex=\"0\"]').length") == 1
    seen = {first}
    for key in ("ArrowUp", "ArrowLeft", "ArrowUp", "ArrowRight", "ArrowRight", "ArrowDown"):
        tab.press(key)
        seen.add(tab.evaluate(focused))
    assert "" not in seen
    assert len(seen) >= 3
    goal = tab.evaluate("document.activeElement.getAttribute('href')")
    tab.press("Enter")
    tab.until(f"location.pathname.endsWith({'/' + goal.partition('?')[0]!r})")


def test_text_of_strangers_is_shown_and_never_run(tab: Tab, served: Served) -> None:
    tab.look(*DESK)
    for path in ("", "problems", f"problem?id={_quoted(MIXED)}", "problem?id=hard", "problem?id=easy",
                 f"problems?where={_quoted(SCRIPT)}", f"problem?id={_quoted(SCRIPT)}"):  # fmt: skip
        tab.open(served.url + path)
        tab.until("document.readyState === 'complete'")
        assert tab.evaluate("window.pwned === undefined"), path
        assert tab.evaluate("document.querySelectorAll('script:not([src])').length") == 0, path
        assert SCRIPT in tab.evaluate("document.body.textContent"), path


def _quoted(text: str) -> str:
    from urllib.parse import quote

    return quote(text, safe="")


def test_the_page_follows_the_run_without_losing_the_readers_place(
    tab: Tab, tmp_path: Path, scripted: Scripted
) -> None:
    make_run(tmp_path, scripted.model, "followed", store=_same_store(scripted))

    async def more(problem: str, correct: int) -> None:
        store = await scripted.connect("followed")
        try:
            await commit(store, problem, ids_of(scripted.model, "so"), correct, 0)
        finally:
            await store.close()

    asyncio.run(_begin(scripted, "followed", [Problem(f"p{i}", "what?", "exact") for i in range(3)]))
    with serving(tmp_path) as followed:
        tab.look(*DESK)
        tab.open(followed.url)
        tab.until(LIVE)
        assert "attempted\n0" in text_of(tab, "#status")
        tab.evaluate("document.querySelector('#where').focus()")
        tab.send("Input.insertText", text="gate > 0.5")
        asyncio.run(more("p0", 2))
        tab.until("document.querySelector('#status').innerText.includes('attempted\\n1')")
        tab.until("document.querySelectorAll('.map a').length === 2")
        assert tab.evaluate("[document.activeElement.id, document.activeElement.value]") == ["where", "gate > 0.5"]
        cell = "[document.activeElement.dataset.column, document.activeElement.dataset.row]"
        tab.evaluate("document.querySelector('.map a').focus()")
        held = tab.evaluate(cell)
        asyncio.run(more("p1", 2))
        tab.until("document.querySelector('#status').innerText.includes('attempted\\n2')")
        assert tab.evaluate(cell) == held != [None, None]
        tab.open(f"{followed.url}problem?id=p0")
        tab.until(LIVE)
        asyncio.run(more("p0", 4))
        tab.until("document.querySelectorAll('.history circle').length === 2")


def test_a_page_of_a_hundred_thousand_problems_stays_small_and_its_cells_list_what_they_count(
    tab: Tab, tmp_path: Path, scripted: Scripted
) -> None:
    make_run(tmp_path, scripted.model, "many", store=_same_store(scripted))
    asyncio.run(_begin(scripted, "many", [Problem(f"problem-{i}", "what?", "exact") for i in range(MANY)], spread=300))
    with serving(tmp_path) as many:
        page = many.get("")
        assert len(page.content) < 400_000
        assert many.get("api/summary").json()["problems"]["total"] == MANY
        tab.look(*DESK)
        tab.open(many.url)
        tab.until(LIVE)
        cells = tab.evaluate(
            "[...document.querySelectorAll('.map a')].map((a) => [a.ariaLabel, a.getAttribute('href')])"
        )
        assert 5 < len(cells) <= COLUMNS * (ROWS + 1)
        counted = 0
        for label, href in cells:
            words = label.split()
            count = 1 if words[0] == "problem" else int(words[0].replace(",", ""))
            counted += count
            where = parse_qs(urlsplit(href).query).get("where")
            if where:
                assert many.get("api/problems", where=where[0], limit=1).json()["total"] == count, label
        assert counted == MANY
        tab.click(".map a")
        tab.until("document.querySelector('.list tbody tr') !== null")
        assert tab.evaluate("document.querySelectorAll('.list tbody tr').length") == 50


def _same_store(scripted: Scripted) -> dict[str, str]:
    return {"url": scripted.store.url, "password_file": str(scripted.folder / "store" / "password")}


async def _begin(scripted: Scripted, name: str, problems: list[Problem], spread: int = 0) -> None:
    """Open a run; `spread`: groups over the first problems, some of which are visited many times."""
    store = await scripted.connect(name)
    try:
        await store.open_run({"fingerprint": "f", "gamma": "1.0", "group_size": "4"})
        await store.add_problems(problems)
        await store.announce(Manifest(0, str(scripted.model), "00", 1, 0, 0.0))
        ids = ids_of(scripted.model, "so")
        for i in range(spread):
            await commit(store, problems[i % (1 + i % 60)].id, ids, i % 5, 0)
    finally:
        await store.close()


def test_the_newest_version_an_untouched_problem_and_a_group_that_left_have_pages_too(
    tab: Tab, served: Served, scripted: Scripted
) -> None:
    tab.open(f"{served.url}problem?id={HARD}&group={scripted.groups[0]}")
    assert f"Group {scripted.groups[0]} has left the pool" in text_of(tab, "#problem")
    tab.look(*DESK)
    tab.open(f"{served.url}problem?id={NEW}")
    assert "Not attempted yet." in text_of(tab, "#problem")
    tab.open(f"{served.url}?since={NEWEST}")
    assert "0 newly solved" in text_of(tab, "#changes")
