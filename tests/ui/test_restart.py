"""A server that ends and is started again: its visitors are told, and lose nothing that they had seen."""

import itertools
import threading
import time
import uuid

from elements import VIEW, state
from on_page import control, set_control, start, wait_for_rounds
from playwright.sync_api import Page, expect
from running import free_port

from specviz.decoding.engine import rounds
from specviz.records.words import words
from specviz.ui.device import PairStore
from specviz.ui.page import build, launch
from specviz.ui.runner import Runner


def status(page: Page):
    return page.locator('specviz-run [part="status"]')


def test_a_restart_is_told_and_keeps_the_run_so_far_and_its_settings(pair, deployment, new_page, monkeypatch):
    gone = threading.Event()

    def until_gone(request):
        yield from itertools.islice(rounds(request), 3)
        while not gone.is_set():
            time.sleep(0.01)
            yield None

    port = free_port()

    def serve():
        # As in a process of its own: components have the numbers of those before, and it has another name.
        monkeypatch.setattr("gradio.context.Context.id", 0)
        monkeypatch.setattr("specviz.ui.components.STARTED", uuid.uuid4().hex)
        runner = Runner(PairStore(deployment, pair), deployment)
        return launch(build(runner), prevent_thread_lock=True, quiet=True, server_port=port)

    monkeypatch.setattr("specviz.decoding.engine.rounds", until_gone)
    server, german, say = serve(), words("de").texts("rounds"), words().texts("rounds")
    # What does not answer, the browser reports in the console.
    first, second = (new_page(heard={"console": lambda message: None}) for _ in range(2))
    for page, path in ((first, ""), (second, "de")):
        page.goto(server.local_url + path)
        page.wait_for_function(f"() => {VIEW}?.recorded")
    set_control(first, "Seed", 7)
    start(first)
    wait_for_rounds(first, 3)
    start(second)
    expect(status(second)).to_contain_text(words("de")("generate.in_line"))
    text = state(first, "text")

    server.close()
    gone.set()  # with a process, its work would end
    expect(status(first)).to_have_text(say["rounds.gone"])
    expect(status(second)).to_have_text(german["rounds.gone"])
    assert state(first, "text") == text

    server = serve()
    first.wait_for_function(f"() => {VIEW}?.state === 'finished' && !{VIEW}.recorded")
    expect(status(first)).to_have_text(say["rounds.broken_off"])
    assert state(first, "text") == text and len(state(first, "rounds")) == 3
    expect(first.locator("#download-trace")).to_be_disabled()
    expect(control(first, "Seed")).to_have_value("7")
    expect(status(second)).to_have_text(german["rounds.place_lost"])
    for page in (first, second):
        expect(page.locator("#go")).to_be_enabled()
    server.close()
