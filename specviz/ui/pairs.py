"""The model pairs in memory: the one the page starts with, and at most one that a visitor loaded."""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from specviz.records.assets import EMBEDDED
from specviz.records.errors import SpecvizError
from specviz.records.words import Sentence
from specviz.ui import device
from specviz.ui.deployment import Deployment
from specviz.ui.device import Preparer

if TYPE_CHECKING:
    from specviz.models.pair import ModelPair
    from specviz.models.sources import Progress


@dataclass(frozen=True, slots=True)
class PairName:
    """How to load a pair; see `load_pair`."""

    target: str | None = None  # None is the pair the page starts with
    draft: tuple[str, ...] = ()  # a draft model, trained parts
    revision: str | None = None
    dtype: str = "auto"
    draft_vocabulary: int | None = None  # how many frequent tokens the draft's head is left

    def __post_init__(self) -> None:
        # On its way through the browser a tuple becomes a list.
        object.__setattr__(self, "draft", tuple(self.draft))


class PairStore:
    """The starting pair, kept for good, and at most one guest.

    home: a starting pair that is loaded already; by default the deployment's own, once it is asked for.
    """

    def __init__(self, deployment: Deployment, home: ModelPair | None = None):
        self.deployment = deployment
        #: True if there is a starting pair; a page without one shows recorded runs and traces.
        own = not deployment.without_models and (deployment.target or (EMBEDDED / "target").is_dir())
        self.has_models = bool(home or own)
        self.lock = threading.Lock()
        self.preparer = Preparer(deployment)  # of both pairs' passes
        #: Set once a visitor's page is open and asks for the pair.
        self.wanted = threading.Event()
        #: The current step of loading the starting pair.
        self.step = Sentence("Loading the models.")
        self._home = home
        #: One load at a time: loading sets torch's default precision, which another load would take over.
        self._loading = threading.Lock()
        self.guest_name: PairName | None = None
        self.guest: ModelPair | None = None

    @property
    def home(self) -> ModelPair:
        """The starting pair, loaded by the first who asks while others wait. Raises SpecvizError if it cannot be
        loaded, or if this page has no models."""
        if not self.has_models:
            raise SpecvizError("This page has no models: it shows recorded runs and traces.", "target")
        if self._home is not None:
            return self._home
        with self._loading:
            if self._home is None:
                # All of torch and transformers is imported here, by one thread: two that import parts of transformers
                # at once may each find the other's half done.
                from specviz.models.loading import load_pair

                asked = self.deployment
                where = {"device": asked.device, "dtype": asked.dtype, "progress": self._note}
                pair = device.apart(lambda: load_pair(asked.target, asked.draft, **where))
                # Before the pair can be seen: a look at it must find that passes are being prepared.
                self.preparer.add(pair)
                self._home = pair
        return self._home

    def _note(self, fraction: float, step: Sentence) -> None:
        self.step = step

    @property
    def is_ready(self) -> bool:
        """True once the starting pair is in memory: until then, asking for it waits."""
        return self._home is not None

    def get(self, name: PairName, progress: Progress | None = None) -> ModelPair:
        """The pair, loaded if need be; the previous guest leaves first, so that memory never holds two.

        Raises SpecvizError if it cannot be loaded.
        """
        if name.target is None:
            return self.home
        with self.lock, self._loading:
            from specviz.models.loading import load_pair

            if name != self.guest_name:
                if not self.deployment.allow_loading:
                    raise SpecvizError("This page keeps to the models it started with.", "target")
                if self.guest is not None:
                    self.preparer.forget(self.guest)
                    self.guest.free()
                self.guest, self.guest_name = None, None
                self.guest = device.apart(
                    lambda: load_pair(**asdict(name), device=self.deployment.device, progress=progress)
                )
                self.guest_name = name
                self.preparer.add(self.guest)
            return self.guest

    def loaded(self, name: PairName) -> ModelPair | None:
        """The pair if it is in memory."""
        if name.target is None:
            return self._home
        return self.guest if name == self.guest_name else None

    def usual(self, pair: ModelPair) -> str:
        """The drafter to start with for this pair, which is in memory."""
        from specviz.drafters.registry import usual

        return usual(pair, preparing=self.preparer.refusal is None)

    def in_use(self, name: PairName) -> ModelPair:
        """The pair if it is in memory, else the starting one, which the page goes back to."""
        return self.loaded(name) or self.home
