"""What a visitor asks for, as plain values, and the pair that is to do it."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, replace

from specviz.decoding import engine
from specviz.models.loading import EMBEDDED, load_pair
from specviz.models.pair import ModelPair
from specviz.models.sources import Progress
from specviz.records.errors import SpecvizError
from specviz.records.settings import DraftParams, SamplingParams
from specviz.ui.background import Preparer
from specviz.ui.deployment import Settings


@dataclass(frozen=True, slots=True)
class PairName:
    """How to load a pair; None as target is the one the page starts with. medusa, eagle: folders of trained parts."""

    target: str | None = None
    draft: str | None = None
    revision: str | None = None
    dtype: str = "auto"
    medusa: str | None = None
    eagle: str | None = None


class PairStore:
    """The models in memory: the starting pair for good, and at most one other beside it.

    home: the starting pair; None where the page is to do without models, or the embedded ones are not there.
    preparer: prepares the passes of both.
    """

    def __init__(self, settings: Settings):
        self.settings = settings
        self.lock = threading.Lock()
        self.preparer = Preparer(settings)
        self.home = _starting_pair(settings)
        if self.home is not None:
            self.preparer.add(self.home)
        self.guest_name: PairName | None = None
        self.guest: ModelPair | None = None

    def get(self, name: PairName, progress: Progress | None = None) -> ModelPair:
        """The pair, loaded if it is not there; the previous guest leaves first, so that two never add up."""
        if name.target is None:
            if self.home is None:
                raise SpecvizError("This page has no models: it shows recorded runs and traces.", "target")
            return self.home
        with self.lock:
            if name != self.guest_name:
                if not self.settings.allow_loading:
                    raise SpecvizError("This page keeps to the models it started with.", "target")
                if self.guest is not None:
                    self.preparer.forget(self.guest)
                    self.guest.free()
                self.guest, self.guest_name = None, None
                self.guest = load_pair(
                    name.target,
                    name.draft,
                    medusa=name.medusa,
                    eagle=name.eagle,
                    revision=name.revision,
                    device=self.settings.device,
                    dtype=name.dtype,
                    progress=progress,
                )
                self.guest_name = name
                self.preparer.add(self.guest)
            return self.guest

    def loaded(self, name: PairName) -> ModelPair | None:
        """The pair if it is in memory."""
        if name.target is None:
            return self.home
        return self.guest if name == self.guest_name else None


def _starting_pair(settings: Settings) -> ModelPair | None:
    if settings.without_models or (settings.target is None and not (EMBEDDED / "target").is_dir()):
        return None
    return load_pair(settings.target, settings.draft, device=settings.device, dtype=settings.dtype)


@dataclass(frozen=True, slots=True)
class Order:
    """One run as the controls stand; plain values, because it may be carried out in another process.

    branches, exit_layer: None where the drafter decides, and where it does not ask. passes: ``plain`` for the models'
    own, even where there are prepared ones; anything else for what is ready.
    """

    pair: PairName
    prompt: str
    drafter: str | None
    num_draft_tokens: float
    temperature: float
    top_k: float
    top_p: float
    min_p: float
    max_new_tokens: float
    seed: float
    chat: bool = False
    branches: float | None = None
    exit_layer: float | None = None
    confidence: float = 0.0
    rule: str = "auto"
    passes: str = "auto"

    def settled(self, pair: ModelPair | None) -> Order:
        """The same with the passes that are ready now, for all runs of one job: they would not compare otherwise."""
        return replace(self, passes="plain" if pair is None else pair.passes.kind)

    def request(self, pair: ModelPair, settings: Settings) -> engine.Request:
        """The checked request. Raises SpecvizError with the control's name in `field`."""
        request = engine.prepare(
            pair,
            self.prompt,
            drafter=self.drafter,
            num_draft_tokens=_whole("num_draft_tokens", self.num_draft_tokens),
            sampling=SamplingParams(self.temperature, _whole("top_k", self.top_k), self.top_p, self.min_p),
            max_new_tokens=_whole("max_new_tokens", self.max_new_tokens),
            seed=_whole("seed", self.seed),
            chat=self.chat,
            drafting=DraftParams(
                branches=None if self.branches is None else _whole("branches", self.branches),
                confidence=self.confidence,
                exit_layer=None if self.exit_layer is None else _whole("exit_layer", self.exit_layer),
            ),
            rule=self.rule,
        )
        _check_limits(request, settings)
        return replace(request, passes={}) if self.passes == "plain" else request


def _whole(field: str, value: float) -> int:
    if value is None or not math.isfinite(value) or value != int(value):
        raise SpecvizError("Give a whole number here.", field)
    return int(value)


def _check_limits(request: engine.Request, settings: Settings) -> None:
    if len(request.prompt.ids) > settings.max_prompt_tokens:
        raise SpecvizError(
            "{value} tokens in the prompt are more than the {most} that this page allows.",
            "prompt",
            value=len(request.prompt.ids),
            most=settings.max_prompt_tokens,
        )
    if request.max_new_tokens > settings.max_new_tokens:
        raise SpecvizError(
            "{value} new tokens are more than the {most} that this page allows.",
            "max_new_tokens",
            value=request.max_new_tokens,
            most=settings.max_new_tokens,
        )
    if request.num_draft_tokens > settings.max_draft_tokens:
        raise SpecvizError(
            "{value} draft tokens a round are more than the {most} that this page allows.",
            "num_draft_tokens",
            value=request.num_draft_tokens,
            most=settings.max_draft_tokens,
        )
