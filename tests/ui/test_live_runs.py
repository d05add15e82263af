"""What is kept of a run: for the press that it came of, with what ended it, until nobody can ask for it any more."""

import dataclasses
import json
import pathlib
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor

import gradio as gr
import pytest
from gradio_client import Client
from tiny import tiny_pair

from specviz.bench.duel import Duel
from specviz.decoding.engine import rounds
from specviz.decoding.request import prepare
from specviz.records.errors import SpecvizError
from specviz.records.recordings import RECORDINGS
from specviz.records.settings import RunSettings
from specviz.records.words import words
from specviz.theory.statistics import Ratio
from specviz.ui import downloads
from specviz.ui import page as page_module
from specviz.ui.deployment import NO_MODELS, Deployment
from specviz.ui.device import PairName, PairStore
from specviz.ui.downloads import SUFFIXES, result_page, run_files
from specviz.ui.line import Recent, Stops, Visit
from specviz.ui.orders import Order
from specviz.ui.page import build, launch
from specviz.ui.runner import Runner
from specviz.ui.runs import LiveRuns
from specviz.ui.supposing import supposed_round
from specviz.ui.tabs import generate as generate_tab
from specviz.ui.tabs.generate import bring_back, generate

ORDER = Order(PairName(), RunSettings("Once upon", num_draft_tokens=3, max_new_tokens=12, seed=5))


def press() -> Visit:
    return Visit("me", threading.Event())


def made(runner: Runner, visit: Visit) -> tuple[LiveRuns, list[dict]]:
    runs = LiveRuns()
    return runs, [words().translated(json.loads(one)) for one in generate(runner, runs, ORDER, True, visit, words())]


def test_a_press_prepares_its_request_once(runner, monkeypatch):
    prepared = []
    monkeypatch.setattr(
        "specviz.decoding.request.prepare", lambda *given: prepared.append(prepare(*given)) or prepared[-1]
    )
    list(generate(runner, LiveRuns(), dataclasses.replace(ORDER), False, press(), words()))
    assert len(prepared) == 1


def test_a_run_ends_with_its_speedup_and_the_interval_and_is_there_for_the_press_that_made_it(runner, monkeypatch):
    monkeypatch.setattr(Duel, "ratio", Ratio(1.5, 1.4, 1.6))
    first = press()
    runs, said = made(runner, first)
    [live] = runs.runs.values()
    figures, measured = said[-1]["figures"], live.run().measured
    assert said[-1]["kind"] == "end" and said[-1]["note"] in ("", words()("common.busy"))
    assert [figures[name] for name in ("speedup", "speedup_low", "speedup_high")] == [1.5, 1.4, 1.6]
    assert (measured.ratio, measured.low, measured.high) == (1.5, 1.4, 1.6) and live.duel_counts is not None
    # More is awaited until the speedup is measured.
    ends = [one["more"] for one in said if one["kind"] == "end"]
    assert len(ends) > 1 and ends == [True] * (len(ends) - 1) + [False]
    # Rounds that are sent again come with the charts as they are.
    start, rounds = map(json.loads, runs.missing_rounds({"run": said[1]["run"], "first": 0}))
    assert len(rounds["rounds"]) == said[-1]["total"]
    assert start["charts"] == said[-1]["charts"] != said[1]["charts"]
    # Another press, of which nothing came: what is on the screen may be a recording by now.
    assert runs.files_of(first).paths[0].exists() and runs.files_of(press()) is None


def test_where_the_interval_says_nothing_a_run_ends_with_its_range(runner, monkeypatch):
    monkeypatch.setattr(Duel, "ratio", Ratio(1.5, 0.8, 2.5))
    runs, said = made(runner, press())
    [live] = runs.runs.values()
    assert live.finished and live.speedup is None and live.run().measured is None
    assert said[-1]["note"].startswith("Speedup not known. The speedup's interval runs from 0.8× to 2.5×")
    assert said[-1]["figures"]["speedup"] is None


def test_a_run_comes_back_in_the_pages_language(runner):
    runs, said = made(runner, press())
    key, german = said[1]["run"], words("de")
    whole, _, page, _ = bring_back(runs, key, False, german)
    assert words().translated(json.loads(whole))["parts"][0] == said[1]
    assert '<html lang="de"' in pathlib.Path(page.value["path"]).read_text(encoding="utf-8")
    _, _, page, _ = bring_back(runs, key, False, words())
    assert '<html lang="en"' in pathlib.Path(page.value["path"]).read_text(encoding="utf-8")


def test_a_run_is_under_way_until_it_is_over_and_comes_back_with_what_ended_it(runner, monkeypatch):
    def failing(request, measured):
        yield from list(rounds(request))[:2]
        raise SpecvizError("The device ran out of memory.", "max_new_tokens")

    monkeypatch.setattr(generate_tab, "watched", failing)
    runs, seen = LiveRuns(), []
    for one in generate(runner, runs, ORDER, True, press(), words()):
        seen.append(json.loads(one))
        assert runs.under_way("me") == (seen[-1]["kind"] != "waiting") and not runs.under_way("another")
    assert seen[-1]["kind"] == "error" and not runs.under_way("me")
    whole, *_ = bring_back(runs, seen[1]["run"], False, words())
    assert json.loads(whole)["parts"][-1] == seen[-1]


def test_who_visits_longest_is_forgotten_first():
    stops = Stops(most=2)
    for session in ("a", "b", "a", "c"):
        stops.arm(session)
    flag = stops.flag("a")
    stops.press("a")
    assert flag.is_set() and "b" not in stops.flags


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where temporary files go."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def files_in(folder):
    return sorted(path.name for path in folder.glob("specviz-*/*"))


def test_a_run_has_its_files_for_as_long_as_it_is_kept(folder):
    runs, pair = LiveRuns(most=2), tiny_pair("llama")
    for seed in range(5):
        live = runs.open(prepare(pair, RunSettings("Once", seed=seed, max_new_tokens=4)), "me", words())
        live.add(list(rounds(live.request)))
        live.files = run_files(live.run(), live.say)
        del live
    kept = [one.files.paths[0].stem for one in runs.runs.values()]
    assert files_in(folder) == sorted(f"{stem}{suffix}" for stem in kept for suffix in SUFFIXES)


def test_so_do_results_and_opened_runs(folder, monkeypatch):
    results = Recent(2)
    for session in "abc":
        results[session] = result_page("race", session)
    assert "a" not in results and files_in(folder) == ["specviz-race.html"] * 2
    results["c"] = result_page("race", "again")
    assert results["c"].paths[0].read_text() == "again" and files_in(folder) == ["specviz-race.html"] * 2
    del results
    monkeypatch.setattr(downloads, "_OPENED", type(downloads._OPENED)(maxlen=1))
    for recording in RECORDINGS[:2]:
        offered = downloads.offered(dataclasses.replace(recording.load()), words())
    assert sorted(offered[at].value["orig_name"] for at in range(3)) == files_in(folder)


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


def test_what_would_have_been_is_worked_out_in_turn_and_only_with_a_pair_in_memory(runner, store):
    run, there = (
        [one for batch in runner.batches(order) for one in batch] for order in (ORDER, ORDER.but(coins="2.1=0.999"))
    )
    tokens = [*run[0].emitted, *(token.id for token in run[1].drafted)]
    what = {"round": 1, "tokens": tokens, "gamma": None, "temperature": None, "coins": {"0": 0.999}}
    wanted = {"name": dataclasses.asdict(PairName()), "settings": ORDER.settings.flat(), "what": what}
    [told] = json.loads(supposed_round(runner, wanted))["rounds"]
    assert [token["outcome"] for token in told["drafted"]] == [token.outcome for token in there[1].drafted]
    assert told["next"]["id"] == there[1].next.id
    assert supposed_round(runner, wanted | {"what": what | {"tokens": tokens[:-1]}}) is None, "another run"
    assert supposed_round(runner, wanted | {"settings": ORDER.settings.flat() | {"seed": -1}}) is None
    with runner.line.joined("generate"), ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(supposed_round, runner, wanted)
        with pytest.raises(TimeoutError):
            waiting.result(0.3)
        store.loaded = lambda name: None  # the run before it was a load
    assert waiting.result() is None
