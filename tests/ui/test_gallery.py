"""Recorded runs, their files, and the page without a model."""

import json
import pathlib
import shutil
from dataclasses import replace

import pandas as pd
import pytest
from elements import give
from gradio_client import Client
from gradio_client.exceptions import AppError
from handmade import a_run, a_tree, rounds_of
from on_page import VIEW, assert_no_sideways_scrolling, order, state, wait_until_drawn
from playwright.sync_api import Page, expect
from running import ROOT, running_app
from tiny import tiny_pair

from specviz.records.errors import SpecvizError
from specviz.records.metrics import tally
from specviz.records.recordings import RECORDINGS, TRACES
from specviz.records.runs import Run, Speedup
from specviz.records.tables import rounds_table, save_table, tokens_table
from specviz.records.words import LANGUAGES, words
from specviz.ui.deployment import Deployment
from specviz.ui.device import PairName, PairStore
from specviz.ui.downloads import SUFFIXES
from specviz.ui.runs import show
from specviz.views.pages import run_page
from tools.recorder import record

MOST_BYTES = 150_000

BY_NAME = {recording.name: recording for recording in RECORDINGS}


# The files


@pytest.mark.parametrize("recording", RECORDINGS, ids=BY_NAME)
def test_a_recording_is_a_whole_run_of_the_embedded_pair(recording):
    run = recording.load()
    assert recording.path.stat().st_size < MOST_BYTES
    assert len(run.token_ids) == run.max_new_tokens and run.stop_reason == "length"
    assert run.pair.name == "storybook" and run.pair.dtype == "float32"


def test_every_shipped_trace_is_a_recording_with_words_in_every_language():
    assert {path.stem for path in TRACES.glob("*")} == set(BY_NAME)
    for language in LANGUAGES:
        for name in BY_NAME:
            assert words(language)(f"traces.{name}_title") and words(language)(f"traces.{name}_about")


def test_a_measured_speedup_and_an_opened_files_name_are_shown_with_their_run_until_another_comes(alone, tmp_path):
    machine, name = "<b>Xeon</b> ${window.hit = 1}", "<i>3b</i> ${window.hit = 1}.json"
    run = replace(BY_NAME["sampled"].load(), measured=Speedup(1.5, machine, 1.42, 1.58))
    run.save(tmp_path / "run.json")
    assert Run.load(tmp_path / "run.json") == run
    page = alone("run")
    figure = page.locator("specviz-run [part=figures] .figure", has=page.locator("[data-figure=speedup]"))
    meta, source = page.locator("specviz-run [part=meta]"), page.locator("specviz-run [part=recorded]")
    give(page, "run", [show(run, BY_NAME["sampled"]).message])
    expect(figure).to_contain_text("1.50×")
    expect(page.locator("specviz-run [part=speedup-interval-long]")).to_have_text("1.42 to 1.58, 90 %")
    expect(meta).to_contain_text(f"speedup measured on {machine}")
    expect(source).to_have_text("Recorded run: Guess, check, correct")
    # Of a run that was not measured none is told.
    give(page, "run", [show(replace(run, measured=None), None, name).message])
    expect(figure).to_contain_text("—")
    expect(meta).not_to_contain_text("Xeon")
    expect(source).to_have_text(f"Opened: {name}")
    give(page, "run", [show(run, None).message])
    expect(source).to_be_hidden()
    assert page.evaluate("window.hit ?? null") is None


def test_the_recordings_show_what_their_cards_say_and_are_measured_when_they_are_made():
    run = record(BY_NAME["lookup"], tiny_pair("llama"))
    assert run.measured.low < run.measured.ratio < run.measured.high and run.measured.machine
    runs = {name: recording.load() for name, recording in BY_NAME.items()}
    #: A word a round, a letter a draft token.
    outcomes = {
        name: ["".join(token.outcome[0] for token in one.drafted) for one in run.rounds] for name, run in runs.items()
    }
    assert outcomes["sampled"][0].startswith("ar")
    assert all(token.u is None for one in runs["greedy"].rounds for token in one.drafted)
    assert outcomes["lookup"].count("aaaaaa") > 2
    drafts = [one.drafted for one in runs["hybrid"].rounds if one.drafted]
    assert {draft[0].source.split()[0] for draft in drafts} == {"match", "step"}
    first = runs["tree"].rounds[0].drafted
    assert (first[0].outcome, first[1].outcome) == ("rejected", "accepted") and first[0].parent == first[1].parent
    assert runs["block"].rule == "block"
    at_once = [sum(word[place] == "a" for word in outcomes["at_once"] if len(word) == 4) for place in range(4)]
    assert at_once[0] > at_once[1] > at_once[2] > at_once[3]
    assert sum(word.startswith("r") for word in outcomes["mismatch"]) >= len(outcomes["mismatch"]) / 2
    assert tally(runs["mismatch"].rounds).acceptance_rate < tally(runs["sampled"].rounds).acceptance_rate


def test_the_table_of_a_run_reads_back_as_the_trace(tmp_path):
    tree = a_run((a_tree((-1, -1, 0, 1), 0, seed=3, sources=("head 1", "head 1", "head 2", "head 2")),))
    hostile = a_run(rounds_of("aa", texts=('a "b", c\n', "=1+1", "é😀,;\t")))
    for run in (BY_NAME["sampled"].load(), tree, hostile):
        save_table(run, tmp_path / "table.csv")
        read = pd.read_csv(tmp_path / "table.csv", dtype=str, keep_default_na=False)
        exact = tokens_table(run).map(lambda value: "" if pd.isna(value) else str(value))
        pd.testing.assert_frame_equal(read, exact, check_dtype=False)
    plain = a_run(rounds_of("", ""))
    save_table(plain, tmp_path / "plain.csv")
    assert len(pd.read_csv(tmp_path / "plain.csv")) == len(rounds_table(plain)) == 2


# The page


def wait_for_recording(page: Page, name: str) -> None:
    text = BY_NAME[name].load().text
    page.wait_for_function(f"text => {VIEW}?.recorded && {VIEW}.text === text", arg=text)
    wait_until_drawn(page)


def saved(page: Page, press, folder: pathlib.Path) -> pathlib.Path:
    with page.expect_download() as download:
        press()
    path = folder / download.value.suggested_filename
    download.value.save_as(path)
    return path


def test_an_embedded_page_shows_the_recording_of_its_link_and_nothing_around_it(new_page, page_url):
    page = new_page(viewport={"width": 390, "height": 844})
    page.goto(f"{page_url}de?recording=tree&round=3&token=2&embed=1")
    wait_for_recording(page, "tree")
    page.wait_for_function(f"() => {VIEW}.pinned")
    assert state(page, "pinned") == {"round": 2, "index": 1}
    expect(page.locator("[data-chart='1'] .bars")).to_be_attached()
    for hidden in ("#go", "#download-trace", "specviz-gallery", "specviz-tour", "[role=tab]", "footer"):
        expect(page.locator(hidden).first).to_be_hidden()
    assert_no_sideways_scrolling(page)


def test_the_page_opens_with_a_recorded_run_and_every_file_of_any_recording_is_what_it_claims(visit, tmp_path):
    page = visit(color_scheme="dark")
    page.locator("#passes.sv-passes-plain").wait_for()  # it has asked what it asks, and has no reason to ask again
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.reload()
    wait_for_recording(page, RECORDINGS[0].name)
    # One small request is the head's, which asks what the passes are; none waits in line for the models.
    assert sum("/gradio_api/run/" in url for url in asked) <= 1 and not any("/queue/" in url for url in asked)
    run = RECORDINGS[0].load()
    assert [one["index"] for one in state(page, "rounds")] == [one.index for one in run.rounds]
    assert state(page, "figures")["acceptance_rate"] == tally(run.rounds).acceptance_rate
    expect(page.locator('specviz-run [part="recorded"]')).to_contain_text("Recorded run")
    bars = page.wait_for_function("document.querySelectorAll('[data-chart]')[1]?.data?.[0].y").json_value()
    assert bars == [len(one.emitted) for one in run.rounds] and page.evaluate("scrollY") == 0

    page.locator('specviz-gallery [data-name="lookup"]').click()
    wait_for_recording(page, "lookup")
    expect(page.locator('specviz-gallery [aria-pressed="true"]')).to_have_attribute("data-name", "lookup")
    run = BY_NAME["lookup"].load()
    # The buttons follow the view.
    expect(page.get_by_role("button", name="Download the trace")).to_be_enabled()
    trace = saved(page, page.get_by_role("button", name="Download the trace").click, tmp_path)
    assert Run.load(trace) == run
    table = saved(page, page.get_by_role("button", name="Table (CSV)").click, tmp_path)
    assert len(pd.read_csv(table)) == len(tokens_table(run))
    html = saved(page, page.get_by_role("button", name="Download as a page").click, tmp_path)
    assert html.read_text(encoding="utf-8") == run_page(run)
    for format, magic in (("png", b"\x89PNG\r\n\x1a\n"), ("svg", b"<svg ")):
        path = saved(page, page.locator(f'.sv-chart-files [data-format="{format}"]').nth(1).click, tmp_path)
        assert path.name == f"specviz-prompt_lookup-seed0-tokens-per-pass.{format}"
        assert path.read_bytes().startswith(magic)
    # A picture from a dark page has the dark ground written into it.
    svg = path.read_text()
    ground = svg.split("fill: rgb(", 1)[1].split(")", 1)[0]
    assert max(map(int, ground.split(","))) < 64 and "var(--" not in svg
    assert {trace.name, html.name, table.name} == {f"specviz-prompt_lookup-seed0{suffix}" for suffix in SUFFIXES}


# Without models


@pytest.fixture(scope="module")
def viewer(tmp_path_factory: pytest.TempPathFactory):
    """The address of an app whose models are not there."""
    root, kept = tmp_path_factory.mktemp("bare"), tmp_path_factory.mktemp("viewer")
    shutil.copy(ROOT / "app.py", root)
    shutil.copytree(ROOT / "specviz", root / "specviz", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "assets", root / "assets", ignore=shutil.ignore_patterns("models", "screenshots"))
    with running_app(root, kept) as url:
        yield url


def test_traces_and_recordings_open_where_no_model_is(viewer, new_page, monkeypatch):
    page = new_page()
    page.goto(viewer)
    wait_for_recording(page, RECORDINGS[0].name)
    expect(page.locator(".sv-warning").first).to_contain_text("This page's models are missing")
    assert page.locator("#go, #start-race, #start-compare").count() == 0
    page.locator('specviz-gallery [data-name="tree"]').click()
    wait_for_recording(page, "tree")
    run = a_run(rounds_of("aaa", "ard"))
    buffer = json.dumps(run.to_dict()).encode()
    chooser = page.locator('input[type=file][accept=".json"]')
    chooser.set_input_files({"name": "trace.json", "mimeType": "application/json", "buffer": buffer})
    page.wait_for_function(f"text => {VIEW}.text === text", arg=run.text)
    page.locator('specviz-run button[data-outcome="rejected"]').click()
    expect(page.get_by_role("region", name="Picture of the round")).to_contain_text("w2")
    page.get_by_role("tab", name="Race", exact=True).click()
    expect(page.get_by_text("This needs a model, and this page has none.").first).to_be_visible()
    with pytest.raises(AppError, match="no models"):
        order(Client(viewer, verbose=False))
    # So it is where a page is told to load none.
    monkeypatch.setenv("SPECVIZ_TARGET", "none")
    store = PairStore(Deployment.from_environment())
    with pytest.raises(SpecvizError, match="no models"):
        store.get(PairName())
    assert not store.has_models
