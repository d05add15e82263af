"""A server's own numbers: what is read of each format, what follows exactly, and what is refused."""

import json
import pathlib
import re
from collections import Counter

import pytest
from refusal import refused

from specviz.foreign.metrics import read_metrics
from specviz.foreign.requests import tally_of
from specviz.records.errors import SpecvizError
from specviz.records.files import decoded
from specviz.records.metrics import tally
from specviz.records.runs import Run

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


def scrape(drafts: int, drafted: int, accepted: int, kept: list[int], server: str = "vllm") -> str:
    """What vLLM's /metrics writes; llama.cpp's has no labels but the position."""
    labels = 'engine="0",model_name="m"' if server == "vllm" else ""
    counters = {"num_drafts": drafts, "num_draft_tokens": drafted, "num_accepted_tokens": accepted}
    lines = [f"# HELP {server}:spec_decode_num_drafts_total Number of spec decoding drafts."]
    for name, value in counters.items():
        lines.append(f"{server}:spec_decode_{name}_total{{{labels}}} {float(value)}")
        lines.append(f"{server}:spec_decode_{name}_created{{{labels}}} 1.78e+09")
    for position, value in enumerate(kept):
        place = ",".join(filter(None, [labels, f'position="{position}"']))
        lines.append(f"{server}:spec_decode_num_accepted_tokens_per_pos_total{{{place}}} {float(value)}")
    return "\n".join(lines) + "\n"


def bench_serve(shares: list[float]) -> str:
    counts = {"num_drafts": 43, "draft_tokens": 129, "accepted_tokens": 10, "acceptance_rate": 7.75}
    result = {f"spec_decode_{name}": value for name, value in counts.items()}
    return json.dumps(result | {"spec_decode_per_position_acceptance_rates": shares})


def read(value: object, chains: bool = False):
    return read_metrics(json.dumps(value), chains).requests


def test_vllms_summary_tells_all_where_as_much_was_drafted_as_could_be():
    (one,) = read(answer(VLLM))
    assert (one.name, one.passes, one.accepted, one.completion_tokens) == ("chatcmpl-1", 43, 10, 54)
    assert one.tokens_per_pass == 1.2325581395348837 and one.lengths_known
    counts = tally_of(one.outcomes)
    assert (counts.judged_at, counts.accepted_at) == ([43, 4, 3], [4, 3, 3])
    assert counts.acceptance_rate == 10 / 50 and counts.accepted / counts.drafted == 10 / 129
    # Of shorter drafts a histogram does not tell which positions were reached.
    (one,) = read(answer(VLLM | {"num_draft_tokens": 100}))
    assert one.tokens_per_pass == 1 + 10 / 43 and not one.lengths_known
    # Pass by pass every length is known; of one that drafted a token and kept it, the second position is unobserved.
    (one,) = read(answer({"per_step_accepted": [2, 0, 1], "per_step_drafted": [3, 3, 1], "num_spec_tokens": 3}))
    counts = tally_of(one.outcomes)
    assert (counts.judged_at, counts.accepted_at) == ([3, 1, 1], [2, 1, 0])
    assert (one.passes, one.accepted, one.drafted) == (3, 3, 7)


def test_sglangs_drafted_tokens_are_nominal_unless_somebody_vouches_for_chains():
    (silent,), (vouched,) = read({"meta_info": SGLANG}), read({"meta_info": SGLANG}, chains=True)
    assert silent.tokens_per_pass == vouched.tokens_per_pass == 1 + 63 / 43
    assert not silent.lengths_known and vouched.lengths_known
    assert tally_of(vouched.outcomes).judged_at == [43, 32, 18, 7, 3]
    twice = {"id": "x", "choices": [{"meta_info": SGLANG}], "sglext": {"spec_tokens_details": SGLANG}}
    assert len(read(twice)) == 1, "an answer that says it twice counts once"
    # Older names are read, and the oldest give the answer's length.
    older = {"spec_accept_token_num": 3, "spec_draft_token_num": 6, "spec_verify_ct": 2}
    (one,) = read({"meta_info": older | {"spec_accept_histogram": [0, 1, 1]}})
    (oldest,) = read({"meta_info": {"spec_verify_ct": 4, "completion_tokens": 10}})
    assert (one.passes, one.accepted, one.drafted) == (2, 3, 6)
    assert (oldest.tokens_per_pass, oldest.completion_tokens / oldest.passes) == (None, 2.5)


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


@pytest.mark.parametrize(
    "encoding", ["utf-8", "utf-8-sig", *(f"utf-{n}{end}" for n in (16, 32) for end in ("", "-le", "-be"))]
)
@pytest.mark.parametrize("text", [json.dumps([answer(VLLM)]), "vllm:spec_decode_num_drafts_total 4\n"])
def test_a_file_is_read_in_every_encoding_that_programs_write(encoding, text):
    assert decoded(text.encode(encoding)).lstrip("\ufeff") == text


@pytest.mark.parametrize(
    "around",
    [
        'event: message\nid: 7\nretry: 3000\n: ping\n:\ndata: {}\n\n: {{"a": 1}\nid: {{"a": 1}\n\ndata: [DONE]\n',
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n{}\r\n",
        "2026-09-01 12:00:00 [api.py:12] INFO answer={} [status 200]",
        "\ufeff{}",
        "[[{}]]",
    ],
)
def test_what_stands_around_an_answer_is_passed_over(around):
    for text in (json.dumps(answer(VLLM)), json.dumps(answer(VLLM), indent=1)):
        if "data: " in around:
            text = text.replace("\n", "\ndata: ")
        read_here = read_metrics(around.replace("{}", text, 1).replace("{{", "{"))
        assert [(one.name, one.accepted) for one in read_here.requests] == [("chatcmpl-1", 10)]
        assert (read_here.without, read_here.left_out) == (0, 0)


def test_a_count_is_a_whole_number_however_it_is_written():
    same = VLLM | {"num_spec_steps": 43.0, "num_draft_tokens": "129", "acceptance_histogram": ["39", 1.0, "0.0", 3]}
    sparse = VLLM | {"acceptance_histogram": {"0": 39, "1": 1, "3": 3}, "num_accepted_draft_tokens": None}
    assert read(same)[0].outcomes == read(sparse)[0].outcomes == read(VLLM)[0].outcomes
    for wrong in (float("nan"), float("inf"), 43.5, "43.5", "43.000", "-1", "", "٤", [43], 1e300):
        with pytest.raises(SpecvizError, match="Request 1: num_spec_steps must be a whole number"):
            read(VLLM | {"num_spec_steps": wrong})


LINES = "\n".join(json.dumps(answer(VLLM, name)) for name in "abc")


@pytest.mark.parametrize(
    ("text", "names", "reasons"),
    [
        (LINES.replace(": 10,", ": 11,", 1), "bc", ["Request 1: num_accepted_draft_tokens says 11"]),
        (LINES.replace('"num_spec_steps": 43', '"num_spec_steps": NaN', 1), "bc", ["Request 1: num_spec_steps"]),
        (LINES[:-20], "ab", ["cannot read line 3"]),
        (LINES.replace(", 1, 0, 3]", "", 1), "bc", ["cannot read line 1"]),
        (LINES.replace("}", "", 5), "bc", ["cannot read line 1", "cannot read line 2"][:1]),
        (json.dumps([answer(VLLM, name) for name in "abc"])[:-20], "ab", ["cannot read line 1"]),
        (json.dumps([answer(VLLM, name) for name in "abc"], indent=2)[:-40], "ab", ["cannot read line"]),
        (json.dumps([answer(VLLM, "a"), {"schema": "specviz.metrics/2"}, answer(VLLM, "c")]), "ac", ["has the schema"]),
    ],
)
def test_one_bad_request_is_left_out_with_its_reason_and_the_others_are_read(text, names, reasons):
    found = read_metrics(text)
    assert "".join(one.name for one in found.requests) == names
    assert found.left_out == len(found.reasons) == len(reasons)
    for reason, said in zip(found.reasons, reasons):
        assert said in str(reason) and reason.field == "metrics"


def test_of_very_many_bad_requests_all_are_counted_and_some_reasons_kept():
    found = read_metrics("\n".join(['{"acceptance_histogram": 1}', '{"a": ,}'] * 500 + [json.dumps(VLLM)]))
    assert (len(found.requests), found.left_out, found.requests[0].number) == (1, 1000, 501)
    assert 0 < len(found.reasons) < 200
    given_up = read_metrics(json.dumps(VLLM) + "\n" + '{"a": [\n' * 5_000)
    assert len(given_up.requests) == 1 and "Reading stopped after line" in str(given_up.reasons[-1])


# --- what each format tells -------------------------------------------------------------------------------------------

#: The same 43 passes as vLLM's example: 39 kept none of three draft tokens, one kept one, three kept all.
KEPT, ALL = {0: 39, 1: 1, 3: 3}, (43, 10, 129, 1 + 10 / 43)
#: Told by lines of logs as they stand in public threads, and counted by hand.
VLLM_LOG = (
    "(APIServer pid=7) INFO 11-12 10:00:00 [metrics.py:96] SpecDecoding metrics: Mean acceptance length: 1.23, "
    "Accepted throughput: 1.00 tokens/s, Drafted throughput: 12.90 tokens/s, Accepted: 10 tokens, Drafted: 129 tokens, "
    "Per-position acceptance rate: 0.093, 0.070, 0.070, Avg Draft acceptance rate: 7.8%"
)
OLDER_VLLM_LOG = (
    "INFO 05-12 10:00:00 [metrics.py:82] SpecDecoding metrics: Draft acceptance rate: 7.8%, Mean acceptance length: "
    "1.23, Accepted: 10 tokens, Drafted: 129 tokens, Per-position acceptance rate: 0.093, 0.070, 0.070"
)
SGLANG_LOG = (
    "[2026-09-01 12:00:00 TP0] Decode batch. #running-req: 1, #token: 100, token usage: 0.01, accept len: 2.31, accept "
    "rate: 0.26, cuda graph: True, gen throughput (token/s): 100.0, #queue-req: 0, "
)
LLAMA_LOG = (
    "0.16.519.195 I slot print_timing: id  0 | task 42 | draft acceptance = 0.66237 (  257 accepted /   388 generated)"
    ", mean acceptance length =  3.65, acceptance rate per position = (0.804, 0.701, 0.629, 0.515)"
)
LLAMA_STATISTICS = (
    "0.16.519.216 I statistics        draft-mtp: #calls(b,g,a) =    2    134    134, #gen drafts =    134, #acc drafts"
    " =   109, #gen tokens =    536, #acc tokens =   354, #mean acc len = 3.64, #acc rate/pos = (0.813, 0.716, 0.619, "
    "0.493), dur(b,g,a) = 0.004, 808.560, 0.264 ms"
)
AIPERF_RECORD = VLLM | {"engine": "vllm", "acceptance_histogram": {"0": 39, "1": 1, "3": 3}, "per_step_accepted": None}
AIPERF_METRICS = {"spec_decode_steps": {"value": 43, "unit": "count"}}
AIPERF = {"metadata": {"x_request_id": "r"}, "metrics": AIPERF_METRICS, "spec_decode_acceptance": AIPERF_RECORD}
TENSORRT = {"acceptance_rate": 0.08, "total_accepted_draft_tokens": 10, "total_draft_tokens": 129}
TENSORRT_STEPS = {"num_spec_steps": 43, "acceptance_histogram": [39, 1, 0, 3], "num_spec_tokens": 3}
STEP = {"numDraftTokens": 6, "numAcceptedTokens": 4, "numRequestsWithDraftTokens": 2, "acceptanceLength": 3.0}
LLAMA = {"predicted_n": 16, "draft_n": 12, "draft_n_accepted": 9}
LLAMA_KEPT = {0: 25, 1: 13, 2: 13, 3: 17, 4: 66}  # of 134 passes, by the shares
OLDER_LLAMA_LOG = "draft acceptance rate = 0.37500 (    3 accepted /     8 generated)"
LM_STUDIO_SDK = {"predictedTokensCount": 50, "totalDraftTokensCount": 16, "acceptedDraftTokensCount": 14}
BENCH_ROWS = [{"title": "plain", "acceptance_length": None}, {"title": "draft", "acceptance_length": 2.5}]
BENCH = {"schema": "specviz.bench/1", "rows": BENCH_ROWS}
LM_STUDIO = {"total_draft_tokens_count": 16, "accepted_draft_tokens_count": 14, "rejected_draft_tokens_count": 2}
#: What the benchmarks and the example of vLLM print.
BENCH_TABLE = """\
============ Serving Benchmark Result ============
Maximum request concurrency:             4
Output token throughput (tok/s):         500.91
---------------Speculative Decoding---------------
Acceptance rate (%):                     7.75
Acceptance length:                       1.23
Drafts:                                  43
Draft tokens:                            129
Accepted tokens:                         10
Per-position acceptance (%):
  Position 0:                            9.30
  Position 1:                            6.98
  Position 2:                            6.98
==================================================
"""
SGLANG_TABLE = "Max request concurrency:     not set\nOutput token throughput (tok/s):  812.50\nAccept length:   2.91\n"
EXAMPLE = """\
num_drafts: 43
num_draft_tokens: 129
num_accepted_tokens: 10
mean acceptance length: 1.23
acceptance at token 0: 0.09
"""
LABELS = "labels={'engine': '0', 'model_name': 'm'}"
VECTOR = f"Vector(name='vllm:spec_decode_num_accepted_tokens_per_pos', {LABELS}, values=[4, 3, 3])"
GET_METRICS = [
    *(
        f"Counter(name='vllm:spec_decode_num_{name}', {LABELS}, value={count})"
        for name, count in (("drafts", 43), ("draft_tokens", 129), ("accepted_tokens", 10))
    ),
    VECTOR,
]
MLX_VLM = {"predicted_n": 50, "draft_kind": "eagle3", "draft_rounds": 20, "draft_n": 60, "draft_n_accepted": 30}
MLX_VLM_LOG = (
    "Speculative decoding: 2.00 accepted tokens/round (1.00 accepted drafts/round, 60.0% of drafted, avg draft 1.67) "
    "over 3 rounds"
)
#: Two passes end with a token of the target's own; the last one was cut off.
FLAGS = [True, True, False, False, True]
TOKENS = [{"text": "x", "token": 1, "from_draft": one, "generation_tokens": n} for n, one in enumerate(FLAGS, start=1)]


def test_totals_that_llama_cpp_rounds_to_six_digits_contradict_nothing():
    """tools/server writes them as doubles, those by position as whole numbers."""

    def busy(drafts: str, drafted: str, accepted: str, *kept: int) -> str:
        text = scrape(0, 0, 0, list(kept), "llamacpp")
        for name, value in (("num_drafts", drafts), ("draft_tokens", drafted), ("accepted_tokens", accepted)):
            text = text.replace(f"{name}_total{{}} 0.0", f"{name}_total{{}} {value}")
        return text

    first = busy("2.34568e+06", "4.56789e+06", "3.05406e+06", 1_800_123, 1_253_934)
    (one,) = read_metrics(first).requests
    assert (one.passes, one.accepted) == (2_345_680, 1_800_123 + 1_253_934)
    (since,) = read_metrics(first + busy("2.34618e+06", "4.56889e+06", "3.05472e+06", 1_800_500, 1_254_210)).requests
    assert (since.passes, since.accepted) == (500, 377 + 276)
    # So few passes that the last digit is a tenth of them.
    (since,) = read_metrics(first + busy("2.34578e+06", "4.56909e+06", "3.05416e+06", 1_800_183, 1_253_984)).requests
    assert (since.passes, since.drafted, since.accepted) == (None, 1200, 60 + 50)
    assert read_metrics(scrape(9, 27, 10, [], "llamacpp")).requests[0].accepted == 10


@pytest.mark.parametrize(
    ("text", "name", "passes", "accepted", "drafted", "tokens_per_pass", "kept", "known"),
    [
        (json.dumps(answer(VLLM)), "vLLM", *ALL, KEPT, True),
        (scrape(43, 129, 10, [4, 3, 3]), "vLLM /metrics", *ALL, KEPT, True),
        (scrape(43, 99, 10, [4, 3, 3]), "vLLM /metrics", 43, 10, 99, 1 + 10 / 43, KEPT, False),
        (scrape(7, 21, 9, [5, 3, 1]) + scrape(50, 150, 19, [9, 6, 4]), "vLLM /metrics", *ALL, KEPT, True),
        (scrape(90, 270, 9, [5, 3, 1]) + scrape(43, 129, 10, [4, 3, 3]), "vLLM /metrics", *ALL, KEPT, True),
        (bench_serve([4 / 43, 3 / 43, 3 / 43]), "vLLM bench serve", *ALL, KEPT, True),
        (VLLM_LOG, "vLLM log", None, 10, 129, 1.23, None, False),
        (OLDER_VLLM_LOG, "vLLM log", None, 10, 129, 1.23, None, False),
        (SGLANG_LOG, "SGLang log", None, None, None, 2.31, None, False),
        ('sglang:spec_accept_length{tp_rank="0"} 2.8', "SGLang /metrics", None, None, None, 2.8, None, False),
        (json.dumps({"timings": LLAMA}), "llama.cpp", None, 9, 12, None, None, False),
        (LLAMA_LOG, "llama.cpp log", None, 257, 388, 3.65, None, False),
        (OLDER_LLAMA_LOG, "llama.cpp log", None, 3, 8, None, None, False),
        (f"{LLAMA_LOG}\n{LLAMA_STATISTICS}", "llama.cpp statistics", 134, 354, 536, 1 + 354 / 134, LLAMA_KEPT, False),
        (scrape(43, 129, 10, [4, 3, 3], "llamacpp"), "llama.cpp /metrics", *ALL, KEPT, True),
        (json.dumps({"stats": LM_STUDIO}), "LM Studio", None, 14, 16, None, None, False),
        (json.dumps({"stats": LM_STUDIO_SDK}), "LM Studio", None, 14, 16, None, None, False),
        (json.dumps(TOKENS), "mlx-lm", 2, 2, None, 2.0, {2: 1, 0: 1}, False),
        (json.dumps({"id": "q", "tokens": TOKENS}), "mlx-lm", 2, 2, None, 2.0, {2: 1, 0: 1}, False),
        (json.dumps([{"specDecodingStats": STEP}] * 3), "TensorRT-LLM steps", 6, 12, 18, 3.0, None, False),
        (json.dumps({"speculative_decoding": TENSORRT}), "TensorRT-LLM", None, 10, 129, None, None, False),
        (json.dumps({"speculative_decoding": TENSORRT | TENSORRT_STEPS}), "TensorRT-LLM", *ALL, KEPT, True),
        (json.dumps(AIPERF), "AIPerf", *ALL, KEPT, True),
        (BENCH_TABLE, "vLLM bench serve, printed", *ALL, KEPT, True),
        (SGLANG_TABLE, "SGLang bench_serving, printed", None, None, None, 2.91, None, False),
        (EXAMPLE, "vLLM spec_decode.py, printed", *ALL, None, False),
        (str(GET_METRICS).replace('"', ""), "vLLM /metrics", *ALL, KEPT, True),
        ("\n".join(GET_METRICS), "vLLM /metrics", *ALL, KEPT, True),
        (json.dumps({"timings": MLX_VLM}), "mlx-vlm", 20, 30, 60, 2.5, None, False),
        (MLX_VLM_LOG, "mlx-vlm log", 3, None, None, 2.0, None, False),
        (json.dumps(BENCH), "specviz bench", None, None, None, 2.5, None, False),
    ],
)  # fmt: skip
def test_what_a_format_gives_is_read_and_what_it_does_not_give_stays_unknown(
    text, name, passes, accepted, drafted, tokens_per_pass, kept, known
):
    found = read_metrics(text)
    (one,) = found.requests
    assert (one.format.name, one.passes, one.accepted, one.drafted) == (name, passes, accepted, drafted)
    assert (one.tokens_per_pass, one.lengths_known) == (tokens_per_pass, known)
    told = None if one.outcomes is None else Counter()
    for (accepted_here, _), count in (one.outcomes or {}).items():
        told[accepted_here] += count
    assert told == kept and found.left_out == 0


@pytest.mark.parametrize("name", ["greedy.json", "hybrid.json", "tree.json"])
def test_a_trace_of_a_run_here_tells_what_its_rounds_came_to(name):
    path = DOCS.parents[1] / "assets" / "traces" / name
    rounds = [one for one in Run.load(path).rounds if one.drafted]
    counts = tally(rounds)
    (one,) = read_metrics(path.read_text(encoding="utf-8")).requests
    assert (one.format.name, one.passes, one.accepted, one.drafted) == (
        "specviz run", counts.rounds, counts.accepted, counts.drafted
    )  # fmt: skip
    assert one.tokens_per_pass == counts.acceptance_length and one.lengths_known != counts.drafted_trees
    if one.lengths_known:
        assert tally_of(one.outcomes).judged_at == counts.judged_at


def test_of_a_log_without_passes_they_follow_where_somebody_vouches_for_full_drafts():
    (one,) = read_metrics(VLLM_LOG, chains=True).requests
    assert (one.passes, one.tokens_per_pass, one.lengths_known) == (43, 1 + 10 / 43, True)
    (short,) = read_metrics(VLLM_LOG.replace("Drafted: 129", "Drafted: 128"), chains=True).requests
    assert (short.passes, short.tokens_per_pass) == (None, 1.23)
    # Shares that are rounded too far for counts stay shares.
    log = LLAMA_STATISTICS.replace("134,", "1340,").replace("536", "5360").replace("354", "3538")
    (one,) = read_metrics(log).requests
    assert (one.passes, one.outcomes, one.shares) == (1340, None, (0.813, 0.716, 0.619, 0.493))


def test_engines_of_one_server_and_pieces_of_one_stream_are_told_apart():
    second = scrape(43, 129, 10, [4, 3, 3]).replace('engine="0"', 'engine="1"')
    assert [one.passes for one in read_metrics(scrape(7, 21, 9, [5, 3, 1]) + second).requests] == [7, 43]
    chunks = [answer({"acceptance_histogram": [n]}) | {"object": "text_completion.chunk"} for n in (1, 2, 5)]
    stream = "\n".join(f"data: {json.dumps(one)}" for one in chunks)
    assert [(one.number, one.passes) for one in read_metrics(stream).requests] == [(1, 5)]
    lines = "\n".join(json.dumps(one) for one in TOKENS * 2)
    assert [one.completion_tokens for one in read_metrics(lines).requests] == [5, 5]
    plain = json.dumps([one | {"from_draft": False} for one in TOKENS])
    assert read_metrics(plain + json.dumps(VLLM)).without == 1, "where no token was drafted nothing is made of it"


def series(*samples: tuple[str, str, list]) -> str:
    """What Prometheus' API answers: of each sample its name, its position and its times and values."""
    result = [
        {
            "metric": {"__name__": f"vllm:spec_decode_num_{name}_total", "job": "x"}
            | ({"position": place} if place else {})
        }
        | ({"values": points} if len(points) > 1 else {"value": points[0]})
        for name, place, points in samples
    ]
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}})


def test_a_series_of_a_metrics_database_becomes_differences_whatever_the_order_of_its_answer():
    def points(*values: int) -> list:
        return [[float(time), str(value)] for time, value in enumerate(values)]

    names = [("drafts", ""), ("draft_tokens", ""), ("accepted_tokens", "")]
    names += [("accepted_tokens_per_pos", place) for place in "012"]
    values = [(7, 50, 57), (21, 150, 171), (9, 19, 24), (5, 9, 11), (3, 6, 8), (1, 4, 5)]
    asked = [(*name, points(*value)) for name, value in zip(names, values)]
    first, second = read_metrics(series(*asked)).requests
    assert [(one.passes, one.accepted, one.drafted) for one in (first, second)] == [(43, 10, 129), (7, 5, 21)]
    assert tally_of(first.outcomes).accepted_at == [4, 3, 3]
    alone = "\n".join(series((*name, points(value[0]))) for name, value in zip(names, values))
    assert [(one.passes, one.accepted) for one in read_metrics(alone).requests] == [(7, 9)]


def test_a_benchmark_without_drafts_counts_as_one_printed_or_not():
    head = BENCH_TABLE.split("---------------Speculative", 1)[0]
    found = read_metrics(f"{head}{'=' * 50}\n{BENCH_TABLE}")
    assert (len(found.requests), found.plain, found.without) == (1, [(4.0, 500.91)], 0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<!doctype html><title>Grafana</title>", "a web page"),
        ('vllm:num_requests_running{engine="0"} 5.0\n', "no drafts are counted"),
        ("INFO my engine: accepted drafts so far 7 of 9\n", "mentions drafts"),
        (VLLM_LOG.replace("Drafted: 129", "Drafted: 1,290"), "not '1,290'"),
        (
            VLLM_LOG.replace("Drafted: 129", "Drafted: 139"),
            "Draft acceptance rate says 7.8%, but Accepted comes to 0.07",
        ),
        (VLLM_LOG.replace("0.093", "0.193"), "Mean acceptance length says 1.23, but"),
        ("x" * 500 + "\n" + VLLM_LOG.split("0.093")[0] + "0.233,\n0.000, 0.000\n", "cut off, wrapped"),
        (scrape(2, 6, 3, []).replace(" 2.0", " 2.000"), "num_drafts_total is cut off or is no number: '2.000'"),
        (scrape(43, 129, 10, []).replace("129.0", "1,29"), "no number: '1,29'"),
        ("x" * 500 + "\n" + scrape(43, 129, 10, []).replace("10.0", "1\n0.0"), "num_accepted_tokens_total is cut off"),
        (BENCH_TABLE.split("Draft tokens")[0], "A table is cut off"),
        (BENCH_TABLE.replace(" 43\n", " 49\n"), "Acceptance length says 1.23, but Accepted tokens comes to 1.204"),
    ],
)
def test_what_holds_no_figures_is_named_and_figures_that_contradict_each_other_are_refused(text, said):
    with refused("metrics") as caught:
        read_metrics(text)
    assert said in str(caught.value)


def test_rates_that_round_to_nothing_contradict_nothing():
    rare = VLLM_LOG.replace("1.23,", "1.00,").replace(": 10 tokens", ": 1 tokens").replace("129 tokens", "9000 tokens")
    rare = rare.replace("0.093, 0.070, 0.070", "0.000, 0.000, 0.000").replace("7.8%", "0.0%")
    assert [(one.accepted, one.drafted) for one in read_metrics(rare).requests] == [(1, 9000)]


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
        ("", "Paste something first"),
        ('{"a": 1}\n{', "line 2"),
        ('{"a": ' * 100_000, "cannot read line 1"),
        ('{"a":\n', "cannot read line 2"),
        ('{"a": ' + "9" * 5000 + "}", "cannot read line 1"),
        ('{"a": 1} {"b": <b>}', "cannot read line 1"),
        ('[{"a": 1}]', "--per-request-spec-decode-metrics"),
        ("Decode batch. #running-req: 1, gen throughput (token/s): 20.0", "SGLang (--enable-metrics)"),
        ('{"schema": "specviz.metrics/2", "requests": []}', "'specviz.metrics/2'"),
        ('{"acceptance_histogram": [1, -1]}', "Request 1: acceptance_histogram[1]"),
        ('{"num_spec_steps": NaN}', "Request 1: num_spec_steps"),
        ('{"num_spec_steps": true}', "not True"),
        ('{"acceptance_histogram": 3}', "must be a list"),
        ('{"spec_verify_ct": 3}', "spec_num_correct_drafts"),
        ('{"draft_n": 3}', "without draft_n_accepted"),
        (scrape(43, 129, 4, [4]).replace(',position="0"', ""), "per_pos_total must be a list of counts"),
        (json.dumps([{"numRequestsWithDraftTokens": 2, "completion_tokens": 3}] * 2), "without numAcceptedTokens"),
        ('{"acceptance_histogram": {"3": 1, "x": 1}}', "a key must be a whole number from 0 to 1024, not 'x'"),
        ('{"schema": "specviz.run/1", "rounds": 3}', "The trace is damaged"),
        ('{"schema": "specviz.bench/1", "rows": [{"acceptance_length": 0.5}]}', "acceptance_length must be a number"),
        (bench_serve([1.5]), "spec_decode_per_position_acceptance_rates must be a list of shares"),
        (scrape(43, 129, 44, [44]), "per_pos_total comes to 44, but spec_decode_num_drafts_total allows"),
        (json.dumps(VLLM | {"num_accepted_draft_tokens": 9}), "num_accepted_draft_tokens says 9"),
        (json.dumps(VLLM | {"num_draft_tokens": 9}), "num_draft_tokens allows at most 9"),
        (json.dumps(VLLM | {"num_draft_tokens": 130}), "num_spec_tokens allows at most 129"),
        (json.dumps(VLLM | {"num_spec_tokens": 2}), "acceptance_histogram comes to 3, but num_spec_tokens"),
        ('{"per_step_accepted": [3], "per_step_drafted": [2]}', "per_step_drafted allows at most 2"),
        ('{"per_step_accepted": [1], "per_step_drafted": [2, 2]}', "per_step_accepted and per_step_drafted"),
        ('{"per_step_accepted": [1, 0], "acceptance_histogram": [0, 2]}', "and acceptance_histogram"),
        (own(passes=2, accepted=7, num_draft_tokens=3), "accepted comes to 7, but num_draft_tokens allows"),
        (own(passes=0, accepted=5), "accepted comes to 5, but passes allows at most 0"),
        (own(histogram=[1, 1, 0, 3], drafted=9), "histogram comes to 10, but drafted allows at most 9"),
    ],
)
def test_what_cannot_be_is_refused_with_the_request_and_the_field(text, said):
    with refused("metrics") as caught:
        read_metrics(text)
    assert said in str(caught.value)


@pytest.mark.parametrize("value", [3, "yes", {"0": True}])
def test_a_flag_of_another_kind_says_nothing_of_speculation(value):
    with pytest.raises(SpecvizError, match="No speculative metrics found"):
        read({"from_draft": value})
