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
from tools.engines.servers import GAMMA, LLAMA_CPP, VLLM, NotStarted, ask, running

PROMPTS = (
    "Once upon a time there was a little girl who lived in a",
    "It was a dark night and the old king could not sleep, so he",
    "The sea was calm, and on the ship nobody",
)

#: Tokens of each text.
LENGTH = 128

#: The parts, in the order of the table; vLLM and llama.cpp have no heads of Medusa's kind beside others of their own.
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
    tokens_per_pass: float | None  # 1 + accepted / passes with a draft; None: nothing was drafted


def texts_here(pair: ModelPair, drafter: str | None) -> Greedy:
    """Those of specviz, drafting chains as engines do."""
    greedy, rounds = specviz.SamplingParams(temperature=0.0), []
    texts = []
    for prompt in PROMPTS:
        order = {"drafter": drafter, "num_draft_tokens": GAMMA, "sampling": greedy, "max_new_tokens": LENGTH}
        run = specviz.run(pair, prompt, **order)
        texts.append(list(run.token_ids))
        rounds += run.rounds
    return Greedy(texts, tally(rounds).acceptance_length if drafter else None)


def texts_there(engine: str, drafter: str | None, port: int) -> Greedy:
    """Those of a server that drafts so, with what its counters say afterwards."""
    texts = [_text(engine, port, prompt) for prompt in PROMPTS]
    if drafter is None:
        return Greedy(texts, None)
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


def measure(engine: str, version: str, converter: str | None) -> Iterator[dict[str, Any]]:
    """A row for plain decoding and for each part: whether the engine loads it, and what it does with it.

    converter: the command of llama.cpp's converter; without one, GGUF files are written here.
    """
    pair, names = specviz.load_pair(device="cpu", dtype="float32"), LLAMA_CPP if engine == "llama.cpp" else VLLM
    plain = texts_here(pair, None)
    with tempfile.TemporaryDirectory() as folder:
        files = pathlib.Path(folder)
        for part in (None, *PARTS):
            row = {"engine": engine, "version": version, "part": part or "plain"}
            reason = _unconverted(converter, part, files) if engine == "llama.cpp" and converter else None
            if reason is None and part is not None and part not in names:
                reason = "no such drafter"
            if reason is None:
                try:
                    with running(engine, part, files) as port:
                        there = texts_there(engine, part, port)
                except NotStarted as silent:
                    reason = reason_in(str(silent))
            if reason is not None:
                yield row | {"loads": False, "reason": reason}
                continue
            here = texts_here(pair, part)
            assert here.texts == plain.texts, "specviz itself is exact in float32"
            yield row | {
                "loads": True,
                "tokens_per_pass": there.tokens_per_pass,
                "tokens_per_pass_here": here.tokens_per_pass,
                "equal_tokens": equal_tokens(there.texts, plain.texts),
                "tokens": sum(map(len, plain.texts)),
            }


def _unconverted(converter: str, part: str | None, files: pathlib.Path) -> str | None:
    """Has llama.cpp's converter write the GGUF file of a part (None: of the target); the reason if it does not."""
    name = {None: "target", "draft_model": "draft"}.get(part, part)
    options = [str(EMBEDDED / name), "--outfile", str(files / f"{name}.gguf"), "--outtype", "bf16"]
    if part not in (None, "draft_model"):
        options += ["--target-model-dir", str(EMBEDDED / "target")]
    done = subprocess.run([*shlex.split(converter), *options], capture_output=True, text=True)
    return reason_in(done.stdout + done.stderr) if done.returncode else None


def reason_in(log: str) -> str:
    """Why an engine did not start, in its own words."""
    found = (reason[1] for pattern in REASONS for line in log.splitlines() if (reason := pattern.search(line)))
    words = next(found, "it ended without a reason")
    words = re.sub(r": <function [^>]+>", "", words)  # what a dictionary of vLLM's holds
    return re.sub(r"\s+", " ", words).strip()
