"""Servers as contestants: asked for the same, in turn with the others, compared with their own kind, failing alone."""

import json
from contextlib import contextmanager
from dataclasses import asdict, replace

import pytest
from counting_server import Llama
from small_server import Reply, SmallServer, serving

from specviz.bench.benchmark import Benchmark
from specviz.bench.contest import Contest, groups_of, runs_in_turn
from specviz.bench.contestants import PLAIN, Contestant, Progress
from specviz.bench.contesting import entry_of, measure_contest, plain_request
from specviz.bench.equal_texts import plain_run, served_agreement
from specviz.bench.report import bench_text
from specviz.bench.served import looked_at, servers_named
from specviz.bench.turns import Amount
from specviz.records.errors import SpecvizError
from specviz.records.prompts import PRESETS
from specviz.servers.connection import KEY

TOKENS, REPEATS = 24, 3


@contextmanager
def llama(pair, **settings):
    with serving(Llama(token=pair.encode("x").ids[-1], **settings)) as server:
        yield server


def contestant(pair, *servers, dead=False) -> list[Contestant]:
    urls = [server.url for server in servers] + ["http://127.0.0.1:9"] * dead
    return [Contestant.by(looked_at(served, pair.texts.decode)) for served in servers_named(", ".join(urls))]


def contested(pair, rivals, **amount) -> tuple[Contest, list]:
    contestants = [Contestant.of(PLAIN), Contestant.of("suffix", 2), *rivals]
    plain = plain_request(pair, PRESETS[0], amount.pop("temperature", 0.0), TOKENS)
    contest = Contest([entry_of(rival, plain) for rival in contestants], repeats=REPEATS)
    events = list(measure_contest([plain], contestants, Amount(TOKENS, REPEATS)))
    for event in events:
        contest.hear(event)
    return contest, events


def test_a_server_decodes_the_same_as_all_others_and_is_compared_with_its_own_plain_kind(pair):
    with llama(pair) as drafting, llama(pair, depth=0) as plain:
        contest, events = contested(pair, contestant(pair, drafting, plain, dead=True))
        asked = drafting.answers[1:]
    ours, suffix, row, plain_row, dead = contest.rows()
    host = drafting.url.removeprefix("http://")
    assert (row.engine, row.mode, row.host, row.model) == ("llama.cpp", "draft-eagle3", host, "m")
    assert row.title == f"llama.cpp {host} draft-eagle3" and row.lossless is None and plain_row.mode == PLAIN
    # Its counters' figures; nothing that it does not say.
    assert (row.acceptance_length, row.rounds, row.drafted_per_round) == (2.0, REPEATS * TOKENS // 2, 4.0)
    assert (row.acceptance_rate, row.peak_mb, row.tokens) == (None, None, REPEATS * TOKENS)
    assert row.speedup_measured and row.speedup_interval and plain_row.speedup_measured is None
    # One warm-up, then a run each repeat: the prompt's own tokens, as long, with the next seed.
    assert {tuple(body["prompt"]) for body in asked} == {pair.encode(PRESETS[0].prompt).ids}
    assert [(body["n_predict"], body["seed"]) for body in asked] == [(TOKENS, seed) for seed in (0, 0, 1, 2)]
    # Turns of whole texts are the servers' alone: ours are cut as ever.
    whole = [run for run in contest.runs if run.group == 1 and run.number != 4]
    assert {run.number for run in whole} == {0, 2, 3} and all(len(run.turns) == 1 for run in whole)
    assert all(len(run.turns) > 1 for run in contest.runs if run.group == 0) and suffix.speedup_measured
    assert ours.tokens == 2 * row.tokens and contest.fraction == 1
    assert dead.repeats == 0 and "Nothing answers at http://127.0.0.1:9" in str(contest.failed[dead.title])
    assert all(isinstance(event, Progress) or event is None for event in events[:3])


def test_nothing_is_said_of_greedy_texts_that_nobody_saw(pair):
    plain = plain_request(pair, PRESETS[0], 0.0, TOKENS)
    due = plain_run(plain)
    (served,) = servers_named("localhost:9")
    own, end = list(due.token_ids), next(iter(pair.eos_ids))

    def place(tokens, same_tokens=True, due=due):
        known = Contestant.by(replace(served, same_tokens=same_tokens))
        found = served_agreement(known, tokens, due, plain, "story")
        return "nothing" if found is None else found.place

    assert place(own) is None and place([own[0], own[1] + 1, *own[2:]]) == 1
    # A server that names no tokens, and one of another tokenizer.
    assert place([-1] * TOKENS) == place(own, same_tokens=False) == "nothing"
    # A text that ends too soon parts there; the token that ends a text may go unnamed.
    assert (place(own[:2]), place([])) == (2, 0)
    ended = replace(due, token_ids=(*own[:3], end))
    assert place(own[:3], due=ended) is None and place(own[:2], due=ended) == 2


def test_without_a_plain_one_of_its_kind_a_server_has_no_speedup(pair):
    with llama(pair) as drafting:
        row = contested(pair, contestant(pair, drafting))[0].rows()[2]
    assert row.repeats == REPEATS and row.tokens_per_second and row.speedup_measured is None


def test_a_server_of_other_tokens_is_asked_by_text_and_one_that_is_asked_for_too_much_says_so(pair):
    with serving(Llama(token=pair.encode("y").ids[-1])) as other:
        (rival,) = contestant(pair, other)
        contested(pair, [rival])
        assert other.answers[-1]["prompt"] == PRESETS[0].prompt
        plain = plain_request(pair, PRESETS[0], 1.0, TOKENS)
        narrow = plain.but(type(plain.settings).of(plain.settings.flat() | {"top_k": 4}))
        contest = Contest([entry_of(who, narrow) for who in (Contestant.of(PLAIN), rival)])
        for event in measure_contest([narrow], [Contestant.of(PLAIN), rival], Amount(TOKENS, 1)):
            contest.hear(event)
    assert "switch them off" in str(contest.failed[rival.title]) and contest.rows()[0].repeats == 1


def test_the_key_comes_from_the_environment_and_stays_out_of_everything(pair, monkeypatch):
    monkeypatch.setenv(KEY, "sk-secret-4711")
    with llama(pair) as drafting:
        contest, events = contested(pair, contestant(pair, drafting))
        assert {asked.headers.get("authorization") for asked in drafting.asked} == {"Bearer sk-secret-4711"}
    assert "secret" not in json.dumps([asdict(row) for row in contest.rows()]) + repr(events)


def test_the_page_s_key_goes_to_no_address_that_a_visitor_typed(pair, monkeypatch):
    monkeypatch.setenv(KEY, "sk-secret-4711")
    with llama(pair) as drafting:
        (typed,) = servers_named(drafting.url, keyed=False)
        contested(pair, [Contestant.by(looked_at(typed, pair.texts.decode))])
        assert {asked.headers.get("authorization") for asked in drafting.asked} == {None}
    with serving(SmallServer({"/v1/models": Reply([], 401)})) as closed:
        (typed,) = servers_named(closed.url, keyed=False)
        contest, _ = contested(pair, [Contestant.by(looked_at(typed, pair.texts.decode))])
    assert "SPECVIZ_SERVERS" in str(*contest.failed.values())


def test_addresses_are_refused_before_anybody_is_asked():
    assert [served.url for served in servers_named("localhost:8080/v1, http://localhost:8080,")] == [
        "http://localhost:8080",
    ], "each once, however it is written"
    for text, listed, part in (
        ("ftp://a", None, "http://"),
        ("a,b,c,d,e", None, "At most 4"),
        ("a", ("b",), "http://b"),
    ):
        with pytest.raises(SpecvizError, match=part) as refused:
            servers_named(text, listed)
        assert refused.value.field == "server"


def test_servers_are_a_group_of_their_own():
    assert groups_of(1) == [(0,)] and groups_of(3, 2) == [(0, 1, 2)]
    assert groups_of(8, 2) == [(0, 1, 2, 3, 4), (0, 5), (0, 6, 7)] and runs_in_turn(8, 2) == 10


def test_the_benchmark_has_rows_of_servers_and_says_where_a_greedy_text_is_its_own(pair, monkeypatch):
    with llama(pair) as drafting:
        servers = servers_named(drafting.url)
        bench = Benchmark.of(pair, True, only=["suffix"], temperatures=(0.0,), max_new_tokens=8, servers=servers)
        bench.run()
    report = bench.report()
    (row,) = [row for row in report.rows if row.host]
    assert sum(row.mode == PLAIN and row.engine == "specviz" for row in report.rows) == 1, "plain decoding once"
    assert (row.preset, row.temperature, row.acceptance_length) == ("story", 0.0, 2.0) and not report.failed
    text = bench_text(report)
    assert f"which its own weights and rounding may explain: {row.title}." in text and "llama.cpp 127" in text
