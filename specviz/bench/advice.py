"""Which way to draft pays here, by what was measured, and how servers are told to draft like that. Loads no torch."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace

from specviz.bench.contestants import Standing

#: All ways make one short run. The best of many short runs owes something to luck, so the fastest of them meet again,
#: and only what they come to then is told of them.
HEAT_TOKENS, FINAL_TOKENS, FINAL_REPEATS, FINALISTS = 64, 128, 3, 3


@dataclass(frozen=True, slots=True)
class Offer:
    """One way to draft, and what it came to beside plain decoding."""

    mode: str  # the drafter's name
    num_draft_tokens: int
    standing: Standing
    repeats: int
    draft: str | None = None  # the draft model that it needs, as it was named
    translated: bool = False  # whether that has another tokenizer

    @property
    def outcome(self) -> str:
        """``plain`` where the median was no faster than plain decoding, ``once`` where there was a single run,
        ``unclear`` where one of several was not faster; else ``pays``."""
        if self.standing.speedup_measured <= 1:
            return "plain"
        if self.repeats == 1:
            return "once"
        return "pays" if self.standing.speedup_spread[0] > 1 else "unclear"


def ranked(offers: Sequence[Offer]) -> list[Offer]:
    """The most often measured first, and of these the fastest."""
    return sorted(offers, key=lambda one: (-one.repeats, -one.standing.speedup_measured))


@dataclass(frozen=True, slots=True)
class ServerFlags:
    """How a server is told."""

    server: str
    flags: str | None  # None where it has no such way
    note: str = ""  # what else it takes; the key of a sentence


#: What vLLM calls a way (docs/features/speculative_decoding), SGLang (docs/advanced_features/speculative_decoding) and
#: llama.cpp (docs/speculative.md, with the names of its pull requests 22397 and 22964). Who is missing has no such way.
VLLM = {
    "draft_model": "draft_model",
    "quantised_self": "draft_model",
    "prompt_lookup": "ngram",
    "suffix": "suffix",
    "medusa": "medusa",
    "eagle": "eagle",
    "mtp": "mtp",
}
SGLANG = {
    "draft_model": "STANDALONE",
    "quantised_self": "STANDALONE",
    "prompt_lookup": "NGRAM",
    "suffix": "NGRAM",
    "eagle": "EAGLE",
    "mtp": "NEXTN",
}
LLAMA_CPP = {
    "draft_model": "draft-simple",
    "quantised_self": "draft-simple",
    "prompt_lookup": "ngram-simple",
    "suffix": "ngram-simple",
    "mtp": "draft-mtp",
}

#: The lengths of n-grams that prompt lookup looks for (`PromptLookup`).
MAX_NGRAM, MIN_NGRAM = 4, 1

#: What stands for a model that only the reader can name.
OWN_DRAFT = "DRAFT_MODEL"
OWN = {"quantised_self": "TARGET_IN_FEW_BITS", "medusa": "MEDUSA_HEADS", "eagle": "EAGLE_HEAD"}


def server_flags(offer: Offer) -> tuple[ServerFlags, ...]:
    """The flags of each server for chains of this drafter and length."""
    mode, gamma = offer.mode, offer.num_draft_tokens
    model = {"draft_model": offer.draft or OWN_DRAFT, **OWN}.get(mode)
    all_of_them = _vllm(mode, gamma, model), _sglang(mode, gamma, model), _llama_cpp(mode, gamma, model)
    return tuple(replace(one, note="tokenizers") if offer.translated and one.flags else one for one in all_of_them)


def _vllm(mode: str, gamma: int, model: str | None) -> ServerFlags:
    if mode not in VLLM:
        return ServerFlags("vLLM", None)
    config = {"method": VLLM[mode]} | ({"model": model} if model else {}) | {"num_speculative_tokens": gamma}
    if mode == "prompt_lookup":
        config |= {"prompt_lookup_max": MAX_NGRAM, "prompt_lookup_min": MIN_NGRAM}
    note = {"suffix": "arctic", "eagle": "trained", "medusa": "trained", "quantised_self": "copy"}.get(mode, "")
    return ServerFlags("vLLM", f"--speculative-config {shlex.quote(json.dumps(config))}", note)


def _sglang(mode: str, gamma: int, model: str | None) -> ServerFlags:
    if mode not in SGLANG:
        return ServerFlags("SGLang", None)
    flags = ["--speculative-algorithm", SGLANG[mode]]
    if model:
        flags += ["--speculative-draft-model-path", model]
    if SGLANG[mode] != "NGRAM":
        flags += ["--speculative-num-steps", str(gamma), "--speculative-eagle-topk", "1"]
    # One more than are drafted: the pass reads the last token of the text too.
    flags += ["--speculative-num-draft-tokens", str(gamma + 1)]
    note = {"prompt_lookup": "trie", "suffix": "trie", "eagle": "trained", "quantised_self": "copy"}.get(mode, "")
    return ServerFlags("SGLang", shlex.join(flags), note)


def _llama_cpp(mode: str, gamma: int, model: str | None) -> ServerFlags:
    if mode not in LLAMA_CPP:
        return ServerFlags("llama.cpp", None)
    if LLAMA_CPP[mode] == "ngram-simple":
        sizes = f"--spec-ngram-simple-size-n {MAX_NGRAM} --spec-ngram-simple-size-m {gamma}"
        return ServerFlags("llama.cpp", f"--spec-type ngram-simple {sizes}", "lookup")
    flags = ["--spec-type", LLAMA_CPP[mode], "--spec-draft-n-max", str(gamma)]
    if model:
        flags = ["--model-draft", f"{model}.gguf", *flags]
    return ServerFlags("llama.cpp", shlex.join(flags), "gguf" if model else "")
