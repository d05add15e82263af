"""Why a text holds no figures of speculation: what it is, and how to get them."""

import re

from specviz.foreign.formats import SCHEMA
from specviz.records.errors import SpecvizError

_PAGE = re.compile(r"\s*<(?:!doctype|html|\?xml)", re.IGNORECASE)
_SCRAPE = re.compile(r"^[ \t|>`]*(?:vllm|sglang|llamacpp):\w", re.MULTILINE)
#: A plain line about drafts with a number; a line of JSON has its own reasons.
_SPOKEN_OF = re.compile(r"^[^{\n]*\b(?:draft|accept)[^{\n]*\d", re.MULTILINE | re.IGNORECASE)


def why_none(text: str) -> SpecvizError:
    """The reason (field ``metrics``) for a text in which nothing was found, and nothing broken either."""
    if _PAGE.match(text):
        return SpecvizError(
            "No speculative metrics found: this is a web page. Save the text that it shows, or ask the server itself.",
            "metrics",
        )
    if _SCRAPE.search(text):
        return SpecvizError(
            "No speculative metrics found: this is a scrape of /metrics in which no drafts are counted. vLLM and "
            "llama.cpp count them if they were started with a drafter; llama.cpp before August 2026 does so only in "
            "its log.",
            "metrics",
        )
    if _SPOKEN_OF.search(text):
        return SpecvizError(
            "No speculative metrics found: the text mentions drafts, but in no form that is known here. Write the "
            "counts as {schema}.",
            "metrics",
            schema=SCHEMA,
        )
    return SpecvizError(
        "No speculative metrics found. Responses contain them if vLLM was started with "
        "--per-request-spec-decode-metrics, SGLang was asked for return_meta_info, and llama.cpp, LM Studio, "
        "TensorRT-LLM or mlx-lm had a drafter. A log or /metrics of vLLM, SGLang (--enable-metrics) or llama.cpp "
        "(--metrics) works too, as do a result of vllm bench serve, records of AIPerf, a trace or benchmark of "
        "specviz, and {schema} for everything else.",
        "metrics",
        schema=SCHEMA,
    )
