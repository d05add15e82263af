"""How a trained part drafts: rows of logits, level by level, from passes that somebody makes for it.

A part says once where its rows come from (`TrainedPart.rows_by_level`). The host makes the passes of one run
(`RunReading`); on a GPU they are recorded, over a text whose end the host does not know (`specviz.drafters.ahead`).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from specviz.parts.servers import Servers
from specviz.passes.cached_model import CachedModel
from specviz.passes.fast_passes import FastPasses
from specviz.passes.kernels.chains import Gain, OnePass
from specviz.passes.made_drafts import Choice, RawDraft
from specviz.passes.roles import Role
from specviz.passes.static_passes import WIDEST, StaticPass
from specviz.records.words import Sentence
from specviz.rules.draft import tree_shape
from specviz.rules.transfer import to_device


class Level(Protocol):
    """The tokens of a draft's last level, k of them."""

    @property
    def tokens(self) -> Tensor:
        """[k] int64."""

    @property
    def rows(self) -> Tensor | None:
        """[k] int64, the row that judges each: 0 follows the text, i + 1 draft token i. None in a chain."""


def parent_states(states: Tensor, level: Level) -> Tensor:
    """[k, d], the states that a level's tokens continue. states: [n, d], of the text's row and each draft token; in a
    chain only the last one counts."""
    return states[-1:] if level.rows is None else states.index_select(0, level.rows)


def with_level(states: Tensor, new_states: Tensor, level: Level) -> Tensor:
    """The states with those of a level's tokens, [k, d]."""
    return new_states if level.rows is None else torch.cat([states, new_states])


class HostLevel(NamedTuple):
    """A `Level` that the host knows."""

    tokens: Tensor
    parents: tuple[int, ...]  # of the whole draft, whose last k tokens these are
    in_tree: bool = False

    @property
    def rows(self) -> Tensor | None:
        return tree_shape(self.parents, self.tokens.device).rows[-len(self.tokens) :] if self.in_tree else None


Part = TypeVar("Part", bound="TrainedPart")
SomeLevel = TypeVar("SomeLevel", bound=Level)
ReadLevel = TypeVar("ReadLevel", bound=Level, contravariant=True)

#: Rows of logits [k, any width] for what follows each token of a level, which is sent once it is chosen. The first are
#: for what follows the text: a single row, or one for each level of the draft, and then no more are asked for.
Rows = Generator[Tensor, SomeLevel, None]


class Reading(Protocol[ReadLevel]):
    """Passes over a text and its draft."""

    foresees: bool  # whether a `forecast` is wanted
    #: [k] how likely the token of each of the last rows is to be accepted, where a part foresees that.
    forecast: Tensor | None
    gains_width: int | None  # of rows to which whoever drafts from them adds a `gain`; None: a part adds it itself
    gain: Gain | None  # to be added to the last rows

    @property
    def states(self) -> Tensor:
        """The states to continue, [n, d]: of the rows that `text` gave, then of each `level`'s tokens; in a chain, of
        the last token alone."""

    @property
    def last(self) -> Tensor:
        """[1] int64, the text's last token."""

    @property
    def last_state(self) -> Tensor:
        """[1, width], the target's hidden states with which it wrote that token."""

    def text(self, masks: Tensor | None = None, features: Tensor | None = None) -> Tensor:
        """Reads the text's new tokens, each with the target's hidden states of the token before, and after them masks
        [m] int64, which are forgotten again. Returns the last 1 + m rows; m rows of a part that makes none of text.

        features: [m, width], what masks have in place of the target's hidden states; zeros by default.
        """

    def level(self, level: ReadLevel) -> Tensor:
        """Reads a level of the draft, each token with the state after its parent: its rows [k, any width]."""

    def head_rows(self, tokens: Tensor, states: Tensor, rows_wanted: int, head: int = 0) -> tuple[Tensor, Tensor]:
        """Has one of a part's heads read tokens [k] int64, each with a state [k, width] and nothing before it: the last
        `rows_wanted` rows, and the states to continue."""

    def span(self) -> AbstractContextManager[object]:
        """A context whose work counts as time in the part."""


class TrainedPart:
    """A part that drafts from the target's hidden states."""

    kind: ClassVar[str]  # its drafter
    method: ClassVar[str] = ""  # its format, for people
    servers: ClassVar[Servers] = Servers()
    reads_text: ClassVar[bool] = True  # or else the target's last hidden state alone
    at_once: ClassVar[bool] = False  # one pass over the text makes all of its rows
    proposer: ClassVar[str] = "step"  # what its tokens come from, by their depth

    #: The target's hidden states it reads, as indices into transformers' ``hidden_states``: 0 is the embeddings, i the
    #: output of layer i − 1, the last one after the final norm.
    feature_layers: tuple[int, ...]
    most_depths: float = math.inf  # how deep it drafts
    masks: int = 0  # that it reads after a text, at most

    @property
    def reachable(self) -> Tensor | None:
        """[vocab] bool, the target's tokens that it may draft; None: all of them, or all but one."""
        return None

    def served_as(self) -> Servers:
        """What servers call it, in its own sizes."""
        return self.servers

    def source(self, depth: int) -> str:
        """What proposes the tokens at this depth, counted from 0."""
        return f"{self.proposer} {depth + 1}"

    def fuse(self, features: Tensor) -> Tensor:
        """What it reads with each token, [..., width]. features: the target's hidden states of the `feature_layers`,
        side by side."""
        return features

    @property
    def fuses(self) -> bool:
        """False if it reads the hidden states as they are."""
        return type(self).fuse is not TrainedPart.fuse

    @property
    def one_pass(self) -> OnePass | None:
        """How one pass makes all rows of a draft, in the target's vocabulary; None if they come otherwise, or need more
        than a gain."""
        return None

    def statics(self) -> dict[Role, Callable[..., StaticPass]]:
        """By role, what makes its passes over static buffers, given its target's; empty if it has none."""
        return {}

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """Its weights."""
        raise NotImplementedError

    def facts(self) -> dict[str, Any]:
        """Its size, and how its files are read where formats differ: plain values for the page and the trace."""
        return {}

    def variants(self) -> dict[Sentence, TrainedPart]:
        """The same weights read in neighbouring ways, by name: hidden states one layer off, and the like.

        Of a part that is read correctly, more tokens are accepted than of any variant. `specviz.bench.wiring` leaves
        out variants that read hidden states which the target does not have.
        """
        return shifted(self)

    def for_run(self, target: CachedModel, passes: Mapping[Role, FastPasses]) -> RunReading:
        """Its passes in one run. target: with that run's text. passes: the run's fast passes by role."""
        raise NotImplementedError

    def rows_by_level(self, reading: Reading[SomeLevel], depth: int) -> Rows[SomeLevel]:
        """Drafts `depth` ≥ 1 levels. By default it continues its own states, token by token."""
        rows = reading.text()
        while True:
            rows = reading.level((yield rows))


def variant(part: Part, **changes: Any) -> Part:
    """A copy of the part with these attributes changed; the weights are the same tensors."""
    changed = copy.copy(part)
    vars(changed).update(changes)
    return changed


def shifted(part: TrainedPart) -> dict[Sentence, TrainedPart]:
    """Copies of the part that read hidden states one layer off."""
    names = {-1: Sentence("hidden states one layer lower"), 1: Sentence("hidden states one layer higher")}
    layers = part.feature_layers
    return {
        name: variant(part, feature_layers=tuple(layer + by for layer in layers))
        for by, name in names.items()
        if layers
    }


class RunReading:
    """The passes of a part in one run, which the host makes one after the other."""

    def __init__(
        self,
        part: TrainedPart,
        readers: Sequence[CachedModel],
        fuse: Callable[[Tensor], Tensor],
        recorded: CachedModel | None = None,
    ):
        """part: drafts by its `rows_by_level`. readers: of its heads in turn. fuse: `TrainedPart.fuse`, or what runs it
        faster. recorded: the reader whose passes drafts on a device are made of; None if they are not."""
        self.part, self.readers, self.fuse, self.recorded = part, readers, fuse, recorded
        self.reader = readers[0]
        self.held = 0  # tokens of the text that it goes back to
        self.tokens = self.features = self.states = torch.empty(0)
        self.foresees = False
        self.forecast: Tensor | None = None
        self.gains_width: int | None = None
        self.gain: Gain | None = None
        self.drafts_fuse = False  # whether drafts in one call fuse what they read

    @property
    def shortest(self) -> int:
        """How many tokens a text has to have."""
        return 2

    def unread(self, committed: Sequence[int]) -> int:
        """How many of the text's tokens it has yet to read, each with the hidden states of the token before."""
        return len(committed) - 1 - self.reader.length if self.part.reads_text else 1

    def begin(self, committed: Sequence[int], features: Tensor) -> None:
        """Continues with this text. features: [n, width], the target's hidden states, the last for its last token."""
        unread = self.unread(committed)
        self.tokens = to_device(committed[len(committed) - unread :], features.device)
        self.features = features[-unread:]

    def go_back(self) -> None:
        """Forgets what it has read of a draft."""
        self.reader.rewind(self.held)

    def go_on(self, read: int) -> None:
        """Continues after rounds that were drafted on the device, which has read `read` places."""
        if self.part.reads_text:
            self.reader.length = self.held = read

    @property
    def last(self) -> Tensor:
        return self.tokens[-1:]

    @property
    def last_state(self) -> Tensor:
        return self.features[-1:]

    def span(self) -> AbstractContextManager[object]:
        return self.reader.stopwatch.span()

    def text(self, masks: Tensor | None = None, features: Tensor | None = None) -> Tensor:
        if masks is None:
            rows = self.reader.forward(self.tokens, rows_wanted=1, inputs=self._fused(self.features))
            self.held, self.states = self.reader.length, self._last_states[-1:]
            return rows
        count = len(masks)
        most = max(1, WIDEST - count)  # masks have to be at the end of a pass
        for tokens, read in zip(self.tokens.split(most), self.features.split(most)):
            inputs = functional.pad(read, (0, 0, 0, count)) if features is None else torch.cat([read, features])
            rows = self.reader.forward(torch.cat([tokens, masks]), 1 + count, inputs=self._fused(inputs))
            self.reader.rewind(self.reader.length - count)
        self.held, self.states = self.reader.length, self._last_states
        return rows

    @property
    def _last_states(self) -> Tensor:
        """The states that the last pass left; nothing of a part whose states are not read."""
        states = self.reader.features
        return self.states[:0] if states is None else states

    def _fused(self, features: Tensor) -> Tensor:
        with self.span():
            return self.fuse(features)

    def level(self, level: HostLevel) -> Tensor:
        rows = self.reader.extend(level.tokens, level.parents, parent_states(self.states, level))
        self.states = with_level(self.states, self._last_states, level)
        return rows

    def head_rows(self, tokens: Tensor, states: Tensor, rows_wanted: int, head: int = 0) -> tuple[Tensor, Tensor]:
        reader = self.readers[head]
        rows = reader.forward(tokens, rows_wanted, inputs=states)
        reader.rewind(0)
        return rows, states if reader.features is None else reader.features

    def draft_width(self, branches: int) -> int | None:
        """See `CachedModel.draft_width`."""
        one_reader = len(self.readers) == 1 and not self.part.at_once
        return self.reader.draft_width(branches) if one_reader else None

    def draft(self, levels: int, choice: Choice, uniforms: Tensor) -> RawDraft:
        """Drafts in one call, where there is a `draft_width`."""
        self.held = self.reader.length + len(self.tokens)
        inputs = self.features if self.drafts_fuse else self._fused(self.features)
        return self.reader.draft(self.tokens, levels, choice, uniforms, inputs)
