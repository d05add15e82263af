"""A server's own numbers: what is read of each format, what follows exactly, and what is refused."""

import json
import pathlib
import re

import pytest

from specviz.records.errors import SpecvizError
from specviz.records.server_metrics import read_metrics, tally_of

DOCS = pathlib.Path(__file__).parents[2] / "docs" / "metrics.md"

#: The example of vLLM's page on acceptance metrics: three tokens were drafted in each of 43 passes.
VLLM = {
    "acceptance_histogram": [39, 1, 0, 3],
    "num_spec_steps": 43,
    "num_accepted_draft_tokens": 10,
    "num_draft_tokens": 129,
    "num_spec_tokens": 3,
}
#: An answer quoted in SGLang's pull request 33518.
SGLANG = {
    "spec_num_correct_drafts": 63,
    "spec_num_proposed_drafts": 215,
    "spec_verify_ct": 43,
    "spec_correct_drafts_histogram": [11, 14, 11, 4, 0, 3],
}


def answer(metrics: dict, name: str = "chatcmpl-1") -> dict:
    usage = {"completion_tokens": 54}
    return {"id": name, "choices": [{"index": 0}], "usage": usage, "metrics": {"speculative_decoding": metrics}}


def read(value: object, chains: bool = False):
    return read_metrics(json.dumps(value), chains).requests


def test_vllms_summary_tells_all_where_as_much_was_drafted_as_could_be():
    (one,) = read(answer(VLLM))
    assert (one.name, one.passes, one.accepted, one.completion_tokens) == ("chatcmpl-1", 43, 10, 54)
    assert one.tokens_per_pass == 1.2325581395348837 and one.lengths_known
    counts = tally_of(one.outcomes)
    assert (counts.judged_at, counts.accepted_at) == ([43, 4, 3], [4, 3, 3])
    assert counts.acceptance_rate == 10 / 50 and counts.accepted / counts.drafted == 10 / 129


def test_of_shorter_drafts_a_histogram_does_not_tell_which_positions_were_reached():
    (one,) = read(answer(VLLM | {"num_draft_tokens": 100}))
    assert one.tokens_per_pass == 1 + 10 / 43 and not one.lengths_known


def test_pass_by_pass_every_length_is_known():
    steps = {"per_step_accepted": [2, 0, 1], "per_step_drafted": [3, 3, 1], "num_spec_tokens": 3}
    (one,) = read(answer(steps))
    counts = tally_of(one.outcomes)
    # Of the pass that drafted one token and kept it, the second position is unobserved.
    assert (counts.judged_at, counts.accepted_at) == ([3, 1, 1], [2, 1, 0])
    assert (one.passes, one.accepted, one.drafted) == (3, 3, 7)


def test_sglangs_drafted_tokens_are_nominal_unless_somebody_vouches_for_chains():
    (silent,), (vouched,) = read({"meta_info": SGLANG}), read({"meta_info": SGLANG}, chains=True)
    assert silent.tokens_per_pass == vouched.tokens_per_pass == 1 + 63 / 43
    assert not silent.lengths_known and vouched.lengths_known
    assert tally_of(vouched.outcomes).judged_at == [43, 32, 18, 7, 3]


def test_older_names_of_sglang_are_read_and_its_oldest_give_the_answers_length():
    older = {
        "spec_accept_token_num": 3,
        "spec_draft_token_num": 6,
        "spec_verify_ct": 2,
        "spec_accept_histogram": [0, 1, 1],
    }
    (one,), (oldest,) = read({"meta_info": older}), read({"meta_info": {"spec_verify_ct": 4, "completion_tokens": 10}})
    assert (one.passes, one.accepted, one.drafted) == (2, 3, 6)
    assert (oldest.tokens_per_pass, oldest.completion_tokens / oldest.passes) == (None, 2.5)


def test_an_answer_that_says_it_twice_counts_once():
    twice = {"id": "x", "choices": [{"meta_info": SGLANG}], "sglext": {"spec_tokens_details": SGLANG}}
    assert len(read(twice)) == 1


def test_arrays_lines_and_streams_are_read_alike():
    both = [answer(VLLM, "a"), answer(VLLM, "b")]
    lines = "\n".join(map(json.dumps, both))
    chunk = {"object": "chat.completion.chunk", "choices": [{"delta": {"content": "x"}}]}
    stream = "\n\n".join(f"data: {json.dumps(one)}" for one in (chunk, *both)) + "\n\ndata: [DONE]\n"
    files = "\n".join(json.dumps(one, indent=1) for one in both)
    read_alike = [read_metrics(text) for text in (json.dumps(both), lines, stream, "\ufeff" + files)]
    assert all(one == read_alike[0] for one in read_alike)
    assert [one.name for one in read_alike[0].requests] == ["a", "b"]
    assert read_metrics(json.dumps([*both, {"choices": []}])).without == 1


def test_the_example_in_the_docs_is_read():
    (example,) = re.findall(r"```json\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    first, second = read_metrics(example).requests
    assert (first.name, first.tokens_per_pass, first.completion_tokens) == ("a", 1 + 10 / 5, 16)
    assert first.lengths_known and tally_of(first.outcomes).judged_at == [5, 4, 3]
    assert (second.name, second.passes, second.drafted) == ("b", 3, 7)


def own(**request) -> str:
    return json.dumps({"schema": "specviz.metrics/1", "requests": [request]})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "nothing to read"),
        ('{"a": 1}\n{', "line 2"),
        ("[" * 100_000, "line 1 cannot be read"),
        ('{"a":\n', "line 2 cannot be read"),
        ("9" * 5000, "line 1 cannot be read"),
        ('{"a": 1} <b>', "line 1 cannot be read"),
        ('[{"a": 1}]', "--per-request-spec-decode-metrics"),
        ('{"schema": "specviz.metrics/2", "requests": []}', "'specviz.metrics/2'"),
        ('{"acceptance_histogram": [1, -1]}', "Request 1: acceptance_histogram[1]"),
        ('{"num_spec_steps": NaN}', "Request 1: num_spec_steps"),
        ('{"num_spec_steps": true}', "not True"),
        ('{"acceptance_histogram": 3}', "must be a list"),
        ('{"spec_verify_ct": 3}', "spec_num_correct_drafts"),
        (json.dumps([VLLM, VLLM | {"num_spec_steps": 44}]), "Request 2: num_spec_steps says 44"),
        (json.dumps(VLLM | {"num_accepted_draft_tokens": 9}), "num_accepted_draft_tokens says 9"),
        (json.dumps(VLLM | {"num_draft_tokens": 9}), "num_draft_tokens allows no more than 9"),
        (json.dumps(VLLM | {"num_draft_tokens": 130}), "num_spec_tokens allows no more than 129"),
        (json.dumps(VLLM | {"num_spec_tokens": 2}), "acceptance_histogram comes to 3, and num_spec_tokens"),
        ('{"per_step_accepted": [3], "per_step_drafted": [2]}', "per_step_drafted allows no more than 2"),
        ('{"per_step_accepted": [1], "per_step_drafted": [2, 2]}', "per_step_accepted and per_step_drafted"),
        ('{"per_step_accepted": [1, 0], "acceptance_histogram": [0, 2]}', "and acceptance_histogram"),
        (own(passes=2, accepted=7, num_draft_tokens=3), "accepted comes to 7, and num_draft_tokens allows"),
        (own(passes=0, accepted=5), "accepted comes to 5, and passes allows no more than 0"),
        (own(histogram=[1, 1, 0, 3], drafted=9), "histogram comes to 10, and drafted allows no more than 9"),
    ],
)
def test_what_cannot_be_is_refused_with_the_request_and_the_field(text, said):
    with pytest.raises(SpecvizError) as caught:
        read_metrics(text)
    assert said in str(caught.value) and caught.value.field == "metrics"
