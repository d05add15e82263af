"""Prepares a pair's passes to run faster; a run uses the passes that are ready when it begins.

A pass that cannot be prepared stays as it was, with a reason.
"""

import contextlib
import functools
import itertools
import pathlib
import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

import torch

from specviz.models import pass_checks
from specviz.models.pair_passes import Preparable, Preparation, never_compiled, pass_makers
from specviz.models.pass_timer import (
    SHOWN_WIDTHS,
    leave_a_core_free,
    most_threads,
    processors,
    settle_kernel_threads,
    time_passes,
)
from specviz.models.placement import free_memory, release_memory
from specviz.models.refusals import refusing_out_of_memory
from specviz.models.sources import Progress
from specviz.parts.head_passes import StaticHead
from specviz.passes import compiled_layers, compiler, programs
from specviz.passes.compiled_layers import LayeredPass
from specviz.passes.compiler import ProgramJob
from specviz.passes.cuda_graphs import CudaRecorder, Recorder
from specviz.passes.devices import is_spread
from specviz.passes.fast_passes import FastPasses
from specviz.passes.kernels import kernel_library
from specviz.passes.kernels.few_rows import FewRows
from specviz.passes.kernels.kernel_library import cxx, is_built, writable_folder
from specviz.passes.model_twins import drop_weights_again, layer_count, take_back
from specviz.passes.roles import DRAFT, TARGET, Role
from specviz.passes.static_passes import StaticPass
from specviz.records.errors import SpecvizError
from specviz.records.words import Sentence

Result = TypeVar("Result")


class Turn(Protocol):
    """Runs work, when and in the thread it likes, and returns its result."""

    def __call__(self, work: Callable[[], Result], /) -> Result: ...


def _at_once(work: Callable[[], Result]) -> Result:
    return work()


def prepare_passes(
    pair: Preparable,
    progress: Progress = lambda fraction, sentence: None,
    compiling: bool = True,
    halt: threading.Event | None = None,
    turn: Turn = _at_once,
    tried: Callable[[], None] | None = None,
) -> Preparation:
    """Puts the passes of the pair's models on our own kernels, then compiles them or loads programs compiled earlier.

    Passes that are ready at the same time are handed to the pair together, target and draft model first, or else
    drafting and verifying would be timed on different footings. The kernels take a few seconds the first time on a
    machine, and compiling a minute; later there is little left to do. On CUDA passes are recorded as graphs instead,
    first as they are and then with compiled layers.

    compiling: False loads programs compiled earlier and does nothing else. halt: once set, nothing more is compiled or
    handed over. turn: runs the work that uses the models or this process's processor time, in pieces of about a second,
    when and in the thread it likes, and returns its result; everything else goes on at the same time. tried: called
    where programs have to be made, once faster passes without them have been tried; by default that sets
    `PairPasses.tried`. Passes that cannot be prepared raise nothing: the result says why.
    """
    work = _Work(pair, compiling, halt or threading.Event(), turn, tried)
    statics = work.statics()
    if pair.device.type == "cuda":
        work.record(statics, CudaRecorder(pair.device), progress)
        return work.over()
    if compiling:
        progress(0.0, Sentence("looking for compiled passes"))
    jobs = [
        ProgramJob(role, static, programs.file(type(static), static.described())) for role, static in statics.items()
    ]
    missing = [job for job in jobs if compiling and not job.path.is_file()]
    work.give({job.role: functools.partial(pass_checks.on_kernels, job.static) for job in missing})
    if missing:
        work.tried()
    # The largest first, or else one might still be compiling when all others of its group are done.
    jobs.sort(key=lambda job: -len(job.static.kv_shapes))
    with contextlib.closing(work.compiled(_models_first(jobs), missing, progress, processors())) as ready:
        for group in ready:
            if compiling:
                progress(1.0, Sentence("testing compiled passes"))
            work.take(group)
    if jobs:
        programs.forget_old()
    turn(work.settle)
    return work.over()


class _Work:
    """One preparation in progress."""

    def __init__(
        self,
        pair: Preparable,
        compiling: bool,
        halt: threading.Event,
        turn: Turn,
        tried: Callable[[], None] | None = None,
    ):
        self.pair, self.compiling, self.halt, self.turn = pair, compiling, halt, turn
        self.tried = tried or pair.passes.tried.set
        self.threads = pair.passes.threads or torch.get_num_threads()
        self.outcome = Preparation()
        pair.passes.prepared = self.outcome

    def over(self) -> Preparation:
        """The outcome; complete unless it was halted or programs are left to be compiled."""
        self.outcome.complete = not self.halt.is_set() and (self.compiling or not self.outcome.reasons)
        return self.outcome

    def refuse(self, role: Role, reason: SpecvizError) -> None:
        """Notes a copy of the reason: a raised error keeps its frames alive, and through them the models."""
        self.outcome.reasons[role] = reason.at("passes")

    def statics(self) -> dict[Role, StaticPass]:
        """The passes that can be prepared, by role; notes why others cannot."""
        statics: dict[Role, StaticPass] = {}
        for role, make in pass_makers(self.pair, statics, self.compiling):
            try:
                if is_spread(self.pair.target):
                    raise SpecvizError("The passes of a model on several devices cannot be prepared.", "passes")
                statics[role] = self.turn(functools.partial(self._packed, make, self._few_rows()))
            except SpecvizError as error:
                self.refuse(role, error)
        return statics

    def _packed(self, make: Callable[[FewRows | None], StaticPass], few_rows: FewRows | None) -> StaticPass:
        leave_a_core_free()
        try:
            return make(few_rows)
        finally:
            torch.set_num_threads(self.threads)

    def _few_rows(self) -> FewRows | None:
        """How passes are put on our own kernels, which are for CPUs."""
        if self.pair.device.type != "cpu":
            return None
        if not self.compiling and not is_built():
            cxx()  # or else there is another reason
            raise never_compiled()
        models = [model for model in (self.pair.target, self.pair.draft) if model is not None]
        programs.refuse_crowded(models, free_memory(self.pair.device))
        few_rows = FewRows.ready()
        kernel_library.use_threads(most_threads(self.pair.target))
        return few_rows

    def compiled(
        self,
        groups: Sequence[Sequence[ProgramJob]],
        missing: Sequence[ProgramJob],
        progress: Progress,
        processes: int,
    ) -> Generator[Sequence[ProgramJob], None, None]:
        """Makes the missing programs and yields each group as soon as its own are done; notes why one was not made."""
        jobs = [job for job in itertools.chain.from_iterable(groups) if job in missing]
        try:
            if jobs:
                cxx()
                writable_folder()
        except SpecvizError as error:
            for job in jobs:
                self.refuse(job.role, error)
            jobs = []
        awaited = set(jobs)

        def report() -> None:
            finished = len(jobs) - len(awaited)
            progress(finished / len(jobs), Sentence("{count} of {all} compiled", count=finished, all=len(jobs)))

        if jobs:
            report()
        with contextlib.closing(compiler.compile_all(jobs, processes, self.halt)) as ended:
            for group in groups:
                while awaited.intersection(group) and (result := next(ended, None)):
                    job, reason = result
                    awaited.remove(job)
                    report()
                    if reason is not None:
                        self.refuse(job.role, reason)
                yield group

    def record(self, statics: Mapping[Role, StaticPass], recorder: Recorder, progress: Progress) -> None:
        """Hands over the passes as graphs, and once more when their layers are compiled."""
        # Graphs are told from each other by the rows that they work on, which heads that read no text do not have.
        reading = {role: static for role, static in statics.items() if static.kv_shapes}
        # Before anything is recorded, as weights may move.
        layered, refused = self._layered(reading)
        self.give({role: functools.partial(pass_checks.recorded, static, recorder) for role, static in reading.items()})
        for role, reason in refused.items():
            self.outcome.reasons.setdefault(role, reason)
        jobs: dict[pathlib.Path, ProgramJob] = {}
        for role, layered_pass in layered.items():
            for program in layered_pass.programs() if role in self.pair.passes.fast else ():
                job = ProgramJob(role, program, program.path, compiled_layers.build, self.pair.device.type == "cuda")
                jobs.setdefault(job.path, job)
        missing = [job for job in jobs.values() if self.compiling and not job.path.is_file()]
        if missing:
            self.tried()
        # Few: making kernels takes longer than trying them, but all are tried on one device.
        processes = min(4, 1 + processors() // 4)
        with contextlib.closing(self.compiled(_models_first(jobs.values()), missing, progress, processes)) as ready:
            for of_models, _ in zip((True, False), ready):
                if jobs and self.compiling:
                    progress(1.0, Sentence("testing compiled passes"))
                self._take_layers(reading, layered, recorder, of_models)
        programs.forget_old()

    def _layered(self, statics: Mapping[Role, StaticPass]) -> tuple[dict[Role, LayeredPass], dict[Role, SpecvizError]]:
        """The passes with layers that can be compiled, by role, and why others cannot. Those on some of the target's
        rows are left out: an early exit has the target's layers."""
        layered: dict[Role, LayeredPass] = {}
        refused: dict[Role, SpecvizError] = {}
        for role, static in statics.items():
            try:
                compiled_layers.refuse_uncompilable(self.pair.device)
                with refusing_out_of_memory(_no_memory):
                    if not static.shares_kv and not self.halt.is_set():
                        layered[role] = self.turn(functools.partial(LayeredPass, static))
            except SpecvizError as error:
                refused[role] = error.at("passes")
        release_memory()  # that weights have left
        return layered, refused

    def _take_layers(
        self,
        statics: Mapping[Role, StaticPass],
        layered: Mapping[Role, LayeredPass],
        recorder: Recorder,
        of_models: bool,
    ) -> None:
        """Hands over the graphs of compiled layers that are right and faster: of the models, or else of the rest."""
        fast = self.pair.passes.fast
        makers: dict[Role, Callable[[FastPasses | None], FastPasses]] = {}
        compiled = self._with_programs(
            {role: layered_pass for role, layered_pass in layered.items() if role.is_model is of_models}
        )
        exits = {role: static for role, static in statics.items() if static.shares_kv and role in fast}
        if not of_models and TARGET in layered and (target := fast.get(TARGET)) is not None:
            for role, static in exits.items():
                if target.static is layered[TARGET].static and not isinstance(static, StaticHead):
                    compiled[role] = target.static.first_layers(layer_count(static.original))
        for role, static in compiled.items():
            makers[role] = functools.partial(pass_checks.recorded, static, recorder, slower=fast[role])
        if TARGET in makers:
            # Anew, in the buffers of the target's new passes.
            makers |= {
                role: functools.partial(pass_checks.recorded, static, recorder) for role, static in exits.items()
            }
        self.give(makers)

    def _with_programs(self, layered: Mapping[Role, LayeredPass]) -> dict[Role, StaticPass]:
        """The passes by their programs, by role; notes why some have none."""
        compiled: dict[Role, StaticPass] = {}
        for role, layered_pass in layered.items():
            if role not in self.pair.passes.fast or self.halt.is_set():
                continue
            try:
                if not all(program.path.is_file() for program in layered_pass.programs()):
                    raise never_compiled()
                compiled[role] = self.turn(layered_pass.compiled)
            except SpecvizError as error:
                self.outcome.reasons.setdefault(role, error.at("passes"))
        return compiled

    def take(self, group: Sequence[ProgramJob]) -> None:
        """Loads the programs there are, and hands those to the pair that are right and faster."""
        makers = {}
        for job in group:
            if job.path.is_file():
                makers[job.role] = functools.partial(
                    pass_checks.compiled, job.static, job.path, job.role.drafts_in_steps
                )
            else:
                self.outcome.reasons.setdefault(job.role, never_compiled())
        self.give(makers)

    def give(self, makers: Mapping[Role, Callable[[FastPasses | None], FastPasses]]) -> None:
        """Makes passes by role, target first, and hands them to the pair together; notes why some cannot be made.

        makers: are given the target's passes, in whose buffers some read on.
        """
        ready: dict[Role, FastPasses] = {}
        for role, make in makers.items():
            target = (self.pair.passes.fast | ready).get(TARGET)
            try:
                with refusing_out_of_memory(_no_memory):
                    if not self.halt.is_set():
                        ready[role] = self.turn(functools.partial(self._make, make, target))
            except SpecvizError as error:
                self.refuse(role, error)
        if not self.halt.is_set():
            self.turn(functools.partial(self._hand_over, ready))

    def _make(self, make: Callable[[FastPasses | None], FastPasses], target: FastPasses | None) -> FastPasses:
        # torch keeps this number per thread.
        torch.set_num_threads(self.threads)
        return make(target)

    def _hand_over(self, ready: dict[Role, FastPasses]) -> None:
        if self.halt.is_set():
            return
        # One assignment: a run that begins meanwhile in another thread sees all of it or nothing.
        self.pair.passes.fast = self.pair.passes.fast | ready
        self.outcome.ready += [role for role in ready if role not in self.outcome.ready]
        for role in ready:
            self.outcome.reasons.pop(role, None)  # why there was nothing better before
        if passes := ready.get(TARGET):
            if passes.by_kernels and self.pair.passes.threads is not None:
                self.pair.passes.kernel_threads = settle_kernel_threads(self.pair.target, passes)
            self.pair.passes.seconds_by_width = time_passes(self.pair.target, SHOWN_WIDTHS, budget=0.5, passes=passes)

    def settle(self) -> None:
        """Releases weights that came back meanwhile; gives models that do not run on the kernels theirs for good."""
        models = {} if self.halt.is_set() else {TARGET: self.pair.target, DRAFT: self.pair.draft}
        for role, model in models.items():
            if model is not None and role in self.pair.passes.fast:
                drop_weights_again(model)
            elif model is not None:
                take_back(model, for_good=True)
        release_memory()


def _models_first(jobs: Iterable[ProgramJob]) -> list[list[ProgramJob]]:
    """Programs of the models, then all others."""
    return [[job for job in jobs if job.role.is_model is of_models] for of_models in (True, False)]


def _no_memory() -> SpecvizError:
    return SpecvizError("There is not enough memory to prepare this model's passes.", "passes")
