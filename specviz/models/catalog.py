"""Well-known pairs on the Hub that share a tokenizer, and how much memory they need.

Parameter counts are those of the model cards (embeddings included, tied ones counted once).
"""

from dataclasses import dataclass

#: On top of the weights: caches, activations and the allocator's slack.
_HEADROOM = 1.15


@dataclass(frozen=True, slots=True)
class HubPair:
    """A target and a draft model on the Hub, both tuned for conversation, that share a vocabulary."""

    name: str
    target: str  # Hub ids
    draft: str
    target_millions: int  # of parameters
    draft_millions: int

    @property
    def gated(self) -> bool:
        """True if downloading needs an accepted licence and HF_TOKEN."""
        return self.target.startswith(("meta-llama/", "google/"))


_SMOLLM2, _QWEN25, _QWEN3 = "HuggingFaceTB/SmolLM2-135M-Instruct", "Qwen/Qwen2.5-0.5B-Instruct", "Qwen/Qwen3-0.6B"
_CODER, _LLAMA32 = "Qwen/Qwen2.5-Coder-0.5B-Instruct", "meta-llama/Llama-3.2-1B-Instruct"

CATALOG = (
    HubPair("SmolLM2 360M + 135M", "HuggingFaceTB/SmolLM2-360M-Instruct", _SMOLLM2, 362, 135),
    HubPair("SmolLM2 1.7B + 135M", "HuggingFaceTB/SmolLM2-1.7B-Instruct", _SMOLLM2, 1711, 135),
    HubPair("Qwen2.5 1.5B + 0.5B", "Qwen/Qwen2.5-1.5B-Instruct", _QWEN25, 1544, 494),
    HubPair("Qwen2.5 3B + 0.5B", "Qwen/Qwen2.5-3B-Instruct", _QWEN25, 3086, 494),
    HubPair("Qwen2.5 7B + 0.5B", "Qwen/Qwen2.5-7B-Instruct", _QWEN25, 7616, 494),
    HubPair("Qwen2.5 Coder 7B + 0.5B", "Qwen/Qwen2.5-Coder-7B-Instruct", _CODER, 7616, 494),
    HubPair("Qwen3 1.7B + 0.6B", "Qwen/Qwen3-1.7B", _QWEN3, 1721, 596),
    HubPair("Qwen3 4B + 0.6B", "Qwen/Qwen3-4B", _QWEN3, 4022, 596),
    HubPair("Qwen3 8B + 0.6B", "Qwen/Qwen3-8B", _QWEN3, 8191, 596),
    HubPair("Llama 3.2 3B + 1B", "meta-llama/Llama-3.2-3B-Instruct", _LLAMA32, 3213, 1236),
    HubPair("Llama 3.1 8B + 3.2 1B", "meta-llama/Llama-3.1-8B-Instruct", _LLAMA32, 8030, 1236),
    HubPair("Gemma 3 1B + 270M", "google/gemma-3-1b-it", "google/gemma-3-270m-it", 1000, 268),
    HubPair("Gemma 2 9B + 2B", "google/gemma-2-9b-it", "google/gemma-2-2b-it", 9242, 2614),
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


def size_bytes(pair: HubPair) -> int:
    """Bytes of both models' weights in half precision."""
    return 2 * (pair.target_millions + pair.draft_millions) * 10**6


def needed_bytes(pair: HubPair) -> int:
    """About how many bytes of memory the pair takes in half precision."""
    return int(size_bytes(pair) * _HEADROOM)
