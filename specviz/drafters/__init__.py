"""The ways to draft, by name."""

from __future__ import annotations

from specviz.drafters.base import Draft, Drafter, Verdict
from specviz.drafters.draft_model import DraftModel
from specviz.drafters.prompt_lookup import PromptLookup

#: Every way to draft that can be asked for by name.
DRAFTERS: tuple[str, ...] = (DraftModel.name, PromptLookup.name)

__all__ = ["DRAFTERS", "Draft", "DraftModel", "Drafter", "PromptLookup", "Verdict"]
