"""Rounds are put together as the server made them; what it does not say stays unknown."""

import pytest
from small_server import Asked, Reply, SmallServer, serving

from specviz.records.errors import SpecvizError
from specviz.records.metrics import tally
from specviz.records.runs import Run
from specviz.servers.answers import Ask, Piece
from specviz.servers.rounds import Rounds
from specviz.servers.server import Server

LLAMA = Reply.json({"data": [{"id": "storybook", "owned_by": "llamacpp"}]})


def told(ids, text, drafted, accepted, made=None, **end):
    """An event of llama.cpp's."""
    timings = {"draft_n": drafted, "draft_n_accepted": accepted} if drafted else {}
    return {"content": text, "tokens": ids, "stop": bool(end), "tokens_predicted": made, "timings": timings, **end}


def watched(events, **ask):
    replies = {"/v1/models": LLAMA, "/completion": Reply.events(events, done=False)}
    with serving(SmallServer(replies)) as server:
        watch = Server(server.url).watch(Ask("Once", **ask))
        return list(watch), watch


def counts(rounds):
    return [(len(round_.drafted), round_.accepted, round_.emitted) for round_ in rounds]


def test_counts_at_every_token_give_each_round():
    """A first token of the prompt's own pass, a full draft, a plain step, a rejection at once."""
    events = [
        *(told([1], "a", 0, 0), told([2], "b", 2, 2), told([3], "c", 2, 2), told([4], "d", 2, 2)),
        *(told([5], "e", 2, 2), told([6], "f", 5, 2), told([], "", 5, 2, stop_type="limit")),
    ]
    rounds, watch = watched(events, max_new_tokens=6)
    assert counts(rounds) == [(0, 0, (1,)), (2, 2, (2, 3, 4)), (0, 0, (5,)), (3, 0, (6,))]
    assert [token.id for token in rounds[3].drafted] == [None, None, None]
    assert [token.outcome for token in rounds[3].drafted] == ["rejected", "discarded", "discarded"]
    assert (rounds[1].next.kind, rounds[3].next.kind) == ("bonus", "recovered")
    assert {token.p for round_ in rounds for token in round_.drafted if token.outcome == "discarded"} == {None}
    run = watch.run()
    assert (run.text, run.token_ids, run.stop_reason) == ("abcdef", (1, 2, 3, 4, 5, 6), "length")
    assert not watch.together.inferred and (watch.answer.drafted, watch.answer.accepted) == (5, 2)
    assert Run.from_dict(run.to_dict()) == run


def test_a_prompt_with_half_a_character_is_refused_before_anybody_is_asked():
    with serving(SmallServer({"/v1/models": LLAMA})) as server:
        with pytest.raises(SpecvizError, match="half of a surrogate pair") as refused:
            Server(server.url).run("a\ud800b")
        assert refused.value.field == "prompt" and not server.asked


def test_a_sampled_token_has_no_probability_that_nobody_said():
    rounds, _ = watched(
        [told([1], "a", 1, 1), told([2], "b", 1, 1), told([], "", 1, 1, stop_type="eos")], temperature=1.0
    )
    assert (rounds[0].drafted[0].p, rounds[0].next.prob, rounds[0].drafted[0].u) == (None, None, None)


def test_a_token_within_a_character_is_there_without_its_id():
    """llama.cpp sends nothing for it; the count of tokens shows that it was."""
    rounds, watch = watched([told([1], "a", 0, 0, 1), told([7], "意", 0, 0, 4), told([], "", 0, 0, 4, stop_type="eos")])
    assert [round_.emitted for round_ in rounds] == [(1,), (None,), (None,), (7,)]
    assert watch.run().token_ids == (1, 7) and watch.run().text == "a意"


def test_a_round_that_the_end_cuts_off_keeps_its_counts():
    rounds, _ = watched([told([1], "a", 4, 4), told([2], "b", 4, 4), told([], "", 4, 4, stop_type="limit")])
    (round_,) = rounds
    assert (len(round_.drafted), round_.accepted, round_.emitted, round_.dropped) == (4, 4, (1, 2), 3)


def test_what_was_there_before_a_break_stays():
    replies = {
        "/v1/models": LLAMA,
        "/completion": Reply.events([told([1], "a", 0, 0), told([2], "b", 1, 0)], done=False),
    }
    with serving(SmallServer(replies)) as server:
        watch = Server(server.url).watch(Ask("Once"))
        with pytest.raises(SpecvizError, match="before it was complete"):
            list(watch)
    assert (watch.run().text, watch.run().stop_reason) == ("ab", "stopped")


def piece(*ids, passes=None, end=None):
    return Piece(0.0, "".join(map(str, ids)), ids, passes=passes, end=end)


def together(pieces, depth=None):
    rounds = Rounds(depth)
    made = [round_ for given in pieces for round_ in rounds.add(given)]
    return [(round_.drafted, round_.accepted, len(round_.ids)) for round_ in made], rounds


def test_tokens_that_arrive_together_are_a_round_and_that_is_inferred():
    """vLLM: the first token is the prompt's own pass, a rejection shows by what is missing to γ, and of the last round
    nobody knows how many were accepted."""
    made, rounds = together([piece(1), piece(2, 3, 4), piece(5), piece(6, 7, end="length")], depth=3)
    assert made == [(0, 0, 1), (3, 2, 3), (3, 0, 1), (1, 1, 2)]
    assert rounds.inferred and rounds.lengths_known
    _, rounds = together([piece(1), piece(2, 3, 4)])
    assert rounds.inferred and not rounds.lengths_known


def test_tokens_that_arrive_together_have_their_own_texts_where_the_server_says_them():
    """vLLM says them with log probabilities. Elsewhere the last one has the text, which the others share."""

    def texts(**given):
        rounds = Rounds(1)
        made = [
            round_
            for piece in (Piece(0.0, "x", (9,)), Piece(0.0, " a b", (1, 2), **given))
            for round_ in rounds.add(piece)
        ]
        shown = made[1].shown(1, greedy=False)
        return shown.pieces, shown.drafted[0].text

    assert texts(texts=(" a", " b")) == ((" a", " b"), " a")
    assert texts() == (("", " a b"), "…")


def test_passes_that_the_server_counts_are_not_inferred():
    """SGLang: one more verification, one more round; none more, a plain step."""
    made, rounds = together(
        [piece(1, passes=0), piece(2, 3, passes=1), piece(4, passes=1), piece(5, passes=2)], depth=4
    )
    assert made == [(0, 0, 1), (4, 1, 2), (0, 0, 1), (4, 0, 1)] and not rounds.inferred
    _, rounds = together([piece(1, passes=0), piece(2, 3, 4, 5, passes=2)], depth=4)
    assert rounds.inferred


def test_sglang_repeats_its_answer_and_each_token_counts_once():
    def event(text, ids, passes, reason=None):
        return {"text": text, "output_ids": ids, "meta_info": {"spec_verify_ct": passes, "finish_reason": reason}}

    said = [event("a", [1], 0), event("abc", [1, 2, 3], 1), event("abcd", [1, 2, 3, 4], 2, {"type": "length"})]
    models = Reply.json({"data": [{"id": "m", "owned_by": "sglang"}]})
    info = Reply.json({"version": "0.5", "speculative_algorithm": "EAGLE3", "speculative_num_steps": 3})
    replies = {"/v1/models": models, "/server_info": info, "/generate": Reply.events(said)}
    with serving(SmallServer(replies)) as server:
        run = Server(server.url).run((7, 8), max_new_tokens=4)
        asked = server.asked[-2 if server.asked[-1].path == "/metrics" else -1].body
    assert (asked["input_ids"], asked["sampling_params"]["top_k"]) == ([7, 8], -1)
    assert (run.text, run.drafter, run.engine, tally(run.rounds).accepted) == ("abcd", "EAGLE3", "SGLang 0.5", 1)


def test_sglang_may_send_what_is_new_alone_and_no_token_is_lost():
    def event(ids, made, reason=None):
        said = {"spec_verify_ct": made, "completion_tokens": made, "finish_reason": reason}
        return {"text": "x" * len(ids), "output_ids": ids, "meta_info": said}

    said = [event([5], 1), event([5], 2), event([5, 6], 4, {"type": "length"})]
    models = Reply.json({"data": [{"id": "m", "owned_by": "sglang"}]})
    with serving(SmallServer({"/v1/models": models, "/generate": Reply.events(said)})) as server:
        pieces = list(Server(server.url).engine.stream(Ask("Once", 4)))
    assert [piece.ids for piece in pieces] == [(5,), (5,), (5, 6)] and "".join(piece.text for piece in pieces) == "xxxx"


def test_an_engine_that_names_no_tokens_has_no_rounds():
    """Ollama says its text and nothing else; the text is there, the rounds are not known."""
    lines = '{"response": "a", "done": false}\n{"response": "b", "done": true, "done_reason": "stop"}\n'
    replies = {
        "/v1/models": Reply.json({"data": [{"id": "m", "owned_by": "library"}]}),
        "/api/version": Reply.json({"version": "0.20"}),
        "/api/generate": Reply([lines]),
    }
    with serving(SmallServer(replies)) as server:
        watch = Server(server.url).watch(Ask("Once"))
        assert list(watch) == [] and (watch.answer.text, watch.about.version) == ("ab", "0.20")
        with pytest.raises(SpecvizError, match="does not say which tokens"):
            watch.run()


def test_neutral_settings_name_every_sampler_and_a_server_s_own_stay_if_asked():
    def body(**ask):
        def reply(asked: Asked) -> Reply:
            return Reply.json(told([1], "a", 0, 0, stop_type="limit"))

        with serving(SmallServer({"/v1/models": LLAMA, "/completion": reply})) as server:
            Server(server.url).answer(Ask("Once", temperature=0.7, **ask))
            return server.asked[-1].body

    assert (body()["samplers"], body()["temperature"], body()["top_k"]) == (["temperature"], 0.7, 0)
    assert not body(neutral=False).keys() & {"samplers", "top_k", "top_p", "min_p", "repeat_penalty"}
