"""Greedy texts of real engines and of specviz on the embedded pair, and how many tokens each pass brings."""

from __future__ import annotations

import pathlib
import re
import shlex
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import specviz
from specviz.foreign.metrics import read_metrics
from specviz.models.pair import ModelPair
from specviz.records.assets import EMBEDDED
from specviz.records.metrics import tally
from specviz.records.settings import PLAIN
from tools.engines.recording import PROMPT
from tools.engines.servers import GAMMA, NotStarted, ask, folder_of, running

PROMPTS = (
    PROMPT,
    "It was a dark night and the old king could not sleep, so he",
    "The sea was calm, and on the ship nobody",
)

#: Tokens of each text.
LENGTH = 128

#: What drafts, in the order of the table.
PARTS = ("draft_model", "eagle", "parallel", "mtp", "medusa")

#: Engines say why they do not start among much else.
REASONS = (
    re.compile(r"error loading model: (?:\w+: )?(.+)"),
    re.compile(r"Value error, (.+?)(?: \[type=|$)"),
    re.compile(r"ERROR:hf-to-gguf:(.+)"),
    re.compile(r"\b(?:Value|Key|Type|Attribute)Error: (.+)"),
)


@dataclass(frozen=True, slots=True)
class Greedy:
    """Texts to `PROMPTS` at temperature 0."""

    texts: list[list[int]]
    tokens_per_pass: float | None  # 1 + accepted / passes with a draft; 1 of plain decoding; None: not told


def texts_here(pair: ModelPair, drafter: str | None) -> Greedy:
    """Those of specviz, drafting chains as engines do."""
    how = {"sampling": specviz.SamplingParams(temperature=0.0), "drafting": specviz.DraftParams(branches=1)}
    much = {"num_draft_tokens": GAMMA, "max_new_tokens": LENGTH}
    runs = [specviz.run(pair, prompt, drafter=drafter, **how, **much) for prompt in PROMPTS]
    length = tally(round_ for run in runs for round_ in run.rounds).acceptance_length
    return Greedy([list(run.token_ids) for run in runs], length or 1.0)


def texts_there(engine: str, drafter: str | None, port: int) -> Greedy:
    """Those of a server that drafts so, with what its counters say afterwards."""
    texts = [_text(engine, port, prompt) for prompt in PROMPTS]
    if drafter is None:
        return Greedy(texts, 1.0)
    (served,) = read_metrics(ask(port, "/metrics").text).requests
    return Greedy(texts, served.tokens_per_pass)


def _text(engine: str, port: int, prompt: str) -> list[int]:
    if engine == "llama.cpp":
        alone = {"samplers": ["top_k"], "top_k": 1, "temperature": 0, "cache_prompt": False}
        asked = {"prompt": prompt, "n_predict": LENGTH, "return_tokens": True} | alone
        return ask(port, "/completion", asked).json()["tokens"]
    asked = {"model": "storybook", "prompt": prompt, "max_tokens": LENGTH, "temperature": 0, "return_token_ids": True}
    return ask(port, "/v1/completions", asked).json()["choices"][0]["token_ids"]


def equal_tokens(left: Sequence[Sequence[int]], right: Sequence[Sequence[int]]) -> int:
    """How many tokens of the texts are the same, up to the first in each that is not."""
    return sum(
        next((place for place, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))
        for one, other in zip(left, right, strict=True)
    )


def measure(engine: str, version: str, converter: str) -> Iterator[dict[str, Any]]:
    """A row for plain decoding and for each part: whether the engine loads it, and what it does with it.

    version: for the table; llama.cpp's servers do not know their own. converter: the command of llama.cpp's converter.
    """
    pair = specviz.load_pair(device="cpu", dtype="float32")
    plain = texts_here(pair, None)
    with tempfile.TemporaryDirectory() as folder:
        for part in (None, *PARTS):
            here = texts_here(pair, part)
            assert here.texts == plain.texts, "specviz itself is exact in float32"
            row = {"engine": f"{engine} {version}", "part": part or PLAIN, "tokens_per_pass_here": here.tokens_per_pass}
            try:
                there = _served(engine, part, pathlib.Path(folder), converter)
            except NotStarted as silent:
                yield row | {"loads": False, "reason": reason_in(str(silent))}
                continue
            equal, tokens = equal_tokens(there.texts, plain.texts), sum(map(len, plain.texts))
            found = {"tokens_per_pass": there.tokens_per_pass, "equal_tokens": equal, "tokens": tokens}
            yield row | {"loads": True} | found


def _served(engine: str, part: str | None, files: pathlib.Path, converter: str) -> Greedy:
    """Raises NotStarted, also for what the converter refuses."""
    if engine == "llama.cpp":
        convert(converter, part, files)
    with running(engine, part, files) as port:
        return texts_there(engine, part, port)


def convert(converter: str, part: str | None, files: pathlib.Path) -> None:
    """Has llama.cpp's converter write the GGUF file of a part (None: of the target). Raises NotStarted."""
    name = folder_of(part)
    options = [str(EMBEDDED / name), "--outfile", str(files / f"{name}.gguf"), "--outtype", "bf16"]
    if name not in ("target", "draft"):
        options += ["--target-model-dir", str(EMBEDDED / "target")]
    done = subprocess.run([*shlex.split(converter), *options], capture_output=True, encoding="utf-8")
    if done.returncode:
        raise NotStarted(done.stdout + done.stderr)


def reason_in(log: str) -> str:
    """Why an engine did not start, in its own words."""
    found = (reason[1] for pattern in REASONS for line in log.splitlines() if (reason := pattern.search(line)))
    words = next(found, "it ended without a reason")
    words = re.sub(r": <function [^>]+>", "", words)  # what a dictionary of vLLM's holds
    return re.sub(r"\s+", " ", words).strip()
