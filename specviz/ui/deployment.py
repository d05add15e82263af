"""Settings of a deployment, from environment variables; docs/deploying.md lists them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from specviz.passes.zero_gpu import is_zero_gpu
from specviz.records.errors import SpecvizError, quoted
from specviz.records.settings import SETTINGS

#: SPECVIZ_TARGET of a page without models.
NO_MODELS = "none"

#: SPECVIZ_PASSES: prepared while the page is served, or the models' own.
PASSES = ("auto", "plain")


@dataclass(frozen=True, slots=True)
class Deployment:
    """The pair that the page starts with, and the limits for one visitor on a shared machine."""

    target: str | None  # None is the embedded pair, `NO_MODELS` none at all
    draft: tuple[str, ...]  # a draft model, trained parts
    device: str
    dtype: str
    max_prompt_tokens: int
    max_new_tokens: int
    max_draft_tokens: int  # γ
    max_compare_runs: int  # of one comparison
    queue_size: int  # visitors in line
    allow_loading: bool  # of other pairs
    passes: str  # one of `PASSES`
    servers: tuple[str, ...] | None  # addresses of inference servers that visitors may ask; None: any

    @property
    def without_models(self) -> bool:
        """True if the page shows only recorded runs and traces."""
        return self.target == NO_MODELS

    @classmethod
    def from_environment(cls) -> Deployment:
        # Weights reach a lent GPU at start, or not at all.
        allow_loading = os.environ.get("SPECVIZ_ALLOW_LOADING", "1") != "0" and not is_zero_gpu()
        servers = _listed("SPECVIZ_SERVERS")
        return cls(
            target=os.environ.get("SPECVIZ_TARGET") or None,
            draft=_listed("SPECVIZ_DRAFT"),
            device=os.environ.get("SPECVIZ_DEVICE", "auto"),
            dtype=os.environ.get("SPECVIZ_DTYPE", "auto"),
            max_prompt_tokens=_count("SPECVIZ_MAX_PROMPT_TOKENS", 4096),
            max_new_tokens=_count("SPECVIZ_MAX_NEW_TOKENS", 1024),
            max_draft_tokens=min(_count("SPECVIZ_MAX_DRAFT_TOKENS", 16), int(SETTINGS["num_draft_tokens"].most or 1)),
            max_compare_runs=_count("SPECVIZ_MAX_COMPARE_RUNS", 64),
            queue_size=_count("SPECVIZ_QUEUE_SIZE", 16),
            allow_loading=allow_loading,
            passes=_choice("SPECVIZ_PASSES", PASSES),
            servers=servers or (None if allow_loading and not on_space() else ()),
        )


def on_space() -> bool:
    """True on a Hugging Face Space, which is a public page: see `specviz.servers.address`."""
    return hub_page() is not None


def hub_page() -> str | None:
    """The address of the Space's page on the hub, which shows this page in a frame; None elsewhere."""
    space = os.environ.get("SPACE_ID")  # OWNER/NAME; a duplicate has its own
    return f"https://huggingface.co/spaces/{space}" if space else None


def _listed(name: str) -> tuple[str, ...]:
    return tuple(filter(None, map(str.strip, os.environ.get(name, "").split(","))))


def _count(name: str, default: int) -> int:
    text = os.environ.get(name, str(default))
    if not text.isdecimal() or int(text) < 1:
        raise SpecvizError(
            "The environment variable {name} must be a whole number from 1 up, not {value}.",
            name,
            name=name,
            value=quoted(text),
        )
    return int(text)


def _choice(name: str, choices: Sequence[str]) -> str:
    """The first choice unless the variable names another."""
    text = os.environ.get(name) or choices[0]
    if text not in choices:
        raise SpecvizError(
            "The environment variable {name} must be one of {choices}, not {value}.",
            name,
            name=name,
            choices=", ".join(choices),
            value=quoted(text),
        )
    return text
