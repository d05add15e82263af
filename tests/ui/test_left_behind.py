"""What visitors leave behind goes once nobody can ask for it any more: a page may be up for months."""

import dataclasses
import tempfile

import gradio as gr
import pytest
from gradio_client import Client
from tiny import tiny_pair

from specviz.decoding.engine import rounds
from specviz.decoding.request import prepare
from specviz.records.recordings import RECORDINGS
from specviz.records.settings import RunSettings
from specviz.records.words import words
from specviz.ui import page as page_module
from specviz.ui import shown_runs
from specviz.ui.deployment import NO_MODELS, Deployment
from specviz.ui.files import ResultPage, RunFiles
from specviz.ui.line import Recent
from specviz.ui.page import build, launch
from specviz.ui.pairs import PairStore
from specviz.ui.runner import Runner
from specviz.ui.shown_runs import LiveRuns


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where temporary files go."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def made(folder):
    return sorted(path.name for path in folder.glob("specviz-*/*"))


def test_a_run_has_its_files_for_as_long_as_it_is_kept(folder):
    runs, pair = LiveRuns(most=2), tiny_pair("llama")
    for seed in range(5):
        live = runs.open(prepare(pair, RunSettings("Once", seed=seed, max_new_tokens=4)), "me", words())
        live.add(list(rounds(live.request)))
        live.files = RunFiles(live.run(), live.say)
        del live
    kept = [one.files.trace.stem for one in runs.runs.values()]
    assert made(folder) == sorted(f"{stem}{suffix}" for stem in kept for suffix in RunFiles.SUFFIXES)


def test_so_do_results_and_opened_runs(folder, monkeypatch):
    results = Recent(2)
    for session in "abc":
        results[session] = ResultPage("race", session)
    assert "a" not in results and made(folder) == ["specviz-race.html"] * 2
    results["c"] = ResultPage("race", "again")
    assert results["c"].file.read_text() == "again" and made(folder) == ["specviz-race.html"] * 2
    del results
    monkeypatch.setattr(shown_runs, "_OPENED", type(shown_runs._OPENED)(maxlen=1))
    for recording in RECORDINGS[:2]:
        offered = shown_runs.offered(dataclasses.replace(recording.load()), words())
    assert sorted(offered[at].value["orig_name"] for at in range(3)) == made(folder)


def test_gradio_is_asked_to_remove_its_copies_after_a_day():
    deployment = dataclasses.replace(Deployment.from_environment(), target=NO_MODELS)
    page = build(Runner(PairStore(deployment), deployment))
    assert page.delete_cache == (3_600, 86_400)


def test_only_the_latest_visitors_are_remembered_and_the_others_are_served_all_the_same(monkeypatch):
    monkeypatch.setattr(page_module, "REMEMBERED", 2)
    with gr.Blocks() as page:
        gr.Button().click(lambda: "served", None, gr.Textbox(), api_name="ask")
    launch(page, prevent_thread_lock=True, quiet=True)
    visitors = [Client(page.local_url, verbose=False) for _ in range(4)]
    for visitor in (*visitors, visitors[0]):
        assert visitor.predict(api_name="/ask") == "served"
    assert list(page.state_holder.session_data) == [visitors[3].session_hash, visitors[0].session_hash]
    page.close()
