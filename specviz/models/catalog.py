"""Well-known pairs on the Hub: targets with draft models that share their tokenizer, and with published parts; and how
much memory they need. They are listed in assets/catalog.json.

Parameter counts of models are those of their cards (embeddings included, tied ones counted once); of parts, what the
sizes in their configurations come to, but for norms and other small ones, or else those of their cards.
"""

import json
from dataclasses import dataclass

from specviz.records.assets import ASSETS

#: On top of the weights: caches, activations and the allocator's slack.
_HEADROOM = 1.15


@dataclass(frozen=True, slots=True)
class HubPair:
    """A target on the Hub, tuned for conversation, and a draft model that shares its vocabulary, or a part of it."""

    name: str
    target: str  # Hub ids
    draft: str
    target_millions: int  # of parameters
    draft_millions: int
    method: str = ""  # the format of a part; empty for a draft model

    @property
    def gated(self) -> bool:
        """True if downloading needs an accepted licence and HF_TOKEN."""
        return self.target.startswith(("meta-llama/", "google/gemma-2", "google/gemma-3"))

    @property
    def draft_bytes(self) -> int:
        """Of the draft model's or the part's weights in half precision."""
        return 2 * self.draft_millions * 10**6


_LISTS = json.loads((ASSETS / "catalog.json").read_text(encoding="utf-8"))

CATALOG = tuple(HubPair(*pair) for pair in _LISTS["pairs"])


def _published() -> tuple[HubPair, ...]:
    """Each published part with each of its targets."""
    pairs = []
    for part in _LISTS["parts"]:
        for target in part["targets"]:
            name, millions = _LISTS["targets"][target]
            pair = (f"{name} + {part['method']}", target, part["id"], millions, part["millions"], part["method"])
            pairs.append(HubPair(*pair))
    return tuple(pairs)


#: Targets with the parts that are published for them.
PUBLISHED = _published()


def drafts_at_hand(target: str) -> list[HubPair]:
    """The pairs of this target whose draft model was downloaded before. Uses no network."""
    from huggingface_hub import try_to_load_from_cache  # the page reads this file at once

    weights = ("model.safetensors", "model.safetensors.index.json")
    return [
        pair
        for pair in CATALOG
        if pair.target == target and any(isinstance(try_to_load_from_cache(pair.draft, name), str) for name in weights)
    ]


def size_bytes(pair: HubPair) -> int:
    """Bytes of both models' weights in half precision."""
    return 2 * pair.target_millions * 10**6 + pair.draft_bytes


def needed_bytes(pair: HubPair) -> int:
    """About how many bytes of memory the pair takes in half precision."""
    return int(size_bytes(pair) * _HEADROOM)
