"""Prepares the passes of the pairs in memory while the page is served, one pair after the other."""

from __future__ import annotations

import logging
import threading
import weakref
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from specviz.passes.processes import is_zero_gpu
from specviz.records.errors import SpecvizError, first_line
from specviz.records.words import Sentence
from specviz.ui import device
from specviz.ui.deployment import Deployment

if TYPE_CHECKING:
    from specviz.models.pair import ModelPair
    from specviz.models.preparation import Preparation

#: What is being done for a pair until there is more to say.
_LOOKING = Sentence("looking for compiled ones")


def _nothing() -> Preparation:
    from specviz.models.preparation import Preparation

    return Preparation()


@dataclass(frozen=True)
class Stage:
    """How far a pair's passes are."""

    step: Sentence | None = None  # what is being done; None when it is over
    done: Preparation = field(default_factory=_nothing)  # what became of them


class Preparer:
    """Pairs waiting for their passes, and the thread that prepares them.

    What takes long happens in processes of low priority, the rest in the engine's thread, between runs.
    """

    def __init__(self, deployment: Deployment):
        self.refusal = _refusal(deployment)
        self._changed = threading.Condition()
        self._waiting: deque[ModelPair] = deque()
        self._stages: weakref.WeakKeyDictionary[ModelPair, Stage] = weakref.WeakKeyDictionary()
        self._current: ModelPair | None = None
        self._halt = threading.Event()
        self._started = self._closed = False

    def add(self, pair: ModelPair) -> None:
        """Has a loaded pair wait for its turn, or notes why nothing will be prepared."""
        from specviz.models.preparation import Preparation

        with self._changed:
            if self.refusal is None:
                self._waiting.append(pair)
                self._changed.notify_all()
            else:
                self._stages[pair] = Stage(done=Preparation(reasons={"target": self.refusal}))

    def start(self) -> None:
        """Begins."""
        self._started = True
        threading.Thread(target=self._work, name="preparer", daemon=True).start()

    def stage(self, pair: ModelPair) -> Stage:
        """How far this pair's passes are; where nothing was begun, there is nothing to wait for."""
        with self._changed:
            if self._started and pair in self._waiting:
                return Stage(_LOOKING)
            return self._stages.get(pair, Stage())

    def wait_for(self, pair: ModelPair) -> None:
        """Returns once this pair's passes are what they will be."""
        with self._changed:
            self._changed.wait_for(lambda: self.stage(pair).step is None)

    def forget(self, pair: ModelPair) -> None:
        """Ends what is being done for this pair; once it returns, the pair may be freed."""
        with self._changed:
            if pair in self._waiting:
                self._waiting.remove(pair)
                self._changed.notify_all()
            if self._current is pair:
                self._halt.set()
                self._changed.wait_for(lambda: self._current is not pair)

    def close(self) -> None:
        """Ends everything, the compiler's processes included, and waits until it has ended."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._halt.set()
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._current is None)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if self._closed:
                    return
                pair = self._current = self._waiting.popleft()
                self._stages[pair] = Stage(_LOOKING)
                halt = self._halt = threading.Event()
            stage = Stage(done=self._prepared(pair, halt))
            with self._changed:
                self._stages[pair] = stage
                self._current = None
                self._changed.notify_all()
            # An idle thread must not keep a pair in memory.
            del pair, stage

    def _prepared(self, pair: ModelPair, halt: threading.Event) -> Preparation:
        from specviz.models.preparation import Preparation, prepare_passes

        def hear(fraction: float, step: Sentence) -> None:
            with self._changed:
                self._stages[pair] = Stage(step)

        try:
            return device.apart(lambda: prepare_passes(pair, hear, halt=halt, turn=device.between_runs))
        except Exception as error:
            # Nobody waits for it: the page goes on with plain passes, and says why.
            logging.getLogger(__name__).exception("Preparing passes failed")
            reason = SpecvizError("Preparing passes failed: {reason}.", "passes", reason=first_line(error))
            return Preparation(reasons={"target": reason})


def _refusal(deployment: Deployment) -> SpecvizError | None:
    if deployment.passes == "plain":
        return SpecvizError("This page was told to keep to plain passes (SPECVIZ_PASSES).", "passes")
    if is_zero_gpu():
        return SpecvizError(
            "A GPU is lent for one call at a time, to a process of its own: nothing that is prepared would survive.",
            "passes",
        )
    return None
