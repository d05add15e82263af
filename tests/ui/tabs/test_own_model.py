"""A model of one's own on the page: from the tab as it stands when it is opened to a run, and back again."""

import json
import re
import threading
from collections.abc import Iterable
from dataclasses import asdict

import gradio as gr
import pytest
from elements import element
from on_page import (
    assert_no_sideways_scrolling,
    choose_drafter,
    control,
    downloaded_trace,
    expect_drafter,
    generate,
    set_control,
    violations,
)
from playwright.sync_api import Page, expect
from running import PATIENCE
from tiny import byte_tokenizer, save_model, tiny_model, tiny_pair
from tiny_gguf import SIZES, write_gguf

from specviz import load_pair
from specviz.drafters.registry import usual
from specviz.models.pair import ModelPair
from specviz.records.prompts import CHAT_PRESETS, PRESETS, TEMPERATURE
from specviz.records.recordings import RECORDINGS
from specviz.records.settings import SamplingParams
from specviz.records.words import words
from specviz.ui.controls import Controls
from specviz.ui.deployment import Deployment
from specviz.ui.device import PairName, PairStore
from specviz.ui.runner import Runner
from specviz.ui.ways import WAYS, lacks, title

SAY = words()

TEMPLATE = "{% for turn in messages %}<{{ turn.role }}>{{ turn.content }}</>{% endfor %}<answer>"

RACE = element("race")


@pytest.fixture
def folder(tmp_path) -> str:
    """A target that answers, alone."""
    model = tiny_model("llama", max_position_embeddings=1024)
    return str(save_model(tmp_path / "parrot", model, byte_tokenizer(chat_template=TEMPLATE)))


def open_tab(page: Page, name: str) -> None:
    page.get_by_role("tab", name=SAY(f"{name}.tab"), exact=True).click()


def load(page: Page, target: str) -> None:
    """With the form as it stands when its tab is opened."""
    open_tab(page, "models")
    page.locator("#load-target textarea, #load-target input").fill(target)
    page.locator("#load-pair").click()


def offered(page: Page) -> list[str]:
    """What the list of drafters says."""
    page.locator("#drafter input").click()
    page.locator("#drafter [role=option]").first.wait_for()
    names = page.locator("#drafter [role=option]").evaluate_all("options => options.map(one => one.ariaLabel)")
    page.locator("#drafter input").blur()
    return names


def titles(missing: Iterable[str] = ()) -> list[str]:
    """What it says for a pair that lacks these."""
    names = {way: title(way, SAY) for way in WAYS}
    return [SAY("controls.lacked", drafter=name) if way in missing else name for way, name in names.items()]


def test_a_large_download_is_asked_for_twice_in_its_place(page):
    open_tab(page, "models")
    card = page.locator(".sv-cards button:enabled").filter(has_text=re.compile(r"\b([2-9]\.\d|\d\d)\sGB to download"))
    card.first.scroll_into_view_if_needed()
    name, place = card.first.inner_text().split("\n")[0], card.first.bounding_box()
    card.first.click()
    asking = page.locator(".sv-cards button").filter(has_text="Press again to download")
    expect(asking).to_contain_text(name)
    assert asking.bounding_box() == place
    expect(page.locator(".block.sv-problem:visible")).to_have_count(0)


def test_a_target_alone_is_loaded_and_run_and_the_page_goes_back_to_its_own_pair(page, folder, tmp_path):
    expect(page.locator(".sv-pair").first).to_contain_text("storybook")
    open_tab(page, "race")
    page.wait_for_function(f"() => {RACE}?.built")
    page.evaluate(f"{RACE}.receive({{kind: 'error', text: 'of the pair before'}})")
    load(page, folder)
    expect(page.locator(".sv-pair").first).to_contain_text("parrot")
    expect(page.locator(".block.sv-pair-status")).to_contain_text("parrot")
    expect(page.locator(".block.sv-loading")).to_contain_text("parrot is in use")
    open_tab(page, "generate")

    # What drafts is what this pair has; all else is marked, with its reason.
    pair = load_pair(folder)
    missing, chosen = lacks(pair, SAY), usual(pair, preparing=False)  # the page keeps to plain passes
    assert {"draft_model", "medusa", "eagle", "mtp"} <= set(missing) and chosen not in missing
    expect_drafter(page, chosen)
    assert offered(page) == titles(missing)
    page.locator(".sv-lacking summary").click()
    for way, (brief, _) in missing.items():
        expect(page.locator(".sv-lacking")).to_contain_text(f"{title(way, SAY)}: {brief}")

    # The recorded run is not this pair's, and says so; what was measured of the pair before is gone.
    foreign = page.locator('specviz-run [part="foreign"]')
    expect(foreign).to_have_text(SAY("rounds.recorded_with", pair="storybook", now="parrot"))
    assert page.evaluate(f"{RACE}.state") != "error"

    # It has a chat template: on, beside the prompt, and legible.
    asked = CHAT_PRESETS[0].prompt
    expect(control(page, "Prompt")).to_have_value(asked)
    expect(page.get_by_label(SAY("controls.chat"))).to_be_checked()
    page.locator(".sv-reading summary").click()
    expect(page.locator(".sv-reading pre")).to_have_text(f"<user>{asked}</><answer>")
    read = pair.encode(asked, chat=True)
    expect(page.locator(".sv-reading summary")).to_contain_text(SAY("common.tokens", n=len(read.ids)))
    page.get_by_role("button", name=SAY("controls.preset_code"), exact=True).click()
    expect(page.locator(".sv-reading pre")).to_contain_text(CHAT_PRESETS[2].prompt)
    assert violations(page, ".sv-controls") == []

    generate(page, new_tokens=6)
    run = downloaded_trace(page, tmp_path)
    assert (run.pair.name, run.drafter, run.prompt.message) == ("parrot", chosen, CHAT_PRESETS[2].prompt)
    expect(foreign).to_be_hidden()
    page.locator("specviz-share .copy").click()
    expect(page.locator("specviz-share .status")).to_contain_text(SAY("share.other_pair", pair="storybook"))

    open_tab(page, "models")
    page.locator("#load-home").click()
    expect(page.locator(".sv-pair").first).to_contain_text("storybook")
    open_tab(page, "generate")
    expect_drafter(page, "draft_model")
    assert offered(page) == titles()
    expect(foreign).to_have_text(SAY("rounds.made_with", pair="parrot", now="storybook"))
    expect(page.get_by_label(SAY("controls.chat"))).to_be_hidden()
    expect(page.locator(".sv-reading")).to_be_hidden()
    expect(control(page, "Prompt")).to_have_value(PRESETS[0].prompt)
    generate(page, new_tokens=4)
    assert downloaded_trace(page, tmp_path).prompt.message is None
    expect(foreign).to_be_hidden()


def test_what_is_wrong_with_a_field_stands_at_it_and_a_gguf_file_is_loaded_asked_and_measured(page, folder, tmp_path):
    problems = page.locator(".block.sv-problem")
    open_tab(page, "models")
    page.locator("[aria-controls=load-advanced]").click()
    for target, more, place, sentence in (
        ("", {}, "#load-target", "Name a target"),
        ("/no/such/folder", {}, "#load-target", "/no/such/folder"),
        (folder, {"draft": "/no/such/draft"}, "#load-draft", "/no/such/draft"),
        (folder, {"draft-vocabulary": "many"}, "#load-draft-vocabulary", "whole number, not 'many'"),
        (folder, {"draft-vocabulary": "64"}, "#load-draft-vocabulary", "Name a draft model too"),
    ):
        for name in ("draft", "draft-vocabulary"):
            page.locator(f"#load-{name} textarea, #load-{name} input").fill(more.get(name, ""))
        load(page, target)
        beside = page.locator(f".column:has({place})").last.locator(".block.sv-problem")
        expect(beside).to_contain_text(sentence)
        expect(problems).to_have_count(1)
        expect(page.get_by_text(sentence).filter(visible=True)).to_have_count(1)  # and is said once
        expect(page.locator("#load-target textarea, #load-target input")).to_have_value(target)
        expect(page.locator(".sv-pair").first).to_contain_text("storybook")
    for name, value in more.items():
        field = page.locator(f"#load-{name} textarea, #load-{name} input")
        expect(field).to_have_value(value)
        field.fill("")

    # Unpacked, with its chat template, and with a speedup in the end (a published one: test_published_model).
    load(page, str(write_gguf(tmp_path / "tiny.gguf", tiny_model("llama", **SIZES))))
    expect(page.locator(".block.sv-pair-status")).to_contain_text("stored as Q8_0")
    open_tab(page, "generate")
    assert titles(["draft_model"])[0] in offered(page)
    expect(page.get_by_label(SAY("controls.chat"))).to_be_checked()
    choose_drafter(page, "prompt_lookup")
    set_control(page, "Temperature (0 is greedy)", 0)
    generate(page, new_tokens=8, measure=True)
    interval = page.locator("specviz-run [part=speedup-interval-long]:visible").filter(has_text=re.compile(r"\d"))
    words_first = page.locator("specviz-run [data-figure=speedup][data-words]")  # where the interval decides nothing
    unknown = page.locator("specviz-run").get_by_text("The speedup's interval runs from")
    expect(interval.or_(words_first).or_(unknown).first).to_be_visible()


def test_what_was_said_of_other_values_is_gone_while_their_memory_is_worked_out(serve, new_page, monkeypatch):
    told = threading.Event()

    def needed(fields, runner, say) -> str:
        if fields["target"] == "second":
            assert told.wait(PATIENCE)
        return f"About {fields['target']}."

    monkeypatch.setattr("specviz.ui.tabs.models.needed", needed)
    url, _ = serve(tiny_pair("llama"))
    page = new_page()
    page.goto(url)
    open_tab(page, "models")
    target, line = page.locator("#load-target textarea, #load-target input"), page.locator("#load-needs")
    for text, said in (("first", "About first."), ("second", ""), (None, "About second.")):
        if text is None:
            told.set()
        else:
            target.fill(text)
            target.blur()
        expect(line).to_have_text(said)


@pytest.fixture(autouse=True)
def plain_passes(monkeypatch):
    monkeypatch.setenv("SPECVIZ_PASSES", "plain")


def recommending(sampling: SamplingParams | None, name: str = "parrot") -> ModelPair:
    return ModelPair.of(tiny_model("llama"), None, byte_tokenizer(), target_name=name, recommended=sampling)


def breaking(text: str) -> str:
    """Without what keeps words together at the end of a line."""
    return text.replace("\N{NO-BREAK SPACE}", " ").replace("\N{NON-BREAKING HYPHEN}", "-")


def test_what_a_model_recommends_is_offered_and_set_only_when_it_is_asked_for(serve, new_page, tmp_path):
    wanted, name = SamplingParams(0.8, 20, 0.95), "<b>parrot</b>"
    url, _ = serve(recommending(wanted, name))
    page = new_page()
    page.goto(url)
    line, use = page.locator("#recommended p"), page.locator("#recommended button")
    expect(use).to_be_visible()
    assert breaking(line.text_content()).startswith(f"{name} recommends temperature 0.8, top-k 20, top-p 0.95.")
    expect(line.locator("b")).to_have_count(0)
    assert violations(page, "#recommended") == []
    generate(page, new_tokens=4)
    assert downloaded_trace(page, tmp_path).sampling == SamplingParams(TEMPERATURE)

    below = "() => document.querySelector('[aria-controls=more-controls]').getBoundingClientRect().top"
    use.scroll_into_view_if_needed()
    place = page.evaluate(below)
    use.click()
    expect(use).to_be_hidden()
    expect(page.locator("#temperature input[type=range]")).to_be_focused()
    assert page.evaluate(below) == place
    generate(page, new_tokens=4)
    assert downloaded_trace(page, tmp_path).sampling == wanted
    set_control(page, SAY("controls.top_k"), 30)
    expect(use).to_be_visible()
    set_control(page, SAY("controls.top_k"), 20)
    expect(use).to_be_hidden()
    assert_no_sideways_scrolling(page)


def test_settings_of_a_run_with_another_pair_apply_but_for_a_drafter_that_this_one_lacks(serve, new_page):
    home = recommending(None)
    page = new_page()
    page.goto(serve(home)[0])
    expect(page.locator(".sv-pair").first).to_contain_text("parrot")
    set_control(page, SAY("controls.seed"), 7)
    page.locator("specviz-share .use").click()  # of the recorded run, which has a draft model
    sentence = lacks(home, SAY)["draft_model"][1]
    expect(page.get_by_test_id("toast-text").filter(has_text=sentence)).to_have_count(1)
    expect(control(page, SAY("controls.seed"))).to_have_value(str(RECORDINGS[0].load().seed))
    expect_drafter(page, usual(home, preparing=False))
    expect(page.locator("#recommended p")).to_be_hidden()


@pytest.mark.parametrize(
    ("sampling", "told"),
    [
        (SamplingParams(0.6, 20, 0.95, 0.05), "Temperatur 0,6, Top-k 20, Top-p 0,95, Min-p 0,05."),
        (SamplingParams(1, 64, 0.95), "Temperatur 1, Top-k 64, Top-p 0,95."),
        (SamplingParams(0), "Temperatur 0."),
        (SamplingParams(2.5), None),  # the control ends before
        (None, None),
    ],
)
def test_what_is_offered_is_said_in_numbers_and_is_what_the_controls_take(sampling, told):
    deployment, pair = Deployment.from_environment(), recommending(sampling)
    with gr.Blocks():
        controls = Controls(Runner(PairStore(deployment, pair), deployment), words("de"))
    changes = controls.suited(PairName(), "suffix", "", keep=True)
    offer = json.loads(changes[controls.recommended])
    assert breaking(offer["text"]) == (f"parrot empfiehlt {told}" if told else "")
    assert offer["settings"] == (asdict(sampling) if told else None)
