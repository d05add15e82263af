"""A round as functions of tensors, in the parts that are recorded: draft, target pass, verdict and the text's new end.

The decisions are the same as on the host, function by function, with the same coins.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from specviz.decoding.fetched import parts_of
from specviz.drafters.ahead import DeviceText, DraftAhead, branches_see, move
from specviz.passes.cuda_graphs import GraphedPasses, Replay
from specviz.rules.draft import Draft, GrownTree, Rule, TargetRows, TreeShape, Uniforms
from specviz.rules.sampling import Warper
from specviz.rules.transfer import Layout, packed

#: A recording begins with trial runs, each of which moves the text's end.
_RUNS = 4


@dataclass(frozen=True, slots=True, eq=False)
class RoundSetup:
    """How rounds are made: everything that a recording depends on, apart from the depth of its draft."""

    target: GraphedPasses
    ahead: DraftAhead | None  # None: nothing is ever drafted
    deepest: int
    rule: Rule
    warper: Warper
    feature_layers: tuple[int, ...]
    reachable: Tensor | None  # see `Drafter`
    coins: int  # of a round

    @property
    def drafting(self) -> DraftAhead:
        """`ahead`, where something is drafted."""
        assert self.ahead is not None, "nothing is ever drafted"
        return self.ahead

    @property
    def passes(self) -> list[GraphedPasses]:
        return [self.target] if self.ahead is None else [self.target, self.ahead.passes]

    @property
    def buffers(self) -> list[Tensor]:
        """The first of the rows that its passes work on now."""
        return [passes.static.kv_in_use(passes.kept_buffers.tensors)[0] for passes in self.passes]

    @property
    def room(self) -> int:
        """How many tokens a text may have that these rounds write."""
        extra_places = 0 if self.ahead is None else self.ahead.extra_places
        return min(passes.kept_buffers.room for passes in self.passes) - extra_places

    @property
    def margin(self) -> int:
        """How many places after a text a round reads or writes at most: its draft, and what a drafter always reads."""
        return 2 + (0 if self.ahead is None else max(self.tokens(self.deepest), self.ahead.unread))

    def reserve(self, length: int) -> None:
        """Makes room for a text of this length, and for the trial runs of a recording."""
        extra_places = 0 if self.ahead is None else self.ahead.extra_places
        for passes in self.passes:
            passes.kept_buffers.reserve(length + self.margin + _RUNS * (self.deepest + 1) + extra_places)

    def tokens(self, depth: int) -> int:
        """How many tokens a draft of this depth has."""
        return 0 if self.ahead is None else depth * self.ahead.growing.branches


class Recordings:
    """A setup's rounds by depth, over the buffers that its passes have now, and the text on the device."""

    def __init__(self, setup: RoundSetup):
        static, device = setup.target.static, setup.target.static.device
        self.setup, self.buffers, self.room = setup, setup.buffers, setup.room
        self.kv = static.kv_in_use(setup.target.kept_buffers.tensors)
        self.cells = setup.target.kept_buffers.cells
        width = len(setup.feature_layers) * static.original.config.get_text_config().hidden_size
        self.text = DeviceText(
            ids=torch.zeros(len(self.cells), dtype=torch.long, device=device),
            length=torch.ones(1, dtype=torch.long, device=device),
            read=torch.zeros(1, dtype=torch.long, device=device),
            features=torch.zeros(len(self.cells), width, dtype=static.dtype, device=device) if width else None,
        )
        self.coins = torch.zeros(setup.coins, dtype=torch.float64, device=device)
        self.rounds: dict[int, RecordedRound] = {}
        self.times_met: Counter[int] = Counter()  # depths without a recorded round

    @property
    def lost(self) -> bool:
        """True once one of its passes has given up the room that it works on."""
        passes = zip(self.setup.passes, self.buffers, strict=True)
        return not all(one.kept_buffers.holds(first) for one, first in passes)

    def record(self, depth: int) -> None:
        """Records a round of this depth; the text stays as it is. Raises RuntimeError where that fails."""
        state = self.text.ids, self.text.length, self.text.read
        saved = [part.clone() for part in state]
        try:
            self.rounds[depth] = RecordedRound(self, depth)
        finally:
            for part, value in zip(state, saved):
                part.copy_(value)


class RecordedRound:
    """A round in three parts, so that each can be timed; each part reads what the one before has left."""

    def __init__(self, recordings: Recordings, depth: int):
        self.setup, self.text, self.recordings, self.depth = recordings.setup, recordings.text, recordings, depth
        self.draft = Draft.copied((), recordings.coins.device)
        self.logits = self.record = torch.empty(0)
        self.layout = Layout({})
        self.shape: TreeShape | None = None  # held, since recordings work on its tensors
        self.replays: list[Replay] = []
        for part in (*[self._draft] * bool(depth), self._verify, self._judge):
            self.replays.append(self.setup.target.record(part, ()))
            # Now, so that the next part is tried on what this part computes, not on whatever lies in its memory.
            self.replays[-1](())

    def _draft(self) -> tuple[()]:
        self.draft = self.setup.drafting.draft(self.text, self.depth, Uniforms.of(self.recordings.coins).draft)
        return ()

    def _verify(self) -> tuple[()]:
        text, static, draft = self.text, self.setup.target.static, self.draft
        tokens = torch.cat([text.ids.index_select(0, text.length - 1), draft.tokens])
        where = text.length - 1 + torch.arange(len(tokens), device=tokens.device)
        positions, visible = where, where.unsqueeze(-1) >= self.recordings.cells
        if draft.grown is not None:
            branches = draft.grown.ancestors
            positions = torch.cat([where[:1], text.length - 1 + branches.sum(-1)])
            visible = torch.cat([visible[:1], branches_see(self.recordings.cells, text.length, branches)])
        self.logits, *hidden = static(tokens, positions, where, visible, *self.recordings.kv)
        if text.features is not None:
            by_layer = dict(zip(static.feature_layers, hidden, strict=True))
            # By place: features of rejected tokens are overwritten before they are read.
            text.features.index_copy_(0, where, torch.cat([by_layer[layer] for layer in self.setup.feature_layers], -1))
        return ()

    def _judge(self) -> tuple[()]:
        text, draft, uniforms = self.text, self.draft, Uniforms.of(self.recordings.coins)
        if draft.grown is not None:
            # A new shape: what an old one has computed before would be recorded as a constant.
            draft = replace(draft, grown=GrownTree(draft.grown.rows, draft.grown.ancestors, draft.grown.widths))
        rows = TargetRows.of(self.logits, self.setup.warper)
        decision = self.setup.rule.decided_on_device(draft, rows, uniforms)
        accepted, following = decision.accepted.bool(), decision.next_token.view(1)
        levels, path = torch.arange(self.depth + 1, device=following.device), self._path(accepted)
        if draft.grown is not None:
            self._move(path)
        tokens = torch.cat([draft.tokens.index_select(0, path), following])
        committed = following.where(levels == accepted.sum(), tokens)
        if self.depth:
            self.setup.drafting.note_read(text)
        text.ids.index_copy_(0, text.length + levels, committed)
        text.length.add_(accepted.sum() + 1)
        parts = parts_of(draft, rows, decision, uniforms, self.setup.reachable) | {"likeliest": rows.likeliest}
        if draft.grown is not None:
            parts["judged_by"] = draft.grown.rows
        self.record, self.layout, self.shape = packed(parts), Layout.of(parts), draft.shape
        return ()

    def _path(self, accepted: Tensor) -> Tensor:
        """[depth] int64: the accepted tokens in order, then any."""
        count = len(accepted)
        numbers = torch.arange(count, device=accepted.device)
        if self.draft.grown is None:
            return numbers
        # The last place takes all other tokens.
        places = (accepted.cumsum(0) - 1).where(accepted, self.depth)
        return numbers[: self.depth + 1].scatter(0, places, numbers)[: self.depth]

    def _move(self, path: Tensor) -> None:
        """Moves what was read of the accepted tokens to the text's end."""
        move(self.recordings.kv, self.text.length, path)
        self.setup.drafting.move_accepted(self.text.length, path)
        if self.text.features is not None:
            places = self.text.length + torch.arange(self.depth, device=path.device)
            moved = self.text.features.index_select(0, self.text.length + path)
            self.text.features.index_copy_(0, places, moved)
