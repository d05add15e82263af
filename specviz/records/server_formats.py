"""The names that servers and their tools use: a format is a row of a table, in some cases with a small reader.

Names are those of the servers' own sources; docs/metrics.md lists which figures each format has.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from specviz.records.runs import Run

SCHEMA = "specviz.metrics/1"


@dataclass(frozen=True, slots=True)
class Format:
    """The names that a server uses; of several names for one thing the first that has a value counts."""

    name: str
    marks: tuple[str, ...] = ()  # an object with one of these is about speculation; by default those that count passes,
    beside: tuple[str, ...] = ()  # if it has all of these too
    passes: tuple[str, ...] = ()  # target passes that verified a draft
    accepted: tuple[str, ...] = ()  # draft tokens kept, in all
    drafted: tuple[str, ...] = ()  # draft tokens proposed, in all
    histogram: tuple[str, ...] = ()  # [j]: passes that kept j draft tokens; or an object {"j": passes}
    each_accepted: tuple[str, ...] = ()  # the same by pass, in order
    each_drafted: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()  # [j]: passes that kept draft token j + 1
    shares: tuple[str, ...] = ()  # the same as a share of all passes
    length: tuple[str, ...] = ()  # tokens per pass, where nothing says how many passes there were
    tokens: tuple[str, ...] = ()  # of the answer
    longest: tuple[str, ...] = ()  # γ: the most that a pass drafts
    running: tuple[str, ...] = ()  # requests at once; in a log also on the line before, or earlier on the same line
    speed: tuple[str, ...] = ()  # tokens a second of all requests together
    #: Whether `drafted` is passes times the configured length, and not what was really proposed.
    nominal: bool = False
    full: bool = False  # whether `kept` or `shares` has a place for each token that a pass can draft
    rounding: float = 0.0  # how far a share may lie from its true value
    six: bool = False  # whether totals, unlike `kept`, are written with six digits only
    many: bool = False  # whether one entry counts many requests together
    summed: bool = False  # whether all entries of a text are one: they follow one another step by step
    begins: str = ""  # what a line of a log begins with where it says this, as a regular expression
    last: bool = False  # whether such lines count from the start, so that only the last one counts
    read: Callable[[dict[str, Any]], dict[str, Any]] | None = None  # from what a server says to the names above

    @property
    def marked(self) -> tuple[str, ...]:
        return self.marks or (*self.passes, *self.histogram, *self.each_accepted)


def _passes_of_tokens(block: dict[str, Any]) -> dict[str, Any]:
    """Passes by the flag of each token: the target's own tokens end a pass each. A last pass without was cut off."""
    passes = "".join("d" if drafted else "t" for drafted in block["from_draft"]).split("t")[:-1]
    return {"passes by from_draft": [len(one) for one in passes], "tokens": len(block["from_draft"])}


def _passes_of_run(trace: dict[str, Any]) -> dict[str, Any]:
    """The rounds of a trace that drafted; in a tree the length of a refused path is not known."""
    run = Run.from_dict(trace)
    rounds = [one for one in run.rounds if one.drafted]
    chains = all(token.parent == place - 1 for one in rounds for place, token in enumerate(one.drafted))
    lengths = [len(one.drafted) for one in rounds]
    return {
        "accepted by round": [one.accepted for one in rounds],
        "drafted by round": lengths if chains else None,
        "drafted": sum(lengths),
        "tokens": len(run.token_ids),
    }


OWN = Format(
    name=SCHEMA,
    passes=("passes",),
    accepted=("accepted",),
    drafted=("drafted",),
    histogram=("histogram",),
    each_accepted=("per_pass_accepted",),
    each_drafted=("per_pass_drafted",),
    longest=("num_draft_tokens",),
)

#: A trace: `Run.save`, or the command's `run --json`.
RUN = Format(
    name="specviz run",
    drafted=("drafted",),
    each_accepted=("accepted by round",),
    each_drafted=("drafted by round",),
    tokens=("tokens",),
    read=_passes_of_run,
)

#: One row of `bench --json`.
BENCH = Format(name="specviz bench", length=("acceptance_length",), many=True)

#: The same in both servers' benchmarks: what was asked for, else what was measured at most or on average.
CONCURRENCY = "max_concurrency", "max_concurrent_requests", "concurrency"
THROUGHPUT = ("output_throughput",)

# vLLM pull request 48915 (after 0.28.0), docs/features/speculative_decoding/acceptance_metrics.md
_VLLM = Format(
    name="vLLM",
    passes=("num_spec_steps",),
    accepted=("num_accepted_draft_tokens",),
    drafted=("num_draft_tokens",),
    histogram=("acceptance_histogram",),
    each_accepted=("per_step_accepted",),
    each_drafted=("per_step_drafted",),
    longest=("num_spec_tokens",),
)

FORMATS = (
    # TensorRT-LLM's `speculative_decoding` of a choice and of /perf_metrics; the steps and the histogram are newer
    replace(
        _VLLM,
        name="TensorRT-LLM",
        marks=("total_accepted_draft_tokens",),
        beside=("acceptance_rate",),
        accepted=("total_accepted_draft_tokens",),
        drafted=("total_draft_tokens",),
    ),
    # NVIDIA AIPerf pull request 1191, src/aiperf/common/models/spec_decode_models.py
    replace(_VLLM, name="AIPerf", beside=("engine",)),
    _VLLM,
    # SGLang pull requests 3152, 11441, 18332, 23530, 33518: the newest names first
    Format(
        name="SGLang",
        passes=("spec_verify_ct",),
        accepted=("spec_num_correct_drafts", "spec_accepted_drafts", "spec_accept_token_num"),
        drafted=("spec_num_proposed_drafts", "spec_proposed_drafts", "spec_draft_token_num"),
        histogram=("spec_correct_drafts_histogram", "spec_accept_histogram"),
        nominal=True,
    ),
    # vllm/benchmarks/serve.py: two scrapes of /metrics, before and after
    Format(
        name="vLLM bench serve",
        passes=("spec_decode_num_drafts",),
        accepted=("spec_decode_accepted_tokens",),
        drafted=("spec_decode_draft_tokens",),
        shares=("spec_decode_per_position_acceptance_rates",),
        running=CONCURRENCY,
        speed=THROUGHPUT,
        full=True,
        many=True,
    ),
    # python/sglang/bench_serving.py; without drafts its accept_length is null
    Format(
        name="SGLang bench_serving",
        marks=("accept_length",),
        beside=THROUGHPUT,
        length=("accept_length",),
        running=CONCURRENCY,
        speed=THROUGHPUT,
        many=True,
    ),
    # TensorRT-LLM, cpp/include/tensorrt_llm/executor/types.h: SpecDecodingStats, one a step of the batch
    Format(
        name="TensorRT-LLM steps",
        passes=("numRequestsWithDraftTokens",),
        accepted=("numAcceptedTokens",),
        drafted=("numDraftTokens",),
        many=True,
        summed=True,
    ),
    # llama.cpp, tools/server: result_timings
    Format(
        name="llama.cpp",
        marks=("draft_n",),
        accepted=("draft_n_accepted",),
        drafted=("draft_n",),
        tokens=("predicted_n",),
    ),
    # LM Studio from 0.3.10 on: `stats` of its REST API, the same in its SDKs
    Format(
        name="LM Studio",
        marks=("total_draft_tokens_count", "totalDraftTokensCount"),
        accepted=("accepted_draft_tokens_count", "acceptedDraftTokensCount"),
        drafted=("total_draft_tokens_count", "totalDraftTokensCount"),
        tokens=("predictedTokensCount",),
    ),
    # mlx_lm/generate.py: GenerationResponse, one a token (`tokens_joined`)
    Format(
        name="mlx-lm",
        marks=("from_draft",),
        each_accepted=("passes by from_draft",),
        tokens=("tokens",),
        read=_passes_of_tokens,
    ),
)


# vllm/v1/spec_decode/metrics.py, with a place for each token of γ
_COUNTERS = Format(
    name="vLLM /metrics",
    passes=("spec_decode_num_drafts_total",),
    accepted=("spec_decode_num_accepted_tokens_total",),
    drafted=("spec_decode_num_draft_tokens_total",),
    kept=("spec_decode_num_accepted_tokens_per_pos_total",),
    running=("num_requests_running",),
    full=True,
    many=True,
)

#: Scrapes of /metrics, by what stands before the names there. llama.cpp (2026, tools/server) took over vLLM's names;
#: SGLang gives an average over its last steps (python/sglang/srt, its metrics collector).
SCRAPES = {
    "vllm": _COUNTERS,
    "llamacpp": replace(_COUNTERS, name="llama.cpp /metrics", running=("requests_processing",), full=False, six=True),
    "sglang": Format(name="SGLang /metrics", length=("spec_accept_length",), running=("num_running_reqs",), many=True),
}

#: Lines that a log can have. Names of figures are those of the log, as they are quoted to its reader.
LINES = (
    # vllm/v1/spec_decode/metrics.py: SpecDecodingLogging; the order of the figures changed
    Format(
        name="vLLM log",
        begins="SpecDecoding metrics: ",
        accepted=("Accepted",),
        drafted=("Drafted",),
        shares=("Per-position acceptance rate",),
        length=("Mean acceptance length",),
        running=("Running",),
        full=True,
        rounding=0.0005,
        many=True,
    ),
    # SGLang's scheduler; its accept rate once counted the target's own tokens as kept, so it is left alone
    Format(name="SGLang log", begins="accept len: ", length=("accept len",), running=("#running-req",), many=True),
    # llama.cpp, common/speculative.cpp: common_speculative_print_stats
    Format(
        name="llama.cpp statistics",
        begins=r"statistics +[\w-]{1,40}: +#calls",
        passes=("#calls(b,g,a)",),
        accepted=("#acc tokens",),
        drafted=("#gen tokens",),
        shares=("#acc rate/pos",),
        rounding=0.0005,
        many=True,
        last=True,
    ),
    # llama.cpp, tools/server: print_timings of one request; the mean and the places came in 2026
    Format(
        name="llama.cpp log",
        begins="draft acceptance (?:rate )?= ",
        accepted=("accepted",),
        drafted=("generated",),
        shares=("acceptance rate per position",),
        length=("mean len", "mean acceptance length"),
        rounding=0.0005,
    ),
)
