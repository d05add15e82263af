"""A round as it was judged, before there is a record of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from specviz.rules.draft import Decision, Draft, TargetRows, Uniforms

#: Where an emitted token came from; ``plain``: the target's own, with nothing drafted.
Origin = Literal["accepted", "recovered", "bonus", "plain"]


@dataclass(frozen=True, slots=True)
class Judged:
    """What decoding needs to continue, on the host; and what the record is made of."""

    draft: Draft
    uniforms: Uniforms
    # What the rule judged by, and what it decided, on the device; maybe computed only then.
    judgement: Callable[[], tuple[TargetRows, Decision]]
    bytes: int  # that are kept for the judgement
    path: tuple[int, ...]  # indices of the kept draft tokens
    tokens: tuple[int, ...]  # those, then the next one
    choices: tuple[int, ...]  # [n + 1] the target's likeliest token of each row

    @property
    def next_id(self) -> int:
        return self.tokens[-1]

    @property
    def origin(self) -> Origin:
        """Of the next token."""
        if not self.draft.parents:
            return "plain"
        # Refused siblings of an accepted token leave nothing to recover from: only the last kept one's children count.
        last = self.path[-1] if self.path else -1
        return "recovered" if last in self.draft.parents else "bonus"
