"""A round as it was judged, before there is a record of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from specviz.rules.draft import Decision, Draft, TargetRows, Uniforms
from specviz.rules.transfer import to_host

#: Where an emitted token came from; ``plain``: the target's own, with nothing drafted.
Origin = Literal["accepted", "recovered", "bonus", "plain"]


@dataclass(frozen=True, slots=True)
class Judged:
    """What was judged and decided, on the device; and on the host what decoding needs to continue."""

    draft: Draft
    decision: Decision
    rows: TargetRows
    uniforms: Uniforms
    path: tuple[int, ...]  # indices of the kept draft tokens
    tokens: tuple[int, ...]  # those, then the next one
    choices: tuple[int, ...]  # [n + 1] the target's likeliest token of each row
    origin: Origin  # of the next token

    @classmethod
    def of(cls, draft: Draft, decision: Decision, rows: TargetRows, uniforms: Uniforms) -> Judged:
        """Fetches what decoding needs, in one transfer."""
        parts = {"token": draft.tokens, "kept": decision.kept, "row": decision.row, "next": decision.next_token}
        host = to_host(parts | {"choice": rows.likeliest})
        path = tuple([index for index, kept in enumerate(host["kept"]) if kept])
        # Refused siblings of an accepted token leave nothing to recover from: only the last row decides.
        refused = host["row"][0] - 1 in draft.parents
        origin: Origin = "plain" if not draft.parents else "recovered" if refused else "bonus"
        tokens = (*[host["token"][index] for index in path], host["next"])
        return cls(draft, decision, rows, uniforms, path, tokens, tuple(host["choice"]), origin)

    @property
    def next_id(self) -> int:
        return self.tokens[-1]

    @property
    def bytes(self) -> int:
        """Of everything as wide as the vocabulary."""
        wide: list[Tensor | None] = [self.draft.probs, self.draft.logits, self.rows.logits, self.rows.probs]
        wide += [self.decision.next_probs, self.decision.next_sums, self.decision.drawn_from]
        return sum(each.nbytes for each in wide if each is not None)
