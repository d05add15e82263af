"""Where engine work happens: in one thread of this process, or on a GPU that the platform lends for a call.

And the model pairs in memory: the one the page starts with, and at most one that a visitor loaded; with the threads
that prepare their passes while the page is served.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from specviz.passes.roles import TARGET, Role
from specviz.passes.zero_gpu import is_zero_gpu
from specviz.records.assets import EMBEDDED
from specviz.records.errors import SpecvizError, first_line
from specviz.records.words import Sentence
from specviz.ui.deployment import Deployment
from specviz.ui.lending import gains_from_gpu

if TYPE_CHECKING:
    from specviz.models.pair import ModelPair
    from specviz.models.sources import Progress


Made = TypeVar("Made")

#: The event that ends the work on a pair, and the work's future.
Work = tuple[threading.Event, Future[Any]]

#: Seconds that a run waits for a pair's first fast passes, and for the trial of its drafters: our kernels are built in
#: ten, and beside a busy program in forty, where a run on plain passes takes a minute.
PATIENCE = 60.0

#: Pairs in memory at once: the starting one and a guest.
MOST_PAIRS = 2

#: The one thread of all engine work: one run at a time, and its pool of helper threads stays warm.
thread: ThreadPoolExecutor

#: Set once the page ends: work in progress, or waiting for its turn, stops within a round.
ending = threading.Event()


def begin_thread() -> None:
    """Begins the engine's thread, also anew in a forked process."""
    global thread
    thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="device")


begin_thread()


def apart(work: Callable[[], Made]) -> Made:
    """Does a piece of work in a thread of its own, which takes its helper threads along when it ends.

    With more helper threads than processors, OpenMP lets each sleep while it waits for the others, and waking makes a
    pass of two threads three times as slow; only the engine's thread may keep any.
    """
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(contextvars.copy_context().run, work).result()


@dataclass(frozen=True)
class Stage:
    """How far the preparation of a pair's passes is."""

    step: Sentence | None = None  # the work in progress; None when it is over
    reasons: dict[Role, SpecvizError] = field(default_factory=dict)  # why some were not prepared, by role


class Preparer:
    """Prepares each pair in a thread of its own, once it is started.

    Slow work happens in processes of low priority, for the last pair first; the rest in the engine's thread, between
    runs.
    """

    def __init__(self, deployment: Deployment):
        self.prepares = deployment.passes != "plain"
        #: Held while a pair is loaded, and by each piece of this work: a load sets torch's default precision, which is
        #: that of all threads.
        self.loading = threading.Lock()
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None  # while it is started
        self._early: list[ModelPair] = []  # added before that
        self._stages: weakref.WeakKeyDictionary[ModelPair, Stage] = weakref.WeakKeyDictionary()
        #: The event that ends the work on a pair, and the work's future.
        self._work: weakref.WeakKeyDictionary[ModelPair, tuple[threading.Event, Future[Any]]] = (
            weakref.WeakKeyDictionary()
        )

    def add(self, pair: ModelPair) -> None:
        """Queues a loaded pair, or notes why nothing will be prepared."""
        with self._lock:
            if (refusal := self.refusal(pair)) is not None:
                self._stages[pair] = Stage(reasons={TARGET: refusal})
            elif self._pool is None:
                self._early.append(pair)
            else:
                self._stages[pair], halt = Stage(Sentence("looking for compiled passes")), threading.Event()
                self._work[pair] = halt, self._pool.submit(self._prepare, pair, halt)

    def refusal(self, pair: ModelPair) -> SpecvizError | None:
        """Why nothing is prepared for this pair; None if something is."""
        if not self.prepares:
            return SpecvizError("This page is set to plain passes (SPECVIZ_PASSES).", "passes")
        if pair.lent:
            return SpecvizError(
                "ZeroGPU lends a GPU for one call at a time, to a separate process: prepared passes would not "
                "survive the call.",
                "passes",
            )
        return None

    def start(self) -> None:
        """Begins with the pairs that were added."""
        with self._lock:
            self._pool = ThreadPoolExecutor(max_workers=MOST_PAIRS, thread_name_prefix="preparer")
            early, self._early = self._early, []
        for pair in early:
            self.add(pair)

    def stage(self, pair: ModelPair) -> Stage:
        """How far this pair's passes are; before the start there is nothing to wait for."""
        return self._stages.get(pair, Stage())

    def wait_for(self, pair: ModelPair) -> None:
        """Returns once this pair's passes are prepared, refused or forgotten."""
        if work := self._work.get(pair):
            with contextlib.suppress(CancelledError):
                work[1].result()

    def await_first(self, pair: ModelPair, halt: threading.Event) -> None:
        """Waits while `begins`, unless `halt` is set, and not longer than `PATIENCE`."""
        end = time.monotonic() + PATIENCE
        while self.begins(pair) and not halt.is_set() and time.monotonic() < end:
            pair.passes.tried.wait(0.1)

    def begins(self, pair: ModelPair) -> bool:
        """True while the first fast passes of this pair are about to be tried, and its drafters, before programs are
        made for it."""
        return pair in self._work and not pair.passes.tried.is_set()

    def forget(self, pair: ModelPair) -> None:
        """Ends the work on this pair; once it returns, the pair may be freed."""
        with self._lock:
            self._early = [waiting for waiting in self._early if waiting is not pair]
            halt, future = self._work.pop(pair, (threading.Event(), Future()))
            halt.set()
            self._stages.pop(pair, None)
        if not future.cancel():
            future.result()

    def close(self) -> None:
        """Ends everything, the compiler's processes included, and waits until it has ended."""
        with self._lock:
            pool, self._pool = self._pool, None
            for halt, _ in self._work.values():
                halt.set()
        if pool is not None:
            pool.shutdown(cancel_futures=True)

    def _turn(self, work: Callable[[], Made]) -> Made:
        """Does a piece of work in the engine's thread while no run is on; the next run waits for it, and so do the
        programs that are being made for another pair."""
        from specviz.passes.compiler import compilers_paused

        with self.loading, compilers_paused():
            return thread.submit(work).result()

    def _prepare(self, pair: ModelPair, halt: threading.Event) -> None:
        from specviz.bench.advising import try_drafters
        from specviz.models.preparation import prepare_passes

        def report(fraction: float, step: Sentence) -> None:
            self._stages[pair] = Stage(step)

        def choose() -> None:
            report(0.0, Sentence("trying drafters in turn"))
            self._turn(partial(try_drafters, pair, halt))
            pair.passes.tried.set()

        try:
            result = apart(lambda: prepare_passes(pair, report, halt=halt, turn=self._turn, tried=choose))
            if not pair.passes.tried.is_set() and not halt.is_set():
                choose()
            self._stages[pair] = Stage(reasons=result.reasons)
        except Exception as error:
            # Nobody waits for it: the page goes on with plain passes, and says why.
            logging.getLogger(__name__).exception("Preparing passes failed")
            reason = SpecvizError("Preparing passes failed: {reason}.", "passes", reason=first_line(error))
            self._stages[pair] = Stage(reasons={TARGET: reason})
        finally:
            pair.passes.tried.set()


# The pairs in memory


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

    starting_pair: loaded already; by default the deployment's own, once it is asked for.
    """

    def __init__(self, deployment: Deployment, starting_pair: ModelPair | None = None):
        self.deployment = deployment
        #: True if there is a starting pair; a page without one shows recorded runs and traces.
        there = deployment.target or (EMBEDDED / "target").is_dir()
        self.has_models = bool(starting_pair or (there and not deployment.without_models))
        self.lock = threading.Lock()
        self.preparer = Preparer(deployment)  # of both pairs' passes
        #: Set once a visitor's page is open and asks for the pair.
        self.wanted = threading.Event()
        #: The current step of loading the starting pair.
        self.step = Sentence("Loading the models.")
        self._starting_pair = starting_pair
        self.guest_name: PairName | None = None
        self.guest: ModelPair | None = None

    @property
    def starting_pair(self) -> ModelPair:
        """The starting pair, loaded by the first who asks while others wait. Raises SpecvizError if it cannot be
        loaded, or if this page has no models."""
        if not self.has_models:
            raise SpecvizError("This page has no models: it shows recorded runs and traces.", "target")
        if self._starting_pair is not None:
            return self._starting_pair
        with self.preparer.loading:
            if self._starting_pair is None:
                named = {name: getattr(self.deployment, name) for name in ("target", "draft", "dtype")}
                self._starting_pair = self._load(**named, progress=self._note)
        return self._starting_pair

    def _load(self, progress: Progress | None, **options: Any) -> ModelPair:
        # All of torch and transformers is imported here, by one thread: two that import parts of transformers at once
        # may each find the other's half done.
        from specviz.models.loading import load_pair
        from specviz.models.placement import device_named
        from specviz.passes.kernels import kernel_library

        device = self._device(options["target"])
        # Kernels take as long to build as models take to load, and are needed as soon as the models are there.
        if self.preparer.prepares and device in ("auto", "cpu") and device_named(device).type == "cpu":
            kernel_library.load_ahead()

        def told(fraction: float, step: Sentence) -> None:
            if ending.is_set():
                raise SpecvizError("This page is shutting down and loads nothing more: open it again once it is back.")
            if progress is not None:
                progress(fraction, step)

        load = partial(load_pair, **options, device=device, passes="plain", progress=told)
        # A GPU that is lent is emulated in the thread that asks for it.
        pair = load() if is_zero_gpu() and device != "cpu" else apart(load)
        # Before the pair can be seen: a look at it must find that passes are being prepared.
        self.preparer.add(pair)
        return pair

    def _device(self, target: str | None) -> str:
        """The deployment's; where GPUs are lent by the call, only a pair that gains from one goes there by itself."""
        choosing = self.deployment.device == "auto" and is_zero_gpu()
        return "cpu" if choosing and not gains_from_gpu(target) else self.deployment.device

    def _note(self, fraction: float, step: Sentence) -> None:
        self.step = step

    @property
    def is_ready(self) -> bool:
        """True once the starting pair is in memory: until then, asking for it waits."""
        return self._starting_pair is not None

    def get(self, name: PairName, progress: Progress | None = None) -> ModelPair:
        """The pair, loaded if need be; the previous guest leaves first, so that memory never holds two.

        Raises SpecvizError if it cannot be loaded.
        """
        if name.target is None:
            return self.starting_pair
        with self.lock:
            if self.guest is None or name != self.guest_name:
                if not self.deployment.allow_loading:
                    raise SpecvizError("This page keeps the models that it started with.", "target")
                # Before it is freed: others look for it meanwhile.
                leaving, self.guest, self.guest_name = self.guest, None, None
                if leaving is not None:
                    self.preparer.forget(leaving)
                    leaving.free()
                    del leaving
                with self.preparer.loading:
                    self.guest = self._load(**asdict(name), progress=progress)
                self.guest_name = name
            return self.guest

    def loaded(self, name: PairName) -> ModelPair | None:
        """The pair if it is in memory."""
        if name.target is None:
            return self._starting_pair
        return self.guest if name == self.guest_name else None

    def usual(self, pair: ModelPair) -> str:
        """The drafter to start with for this pair, which is in memory."""
        from specviz.drafters.registry import usual

        return usual(pair, preparing=self.preparer.refusal(pair) is None)

    def undecided(self, pair: ModelPair) -> bool:
        """True while a trial is about to find the drafter to start with."""
        return self.preparer.begins(pair) and self.unnamed(pair)

    def unnamed(self, pair: ModelPair) -> bool:
        """True if nothing was named to draft with, so that nobody knows beforehand whether drafting pays."""
        from specviz.drafters.registry import named_for

        return named_for(pair) is None

    def in_use(self, name: PairName) -> ModelPair:
        """The pair if it is in memory, else the starting one, which the page goes back to."""
        return self.loaded(name) or self.starting_pair
