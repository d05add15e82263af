"""Passes that are prepared while the page is served: in the background, between runs, and said on the page.

Nothing is compiled here: stand-ins say how far they are when a test wants it.
"""

import json
import threading
from dataclasses import replace

import pytest
from lent import lend
from on_page import (
    GAMMA,
    assert_no_sideways_scrolling,
    choose_drafter,
    control,
    expect_drafter,
    settle,
    start,
    violations,
)
from playwright.sync_api import expect
from published_heads import write_medusa
from running import PATIENCE, wait_until
from tiny import passes_called_compiled, save_pair, tiny_pair

import specviz
from specviz.__main__ import main
from specviz.bench import turns
from specviz.bench.pass_times import measure_passes
from specviz.decoding.engine import rounds
from specviz.models import loading
from specviz.models.pair import ModelPair
from specviz.models.pair_passes import PairPasses, Preparation, Trial
from specviz.parts.medusa import PublishedMedusa
from specviz.parts.part_files import PartFiles
from specviz.passes.roles import DRAFT, TARGET, Role
from specviz.records.errors import SpecvizError
from specviz.records.runs import Run
from specviz.records.settings import RunSettings, SamplingParams
from specviz.records.words import Sentence, words
from specviz.theory.roofline import Memory
from specviz.theory.statistics import Ratio
from specviz.ui.deployment import Deployment
from specviz.ui.device import PairName, PairStore, Preparer, Stage
from specviz.ui.line import Visit
from specviz.ui.orders import Order
from specviz.ui.runs import LiveRuns, Visitors
from specviz.ui.tabs.generate import generate
from specviz.ui.tabs.pair_in_use import describe, notes
from specviz.ui.tabs.race import race
from specviz.ui.tabs.why import explain_runs

ORDER = Order(
    PairName(), RunSettings("Once upon", num_draft_tokens=3, sampling=SamplingParams(0), max_new_tokens=24, seed=5)
)
SAY = words()

ME = Visit("me", threading.Event())


class StandIn:
    """A preparation whose steps are a test's to take; `prepare_passes` in its place."""

    def __init__(self):
        self.begun: list[object] = []
        self.step, self.go_on = threading.Event(), threading.Event()
        self.tries_first = threading.Event()
        self.tries_first.set()
        self.reasons: dict[Role, SpecvizError] = {}

    def __call__(self, pair, progress, halt, turn, tried) -> Preparation:
        self.begun.append(pair)
        if self.tries_first.wait(PATIENCE):
            tried()
        progress(0.5, Sentence("{count} of {all} compiled", count=1, all=2))
        self.step.set()
        while not self.go_on.wait(0.01):
            if halt.is_set():
                return Preparation()
        pair.passes.fast = passes_called_compiled(pair)
        return Preparation(list(pair.passes.fast), self.reasons)


@pytest.fixture
def stand_in(monkeypatch) -> StandIn:
    made = StandIn()
    monkeypatch.setattr("specviz.models.preparation.prepare_passes", made)
    return made


@pytest.fixture
def preparer(deployment):
    made = Preparer(deployment)
    yield made
    made.close()


# The pairs


def test_a_pair_does_not_wait_for_another_ones_programs_once_it_is_started(preparer, stand_in, pair):
    other = tiny_pair("gpt2")
    preparer.add(pair)
    assert preparer.stage(pair) == Stage() and stand_in.begun == [], "nothing was begun: there is nothing to wait for"
    preparer.start()
    assert stand_in.step.wait(PATIENCE)
    assert preparer.stage(pair).step == "1 of 2 compiled" and pair.passes.fast == {}
    preparer.add(other)
    wait_until(lambda: stand_in.begun == [pair, other] and other.passes.tried.is_set())
    assert preparer.stage(pair).step is not None
    stand_in.go_on.set()
    for one in (pair, other):
        preparer.wait_for(one)
        assert preparer.stage(one).step is None and list(one.passes.fast) == [TARGET, DRAFT]


def test_nothing_is_prepared_while_a_pair_is_loaded(preparer, monkeypatch, pair):
    """Loading sets torch's default precision, by which a pass in another thread might be wrong."""
    done, asked = threading.Event(), threading.Event()

    def prepares(pair, progress, halt, turn, tried) -> Preparation:
        asked.set()
        turn(done.set)
        return Preparation()

    monkeypatch.setattr("specviz.models.preparation.prepare_passes", prepares)
    with preparer.loading:
        preparer.add(pair)
        preparer.start()
        assert asked.wait(PATIENCE) and not done.wait(0.3)
    assert done.wait(PATIENCE)


def test_a_pair_that_is_freed_meanwhile_gets_no_passes_and_holds_none(preparer, stand_in, pair):
    preparer.add(pair)
    preparer.start()
    assert stand_in.step.wait(PATIENCE)
    preparer.forget(pair)
    pair.free()
    stand_in.go_on.set()
    assert pair.passes.fast == {}
    # Whatever waits behind it is prepared all the same, and closing ends what goes on.
    other, last = tiny_pair("llama"), tiny_pair("llama")
    preparer.add(other)
    wait_until(lambda: preparer.stage(other).step is None and other.passes.fast)
    stand_in.step.clear()
    stand_in.go_on.clear()
    preparer.add(last)
    assert stand_in.step.wait(PATIENCE)
    preparer.close()
    assert pair.passes.fast == last.passes.fast == {}


@pytest.mark.parametrize("stopped", [False, True])
def test_a_press_in_the_first_seconds_waits_for_the_first_fast_passes(preparer, stand_in, pair, stopped):
    """But not for programs to be compiled, nor once Stop is pressed."""
    stand_in.tries_first.clear()
    halt = threading.Event()
    preparer.add(pair)
    preparer.start()
    pressed = threading.Thread(target=preparer.await_first, args=[pair, halt])
    pressed.start()
    pressed.join(0.3)
    assert pressed.is_alive() and preparer.begins(pair)
    (halt if stopped else stand_in.tries_first).set()
    pressed.join(PATIENCE)
    assert not pressed.is_alive() and preparer.begins(pair) == stopped
    stand_in.tries_first.set()


def test_a_press_in_the_first_seconds_waits_for_the_trial_of_the_drafters_too(preparer, stand_in):
    alone = replace(tiny_pair("llama", layers=6), draft=None, passes=PairPasses(seconds_by_width={1: 0.001}))
    preparer.add(alone)
    preparer.start()
    preparer.await_first(alone, threading.Event())
    assert alone.passes.trials and alone.passes.fast == {}, "before programs are made"
    assert not preparer.begins(alone)


def test_a_page_takes_the_drafter_that_the_trial_finds_and_keeps_one_that_its_visitor_chose(serve, stand_in, new_page):
    pair = tiny_pair("llama", layers=6)
    pair.draft = pair.draft_name = None
    stand_in.tries_first.clear()
    url, store = serve(pair)
    store.preparer.add(pair)
    store.preparer.start()
    page, other = new_page(), new_page()
    for one in (page, other):
        one.goto(url)
        expect(one.locator(".sv-pair").first).to_contain_text("tiny llama")
    choose_drafter(other, "suffix")
    note = page.locator(".sv-drafting .sv-note").first
    expect(note).to_have_text(SAY("ways.undecided"))
    pair.passes.trials = {
        "suffix": Trial(Ratio(0.9, 0.8, 0.95), 1.25),
        "lookahead": Trial(Ratio(0.97, 0.9, 1.0), 1.75),
    }
    stand_in.tries_first.set()
    expect_drafter(page, "lookahead")
    # Nobody knows whether drafting pays: the run finds out.
    expect(control(page, GAMMA)).to_have_value("0")
    expect(note).to_contain_text(SAY("ways.tried", speed="0.97", tokens="1.75"))
    expect(note).to_contain_text(SAY("ways.none_pays", count=2))
    wait_until(lambda: stand_in.step.is_set())
    start(other)
    settle(other)
    expect_drafter(other, "suffix")
    expect(control(other, GAMMA)).to_have_value("4")
    stand_in.go_on.set()


def test_a_guest_is_forgotten_before_it_is_freed(deployment, stand_in, tmp_path, monkeypatch):
    folders = [[str(folder) for folder in save_pair(tmp_path / name)] for name in "abc"]
    monkeypatch.setenv("SPECVIZ_TARGET", folders[0][0])
    monkeypatch.setenv("SPECVIZ_DTYPE", "float32")
    store = PairStore(Deployment.from_environment())
    store.preparer.forget(store.starting_pair)
    store.preparer.start()
    first = store.get(PairName(folders[1][0], folders[1][1:], dtype="float32"))
    assert stand_in.step.wait(PATIENCE) and stand_in.begun == [first]
    name, seen = store.guest_name, []
    free = ModelPair.free
    monkeypatch.setattr(ModelPair, "free", lambda pair: seen.append(store.loaded(name)) or free(pair))
    second = store.get(PairName(folders[2][0], folders[2][1:], dtype="float32"))
    assert first.target is None and first.passes.fast == {}
    assert seen == [None], "nobody finds a pair that is being freed"
    stand_in.go_on.set()
    wait_until(lambda: second.passes.fast)
    assert first.passes.fast == {}
    store.preparer.close()


def test_what_cannot_be_prepared_has_its_reason_at_once(deployment, pair, monkeypatch):
    told = Preparer(replace(deployment, passes="plain"))
    lend(monkeypatch)
    lent = Preparer(deployment)
    for preparer, sentence in ((told, "SPECVIZ_PASSES"), (lent, "lends a GPU for one call")):
        preparer.add(pair)
        preparer.start()
        stage = preparer.stage(pair)
        assert stage.step is None and sentence in str(stage.reasons[TARGET])
        assert sentence in notes(pair, stage, words("en")).replace("&#95;", "_")
        preparer.close()


def test_what_is_told_of_a_pair_is_what_it_has(pair, tmp_path):
    """A published part with its format and the states that it reads; passes in use, lost later, and refused."""
    write_medusa(tmp_path / "medusa", pair.target)
    part = PublishedMedusa.load(PartFiles.at(tmp_path / "medusa"), pair.target)
    assert "| Medusa **Medusa**, hidden state 2 |" in describe(replace(pair, parts={"medusa": part}), Stage(), words())
    pair.passes.fast = passes_called_compiled(pair)
    said = notes(pair, Stage(reasons={TARGET: SpecvizError("They were slower.", "passes")}), words("en"))
    assert "Nothing faster was found (target): They were slower." in said and "No faster passes" not in said
    lost = pair.passes.fast[TARGET]
    lost.kind, lost.refusal = "plain", SpecvizError("Recording failed.", "passes")
    said = notes(pair, Stage(), words("en"))
    assert describe(pair, Stage(), words("en")).count("| plain |") == 1
    assert "No faster passes (target): Recording failed." in said and "(target, draft model)" not in said


@pytest.mark.parametrize("language, is_of", [("en", "% of the 1.0\u00a0GB/s"), ("de", "% der 1,0\u00a0GB/s")])
def test_the_models_tab_says_how_near_a_pass_comes_to_the_memorys_bandwidth(pair, language, is_of):
    def said(pair, passes, step=None):
        return notes(replace(pair, passes=passes), Stage(step), words(language))

    timed = PairPasses(seconds_by_width={1: 1e-3}, memory=Memory(1e9, 2**27, threads=2))
    about = words(language)("models.share", share="")[:-2]
    known, unknown = said(pair, timed), said(tiny_pair("mixtral"), timed)
    assert about in known and is_of in known
    assert about in unknown and ("not known" in unknown or "unbekannt" in unknown)
    assert about not in said(pair, PairPasses()), "nothing was timed yet"
    assert about not in said(pair, timed, Sentence("testing compiled passes")), "other passes than are in use"


def test_a_failure_that_nobody_foresaw_is_logged_and_said_and_the_next_pair_is_prepared(
    preparer, stand_in, pair, monkeypatch, caplog
):
    def fail(*arguments, **others):
        raise RuntimeError("no such luck\nat all")

    monkeypatch.setattr("specviz.models.preparation.prepare_passes", fail)
    preparer.add(pair)
    preparer.start()
    wait_until(lambda: preparer.stage(pair).reasons)
    assert str(preparer.stage(pair).reasons[TARGET]) == "Preparing passes failed: no such luck."
    assert "no such luck" in caplog.text
    monkeypatch.setattr("specviz.models.preparation.prepare_passes", stand_in)
    stand_in.go_on.set()
    other = tiny_pair("llama")
    preparer.add(other)
    wait_until(lambda: other.passes.fast)


# One action, one kind of passes


@pytest.fixture
def taken(pair, monkeypatch) -> list[bool]:
    """Of each run that begins: whether it takes prepared passes, which the pair gets with the second one."""
    taken = []

    def watched(run):
        def begun(request, *others):
            taken.append(bool(request.passes))
            if len(taken) > 1:
                pair.passes.fast = passes_called_compiled(pair)
            return run(request, *others)

        return begun

    monkeypatch.setattr("specviz.decoding.engine.rounds", watched(rounds))
    monkeypatch.setattr(turns, "pending_rounds", watched(turns.pending_rounds))
    return taken


def test_a_race_and_a_run_with_its_speedup_take_the_passes_that_were_there_at_their_start(pair, runner, taken):
    runs = LiveRuns()
    for kind in ("plain", "compiled"):
        [*_, last] = race(runner, ORDER.with_ready_passes(pair), threading.Event(), "en")
        assert json.loads(last)["passes"] == kind
        assert set(taken) == {kind == "compiled"} and len(taken) >= 4
        taken.clear()
    for kind in ("plain", "compiled"):
        pair.passes.fast = passes_called_compiled(pair) if kind == "compiled" else {}
        order = ORDER.with_ready_passes(pair)
        said = [words().translated(json.loads(one)) for one in generate(runner, runs, order, True, ME, words())]
        [opened] = [one for one in said if one["kind"] == "start"]
        assert opened["settings"].endswith(f"{kind} passes")
        assert set(taken) == {kind == "compiled"} and len(taken) >= 5
        taken.clear()
        assert Run.load(runs.files_of(ME).paths[0]).pair.passes == kind


def test_a_run_is_not_explained_by_passes_that_it_did_not_take(pair, runner):
    [*_, measured] = measure_passes(pair, widths=(1, 2, 4), context=32, repeats=1)
    pair.passes.fast = passes_called_compiled(pair)
    runs = LiveRuns()
    visitors = Visitors(runs)
    visitors.passes["me"] = measured
    for kind in ("plain", "compiled"):
        list(generate(runner, runs, replace(ORDER, passes=kind), False, ME, words()))
        assert explain_runs(visitors, "me")[-1].figures.one_source == "round"


# On the command line


@pytest.fixture
def embedded_stand_in(monkeypatch):
    """What was asked of the preparation, on the embedded pair."""
    asked = []

    def prepare(pair, progress=lambda fraction, step: None, compiling=True):
        asked.append(compiling)
        progress(0.5, Sentence("{count} of {all} compiled", count=1, all=2))
        pair.passes.fast = passes_called_compiled(pair)
        reasons = {Role.exit(2): SpecvizError("No exit today.", "passes")}
        pair.passes.prepared = Preparation([TARGET, DRAFT], reasons, complete=compiling)

    for asker in (loading, specviz.models.pair):
        monkeypatch.setattr(asker, "prepare_passes", prepare)
    return asked


@pytest.mark.parametrize(
    "option, asked, kind",
    [("", [False], "compiled"), ("--passes auto", [False, True], "compiled"), ("--passes plain", [], "plain")],
)
def test_a_run_takes_what_was_compiled_before_unless_told_otherwise(embedded_stand_in, option, asked, kind, capfd):
    assert main(f"run Once --max-new-tokens 4 --temperature 0 --dtype float32 {option}".split()) == 0
    assert embedded_stand_in == asked
    err = capfd.readouterr().err
    assert f"· {kind} passes" in err
    assert ("1 of 2 compiled" in err) == (True in asked), "a run that compiles nothing has nothing to report"


def test_compiling_beforehand_tells_how_far_it_is_and_what_became_of_it(embedded_stand_in, capfd):
    assert main(["compile", "--dtype", "float32"]) == 0
    out, err = capfd.readouterr()
    assert embedded_stand_in == [False, True]
    assert err.splitlines() == ["passes: 1 of 2 compiled", "plain passes, exit 2: No exit today."]
    assert out == "storybook on cpu in float32, compiled passes: target, draft\n"


# In the browser


@pytest.fixture
def served(stand_in, tmp_path, monkeypatch, serve):
    """The page on a tiny pair, in this process, before anything is prepared: its address and its store."""
    target, draft = save_pair(tmp_path)
    for name, value in (("TARGET", target), ("DRAFT", draft), ("DTYPE", "float32")):
        monkeypatch.setenv(f"SPECVIZ_{name}", str(value))
    url, store = serve()
    store.get(PairName())
    return url, store


def test_the_chip_follows_what_is_prepared_without_a_reload_and_without_moving_the_page(served, new_page, stand_in):
    url, store = served
    stand_in.reasons = {Role.exit(1): SpecvizError("The passes of a quantised model cannot be prepared.", "passes")}
    say, german, asked = words(), words("de"), []
    page = new_page(heard={"request": lambda request: asked.append(request.url)})
    store.preparer.start()
    page.goto(url)
    chip = page.locator("#passes")
    step = Sentence("{count} of {all} compiled", count=1, all=2)
    expect(chip).to_contain_text(say("passes.plain_yet", step=say.step(step)))
    elsewhere = new_page()
    elsewhere.goto(url + "de")
    expect(elsewhere.locator("#passes")).to_contain_text(german("passes.plain_yet", step=german.step(step)))
    assert_no_sideways_scrolling(page)
    assert_no_sideways_scrolling(elsewhere)
    place = "document.querySelector('.sv-main').getBoundingClientRect().top + scrollY"
    top = page.evaluate(place)

    page.get_by_label(say("page.measured")).uncheck()
    start(page)
    settle(page)
    expect(page.locator("specviz-run [part=meta]")).to_contain_text(say("passes.plain"))

    stand_in.go_on.set()
    expect(chip).to_have_text(say("passes.compiled"))
    assert page.evaluate(place) == top
    expect(elsewhere.locator("#passes")).to_have_text(german("passes.compiled"))
    start(page)
    settle(page)
    expect(page.locator("specviz-run [part=meta]")).to_contain_text(say("passes.compiled"))
    for visitor, own in ((page, say), (elsewhere, german)):
        visitor.get_by_role("tab", name=own("models.tab"), exact=True).click()
        visitor.locator("[aria-controls=pair-notes]").click()
        expect(visitor.locator("#pair-notes")).to_contain_text(own.error(stand_in.reasons[Role.exit(1)]))
        expect(visitor.locator(".block.sv-pair-status")).to_contain_text(own("models.on_compiled"))
    assert violations(page, "#passes") == []

    # Once it is over, the page asks no more while others work on: only the head does, of the line.
    settle(page)
    asked.clear()
    elsewhere.get_by_label(german("page.measured")).uncheck()
    start(elsewhere)
    settle(elsewhere)
    assert [url for url in asked if "component_server" not in url] == []


@pytest.mark.parametrize("drafter", ["draft_model", "early_exit"])
def test_a_run_keeps_its_rounds_and_not_its_pair_once_that_was_freed(pair, deployment, drafter):
    pair.passes.fast = passes_called_compiled(pair)
    runs = LiveRuns()
    live = runs.open(ORDER.but(drafter=drafter).request(pair, deployment), ME, words())
    live.add(list(rounds(live.request)))
    wanted = {"run": live.key, "first": 0}
    before = runs.missing_rounds(wanted)
    pair.free()
    assert runs.missing_rounds(wanted) == before
    assert not any(hasattr(fast, "static") or hasattr(fast, "run") for fast in live.request.passes.values())
