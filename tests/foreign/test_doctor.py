"""What is wrong with a server: each diagnosis by the figures of a public thread; silence where they say too little."""

import json
from dataclasses import replace

import pytest
from refusal import refused

from specviz.foreign.doctor import BROKEN, examine
from specviz.foreign.metrics import read_metrics
from specviz.records.words import LANGUAGES, words
from specviz.views.served_diagnosis import anchors, anchors_for, findings, ranges, signs_of


def log(shares: str, length: float, accepted: int, drafted: int) -> str:
    """An interval of vLLM's log."""
    return (
        f"INFO 08-01 12:00:00 [metrics.py:120] SpecDecoding metrics: Mean acceptance length: {length}, Accepted: "
        f"{accepted} tokens, Drafted: {drafted} tokens, Per-position acceptance rate: {shares}\n"
    )


def counted(passes: int, shares: list[float]) -> str:
    """The same as counts at /metrics, every draft of full length."""
    kept = [round(passes * share) for share in shares]
    figures = {"num_drafts": passes, "num_draft_tokens": passes * len(kept), "num_accepted_tokens": sum(kept)}
    lines = [f"vllm:spec_decode_{name}_total {value}" for name, value in figures.items()]
    per_position = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    return "\n".join([*lines, *(f'{per_position}{{position="{place}"}} {one}' for place, one in enumerate(kept))])


def own(passes: int, accepted: int, drafted: int) -> str:
    request = {"passes": passes, "accepted": accepted, "drafted": drafted}
    return json.dumps({"schema": "specviz.metrics/1", "requests": [request]})


def diagnosed(text: str, speedups: str = "", cost: float | None = None, chains: bool = False):
    read = read_metrics(text, chains)
    return examine(signs_of(read.requests, speedups, cost, read.plain))


#: What servers write around it, as their sources format it: vllm/v1/metrics/loggers.py, SGLang's scheduler.
VLLM_ENGINE = (
    "INFO 11-12 10:00:00 [loggers.py:123] Engine 000: Avg prompt throughput: 21.4 tokens/s, Avg generation throughput: "
    "412.9 tokens/s, Running: {} reqs, Waiting: 0 reqs, GPU KV cache usage: 3.1%, Prefix cache hit rate: 0.0%\n"
)
SGLANG_LINE = (
    "[2026-09-01 12:00:00 TP0] Decode batch, #running-req: {}, #token: 5120, token usage: 0.01, accept len: 2.81, "
    "accept rate: 0.70, cuda graph: True, gen throughput (token/s): 1100.52, #queue-req: 0\n"
)

GAUGE = "vllm:num_requests_running {}.0\n"

#: vLLM pull request 41834: seven tokens asked of a block of five, and five. The log's second line leaves out counts.
SEVEN = log("0.181, 0.067, 0.039, 0.014, 0.009, 0.000, 0.000", 1.31, 134, 3024)
FIVE = log("0.579, 0.447, 0.316, 0.237, 0.158", 2.74, 66, 190)
#: AEON-7/Qwen3.6-27B-AEON-Ultimate-Uncensored-DFlash issue 6: windows of attention that were not kept.
EDGE = log("0.600, 0.385, 0.215, 0.108, 0.062" + 10 * ", 0.000", 2.37, 89, 975)
#: vllm-ascend issue 13640: a long draft that is healthy at its front.
LONG = log("0.739, 0.478, 0.261, 0.174, 0.130, 0.087, 0.043", 2.91, 44, 161)
#: vLLM issue 51009: position 1 as usual, and one in four of those that reach it from there on; the mean is 1.46.
COLLAPSED = [0.345, 0.086, 0.022, 0.005, 0.001]
#: speculators issue 1135, HumanEval.
HEALTHY = [0.837, 0.685, 0.562, 0.460, 0.368, 0.283, 0.217, 0.161]


LLAMA_LINES = "\n".join(
    f"slot print_timing: id  0 | task 2 | draft acceptance = {line}"
    for line in (
        "0.74603 (   47 accepted /    63 generated), mean len =  3.94",
        "0.04762 (    2 accepted /    42 generated), mean len =  1.17",
        "0.11111 (    4 accepted /    36 generated), mean len =  1.40",
    )
)


@pytest.mark.parametrize(
    ("text", "kinds", "causes"),
    [
        (SEVEN, ["low"], {"block", "target", "template", "layers", "vocabulary"}),
        (FIVE, ["unpriced"], {"measure"}),
        # vllm-ascend issue 11374: a draft vocabulary read with the target's head, 1.7 % of seven tokens.
        (own(1000, 119, 7000), ["low_bound"], {"vocabulary"}),
        # vllm-ascend issue 9290: thirteen tokens of one MTP layer, none kept.
        (counted(200, 13 * [0.0]), ["low"], {"block"}),
        (counted(5000, COLLAPSED), ["second", "rates"], {"slots", "step"}),
        (10 * EDGE, ["cliff"], {"trained", "window", "short"}),
        (40 * LONG, ["tail", "unpriced"], {"shorten"}),
        (counted(1000, HEALTHY), ["rates", "unpriced"], {"measure"}),
        # SGLang pull request 31047: every line of the log says so.
        (25 * "Decode batch, #running-req: 1, accept len: 1.00, accept rate: 0.00\n", ["low_bound"], {"layers"}),
        # Too little: one interval of 65 passes, of which four reach the edge; three passes; no passes at all.
        (EDGE, ["tail", "unpriced"], set()),
        (own(3, 0, 9), ["few"], set()),
        (VLLM_ENGINE.format(7) + FIVE, ["unpriced_load"], set()),
        # A real llama-server's log: passes are not counted, but there are at least as many as the means say.
        (LLAMA_LINES, ["unpriced"], {"measure"}),
        (LLAMA_LINES.splitlines()[1], ["none"], set()),
        (json.dumps({"timings": {"predicted_n": 90, "draft_n": 500, "draft_n_accepted": 10}}), ["none"], set()),
    ],
)
def test_a_fault_is_told_by_its_shape_where_the_counts_bear_it(text, kinds, causes):
    found = diagnosed(text)
    assert [one.kind for one in found] == kinds
    assert causes <= {cause for one in found for cause in one.causes}


def test_a_finding_has_the_figures_that_it_is_about():
    (edge,) = diagnosed(10 * EDGE)
    assert (edge.figures["before"], edge.figures["position"], edge.figures["rate"]) == (5, 6, 0.0)
    tail = diagnosed(40 * LONG)[0].figures
    assert (tail["gamma"], tail["slots"]) == (6, 1) and tail["lost"] == pytest.approx(0.043)
    # Two rates of one name are both given; vLLM issue 9565: of four tokens the first was kept and the second refused.
    request = {"per_pass_accepted": 50 * [1], "per_pass_drafted": 50 * [4]}
    text = json.dumps({"schema": "specviz.metrics/1", "requests": [request]})
    rates = next(one for one in diagnosed(text) if one.kind == "rates")
    assert rates.figures == {"share": 0.25, "alpha": 0.5}
    # vLLM issue 26191 names only accepted / drafted, of drafts nobody vouches for: nothing is made up.
    assert "rates" not in {one.kind for one in diagnosed(own(4816, 12208, 33712))}


def test_no_gain_is_told_by_what_a_round_costs():
    """vllm-ascend issue 12890: 45 ms a token without drafts, 60 ms with; 40 % of the drafts were kept."""
    text = own(1000, 1200, 3000)
    (found,) = diagnosed(text, "0.75")
    assert found.kind == "no_gain" and found.figures["round"] == pytest.approx(2.2 / 0.75)
    assert found.causes[0] == "draft_cost"
    (parts,) = diagnosed(text, "0.75", cost=0.6)
    assert parts.figures["draft"] == pytest.approx(1.8) and parts.causes == ("draft_cost",)
    (parts,) = diagnosed(text, "0.75", cost=0.05)
    assert parts.causes == ("rows", "batch")


@pytest.mark.parametrize(
    ("speedups", "kind", "times"),
    [
        # llama.cpp pull request 27342: 11.11, 20.14, 34.14 tokens/s without drafts at 1, 2, 4; 21.22, 15.87, 25.32.
        ("1:1.91 2:0.788 4:0.742", "load_off", 1.91 / 0.742),
        # vLLM pull request 52816: 3.4 alone, 1.45 at 32.
        ("1:3.4 32:1.45", "load", 3.4 / 1.45),
    ],
)
def test_what_falls_with_load_is_told_apart_from_acceptance(speedups, kind, times):
    found = next(one for one in diagnosed(counted(1000, HEALTHY), speedups) if one.kind.startswith("load"))
    assert (found.kind, found.causes) == (kind, ("crowd",)) and found.figures["times"] == pytest.approx(times)


def benchmark(load: int, speed: float, drafting: bool) -> str:
    """A result of vllm bench serve."""
    result = {"date": "20261101-120000", "num_prompts": 80, "request_rate": "inf", "max_concurrency": load}
    result |= {"duration": 30.1, "completed": 80, "output_throughput": speed, "max_concurrent_requests": load + 3}
    counts = {"num_drafts": 500, "draft_tokens": 1500, "accepted_tokens": 900, "acceptance_length": 2.8}
    counts |= {"acceptance_rate": 60.0, "per_position_acceptance_rates": [0.8, 0.6, 0.4]}
    return json.dumps(result | {f"spec_decode_{name}": value for name, value in counts.items() if drafting}) + "\n"


def test_benchmarks_with_and_without_drafts_at_the_same_load_are_evidence_and_typed_figures_come_before_them():
    # llama.cpp pull request 27342, as benchmarks would say it.
    speeds = {1: (11.11, 21.22), 2: (20.14, 15.87), 4: (34.14, 25.32)}
    text = "".join(
        benchmark(load, pair[drafting], bool(drafting)) for load, pair in speeds.items() for drafting in (0, 1)
    )
    read = read_metrics(text + benchmark(64, 99.0, False))
    assert (len(read.requests), read.without) == (3, 0)
    assert signs_of(read.requests, plain=read.plain).speedups == [(n, pair[1] / pair[0]) for n, pair in speeds.items()]
    (found,) = [one for one in diagnosed(text) if one.kind.startswith("load")]
    assert (found.kind, found.figures["load"], found.figures["full"]) == ("load_off", 1, 4)
    assert found.figures["times"] == pytest.approx(1.91 / 0.742, rel=1e-3)
    assert not [one for one in diagnosed(text, "1:2 4:2") if one.kind.startswith("load")]


@pytest.mark.parametrize(
    ("text", "load"),
    [
        (VLLM_ENGINE.format(7) + FIVE + FIVE + VLLM_ENGINE.format(1) + VLLM_ENGINE.format(9) + FIVE, (7, 8, 9)),
        (FIVE + VLLM_ENGINE.format(7), None),  # of the next interval
        (SGLANG_LINE.format(1) + SGLANG_LINE.format(12).replace(" TP0", " TP0 DP1") + LONG, (1, 6.5, 12)),
        (counted(1000, HEALTHY) + "\nvllm:num_requests_running 5.0\n", (5, 5, 5)),
        (GAUGE.format(3) + counted(900, HEALTHY) + "\n" + GAUGE.format(5) + counted(1000, HEALTHY), (5, 5, 5)),
        ("sglang:num_running_reqs 24\nsglang:spec_accept_length 2.8", (24, 24, 24)),
        ("llamacpp:requests_processing 2\n" + counted(1000, HEALTHY).replace("vllm:", "llamacpp:"), (2, 2, 2)),
        (GAUGE.format(0) + counted(1000, HEALTHY), None),
        ('{"accept_length": 2.9, "output_throughput": 812.5, "max_concurrency": null, "concurrency": 7.5}', (7.5,) * 3),
    ],
)
def test_requests_at_once_are_read_where_a_server_counts_them_and_belong_to_a_speedup_typed_without(text, load):
    read = read_metrics(text)
    assert (read.left_out, read.without) == (0, 0)
    signs = signs_of(read.requests, "0.9")
    assert signs.load == load and signs.speedups == [(load[1] if load else 1, 0.9)]
    assert signs_of(read.requests, "4:0.9").speedups == [(4, 0.9)]


def test_a_scrape_without_drafts_and_a_speedup_in_another_form_are_refused():
    with refused("metrics", "No speculative metrics found"):
        read_metrics(GAUGE.format(5))
    for wrong in ("fast", "1:", "0", "-1", "1:0"):
        with refused("speedup", r"1:1\.9 32:0\.8"):
            diagnosed(FIVE, wrong)


def test_who_has_measured_a_speedup_is_not_told_to_measure_it():
    """Nor where chance leaves open what it is: then there is a load, and no speedup to go by."""
    (unpriced,) = diagnosed(FIVE)
    assert unpriced.causes == ("measure",)
    unclear = replace(signs_of(read_metrics(FIVE).requests), loads=1)
    assert examine(unclear) == []
    (one,), (more,) = diagnosed(FIVE, "0.8"), diagnosed(FIVE, "1:0.8 4:0.81")
    assert "batch" in one.causes and "batch" not in more.causes and "crowd" in more.causes


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_finding_and_every_cause_is_said_in_every_language(language):
    say = words(language)
    texts = [SEVEN, 10 * EDGE, 40 * LONG, counted(5000, COLLAPSED), own(1000, 119, 7000), own(3, 0, 9), FIVE]
    given = [(text, "", None) for text in [*texts, VLLM_ENGINE.format(7) + FIVE]] + [(FIVE, "0.8", 0.4)]
    given += [(FIVE, speedups, None) for speedups in ("0.8", "1:3 8:2", "1:3 8:0.5")]
    for text, speedups, cost in given:
        for one in findings(signs_of(read_metrics(text).requests, speedups, cost), say):
            assert "{" not in one["text"] and all(cause["cause"] and cause["settles"] for cause in one["causes"])


def test_published_curves_are_whole_and_none_of_them_looks_broken():
    rates = []
    for one in anchors():
        assert one.keys() >= {"method", "source"} and one.keys() & {"tokens", "speedup"}
        curve = one.get("positions", [])
        rates += [after / before for before, after in zip([1.0, *curve], curve)]
        if curve:
            assert len(curve) == one["drafted"] and 1 + sum(curve) == pytest.approx(one["tokens"], abs=0.04)
            assert {found.kind for found in diagnosed(counted(2000, curve))} <= {"rates", "tail", "unpriced"}
    assert min(rates) > 0.41 > BROKEN and (
        round(max(rates), 2),
        min(one["positions"][0] for one in anchors() if "positions" in one),
    ) == (0.94, 0.425)  # as the texts say
    # The nearest method stands first, and ranges are of published figures.
    line = "statistics draft-eagle3: #calls(b,g,a) = 1 87 87, #gen drafts = 87, #acc drafts = 70, #gen tokens = 259, "
    line += "#acc tokens = 167, #mean acc len = 2.92, #acc rate/pos = (0.805, 0.632, 0.483), dur(b,g,a) = 1, 2, 3 ms"
    requests = read_metrics(line).requests
    rows = anchors_for(requests, signs_of(requests))
    assert [rows[0]["method"], rows[0]["drafted"]] == ["EAGLE-3", 3]
    method, least, most, number = next(iter(ranges(rows)))
    assert (method, least, most) == ("EAGLE-3", 2.26, 5.14) and number >= 7
