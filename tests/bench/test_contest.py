"""A contest: all that was asked of a drafter reaches its runs, who fails fails alone, and what was heard is kept."""

import types
from dataclasses import fields, replace

import pytest

from specviz.bench.benchmark import Benchmark
from specviz.bench.contest import Contest
from specviz.bench.contestants import PLAIN, Contestant, Failed, TimedRun
from specviz.bench.contesting import entry_of, measure_contest, plain_request, request_of
from specviz.bench.duel import duel
from specviz.bench.turns import Amount
from specviz.drafters import CLASSES
from specviz.drafters.copying import PromptLookup
from specviz.drafters.registry import drafter_class
from specviz.records.errors import SpecvizError
from specviz.records.prompts import PRESETS
from specviz.records.settings import DRAFTING, SETTINGS, RunSettings
from specviz.ui.advice import chains_of
from specviz.ui.contest import ContestOptions, comparison_of
from specviz.ui.deployment import Deployment
from specviz.ui.device import PairName
from specviz.ui.orders import Order
from specviz.ui.runner import Runner

#: For every parameter a value that is not its default: a new one needs one here.
CHANGED = {"branches": 2, "confidence": 0.3, "exit_layer": 1, "bits": 8}

#: Those for which Compare and advice have choices of their own.
CHOSEN = {"branches"}


@pytest.fixture(params=[name for name in CLASSES if name not in ("medusa", "eagle", "mtp", "parallel")])
def order(request) -> Order:
    """One in which everything that this drafter reads is set."""
    asked = {"prompt": "Once upon", "drafter": request.param, "max_new_tokens": 4}
    return Order(PairName(), RunSettings.of(asked | CHANGED))


def test_every_parameter_survives_into_each_contestants_run_of_compare_advice_benchmark_and_race(pair, order):
    assert CHANGED.keys() == set(DRAFTING) and all(CHANGED[name] != SETTINGS[name].default for name in DRAFTING)
    name, store = order.settings.drafter, types.SimpleNamespace(get=lambda name: pair, starting_pair=pair)
    runner, parameters = Runner(store, Deployment.from_environment()), drafter_class(pair, name).parameters
    due = {parameter: CHANGED[parameter] for parameter in parameters - CHOSEN}

    def reached(settings: RunSettings) -> dict[str, object]:
        return {parameter: getattr(settings.drafting, parameter) for parameter in due}

    options = ContestOptions([name], [2, "auto"], [0], ["block"], 1)
    _, *compared = comparison_of(runner, pair, order, options).contestants
    advised = [chain for chain in chains_of(runner, pair, order) if chain.mode == name]
    vary = {parameter: [value] for parameter, value in due.items()} | {"seed": [3]}
    _, *measured = Benchmark.of(pair, only=[name], vary=vary).contestants
    plain = plain_request(pair, PRESETS[0], 0.0, 4)
    assert compared and measured and (advised or name == "lookahead")
    for contestant in (*compared, *advised, *measured):
        assert reached(request_of(contestant, plain).settings) == due
        row = entry_of(contestant, plain)
        assert row.settings.items() >= due.items() and row.settings.keys() == {*SETTINGS, "stop"} - {"prompt"}

    raced = order.request(pair, runner.deployment)
    *_, done = duel(raced, whole=False)
    assert reached(raced.settings) == due and done.runs(raced)[1].settings.items() >= due.items()


def test_of_a_text_are_its_prompt_sampling_length_and_seed_and_all_else_is_the_contestants(pair):
    """Also what comes later: every setting is one or the other."""
    plain, contestant = plain_request(pair, PRESETS[0], 0.0, 4).settings, Contestant.of("early_exit", 2, **CHANGED)
    of_text, run = {"prompt", "sampling", "max_new_tokens", "seed", "stop", "chat"}, contestant.on(plain)
    for field in fields(RunSettings):
        source = plain if field.name in of_text else contestant.settings
        assert getattr(run, field.name) == getattr(source, field.name), field.name


# Failures, and ends


@pytest.mark.parametrize("place", ["propose", "observe_draft", "prefill", "check"])
def test_who_fails_in_any_way_fails_alone_and_is_told_once(pair, monkeypatch, place):
    def failing(*given, **named):
        raise IndexError("out of\nrange")

    contestants = [Contestant.of(PLAIN), Contestant.of("prompt_lookup", 2), Contestant.of("suffix", 2)]
    plain = plain_request(pair, PRESETS[0], 0.0, 12)
    contest = Contest([entry_of(contestant, plain) for contestant in contestants], ["", ""], 2)
    monkeypatch.setattr(PromptLookup, place, classmethod(failing) if place == "check" else failing)
    events = list(measure_contest([plain, plain], contestants, Amount(12, repeats=2)))
    for event in events:
        contest.hear(event)
    (failed,) = [event for event in events if isinstance(event, Failed)]
    assert (failed.title, str(failed.reason)) == ("prompt_lookup γ=2", "it failed with IndexError: out of")
    assert [row.repeats for row in contest.rows()] == [4, 0, 4]


@pytest.mark.parametrize("label", ["", "seed=1"])
def test_where_plain_decoding_fails_nothing_can_be_compared(pair, monkeypatch, label):
    def failing(*given):
        raise SpecvizError("It is full.")

    monkeypatch.setattr("specviz.bench.turns.pending_rounds", failing)
    with pytest.raises(SpecvizError, match="full"):
        plain = replace(Contestant.of(PLAIN), label=label)
        list(measure_contest([plain_request(pair, PRESETS[0], 0.0, 4)], [plain], Amount(4, 1)))


def test_whenever_it_is_ended_what_was_heard_until_then_is_kept(pair):
    contestants, plain = [Contestant.of(PLAIN), Contestant.of("suffix", 2)], plain_request(pair, PRESETS[0], 0.0, 12)
    contest = Contest([entry_of(contestant, plain) for contestant in contestants], repeats=3)
    for event in measure_contest([plain], contestants, Amount(12, repeats=3)):
        contest.hear(event)
        if isinstance(event, TimedRun) and event.repeat == 1 and event.number:
            break
    assert [row.repeats for row in contest.rows()] == [2, 2] and contest.row(1).speedup_measured > 0
    assert contest.fraction == pytest.approx(4 / 6)
