"""Rounds that the host reads one behind: the same decisions from the same coins, in texts that end as they should."""

import dataclasses

import pytest
from fast_passes import graphed_passes, with_passes
from matrix import PROMPT, pair_of, pairwise

import specviz
from specviz.bench import check
from specviz.decoding import device_rounds, engine
from specviz.decoding.device_rounds import DeviceRounds
from specviz.decoding.record import collect
from specviz.decoding.request import prepare
from specviz.models.pair import ModelPair
from specviz.models.pair_passes import PairPasses
from specviz.passes.cuda_graphs import GraphedPasses, _OnDevice
from specviz.passes.fast_passes import REMEMBERED_TEXTS
from specviz.passes.roles import TARGET
from specviz.records.runs import Round, Run
from specviz.records.settings import AUTO, DraftParams, RunSettings, SamplingParams
from specviz.rules import draft, exact, transfer
from specviz.rules import sampling as sampling_rules
from specviz.theory.draft_length import FixedDepth

#: Drafters whose rounds can be recorded.
AHEAD = [None, "draft_model", "early_exit", "eagle", "mtp", "parallel", "medusa"]

#: Greedy; the model's own distribution; one that every filter has shaped.
SAMPLINGS = [SamplingParams(0), SamplingParams(1.0), SamplingParams(0.7, 6, 0.9, 0.01)]

#: What makes their drafts chains.
CHAIN = DraftParams(branches=1)


@pytest.fixture
def launched(monkeypatch) -> list[int]:
    """The depths of all rounds that were launched."""
    depths, launch = [], DeviceRounds._launch

    def noted(self, round_, choice):
        depths.append(round_.depth)
        launch(self, round_, choice)

    monkeypatch.setattr(DeviceRounds, "_launch", noted)
    return depths


def recorded_pair(**changed) -> ModelPair:
    pair = dataclasses.replace(pair_of(), passes=PairPasses(), **changed)
    return with_passes(pair, graphed_passes(pair))


def test_a_room_that_was_given_up_leaves_memory_with_the_rounds_that_worked_on_it():
    pair = recorded_pair()
    passes = pair.passes.fast[TARGET]

    def held() -> int:
        """Bytes of rows that only recorded rounds still hold."""
        rows = {id(row): row for made in passes.whole_rounds.values() for row in made.kv}
        return sum(row.nbytes for row in rows.values() if not passes.kept_buffers.holds(row))

    for temperature in (0.5, 0.6, 0.7):
        run_of(pair, **LONG | {"sampling": SamplingParams(temperature)}, drafter="draft_model", num_draft_tokens=3)
        for _ in range(REMEMBERED_TEXTS + 1):
            run_of(pair, max_new_tokens=4)
        assert held() == 0


def run_of(pair: ModelPair, by_host: bool = False, **order) -> Run:
    usual = {
        "prompt": PROMPT,
        "seed": 3,
        "max_new_tokens": 40,
        "drafting": CHAIN if order.get("drafter") else DraftParams(),
    }
    request = prepare(pair, RunSettings(**usual | order))
    done = engine.pending_rounds(request, details=by_host)
    return collect(request, [one.record() for one in done])


def plain_values(one: Round) -> dict:
    """The record apart from its times, probabilities rounded: passes of other widths round differently."""

    def rounded(value):
        if isinstance(value, float):
            return pytest.approx(value, abs=2e-4)
        if isinstance(value, dict):
            return {key: rounded(part) for key, part in value.items()}
        return [rounded(part) for part in value] if isinstance(value, (list, tuple)) else value

    # Equal probabilities may be listed in any order.
    return rounded({key: part for key, part in dataclasses.asdict(one).items() if key not in ("seconds", "top")})


@pytest.mark.parametrize(
    "drafter, sampling, rule", pairwise(drafter=AHEAD, sampling=SAMPLINGS, rule=["token", "block", "typical"])
)
def test_the_device_decides_as_the_host_does_from_the_same_coins(drafter, sampling, rule, launched):
    order = {"drafter": drafter, "sampling": sampling, "rule": rule, "num_draft_tokens": 3}
    host = run_of(recorded_pair(), by_host=True, **order)
    assert not launched
    device = run_of(recorded_pair(), **order)
    assert launched
    assert device.token_ids == host.token_ids and device.text == host.text
    assert [plain_values(one) for one in device.rounds] == [plain_values(one) for one in host.rounds]
    for one, other in zip(device.rounds, host.rounds, strict=True):
        for row, expected in zip(one.top, other.top, strict=True):
            assert [p for _, p in row.p] == pytest.approx([p for _, p in expected.p], abs=2e-4)
            assert [q for _, q in row.q] == pytest.approx([q for _, q in expected.q], abs=2e-4)


@pytest.mark.parametrize(
    "drafter, temperature, rule", pairwise(drafter=AHEAD[1:], temperature=[0, 0.7], rule=["tree", "typical"])
)
def test_trees_grow_on_the_device_as_on_the_host(drafter, temperature, rule, launched):
    order = {"drafter": drafter, "sampling": SamplingParams(temperature), "rule": rule, "num_draft_tokens": 3}
    order |= {"drafting": DraftParams(branches=3), "max_new_tokens": 80}
    host, device = (run_of(recorded_pair(), by_host, **order) for by_host in (True, False))
    assert launched and device.token_ids == host.token_ids
    assert [plain_values(one) for one in device.rounds] == [plain_values(one) for one in host.rounds]
    assert max(one.accepted for one in device.rounds) > 1, "or else nothing had to be moved"


@pytest.mark.parametrize("drafter", AHEAD)
def test_a_text_that_ends_ends_there_and_what_was_launched_after_it_is_dropped(drafter, launched):
    order = {"drafter": drafter, "num_draft_tokens": 2, "sampling": SamplingParams(1.0)}
    whole = run_of(recorded_pair(), **order)
    launched.clear()
    last = whole.rounds[len(whole.rounds) // 2].emitted[0]
    first = whole.token_ids.index(last)
    ended = run_of(recorded_pair(eos_ids=frozenset({last})), **order)
    assert ended.stop_reason == "eos" and ended.token_ids == whole.token_ids[: first + 1]
    assert len(ended.rounds) <= len(launched) <= len(ended.rounds) + 1
    middle = len(whole.text) // 2
    stopped = run_of(recorded_pair(), stop=[whole.text[middle : middle + 3]], **order)
    assert stopped.stop_reason == "stop_string" and whole.text[middle : middle + 3] in stopped.text
    assert whole.text.startswith(stopped.text)


#: A text up to the end of the context, for whose last drafts a block of buffers is too small.
LONG = {"prompt": 25 * PROMPT, "max_new_tokens": 300, "sampling": SamplingParams(0)}


@pytest.mark.parametrize("drafter", AHEAD[1:])
def test_a_text_outgrows_its_buffers_and_goes_on(drafter, launched):
    pair, order = recorded_pair(), LONG | {"drafter": drafter, "num_draft_tokens": 3}
    long = run_of(pair, **order)
    assert long.token_ids == run_of(recorded_pair(), by_host=True, **order).token_ids
    assert set(pair.passes.fast[TARGET].kept_buffers.by_room) == {256, 512}
    assert len(launched) > 0.8 * len(long.rounds)


@pytest.mark.parametrize("drafter", AHEAD[1:])
def test_shallow_rounds_come_as_near_to_the_buffers_end_as_deep_ones(drafter, launched, monkeypatch):
    """A drafter always reads as much of the text as its deepest draft may have left unread."""
    monkeypatch.setattr(engine, "depth_policy", lambda request: FixedDepth(1))
    order = LONG | {"drafter": drafter, "num_draft_tokens": AUTO}
    assert run_of(recorded_pair(), **order).token_ids == run_of(recorded_pair(), by_host=True, **order).token_ids
    assert launched.count(1) > 40


@pytest.mark.parametrize("drafter", AHEAD[1:])
@pytest.mark.parametrize("temperature", [0, 1.0])
def test_rounds_of_any_depth_and_plain_ones_in_between_write_the_same_text(drafter, temperature, launched, monkeypatch):
    depths = [2, 0, 0, 3, 1, 0, 0, 0, 0, 2, 3, 3, 0, 1]

    class InTurn:
        drafts_chain, turns = False, 0

        def choose(self):
            self.turns += 1
            return specviz.records.runs.LengthChoice(depths[self.turns % len(depths)])

        def observe(self, *outcome):
            """Learns nothing."""

    monkeypatch.setattr(engine, "depth_policy", lambda request: InTurn())
    order = {"drafter": drafter, "num_draft_tokens": AUTO, "sampling": SamplingParams(temperature)}
    device, host = (run_of(recorded_pair(), by_host, max_new_tokens=60, **order) for by_host in (False, True))
    assert device.token_ids == host.token_ids
    assert [len(one.drafted) for one in device.rounds] == [len(one.drafted) for one in host.rounds]
    assert {0, 2, 3} <= set(launched)


def test_from_the_third_run_on_all_passes_are_replayed(launched, monkeypatch):
    """The prompt's, too, and the shallow rounds in which texts end."""
    pair, recorded, unrecorded = recorded_pair(), [], []
    for passes in pair.passes.fast.values():
        record = passes.record
        passes.record = lambda function, examples, record=record: (
            recorded.append(function) or record(function, examples)
        )
    make, graph = DeviceRounds._make, GraphedPasses._graph
    monkeypatch.setattr(DeviceRounds, "_make", lambda self, *given: unrecorded.append("round") or make(self, *given))

    def noted(self, *given):
        found = graph(self, *given)
        if found is None:
            unrecorded.append("pass")
        return found

    monkeypatch.setattr(GraphedPasses, "_graph", noted)
    order = {"drafter": "draft_model", "sampling": SamplingParams(0.9)}
    first = run_of(pair, **order)
    assert {"round", "pass"} == set(unrecorded)
    assert run_of(pair, **order).token_ids == first.token_ids
    unrecorded.clear()
    recorded.clear()
    launched.clear()
    third = run_of(pair, **order)
    assert third.token_ids == first.token_ids and len(launched) >= len(third.rounds)
    assert not unrecorded and not recorded


def test_what_cannot_be_recorded_is_made_by_the_host_and_says_why(launched):
    pair = recorded_pair()
    expected = run_of(recorded_pair(), by_host=True).token_ids

    def failing(function, examples):
        raise RuntimeError("CUDA error: out of memory\nmore")

    pair.passes.fast[TARGET].record = failing
    assert run_of(pair).token_ids == expected and not launched
    assert "out of memory" in pair.passes.fast[TARGET].rounds_refusal.message
    told = [found for found in check.prepared(pair) if found.state == "skipped"]
    assert [str(found.what) for found in told] == ["rounds made on the device"]


def test_two_texts_at_once_share_no_state(launched):
    """The second reader gets other buffers, whose rounds are the host's."""
    pair = recorded_pair()
    alone = run_of(recorded_pair(), sampling=SamplingParams(1.0))
    request = prepare(pair, RunSettings(PROMPT, seed=3, max_new_tokens=40, sampling=SamplingParams(1.0)))
    first, second = engine.rounds(request), engine.rounds(request)
    texts = [[], []]
    for _ in range(60):
        for text, rounds in zip(texts, (first, second)):
            text += getattr(next(rounds, None), "emitted", ())
    assert tuple(texts[0]) == tuple(texts[1]) == alone.token_ids


def test_drafts_that_the_host_grows_are_not_launched(launched):
    for order in ({"drafter": "prompt_lookup"}, {"drafting": DraftParams(confidence=0.5)}):
        run_of(recorded_pair(), **order)
    run_of(recorded_pair(), rule="multi_path", drafting=DraftParams(3))
    run_of(recorded_pair(), sampling=SamplingParams(1.0, top_k=2), drafting=DraftParams(3))
    assert not launched


@pytest.mark.parametrize("drafter, sampling, branches", pairwise(drafter=AHEAD, sampling=SAMPLINGS, branches=[1, 3]))
def test_no_part_of_a_recorded_round_needs_a_value_on_the_host(drafter, sampling, branches, monkeypatch):
    """By the operations that a GPU takes, each of which a recording would refuse if it waited."""
    pair = recorded_pair()
    for module in (draft, exact, sampling_rules, transfer, device_rounds):
        monkeypatch.setattr(module, "on_cpu", lambda tensor: False, raising=False)
    monkeypatch.setattr(device_rounds, "on_cpu", lambda tensor: True)
    recorded, inside = [], pair.passes.fast[TARGET].record

    def strictly(function, examples):
        if not examples:
            with _OnDevice():
                function()
            recorded.append(function.__name__)
        return inside(function, examples)

    for passes in pair.passes.fast.values():
        passes.record = strictly
    order = {"drafter": drafter, "sampling": sampling, "num_draft_tokens": 3, "rule": "auto"}
    run = run_of(pair, drafting=DraftParams(branches=branches if drafter else None), max_new_tokens=20, **order)
    by_host = branches > 1 and sampling.top_k and drafter
    assert len(run.token_ids) == 20 and ({"_verify", "_judge"} <= set(recorded)) != bool(by_host)
