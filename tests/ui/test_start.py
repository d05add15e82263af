"""The page before its pair is there: recorded runs play at once, and what is pressed too early waits visibly."""

import sys
import threading

import pytest
from elements import VIEW, element
from on_page import expect_drafter, set_control, settle, start, state, wait_for_rounds
from playwright.sync_api import expect
from running import PATIENCE
from tiny import tiny_pair

from specviz.__main__ import main
from specviz.drafters.registry import usual
from specviz.models import loading
from specviz.models.pair_passes import Preparation
from specviz.records.assets import EMBEDDED
from specviz.records.errors import SpecvizError
from specviz.records.words import words
from specviz.ui import device, page
from specviz.ui.deployment import Deployment
from specviz.ui.device import PairName, PairStore

SAY = words()


@pytest.fixture
def held(monkeypatch, serve):
    """The page in this process while its pair is still being loaded: address, store, what lets it go on, the loads."""
    monkeypatch.setenv("SPECVIZ_PASSES", "plain")
    go_on, loads = threading.Event(), []

    def load(*asked, **others):
        loads.append(asked)
        assert go_on.wait(PATIENCE)
        pair = tiny_pair("llama", layers=6)
        pair.draft = pair.draft_name = None
        return pair

    monkeypatch.setattr("specviz.models.loading.load_pair", load)
    yield *serve(), go_on, loads
    go_on.set()


def test_a_page_without_its_pair_plays_recorded_runs_and_lets_what_is_pressed_wait(held, new_page):
    url, store, go_on, loads = held
    page = new_page()
    page.goto(url)
    page.wait_for_function(f"() => {VIEW}?.recorded")
    expect(page.locator("#passes")).to_have_text("Loading the models.")
    page.locator("specviz-run").get_by_role("button", name=SAY("playback.play")).click()
    assert state(page, "recorded") and loads == []

    set_control(page, SAY("controls.top_p"), 3)
    page.locator("#go").click()
    expect(page.locator("#more-controls")).to_contain_text("Top-p must be above 0")
    assert loads == [], "what is wrong with a form is said without a pair"
    set_control(page, SAY("controls.top_p"), 1)
    set_control(page, "New tokens", 8)
    page.get_by_label(SAY("page.measured")).uncheck()
    start(page)
    expect(page.locator("specviz-run [part=status]")).to_contain_text(SAY("common.starting"))
    go_on.set()
    settle(page)
    # This pair has no draft model, which stood there when the button was pressed: the run takes what the pair has.
    drafter = usual(store.starting_pair, preparing=False)
    expect(page.locator("specviz-run [part=meta]")).to_contain_text(SAY(f"ways.{drafter}"))
    expect(page.locator("#passes")).to_contain_text(SAY("passes.plain"))
    page.locator("#passes").get_by_role("link", name=SAY("passes.why")).click()  # leads to where the reason stands
    page.get_by_role("button", name=SAY("models.notes")).click()
    expect(page.get_by_text("SPECVIZ_PASSES")).to_be_visible()
    page.get_by_role("tab", name=SAY("generate.tab")).click()
    expect_drafter(page, drafter)
    expect(page.locator(".sv-pair").first).to_contain_text("tiny llama")
    assert len(loads) == 1 and state(page, "text")


def test_a_race_that_is_pressed_before_the_pair_is_there_waits_and_takes_what_the_pair_has(held, new_page):
    url, store, go_on, _ = held
    page = new_page()
    page.goto(url)
    page.wait_for_function(f"() => {VIEW}?.recorded")
    set_control(page, "New tokens", 8)
    start(page, "#start-race")
    view = page.locator("specviz-race")
    expect(view).to_contain_text(SAY("common.starting"))
    go_on.set()
    settle(page)
    expect(view).to_contain_text(SAY(f"ways.{usual(store.starting_pair, preparing=False)}"))
    expect(view).not_to_contain_text("has no")
    assert page.evaluate(f"{element('race')}.state") == "race"


def test_a_link_holds_whatever_tabs_are_opened_before_the_pair_is_there_and_so_does_its_address(held, new_page):
    url, store, go_on, _ = held
    link, say, page = f"{url}de?prompt=Once+upon&drafter=suffix&max_new_tokens=8", words("de"), new_page()
    page.goto(link)
    for name in ("why", "models"):
        page.get_by_role("tab", name=say(f"{name}.tab"), exact=True).click()
        expect(page).to_have_url(f"{link}#{name}")
    go_on.set()
    store.get(PairName())
    expect(page.locator(".sv-prompt textarea")).to_have_value("Once upon")
    wait_for_rounds(page, 1)
    settle(page)
    expect(page).to_have_url(f"{link}#generate")
    text = state(page, "text")
    page.locator("#passes").get_by_role("link", name=say("passes.why")).click()
    expect(page.get_by_role("tab", name=say("models.tab"), exact=True)).to_have_attribute("aria-selected", "true")
    assert page.url == f"{link}#models" and state(page, "text") == text


def test_a_server_of_tools_without_the_package_for_it_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(page, "find_spec", lambda name: None)
    assert main(["serve", "--mcp"]) == 2
    assert capsys.readouterr().err == 'specviz: --mcp: The package mcp is missing: pip install "mcp>=1.21,<2".\n'


@pytest.mark.parametrize(
    "installed, environment, offered", [(True, None, True), (True, "false", None), (False, None, None)]
)
def test_a_page_is_a_server_of_tools_where_nothing_speaks_against_it(monkeypatch, installed, environment, offered):
    monkeypatch.setattr(page, "find_spec", lambda name: name if installed else None)
    monkeypatch.delenv("GRADIO_MCP_SERVER", raising=False)
    if environment is not None:
        monkeypatch.setenv("GRADIO_MCP_SERVER", environment)
    served = {}

    def launch(built, **options):
        served.update(options)
        raise KeyboardInterrupt

    monkeypatch.setattr(page, "build", lambda runner: None)
    monkeypatch.setattr(page, "launch", launch)
    monkeypatch.setattr(page.signal, "signal", lambda *_: None)
    page.serve()
    assert served["mcp_server"] is offered


def test_a_page_ends_though_its_interrupt_comes_in_a_destructor(monkeypatch):
    """Python only prints what is raised there."""

    class Dying:
        def __del__(self):
            page._end()

    class Served:
        closed = False

        def close(self, verbose):
            self.closed = True

    lost, served = [], Served()
    monkeypatch.setattr(page.device, "ending", threading.Event())
    monkeypatch.setattr(sys, "unraisablehook", lost.append)
    dying = [Dying()]
    dying.clear()
    ended = threading.Thread(target=page._until_the_end, args=(served,), daemon=True)
    ended.start()
    ended.join(PATIENCE)
    assert len(lost) == 1 and served.closed


def test_whoever_asks_first_loads_the_pair_and_all_get_the_same(held):
    _, store, go_on, loads = held
    assert not store.is_ready and store.loaded(PairName()) is None
    got = []
    threads = [threading.Thread(target=lambda: got.append(store.get(PairName()))) for _ in range(3)]
    for thread in threads:
        thread.start()
    go_on.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert len(loads) == 1 and len(set(map(id, got))) == 1 and store.is_ready


def test_whoever_sees_the_pair_finds_that_its_passes_are_waited_for(monkeypatch):
    monkeypatch.setattr("specviz.models.loading.load_pair", lambda *asked, **others: tiny_pair("llama"))
    monkeypatch.setattr("specviz.models.preparation.prepare_passes", lambda *asked, **others: Preparation())
    store, seen = PairStore(Deployment.from_environment()), []
    add = store.preparer.add
    monkeypatch.setattr(store.preparer, "add", lambda pair: seen.append(store.is_ready) or add(pair))
    store.get(PairName())
    assert seen == [False] and store.is_ready


def test_a_pair_that_cannot_be_loaded_is_refused_again_and_again(monkeypatch):
    monkeypatch.setenv("SPECVIZ_TARGET", "/no/such/folder")
    store = PairStore(Deployment.from_environment())
    for _ in range(2):
        with pytest.raises(SpecvizError, match="There is no folder"):
            store.get(PairName())


@pytest.mark.parametrize("target", [None, str(EMBEDDED / "target")])
def test_a_page_that_ends_loads_nothing_more(target, monkeypatch):
    """Or else the process would stay until all loads in line are through."""
    monkeypatch.setattr(device, "ending", threading.Event())
    store = PairStore(Deployment.from_environment())
    loads, read = [], loading.find_models
    monkeypatch.setattr(loading, "find_models", lambda *asked: loads.append(asked) or read(*asked))
    device.ending.set()
    with pytest.raises(SpecvizError, match="loads nothing more"):
        store.get(PairName(target))
    assert not loads
