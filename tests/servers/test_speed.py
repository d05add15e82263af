"""What a server's speed is measured from: whose turn it is, how much is asked for, and what is said where it ends."""

import json
import types
from contextlib import contextmanager
from dataclasses import asdict, replace

import pytest
from counting_server import Llama
from small_server import serving

from specviz.records.errors import SpecvizError
from specviz.records.prompts import Preset
from specviz.records.words import words
from specviz.servers.answers import Answer, Ask, Piece
from specviz.servers.counters import counted_between
from specviz.servers.engines import LlamaCpp
from specviz.servers.pace import Speed, most_of
from specviz.servers.server import Server
from specviz.servers.speed import measure_speed
from specviz.servers.turns import Turn, Way, _complete
from specviz.theory.statistics import Ratio
from specviz.views.server_messages import speed_message
from specviz.views.server_text import doctor_lines

PROMPTS = [Preset("1", "Once", "prose"), Preset("2", "def", "code")]


@contextmanager
def llama(**settings):
    with serving(Llama(**settings)) as server:
        yield server, Server(server.url)


def measured(server, **options):
    *_, speed = measure_speed(server, **{"prompts": PROMPTS, "tokens": 32, "loads": (1, 4)} | options)
    return speed


def test_a_server_that_goes_without_speculation_when_asked_takes_turns_with_itself():
    with llama(pause=0.01) as (llama_server, server):
        speed = measured(server, depths=(2, 9))
    assert speed.against == "request" and speed.over and speed.requests == len(llama_server.answers)
    one, four = speed.by_load
    assert (one.load, four.load) == (1, 4) and one.speedup.interval and four.speedup.interval
    assert (one.measured.tokens_per_pass, one.measured.passes, one.plain.drafted) == (2.0, 16 * 6, 0)
    # ABC, CBA, ABC …, on each prompt in turn.
    timed = [body for body in llama_server.answers if body["n_predict"] == 32]
    depths = [body.get("speculative.n_max") for body in timed]
    assert depths[:24] == [None, 0, 2, 9, 9, 2, 0, None] * 3
    assert [body["prompt"] for body in timed[:12]] == ["Once"] * 4 + ["def"] * 4 + ["Once"] * 4
    # At load 4 as many requests at a time, never more; the same prompts and seeds for both.
    assert llama_server.most_at_once == 4
    turns = [timed[start : start + 8] for start in range(24, len(timed), 8)]
    for number, (first, second) in enumerate(zip(turns[::2], turns[1::2], strict=True)):
        whose = [{body.get("speculative.n_max") for body in turn} for turn in (first, second)]
        assert whose == [{None}, {0}][:: 1 if number % 2 == 0 else -1]
        asked = [sorted((body["seed"], body["prompt"]) for body in turn) for turn in (first, second)]
        assert asked[0] == asked[1]
    assert [pace.depth for pace in speed.by_depth] == [2, 9]
    assert [pace.domain for pace in speed.by_domain] == ["prose", "code"]
    assert json.loads(json.dumps(asdict(speed)))["by_load"][0]["speedup"].keys() == {"value", "low", "high"}


def test_what_is_asked_for_by_request_is_believed_only_when_it_was_done():
    with llama(honours=False) as (llama_server, server):
        speed = measured(server, depths=(2, 4), loads=(1, 2))
        assert not {0, 2} & {body.get("speculative.n_max") for body in llama_server.answers if body["n_predict"] == 32}
    assert speed.against is None and all(pace.speedup is None and pace.plain is None for pace in speed.by_load)
    assert any("drafted all the same" in remark for remark in speed.remarks)
    # It drafts 4 as it is set up, so asking for 4 is no lie.
    assert [pace.depth for pace in speed.by_depth] == [4] and any(remark.endswith(": 2.") for remark in speed.remarks)


def test_a_second_server_is_the_other_side_unless_it_speculates_as_well():
    with llama(honours=False) as (_, server), llama(depth=0) as (_, plain), llama() as (_, drafting):
        speed = measured(server, plain=plain, loads=(1,))
        assert (speed.against, speed.plain_url) == ("server", plain.address.shown) and speed.by_load[0].speedup
        with pytest.raises(SpecvizError, match="speculates as well") as refused:
            measured(server, plain=drafting)
        assert refused.value.field == "plain"
        with pytest.raises(SpecvizError, match="Nothing answers") as refused:
            measured(server, plain=Server("http://127.0.0.1:9"))
        assert refused.value.field == "plain"
        assert any("drafted nothing" in remark for remark in measured(plain, loads=(1,)).remarks)


def test_no_more_is_asked_for_than_was_said():
    sizes = {"prompts": PROMPTS * 2, "tokens": 40, "loads": (2, 3), "depths": (1,)}
    most = most_of(**sizes)
    with llama() as (llama_server, server):
        speed = measured(server, **sizes)
        asked = llama_server.answers
    assert speed.most == most and len(asked) == most.requests
    assert sum(body["n_predict"] for body in asked) == most.tokens
    for field, wrong in {"prompts": [], "tokens": 0, "loads": (1, 65), "depths": (-1,), "budget": 0.0}.items():
        with pytest.raises(SpecvizError) as refused:
            most_of(**{"prompts": PROMPTS} | {field: wrong})
        assert refused.value.field == field


def test_requests_that_are_refused_end_it_and_what_was_measured_stays():
    with llama(takes=3, pause=0.02) as (_, server):
        speed = measured(server, loads=(1, 2, 8))
    assert [pace.load for pace in speed.by_load] == [1, 2] and speed.over
    assert "at 8 requests at a time" in speed.remarks[-1] and "status 429" in speed.remarks[-1]
    assert any("more requests at a time than 2" in remark for remark in speed.remarks), "its slots"
    with llama(takes=0) as (_, server), pytest.raises(SpecvizError, match="status 429"):
        measured(server)


def test_it_ends_where_it_is_closed_or_its_time_is_over():
    with llama() as (llama_server, server):
        growing = measure_speed(server, prompts=PROMPTS, tokens=32, loads=(1, 4))
        so_far = next(speed for speed in growing if speed.by_load)
        growing.close()
        asked = len(llama_server.answers)
        assert (so_far.by_load[0].measured.requests, so_far.over) == (1, False) and 0 < so_far.fraction < 1
        assert asked < so_far.most.requests
    with llama(pause=1.0) as (_, server):
        speed = measured(server, budget=0.1)
    assert speed.over and not speed.by_load and any("time was over" in remark for remark in speed.remarks)


def test_an_engine_that_no_request_tells_how_deep_to_draft_is_not_said_to_disobey(monkeypatch):
    monkeypatch.setattr(LlamaCpp, "takes_depth", False)
    with llama() as (llama_server, server):
        speed = measured(server, depths=(2,), loads=(1,))
        assert {body.get("speculative.n_max") for body in llama_server.answers} == {None}
    assert speed.against is None and len(speed.remarks) == 2
    assert all(remark.startswith("No request can ask this engine") for remark in speed.remarks)


def test_a_time_that_is_over_says_nothing_of_the_server():
    with llama(pause=0.1) as (_, server):
        speed = measured(server, depths=(2,), loads=(1,), budget=0.3)  # over while the second way is warmed up
    assert [str(remark) for remark in speed.remarks] == ["The time was over at one request at a time."]


def test_an_answer_of_no_tokens_ends_nothing_and_is_not_called_uncounted():
    made = Answer(Ask("Once"), [Piece(0.1, "a", (1,), made=1, end="end")])
    none = Answer(Ask("Once"), [Piece(0.1, "", made=0, end="end")])
    assert (made.made, none.made, Answer(Ask("Once"), [Piece(0.1, "a")]).made) == (1, 0, None)
    with llama() as (_, server):
        way = Way(server.engine)
        turn = _complete(way, (0, 1), (made, none), 1.0, None)
        assert turn.tokens == 1
        with pytest.raises(SpecvizError, match="made no tokens"):
            _complete(way, (0,), (none,), 1.0, None)


def _scrape(**counts):
    lines = [
        f'vllm:spec_decode_num_{name}_total{{engine="{engine}"}} {float(count)}'
        for name, by_engine in counts.items()
        for engine, count in enumerate(by_engine)
    ]
    return "\n".join(lines) + "\n"


def test_all_engines_that_share_the_work_are_counted_and_a_mean_is_no_count():
    before = _scrape(drafts=(10, 5), draft_tokens=(40, 20), accepted_tokens=(20, 9))
    after = _scrape(drafts=(40, 5), draft_tokens=(160, 20), accepted_tokens=(80, 9))
    counted = counted_between(before, after)
    assert (counted.passes, counted.drafted, counted.accepted) == (30, 120, 60)
    assert counted_between(None, after) is None, "what was not seen before is not what was added since"
    mean = 'sglang:spec_accept_length{tp_rank="0"} 2.8\n'
    assert counted_between(mean, mean) is None


def test_of_speedups_that_chance_explains_nothing_is_made():
    def pace(load, value, low, high):
        return types.SimpleNamespace(load=load, speedup=Ratio(value, low, high))

    def gains(*paces):
        return Speed.gains.fget(types.SimpleNamespace(by_load=paces))

    assert gains(pace(1, 1.33, 1.06, 1.66), pace(4, 1.10, 0.94, 1.28)) == [(1, 1.33)]
    assert gains(pace(1, 1.9, 1.8, 2.0), pace(4, 1.1, 1.05, 1.15)) == [(1, 1.9), (4, 1.1)]
    assert gains() == [] == gains(pace(1, 1.9, 0.5, 9.0))


def test_a_speedup_that_was_measured_is_not_asked_for_however_wide_its_interval():
    with llama(pause=0.001) as (_, server):
        before = server.engine.scrape()
        about, speed = server.about(), measured(server, loads=(1,), budget=10)
        counted = counted_between(before, server.engine.scrape())
    (pace,) = speed.by_load
    wide = replace(speed, by_load=(replace(pace, speedup=Ratio(1.5, 0.5, 4.5)),))
    none = replace(speed, by_load=(replace(pace, speedup=None),))
    for known, asked_for in ((wide, False), (none, True)):
        page = speed_message(about, known, words(), "finished")
        for text in ("\n".join(doctor_lines(counted, known)), page):
            assert ("with and without drafts" in text) is asked_for


def test_passes_are_not_guessed_where_others_use_the_server_too():
    with llama() as (_, server):
        before = server.engine.scrape()
        ours = server.answer(Ask("Once", 32))
        alone = counted_between(before, server.engine.scrape())
        server.answer(Ask("Once", 32))
        shared = counted_between(before, server.engine.scrape())
    assert Turn((0,), (ours,), 1.0, alone).passes == 16 and Turn((0,), (ours,), 1.0, shared).passes is None
