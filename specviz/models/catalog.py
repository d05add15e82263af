"""Well-known pairs on the Hub that share a tokenizer, and how much memory they need.

Parameter counts are those of the model cards (embeddings included, tied ones counted once).
"""

from __future__ import annotations

from dataclasses import dataclass

#: On top of the weights: caches, activations and the allocator's slack.
_HEADROOM = 1.15


@dataclass(frozen=True, slots=True)
class HubPair:
    """A target and a draft model on the Hub that share a vocabulary."""

    name: str
    target: str  # Hub ids
    draft: str
    target_parameters: int
    draft_parameters: int
    chat: bool  # both were tuned for conversation
    gated: bool  # downloading needs an accepted licence and HF_TOKEN


_M, _B = 10**6, 10**9

_QWEN25 = ("Qwen/Qwen2.5-0.5B-Instruct", 494 * _M)
_QWEN3 = ("Qwen/Qwen3-0.6B", 596 * _M)
_LLAMA32 = ("meta-llama/Llama-3.2-1B-Instruct", 1236 * _M)
_SMOLLM2 = ("HuggingFaceTB/SmolLM2-135M-Instruct", 135 * _M)


def _pair(name: str, target: tuple[str, int], draft: tuple[str, int], gated: bool = False) -> HubPair:
    return HubPair(name, target[0], draft[0], target[1], draft[1], chat=True, gated=gated)


CATALOG: tuple[HubPair, ...] = (
    _pair("SmolLM2 360M + 135M", ("HuggingFaceTB/SmolLM2-360M-Instruct", 362 * _M), _SMOLLM2),
    _pair("SmolLM2 1.7B + 135M", ("HuggingFaceTB/SmolLM2-1.7B-Instruct", 1711 * _M), _SMOLLM2),
    _pair("Qwen2.5 1.5B + 0.5B", ("Qwen/Qwen2.5-1.5B-Instruct", 1544 * _M), _QWEN25),
    _pair("Qwen2.5 3B + 0.5B", ("Qwen/Qwen2.5-3B-Instruct", 3086 * _M), _QWEN25),
    _pair("Qwen2.5 7B + 0.5B", ("Qwen/Qwen2.5-7B-Instruct", 7616 * _M), _QWEN25),
    _pair(
        "Qwen2.5 Coder 7B + 0.5B",
        ("Qwen/Qwen2.5-Coder-7B-Instruct", 7616 * _M),
        ("Qwen/Qwen2.5-Coder-0.5B-Instruct", 494 * _M),
    ),
    _pair("Qwen3 1.7B + 0.6B", ("Qwen/Qwen3-1.7B", 1721 * _M), _QWEN3),
    _pair("Qwen3 4B + 0.6B", ("Qwen/Qwen3-4B", 4022 * _M), _QWEN3),
    _pair("Qwen3 8B + 0.6B", ("Qwen/Qwen3-8B", 8191 * _M), _QWEN3),
    _pair("Llama 3.2 3B + 1B", ("meta-llama/Llama-3.2-3B-Instruct", 3213 * _M), _LLAMA32, gated=True),
    _pair("Llama 3.1 8B + 3.2 1B", ("meta-llama/Llama-3.1-8B-Instruct", 8030 * _M), _LLAMA32, gated=True),
    _pair(
        "Gemma 3 1B + 270M",
        ("google/gemma-3-1b-it", 1000 * _M),
        ("google/gemma-3-270m-it", 268 * _M),
        gated=True,
    ),
    _pair(
        "Gemma 2 9B + 2B",
        ("google/gemma-2-9b-it", 9242 * _M),
        ("google/gemma-2-2b-it", 2614 * _M),
        gated=True,
    ),
)


def drafts_at_hand(target: str) -> list[HubPair]:
    """The pairs of this target whose draft model was downloaded before. Asks nobody."""
    from huggingface_hub import try_to_load_from_cache  # the page reads this file at once

    weights = ("model.safetensors", "model.safetensors.index.json")
    return [
        pair
        for pair in CATALOG
        if pair.target == target and any(isinstance(try_to_load_from_cache(pair.draft, name), str) for name in weights)
    ]


def size_bytes(pair: HubPair, dtype_bytes: int = 2) -> int:
    """Bytes of both models' weights at `dtype_bytes` a parameter (2 in half precision, 4 in float32)."""
    return (pair.target_parameters + pair.draft_parameters) * dtype_bytes


def needed_bytes(pair: HubPair) -> int:
    """About how many bytes of memory the pair takes in half precision."""
    return int(size_bytes(pair) * _HEADROOM)
