"""The protocol of a drafter: it proposes tokens and learns which ones were accepted."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor

from specviz.drafters.ahead import DraftAhead
from specviz.drafters.choosers import Chooser
from specviz.models.pair import ModelPair
from specviz.parts.servers import Servers
from specviz.passes.cached_model import CachedModel
from specviz.passes.fast_passes import FastPasses
from specviz.passes.kernels.rounds import SelfReliant
from specviz.passes.made_drafts import Choice, RawDraft
from specviz.passes.reading_checks import reads_trees
from specviz.passes.roles import Role
from specviz.records.settings import DraftParams
from specviz.rules.draft import Draft, Verdict
from specviz.rules.grammar import Grammar


@dataclass(frozen=True, slots=True)
class DraftContext:
    """What every drafter is built from, for one run."""

    pair: ModelPair
    params: DraftParams
    branches: int  # draft tokens at each depth; 1 makes chains
    chooser: Chooser  # how a model's probabilities become tokens
    target: CachedModel  # with its cache and the run's clock, `target.stopwatch`
    seed: int = 0  # for drafters that start from random guesses; all draws use the run's uniforms
    passes: Mapping[Role, FastPasses] = field(default_factory=dict)  # the run's fast passes by role
    grammar: Grammar | None = None  # masks what is drawn from


class Drafter(ABC):
    """Proposes a draft each round and learns the verdict. Built from a `DraftContext`, for one run.

    The class fields say everything that the page, the benchmark and the advice need to know of a drafter. Its title and
    a line about it are ``NAME`` and ``NAME_about`` in assets/text/*/ways.json, or else its name and the first line of
    its docstring.
    """

    name: ClassVar[str]  # what users type
    words: ClassVar[str] = ""  # the key of its texts, where that is not its name
    parameters: ClassVar[frozenset[str]] = frozenset()  # the fields of `DraftParams` that it reads
    least_depth: ClassVar[int] = 1  # the shallowest draft that it can make, and that γ = auto asks for
    default_branches: ClassVar[int] = 1  # tokens at each depth unless `DraftParams` set them
    narrows: ClassVar[bool] = False  # a draft of its trees can be a chain as well (`narrow`)
    draws_paths: ClassVar[bool] = False  # its branches can be whole paths, as its chooser draws them
    at_once: ClassVar[bool] = False  # one pass makes all of a draft, whose tokens do not see each other
    copies: ClassVar[bool] = False  # it copies from the text: a longer draft costs it nothing
    #: Measured by a benchmark besides chains judged token by token: ``block`` (chains judged as a block), ``tree``,
    #: ``bits`` (with more bits).
    measured_as: ClassVar[frozenset[str]] = frozenset()
    servers: ClassVar[Servers] = Servers()
    #: The most that drafting a token costs, as a share of a target pass; None: a pass of the draft model.
    step_share: ClassVar[float | None] = 1 / 2
    preparing_seconds: ClassVar[float] = 0.0  # longest one-time setup
    # The target's hidden states it reads, as indices into transformers' ``hidden_states`` (0: the embeddings; the last
    # one comes after the final norm).
    feature_layers: tuple[int, ...] = ()
    reachable: Tensor | None = None  # [vocab] bool, the target's tokens that it may propose; None: all of them

    @abstractmethod
    def __init__(self, context: DraftContext): ...

    @classmethod
    def suited(cls, pair: ModelPair) -> type[Drafter]:
        """The class of this name that drafts for this pair: by default this one."""
        return cls

    @classmethod  # noqa: B027, most have nothing to check
    def check(cls, pair: ModelPair, params: DraftParams) -> None:
        """Raises SpecvizError if it cannot draft for this pair. By default it can."""

    @classmethod
    def settings(cls, pair: ModelPair, params: DraftParams) -> dict[str, Any]:
        """How it drafts, with defaults filled in, as plain values for the trace. A link to a run takes the drafter's
        `parameters` from here."""
        return {}

    @classmethod
    def branches(cls, pair: ModelPair, params: DraftParams) -> int:
        """Draft tokens at each depth; more than 1 makes trees. By default, chains for targets that read only those, and
        for drafters that do not read ``branches``."""
        if "branches" not in cls.parameters:
            return 1
        return params.branches or (cls.default_branches if cls.default_branches > 1 and reads_trees(pair.target) else 1)

    @classmethod
    def most_depths(cls, pair: ModelPair) -> float:
        """How deep it drafts for this pair at most, where something that the pair has says so."""
        return math.inf

    @classmethod
    def largest_draft(cls, num_draft_tokens: int, branches: int) -> int:
        """The size of the largest draft `num_draft_tokens` deep."""
        return num_draft_tokens * branches

    def prefill(self, prompt: Sequence[int], features: Tensor | None = None) -> None:  # noqa: B027, some read nothing
        """Reads the prompt before the first round. features: [tokens but the last, width] the target's hidden states
        (`feature_layers` side by side); None unless requested."""

    def narrow(self, branches: int) -> None:  # noqa: B027, most have one width
        """Sets how many tokens the next draft has at each depth: 1, or the run's `branches`."""

    @abstractmethod
    def propose(self, committed: Sequence[int], budget: int, uniforms: Tensor) -> Draft:
        """Proposes tokens to follow the committed ones, at most `budget` ≥ 1 deep; an empty draft makes a plain step.

        committed: the prompt and all tokens since. uniforms: float64 to draw with, one for each token of the largest
        draft."""

    def observe_draft(self, committed: int, verdict: Verdict, features: Tensor | None) -> None:  # noqa: B027
        """Learns what became of the last draft; caches rewind to the accepted tokens.

        committed: how many tokens were committed before the draft. features: [tokens read, width] as in `prefill`, of
        every newly committed token that the target has read: its unread text, then the accepted draft tokens.
        """

    def observe_plain_step(self, committed: int, verdict: Verdict, features: Tensor | None) -> None:  # noqa: B027
        """Learns of a round in which it was not asked to propose anything."""

    @property
    def choice(self) -> Choice | None:
        """How a draft's tokens are chosen where one call makes it; None if they are not chosen, or cannot be there."""
        return None

    def self_reliant(self) -> SelfReliant | None:
        """What makes its drafts without it, once the prompt has been read; None if nothing does. A class derived from
        one of which something does has to say so again: it may draft otherwise."""
        return None

    def as_draft(self, drafted: RawDraft, uniforms: Tensor) -> Draft:
        """What `self_reliant` has drafted, for a rule. uniforms: as for `propose`."""
        return Draft(drafted.tokens, drafted.parents)

    def ahead(self, deepest: int) -> DraftAhead | None:
        """How it drafts while the host does not know yet what became of the last draft, at most `deepest` deep; None
        if it has to know."""
        return None

    def enter(self, committed: Sequence[int]) -> tuple[int, Tensor | None]:
        """Reads on until `ahead` can draft after these tokens. Returns how many places it has read, and for heads the
        hidden states [committed − 1 − read, width] that they read next."""
        return 0, None

    def leave(self, committed: int, read: int, features: Tensor | None) -> None:  # noqa: B027, most are never asked
        """Goes on after rounds that were drafted ahead. read: the places that the drafter has read, where heads read
        the hidden states of the others next: features, [committed − 1 − read, width]."""


class Plain(Drafter):
    """Plain decoding: it proposes nothing, so each round is one token from one target pass. Users name no drafter."""

    def __init__(self, context: DraftContext):
        """Keeps nothing of the context."""

    def propose(self, committed: Sequence[int], budget: int, uniforms: Tensor) -> Draft:
        return Draft.copied((), uniforms.device)
