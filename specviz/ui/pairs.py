"""The model pairs in memory: the one the page starts with, and at most one that a visitor loaded."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from specviz.models.loading import EMBEDDED, load_pair
from specviz.models.pair import ModelPair
from specviz.models.sources import Progress
from specviz.records.errors import SpecvizError
from specviz.ui.background import Preparer
from specviz.ui.deployment import Deployment


@dataclass(frozen=True, slots=True)
class PairName:
    """How to load a pair."""

    target: str | None = None  # folder or Hub id; None is the pair the page starts with
    draft: str | None = None
    revision: str | None = None
    dtype: str = "auto"
    medusa: str | None = None  # folder of trained Medusa heads
    eagle: str | None = None  # folder of a trained EAGLE head


class PairStore:
    """The starting pair, kept for good, and at most one guest beside it."""

    def __init__(self, deployment: Deployment):
        self.deployment = deployment
        self.lock = threading.Lock()
        self.preparer = Preparer(deployment)  # of both pairs' passes
        self.home = _starting_pair(deployment)  # None on a page without models
        if self.home is not None:
            self.preparer.add(self.home)
        self.guest_name: PairName | None = None
        self.guest: ModelPair | None = None

    def get(self, name: PairName, progress: Progress | None = None) -> ModelPair:
        """The pair, loaded if need be; the previous guest leaves first, so that memory never holds two.

        Raises SpecvizError where it cannot be loaded.
        """
        if name.target is None:
            if self.home is None:
                raise SpecvizError("This page has no models: it shows recorded runs and traces.", "target")
            return self.home
        with self.lock:
            if name != self.guest_name:
                if not self.deployment.allow_loading:
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
                    device=self.deployment.device,
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

    def in_use(self, name: PairName) -> ModelPair:
        """The pair if it is in memory, else the starting one, which the page goes back to."""
        return self.loaded(name) or self.home


def _starting_pair(deployment: Deployment) -> ModelPair | None:
    if deployment.without_models or (deployment.target is None and not (EMBEDDED / "target").is_dir()):
        return None
    return load_pair(deployment.target, deployment.draft, device=deployment.device, dtype=deployment.dtype)
