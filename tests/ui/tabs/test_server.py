"""The Server tab: a server is watched, timed and tested; what is wrong stands beside the field that caused it."""

import dataclasses
import json
import random
import threading
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest
from on_page import assert_no_sideways_scrolling, violations
from playwright.sync_api import Page, expect
from replayed import recorded
from small_server import Asked, Reply, SmallServer, serving

from specviz.records.runs import Run
from specviz.records.words import words
from specviz.servers.server import Server
from specviz.ui.line import Visit
from specviz.ui.runs import Visitors
from specviz.ui.tabs.server import Asking, Form

SAY = words()
KEY = "sk-nobody-may-see-this"

#: An answer of llama.cpp's with EAGLE drafts: nine passes verified 36 draft tokens, and 22 were accepted.
LINES = [line for line in recorded("llama_cpp_b10434_eagle")[5].lines if line]
COUNTED = {"draft_tokens": 36, "accepted_tokens": 22, "drafts": 9}


class Llama(SmallServer):
    """Answers as the recorded server did, and counts. cut: after how many events its answers break off."""

    def __init__(self, cut: int | None = None):
        self.cut, self.pause = cut, 0.0
        models = {"data": [{"id": "storybook", "owned_by": "llamacpp"}]}
        props = {"build_info": "b10434", "total_slots": 2, "default_generation_settings": {"n_ctx": 512}}
        slots = [{"speculative": True}]
        super().__init__({"/v1/models": Reply.json(models), "/props": Reply.json(props), "/slots": Reply.json(slots)})
        self.replies |= {"/metrics": self.metrics, "/completion": self.completion}

    def metrics(self, asked: Asked) -> Reply:
        answered = sum(one.path == "/completion" for one in self.asked)
        return Reply([f"llamacpp:spec_decode_num_{name}_total {answered * count}\n" for name, count in COUNTED.items()])

    def completion(self, asked: Asked) -> Reply:
        parts: list[str | float | None] = []
        for line in LINES[: self.cut]:
            parts += [line + "\n\n", *([self.pause] if self.pause else [])]
        return Reply([*parts, *([] if self.cut is None else [None])])


@pytest.fixture
def llama():
    with serving(Llama()) as server:
        yield server


@pytest.fixture
def url(monkeypatch, serve) -> str:
    """A page without models."""
    monkeypatch.setenv("SPECVIZ_TARGET", "none")
    return serve()[0]


@pytest.fixture
def visit_tab(url, new_page) -> Callable[..., Page]:
    def open_page(**options: Any) -> Page:
        page = new_page(**options)
        page.goto(url)
        page.get_by_role("tab", name="Server", exact=True).click()
        part(page, "ask-about").wait_for()
        return page

    return open_page


@pytest.fixture
def page(visit_tab) -> Page:
    return visit_tab()


def part(page: Page, name: str):
    return page.locator(f"specviz-server [part={name}]")


def ask(page: Page, what: str, **fields: object) -> None:
    for name, value in fields.items():
        part(page, name).fill(str(value))
    part(page, f"ask-{what}").click()


def shown(page: Page, what: str):
    """Of the run on the screen."""
    return page.evaluate(f"document.querySelector('specviz-server').shadowRoot.querySelector('specviz-run').{what}")


def test_a_server_is_watched_round_by_round_and_its_counters_say_the_same(page, url, llama, tmp_path):
    ask(page, "about", server=llama.url, server_key=KEY)
    expect(part(page, "facts")).to_contain_text("b10434")
    expect(part(page, "facts").locator("[data-fact=slots] dd")).to_have_text("2")
    ask(page, "watch", temperature=0)
    expect(part(page, "watch-status")).to_contain_text("32 tokens")
    expect(part(page, "watch-table").locator("tbody tr").first).to_have_text("passes that verified a draft99")
    expect(part(page, "watch-notes")).to_contain_text(SAY("server.equal"))
    with serving(Llama()) as again:
        known = Server(again.url).run("Once", temperature=0.0)
    rounds = [[len(one["drafted"]), len(one["emitted"])] for one in shown(page, "rounds")]
    assert rounds == [[len(one.drafted), len(one.emitted)] for one in known.rounds]
    assert (shown(page, "text"), shown(page, "missing"), shown(page, "state")) == (known.text, [], "finished")
    # Which draft tokens were rejected nobody knows, and it says so.
    unknown = page.locator('specviz-server specviz-run button.chip[data-outcome="rejected"]').first
    expect(unknown).to_have_attribute("title", SAY("rounds.unknown_token"))
    expect(unknown.locator(".w")).to_have_text("?")
    with page.expect_download() as download:
        part(page, "files").get_by_role("button").first.click()
    download.value.save_as(tmp_path / "trace.json")
    assert Run.load(tmp_path / "trace.json").rounds == known.rounds
    # It is not the page's own run, which others follow.
    assert page.evaluate("() => sessionStorage.getItem('specviz:run')") in (None, "null")
    # The key went to the server, and nowhere else.
    assert llama.asked[-1].headers["authorization"] == f"Bearer {KEY}"
    kept = page.evaluate("() => JSON.stringify([{ ...localStorage }, { ...sessionStorage }, location.href])")
    with urllib.request.urlopen(f"{url}gradio_api/info") as info:
        told = [page.content(), kept, (tmp_path / "trace.json").read_text(), info.read().decode()]
    assert not any(KEY in text for text in told)
    assert violations(page, "specviz-server") == []
    page.set_viewport_size({"width": 390, "height": 844})
    assert_no_sideways_scrolling(page)


#: The parts of a run that are not wholly in the window.
UNSEEN = """() => [...document.querySelector('specviz-server').shadowRoot.querySelector('specviz-run').shadowRoot
  .querySelectorAll('.figures, .text, [part=picture], [part=transport]')]
  .filter((node) => { const { top, bottom } = node.getBoundingClientRect(); return top < 0 || bottom > innerHeight; })
  .map((node) => node.className)"""


def test_the_rounds_of_an_answer_are_shown_one_after_the_other_in_sight(visit_tab, llama):
    page = visit_tab(watches=True, viewport={"width": 1280, "height": 720})
    ask(page, "watch", server=llama.url, temperature=0)
    run = "document.querySelector('specviz-server').shadowRoot.querySelector('specviz-run')"
    page.wait_for_function(f"{run}?.place?.round > 0")
    assert page.evaluate(UNSEEN) == []


def test_what_is_wrong_stands_beside_the_field_that_caused_it(page, llama):
    def refused(field: str, what: str) -> None:
        expect(page.locator(f"specviz-server #problem-{field}")).to_contain_text(what)
        expect(part(page, field)).to_be_focused()
        expect(part(page, field)).to_have_attribute("aria-invalid", "true")
        expect(page.locator("specviz-server .problem:not(:empty)")).to_have_count(1)

    ask(page, "about", server="ftp://here")
    refused("server", "begins with http://")
    ask(page, "watch", server=llama.url, server_model="gpt-9")
    refused("server_model", "has no model named gpt-9")
    ask(page, "watch", server_model="", temperature=-1)
    refused("temperature", "")
    llama.replies["/v1/models"] = Reply.json({"error": "no"}, 401)
    ask(page, "watch", temperature=1, server_key="wrong")
    refused("server_key", "refuses this key")
    assert not any(asked.path == "/completion" for asked in llama.asked)


def test_stop_keeps_the_rounds_and_so_does_a_server_that_breaks_off_and_comes_back(page, llama):
    llama.pause = 0.3
    ask(page, "watch", server=llama.url)
    page.locator("specviz-server specviz-run [data-round='1'] .chip").first.wait_for(state="attached")
    part(page, "stop-watch").press("Enter")
    expect(part(page, "watch-status")).to_contain_text(SAY("server.phase_stopped"))
    expect(part(page, "ask-watch")).to_be_focused()
    assert 2 <= len(shown(page, "rounds")) < 10 and shown(page, "state") == "finished"
    llama.pause, llama.cut = 0.0, 12
    part(page, "ask-watch").click()
    expect(page.locator("specviz-server #problem-server")).to_contain_text("Was it restarted?")
    expect(part(page, "watch-status")).to_contain_text("the rounds so far stay")
    assert 0 < len(shown(page, "rounds")) < 10 and shown(page, "state") == "finished"
    charts = page.locator("specviz-server specviz-charts")
    expect(charts).to_be_visible()
    # Nothing came: neither are there rounds that stay, nor are the charts the last run's.
    llama.cut = 0
    part(page, "ask-watch").click()
    expect(part(page, "watch-status")).to_contain_text("before the first round")
    expect(part(page, "shown")).to_be_hidden()
    expect(charts).to_be_hidden()
    llama.cut = None
    part(page, "ask-watch").click()
    expect(charts).to_be_visible()
    expect(part(page, "watch-status")).to_contain_text("32 tokens")
    expect(page.locator("specviz-server .problem:not(:empty)")).to_have_count(0)


def test_numbers_are_pasted_here_and_links_lead_here(page):
    served = page.locator("specviz-served")
    served.locator("summary").first.click()
    served.locator("[part=field]").fill('{"acceptance_histogram": [1, 1], "num_draft_tokens": 2, "num_spec_tokens": 1}')
    served.locator("[part=read]").click()
    expect(served.locator("[part=summary]")).to_have_text("vLLM: 1 request, 2 target passes that verified a draft.")


def test_a_public_page_offers_its_servers_or_says_that_it_asks_none(alone):
    offer = {"kind": "offer", "fields": {}, "limits": {}, "references": ["server"], "most_tokens": 64}
    for servers, listed in ((["http://one", "http://two"], True), ([], False)):
        page = alone("server")
        page.evaluate("offer => document.querySelector('specviz-server').receive(offer)", offer | {"servers": servers})
        expect(page.locator("specviz-server option").filter(has_text="http://")).to_have_count(len(servers))
        expect(part(page, "closed")).to_be_visible(visible=not listed)
        expect(part(page, "ask-watch")).to_be_visible(visible=listed)
        expect(page.locator("specviz-served")).to_be_visible()


# Without a browser


def answers(asking: Asking, what: str, halt: threading.Event | None = None, **fields: object):
    form = {"server_key": KEY, "server_model": "", "prompt": "Once", "max_new_tokens": 8, "temperature": 1.0}
    form |= {"neutral": True, "plain": "", "reference": "target"} | fields
    for message in asking.answers(what, Form(**form), Visit(None, halt or threading.Event())):
        assert KEY not in message
        yield json.loads(message)


def test_an_address_that_is_not_listed_is_refused(runner, deployment, monkeypatch):
    monkeypatch.setattr(runner, "deployment", dataclasses.replace(deployment, servers=("http://listed",)))
    *_, last = answers(Asking(runner, Visitors(), SAY), "about", server="http://127.0.0.1:1")
    assert last["problem"]["field"] == "server" and "http://listed" in last["problem"]["text"]


def drawing(vocabulary: int) -> Reply:
    """Whole answers of tokens that are all alike probable."""
    chance = random.Random(0)

    def completion(asked: Asked) -> Reply:
        ids = [chance.randrange(vocabulary) for _ in range(asked.body["n_predict"])]
        timings = {"draft_n": 8, "draft_n_accepted": 4, "predicted_ms": 1.0}
        said = {"content": "x" * len(ids), "tokens": ids, "tokens_predicted": len(ids), "timings": timings}
        return Reply.json(said | {"stop": True, "stop_type": "limit"})

    return completion


def test_samples_are_judged_by_the_target_loaded_here_in_the_line_for_it(runner, pair, llama):
    llama.replies["/completion"] = drawing(pair.vocab_size)
    messages, in_line = [], []
    for message in answers(Asking(runner, Visitors(), SAY), "lossless", server=llama.url):
        messages.append(message)
        in_line += runner.line.now(SAY)[0]
    assert set(in_line) == {SAY("server.in_line")} and runner.line.now(SAY)[0] == []
    last = messages[-1]
    assert last["phase"] == "finished" and SAY.translated(last["finding"]).startswith(SAY("server.verdict_differs"))
    assert f"python -m specviz server {llama.url} --only lossless" in last["report"]
    assert any(0 < message.get("fraction", 0) < 1 for message in messages)


def test_speed_is_measured_beside_the_line_and_what_is_measured_stays(runner, llama):
    llama.replies["/completion"] = drawing(9)
    halt = threading.Event()
    with runner.line.joined("generate"):
        for message in answers(Asking(runner, Visitors(), SAY), "speed", halt, server=llama.url):
            if message.get("table"):
                halt.set()
    assert message["phase"] == "stopped" and len(message["table"]["rows"]) >= 1
    assert any("drafted all the same" in note for note in message["notes"])
