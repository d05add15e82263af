"""Drafting token by token with a trained part that continues the target's own hidden states: EAGLE, and MTP modules."""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from specviz.drafters.ahead import DraftAhead, HeadAhead
from specviz.drafters.base import DraftContext, Servers
from specviz.drafters.stepwise import Stepwise
from specviz.models.pair import ModelPair, Part
from specviz.parts.gemma_assistant import AssistantModel, GemmaAssistant, assistant_reader
from specviz.parts.head_passes import Head, HeadModel
from specviz.parts.mtp import MtpModules
from specviz.parts.published import PublishedPart
from specviz.passes.cached_model import CachedModel, reader, tree_view
from specviz.passes.static_passes import WIDEST
from specviz.records.settings import DraftParams
from specviz.rules.draft import Draft, Verdict, tree_shape
from specviz.rules.transfer import to_device


class Headed(Stepwise):
    """Drafts from the target's hidden states with the pair's trained part of the same name."""

    def __init__(self, context: DraftContext):
        super().__init__(context)
        self.head: Part = context.pair.parts[self.name]
        self.target = context.pair.target
        self.stopwatch = context.target.stopwatch
        self.feature_layers = self.head.feature_layers
        if isinstance(self.head, PublishedPart) and self.head.reachable is not None:
            self.reachable = self.head.reachable.to(context.target.device)
        self._features: list[Tensor] = []

    @property
    def features(self) -> Tensor | None:
        """The target's, [n, width], for the n tokens that the part has not read yet."""
        if len(self._features) > 1:
            # Only now: to join them after every plain step would copy all of them each time.
            self._features = [torch.cat(self._features)]
        return self._features[0] if self._features else None

    @features.setter
    def features(self, features: Tensor | None) -> None:
        self._features = [] if features is None else [features]

    def prefill(self, prompt: Sequence[int], features: Tensor | None = None) -> None:
        self.features = features

    def observe(self, committed: int, verdict: Verdict, features: Tensor | None) -> None:
        self.features = features

    def watch(self, committed: int, verdict: Verdict, features: Tensor | None) -> None:
        self._features.append(features)

    def enter(self, committed: Sequence[int]) -> tuple[int, Tensor | None]:
        behind = len(committed) - 2 - self.reader.length
        if behind > 0:
            tokens = to_device(committed[self.reader.length + 1 : -1], self.features.device)
            self.read_text(tokens, self.features[:behind])
            self.features = self.features[behind:]
        return self.reader.length, self.features

    def read_text(self, tokens: Tensor, features: Tensor) -> None:
        """Reads more of the text and drafts nothing. tokens: [n] int64, each following its feature's token."""
        self.reader.forward(tokens, keep=1, inputs=self.fuse(features))

    def leave(self, committed: int, read: int, features: Tensor | None) -> None:
        self.reader.length, self.features = read, features

    @classmethod
    def check(cls, pair: ModelPair, params: DraftParams) -> None:
        if cls.name not in pair.parts:
            raise pair.missing_part(cls.name)

    @classmethod
    def settings(cls, pair: ModelPair, params: DraftParams) -> dict[str, Any]:
        """And how a published part is read."""
        part = pair.parts[cls.name]
        read = part.reading() if isinstance(part, PublishedPart) else {}
        return super().settings(pair, params) | {
            key: value if isinstance(value, (str, int)) else str(value).strip("[]{}") for key, value in read.items()
        }


class Eagle(Headed):
    """Continues the target's hidden states, not just its text, which already point at the next token.

    EAGLE, Li et al., arXiv 2401.15077; a tree of its most confident branches, EAGLE-2, arXiv 2406.16858; features of
    several layers and the head's own state fed back, EAGLE-3, arXiv 2503.01840. After each round the draft tokens'
    rows are dropped, and the kept tokens are read again with the features that the target has computed for them.
    """

    name: ClassVar[str] = "eagle"
    measured_as: ClassVar[frozenset[str]] = frozenset({"block", "tree"})

    def __init__(self, context: DraftContext):
        super().__init__(context)
        fast = context.passes.get(self.name)
        self.fuse = self.head.fuse if fast is None else fast.static.fuse
        self.reader = self.reader_of(context)
        self.in_one_call = self.drafts_in_one_call(self.reader)
        self.text_rows = 0
        # The text's last at `last`, then one for each draft token; in a chain the last token's alone.
        self.states: Tensor | None = None
        self.last = 0

    def reader_of(self, context: DraftContext) -> CachedModel:
        """Reads the text with the head; its features are the head's states."""
        return self._reading(context, self.head, self.name)

    def _reading(self, context: DraftContext, head: Head, role: str) -> CachedModel:
        return reader(HeadModel(head, self.target), self.stopwatch, context.passes.get(role), (-1,))

    def source(self, depth: int) -> str:
        return f"step {depth + 1}"

    def propose(self, committed: Sequence[int], budget: int, uniforms: Tensor) -> Draft:
        unread = len(committed) - 1 - self.reader.length
        if not self.in_one_call or self.features is None or unread > WIDEST:
            return super().propose(committed, budget, uniforms)
        tokens = to_device(committed[self.reader.length + 1 :], self.features.device)
        self.text_rows = self.reader.length + unread
        made = self.reader.draft(tokens, budget, self.choice, uniforms, self.fused())
        return self.as_draft(made, uniforms)

    def ahead(self, deepest: int) -> DraftAhead | None:
        if not self.grows_on(self.reader) or self.reader.passes.static.shares_rows:
            return None
        # Of the text, what the last round has committed.
        own = self._in_common(self.reader, deepest)
        return HeadAhead(**own, unread=deepest + 1, fuse=self.fuse)

    def fused(self) -> Tensor:
        """What the head reads with the tokens whose features the target has computed."""
        with self.stopwatch.span():
            return self.fuse(self.features)

    def first_row(self, committed: Sequence[int]) -> Tensor | None:
        """Reads the text's new rows, each a token's feature together with the embedding of the next token."""
        if self.features is None:
            return None
        tokens = to_device(committed[self.reader.length + 1 :], self.features.device)
        logits = self.reader.forward(tokens, keep=1, inputs=self.fused())
        self.text_rows = self.reader.length
        self.states, self.last = self.reader.features, len(tokens) - 1
        return logits

    def next_rows(self, tokens: Tensor, parents: tuple[int, ...]) -> Tensor:
        """Reads one level of the draft; a token's feature is the head's own state after its parent."""
        if self.width == 1:
            # Only the last state has a successor.
            logits = self.reader.extend(tokens, parents, self.states[-1:])
            self.states = self.reader.features
            return logits
        # From the text's last state on they are indexed like judging rows.
        rows = tree_shape(parents, tokens.device).rows[-len(tokens) :] + self.last
        logits = self.reader.extend(tokens, parents, self.states.index_select(0, rows))
        self.states = torch.cat([self.states, self.reader.features])
        return logits

    def observe(self, committed: int, verdict: Verdict, features: Tensor | None) -> None:
        self.reader.rewind(self.text_rows)
        super().observe(committed, verdict, features)


class Mtp(Eagle):
    """Module k predicts the k-th token ahead from the states of module k − 1, of the target for the first.

    DeepSeek-V3, arXiv 2412.19437, sec. 2.2, eq. 21 to 23: they are trained with the target and shipped with it. Deeper
    drafts go on with the last module, run again on its own states: with one alone, or with an MTP head trained
    afterwards, that is EAGLE's loop. Each has a cache of its own and reads the text too, beginning one token further on
    than the one before. Rows of draft tokens are dropped after a round, as with EAGLE.
    """

    name: ClassVar[str] = "mtp"
    servers: ClassVar[Servers] = Servers("mtp", "NEXTN", "draft-mtp")

    def __init__(self, context: DraftContext):
        super().__init__(context)
        later = self.head.modules[1:] if isinstance(self.head, MtpModules) else []
        self.readers = [self.reader, *(self._reading(context, module, module.role) for module in later)]
        self.in_one_call &= not later
        self.held = [0] * len(self.readers)  # rows of the text in each
        # The states of the module before, for the text's tokens that each module has yet to read; the last one belongs
        # to a token that is yet to come.
        self.states_before: list[list[Tensor]] = [[] for _ in self.readers]
        self.step = 0
        self.committed: Sequence[int] = ()
        self.drafted: list[Tensor] = []

    def reader_of(self, context: DraftContext) -> CachedModel:
        if isinstance(self.head, MtpModules):
            return self._reading(context, self.head.modules[0], self.name)
        if isinstance(self.head, GemmaAssistant):
            model = AssistantModel(self.head, self.target)
            return assistant_reader(model, context.target, context.passes.get(self.name))
        return super().reader_of(context)

    def ahead(self, deepest: int) -> DraftAhead | None:
        return super().ahead(deepest) if len(self.readers) == 1 else None

    @classmethod
    def settings(cls, pair: ModelPair, params: DraftParams) -> dict[str, Any]:
        return super().settings(pair, params) | {"modules": pair.parts[cls.name].num_modules}

    def source(self, depth: int) -> str:
        modules = len(self.readers)
        return super().source(depth) if modules == 1 else f"module {min(depth + 1, modules)}"

    def propose(self, committed: Sequence[int], budget: int, uniforms: Tensor) -> Draft:
        draft = super().propose(committed, budget, uniforms)
        if self.in_one_call:
            self.features, self.held = None, [self.text_rows]
        return draft

    def first_row(self, committed: Sequence[int]) -> Tensor | None:
        # So that every module has a row of the text: its first is that of the token as far on as it looks.
        if len(committed) <= len(self.readers):
            return None
        self.committed, self.drafted, self.step = committed, [], 1
        self.reader = self.readers[0]
        row = super().first_row(committed)
        if row is not None:
            self.features = None
            self._note_text()
        return row

    def next_rows(self, tokens: Tensor, parents: tuple[int, ...]) -> Tensor:
        self.step += 1
        if self.step > len(self.readers):
            return super().next_rows(tokens, parents)
        self.drafted.append(tokens)
        return self._read_on(len(tokens), parents)

    def _read_on(self, keep: int, parents: tuple[int, ...]) -> Tensor:
        """The next module reads the text's new tokens and all draft tokens so far; logits [keep, vocab] of the last."""
        index = self.step - 1
        self.reader = self.readers[index]
        tokens = to_device(self.committed[self.reader.length + self.step :], self.states.device)
        before, shape = torch.cat(self.states_before[index]), tree_shape(parents, tokens.device)
        features = torch.cat([before[:-1], self.states.index_select(0, shape.rows + self.last)])
        self.states_before[index] = [before[-1:]]
        self.text_rows, self.last = self.reader.length + len(tokens), len(tokens) - 1
        view = tree_view(parents, self.reader.length, len(tokens)) if self.width > 1 else ()
        visible, positions = [to_device(one, tokens.device) for one in view] or (None, None)
        every = torch.cat([tokens, *self.drafted])
        logits = self.reader.forward(every, keep, visible, positions, features)
        self.states = self.reader.features
        self._note_text()
        return logits

    def _note_text(self) -> None:
        """Keeps the length of the text that the current module has read, and its states for the next module."""
        self.held[self.step - 1] = self.text_rows
        if self.step < len(self.readers):
            self.states_before[self.step].append(self.states[: self.last + 1])

    def observe(self, committed: int, verdict: Verdict, features: Tensor | None) -> None:
        for module, length in zip(self.readers, self.held):
            module.rewind(length)
        self.watch(committed, verdict, features)

    def leave(self, committed: int, read: int, features: Tensor | None) -> None:
        super().leave(committed, read, features)
        self.held = [read]
