"""What inference servers call the ways to draft."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Servers:
    """The names that inference servers have for a way to draft; None where they have no such way.

    vLLM: docs/features/speculative_decoding. SGLang: docs/advanced_features/speculative_decoding, where
    NEXTN stands for modules of the target and, since pull request 24436, for Gemma 4's assistants too. llama.cpp:
    docs/speculative.md, with the names of its pull requests 22397 and 22964.
    """

    vllm: str | None = None
    sglang: str | None = None
    llama_cpp: str | None = None
    model: str | None = None  # stands for a model that only the reader can name
    in_parallel: bool = False  # whether vLLM must be told that all tokens of a draft come from one pass
    ngram: tuple[int, int] = (1, 4)  # the least and the most tokens that a copy must follow
    note: str = ""  # the key of a sentence on what else is needed there, of the area ``advice``
    #: Whether SGLang can draw these drafts (--speculative-use-rejection-sampling): at commit 004c82e0 of its
    #: arg_groups/speculative_hook.py for EAGLE, EAGLE3 and NEXTN, but for assistants; STANDALONE refuses to
    #: start with it.
    sglang_draws: bool = False
