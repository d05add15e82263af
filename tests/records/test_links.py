"""Links: a run's settings there and back, and on the page the same run again."""

import json
from urllib.parse import parse_qsl, urlsplit

import pytest
from browser import NETWORK_NAME
from handmade import a_run, rounds_of
from on_page import VIEW, choose_drafter, downloaded_trace, generate, set_control, settle, state
from playwright.sync_api import Page, expect
from tiny import byte_tokenizer, tiny_pair, with_heads

from specviz.decoding.engine import rounds
from specviz.decoding.record import collect
from specviz.decoding.request import prepare
from specviz.models.pair import ModelPair
from specviz.records import links
from specviz.records.runs import Run
from specviz.records.settings import RunSettings
from specviz.records.words import words

TEMPLATE = "{% for message in messages %}<{{ message['content'] }}>{% endfor %}"

#: What is asked for where a test names nothing else.
ASKED = {"prompt": "Once upon", "drafter": "draft_model", "num_draft_tokens": 3, "temperature": 0.8}
ASKED |= {"max_new_tokens": 12, "seed": 5, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


@pytest.fixture(scope="module")
def pair() -> ModelPair:
    pair = with_heads(tiny_pair("llama", layers=3))
    pair.tokenizer = byte_tokenizer(chat_template=TEMPLATE)
    return pair


def opened(query: str):
    return links.settings_of(dict(parse_qsl(query, keep_blank_values=True)))


def carried_out(pair: ModelPair, settings: dict) -> Run:
    """The run that a page with this pair makes of these settings."""
    request = prepare(pair, RunSettings.of(settings))
    return collect(request, list(rounds(request)))


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0},
        {"drafter": "plain", "temperature": 1.3, "top_k": 7},
        {"drafter": "early_exit", "exit_layer": 2, "confidence": 0.05, "branches": 1},
        {"drafter": "quantised_self", "bits": 4, "branches": 1},
        {"drafter": "eagle", "branches": 3, "top_p": 0.9},
        {"drafter": "medusa", "branches": 2, "rule": "typical"},
        {"drafter": "medusa", "branches": 1, "rule": "tree"},
        {"drafter": "lookahead", "branches": 3, "temperature": 0},
        {"drafter": "prompt_lookup", "prompt": "a b a b & c=d # ?\n+%20 é😀 a b"},
        {"rule": "block", "branches": 1, "num_draft_tokens": 6, "min_p": 0.01},
        {"chat": True, "prompt": "Tell\nme"},
        {"num_draft_tokens": "auto", "temperature": 0},
    ],
    ids=lambda settings: settings.get("drafter", "draft_model"),
)
def test_a_link_orders_the_run_it_was_made_from(pair, settings, tmp_path):
    run = carried_out(pair, ASKED | settings)
    asked, errors = opened(links.share(run)["query"])
    assert errors == []
    again = carried_out(pair, asked)
    assert (again.token_ids, again.rule, again.settings) == (run.token_ids, run.rule, run.settings)
    assert again.prompt == run.prompt
    assert links.share(again) == links.share(run)
    run.save(tmp_path / "trace.json")
    assert links.share(Run.load(tmp_path / "trace.json")) == links.share(run)


def test_parameters_are_read_as_what_they_are_and_others_are_somebody_elses():
    settings, errors = opened("temperature=0&seed=7&chat=1&top_p=.5&prompt=&__theme=dark&view=api&Seed=9")
    assert errors == []
    named = {"prompt": "", "temperature": 0.0, "seed": 7, "top_p": 0.5, "chat": True}
    assert settings == links.DEFAULTS | named
    assert [type(settings[name]) for name in ("temperature", "seed", "chat")] == [float, int, bool]
    assert opened("__theme=dark&logs=container") == ({}, [])


@pytest.mark.parametrize(
    "bad",
    ["temperature=hot", "temperature=nan", "min_p=inf", "seed=1.5", "seed=", "seed=99999999999999999999", "chat=maybe"],
)
def test_a_bad_parameter_is_a_sentence_in_both_languages_and_the_others_apply(bad):
    name, _, value = bad.partition("=")
    settings, (error,) = opened(f"{bad}&num_draft_tokens=6")
    assert settings["num_draft_tokens"] == 6 and name not in settings
    english, german = (words(language).error(error) for language in ("en", "de"))
    assert f"{name}={value}" in english and f"{name}={value}" in german and english != german


def test_a_link_holds_what_was_asked_for_and_what_an_address_can(pair):
    query = links.share(carried_out(pair, ASKED | {"drafter": "prompt_lookup", "seed": 0}))["query"]
    stated = "prompt=Once%20upon&drafter=prompt_lookup&num_draft_tokens=3&temperature=0.8&max_new_tokens=12"
    assert query == f"{stated}&seed=0", "a page may start with another seed"
    long, odd = (a_run(rounds_of("a"), prompt=prompt) for prompt in ("word " * 1500, json.loads('"a\\ud800b"')))
    assert links.share(long)["query"] is None and "prompt=a" in links.share(odd)["query"]
    assert links.file_stem(a_run(rounds_of("a"), drafter="../../x <b>")) == "specviz-______x__b_-seed0"


# On the page


def wait_for_own_run(page: Page) -> None:
    page.wait_for_function(f"() => {VIEW}?.recorded === false && {VIEW}.state === 'finished'")
    stop = page.locator("#stop")  # the speedup need not be measured
    if stop.is_visible():
        stop.press("Enter")
    settle(page)


def test_whoever_opens_a_link_sees_the_run_it_was_copied_from(page, visit, tmp_path):
    choose_drafter(page, "eagle")
    set_control(page, "Temperature (0 is greedy)", 0.9)
    set_control(page, "Seed", 3)
    generate(page, new_tokens=16)
    run = downloaded_trace(page, tmp_path)
    set_control(page, "Seed", 4)  # the link is that of the run on the screen, not of the controls
    page.evaluate(f"() => {VIEW}.choose(2, 'next')")
    page.locator("specviz-share .copy").click()
    expect(page.locator("specviz-share .status")).not_to_be_empty()
    box = page.locator("specviz-share .link")
    link = box.input_value()
    assert link.endswith("&round=3&token=next")
    assert box.evaluate("box => box.value.length === box.selectionEnd - box.selectionStart")
    other = visit()
    other.goto(link.replace("/?", "/de?"))
    wait_for_own_run(other)
    assert state(other, "text") == run.text
    again = downloaded_trace(other, tmp_path)
    assert again.token_ids == run.token_ids
    assert links.share(again) == links.share(run)
    assert state(other, "pinned") == {"round": 2, "index": "next"}
    other.goto(link.replace("&round=3", "&round=99"))
    wait_for_own_run(other)
    assert state(other, "pinned") is None
    held = words()("share.no_such_place", n=len(state(other, "rounds")))
    expect(other.locator("specviz-share .status")).to_have_text(held)


def test_presentation_shows_the_link_to_its_round_as_a_qr_code_that_the_page_draws_itself(page):
    def open_code() -> None:
        page.locator('specviz-run [part="present"]').click()
        page.locator('specviz-run [part="qr-button"]').click()

    picture, told = (page.locator(f'specviz-run [part="qr-{part}"]') for part in ("picture", "told"))
    open_code()
    expect(told).to_contain_text("works only on this computer")  # so no phone could follow the code
    assert not picture.get_attribute("src")

    page.goto(page.url.replace("127.0.0.1", NETWORK_NAME))
    page.wait_for_function(f"() => {VIEW}?.share?.query")
    open_code()
    expect(picture).to_be_visible()
    assert picture.evaluate("picture => picture.naturalWidth > 0")
    asked = dict(parse_qsl(urlsplit(picture.get_attribute("src")).query))["text"]
    query = page.evaluate(f"() => {VIEW}.share.query")
    assert asked == f"{page.url}?{query}&round={len(state(page, 'rounds'))}"
    expect(told).to_contain_text("repeated on the phone")
    page.keyboard.press("Escape")
    expect(picture).to_be_hidden()
    page.keyboard.press("Escape")
    expect(page.locator('specviz-run [part="presentation"]')).to_be_hidden()


def test_a_link_that_names_a_tab_leads_back_to_it_after_its_run(page):
    page.goto(f"{page.url}?prompt=Once%20upon&max_new_tokens=9#why")
    wait_for_own_run(page)
    expect(page.locator("specviz-why [part=source]")).to_be_visible()  # of this run


def test_what_is_wrong_with_a_link_is_said_as_text_and_the_rest_applies(page):
    bad = "drafter=%3Cimg%20src%3Dx%20onerror%3Dwindow.pwned%3D1%3E&num_draft_tokens=99&temperature=0"
    page.goto(f"{page.url}?{bad}&seed=x&chat=1&max_new_tokens=5&prompt=Once%20upon")
    wait_for_own_run(page)
    known = (
        "There is no drafter '<img",
        "num_draft_tokens=99, but this page allows 1 to 16",
        "seed=x",
        "a chat template",
    )
    for sentence in known:
        expect(page.get_by_test_id("toast-text").filter(has_text=sentence)).to_have_count(1)
    assert page.evaluate("() => window.pwned") is None
    held = page.evaluate(f"() => {{ const {{ prompt, figures }} = {VIEW}; return [prompt, figures.tokens]; }}")
    assert held == ["Once upon", 5]
    expect(page.locator('specviz-run [part="meta"]')).to_contain_text("greedy")
    page.goto(f"{page.url.partition('?')[0]}?lab=%3Cb%3Ex#lossless")
    expect(page.get_by_test_id("toast-text")).to_contain_text("There is no rule '<b>x' to test.")
    expect(page.locator(".sv-lab-rules input[value=auto]")).to_be_checked()
