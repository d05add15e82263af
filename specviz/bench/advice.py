"""Which way to draft pays here, by what was measured, and how servers are told to draft like that. Loads no torch."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace

from specviz.bench.work import ALL, WorkRow, as_good


@dataclass(frozen=True, slots=True)
class Offer:
    """One way to draft, and what it came to beside plain decoding."""

    row: WorkRow  # on all prompts
    draft: str | None = None  # the draft model that it needs, as it was named
    translated: bool = False  # whether that has another tokenizer

    @property
    def mode(self) -> str:
        """The drafter's name."""
        return self.row.contestant.mode

    @property
    def num_draft_tokens(self) -> int:
        return self.row.contestant.num_draft_tokens

    @property
    def outcome(self) -> str:
        """``plain`` where it is no faster than plain decoding, ``pays`` where its whole interval is, else
        ``unclear``."""
        ratio = self.row.ratio
        if ratio.value <= 1:
            return "plain"
        return "pays" if ratio.low is not None and ratio.low > 1 else "unclear"


def ranked(offers: Sequence[Offer]) -> list[Offer]:
    """The fastest first, as far as can be counted on: by the lower ends of their intervals."""
    return sorted(offers, key=lambda one: -(one.row.ratio.low or 0.0))


def offers_of(rows: Sequence[WorkRow], draft: str | None, translated: bool) -> list[Offer]:
    """What was measured on all prompts. draft: the pair's draft model, as it was named; translated: see `Offer`."""
    return [
        Offer(row, draft, translated) if row.contestant.mode == "draft_model" else Offer(row)
        for row in rows
        if row.domain == ALL and row.ratio is not None
    ]


def good_lengths(offers: Sequence[Offer], best: Offer) -> list[int]:
    """The γ of the best offer's drafter that cannot be told apart from its own."""
    return as_good([one.row for one in offers if one.draft == best.draft], best.row)


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
