"""Prepares a pair's passes to run faster, and checks what came of it before any run takes it.

A run takes what is ready when it begins. What cannot be prepared stays as it was, with a reason.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specviz.models.pair import ModelPair
from specviz.models.pass_timer import SHOWN_WIDTHS, time_passes
from specviz.passes import compiler
from specviz.passes.compiler import ProgramJob
from specviz.passes.cuda_graphs import CudaRecorder, GraphedPasses
from specviz.passes.early_exits import check_exit, default_exit, exit_after
from specviz.passes.several_devices import is_sharded, is_spread
from specviz.passes.static_eagle import StaticEagle
from specviz.passes.static_passes import FastPasses, PassFunction, Static, StaticPass
from specviz.records.errors import SpecvizError
from specviz.records.words import Sentence

#: Hears a fraction in [0, 1] and a sentence.
Progress = Callable[[float, Sentence], None]

Made = TypeVar("Made")

#: Does a piece of work at a moment, and in a thread, that suits it; returns what the work returns.
Turn = Callable[[Callable[[], Made]], Made]

#: How far a fast pass's logits may be from the plain one's, in parts of the largest: rounding, in another order.
TOLERANCE = {torch.float32: 1e-4, torch.float16: 0.02, torch.bfloat16: 0.1}

#: Roles that are given to the pair together.
_MODELS = ("target", "draft")

#: The programs of a role, where it has more than the one for any number of tokens. Plain decoding feeds the target one
#: by one, and should have the fastest pass there is: a program of its own wins it 6 %. A drafter's steps would win as
#: much, but it would take as long again to compile, and hold the weights twice where caches are short as it is.
_KINDS = {"target": (compiler.ANY, compiler.ONE)}

#: How many tokens the passes read by which a program is judged.
_TRIED_WIDTHS = (1, 5)

#: How often each pass is timed before the faster one is taken.
_REPEATS = 9


@dataclass
class Preparation:
    """What became of a pair's passes.

    ready: roles that have fast ones, see `PairPasses.fast`. reasons: why another role has none.
    """

    ready: list[str] = field(default_factory=list)
    reasons: dict[str, SpecvizError] = field(default_factory=dict)

    def refuse(self, role: str, reason: SpecvizError) -> None:
        """Notes the reason: a copy, because an error that was raised holds on to its frames, and they to the models."""
        self.reasons[role] = reason.at("passes")


@dataclass(frozen=True)
class _PassFiles:
    """One model's pass, and where its programs lie or will."""

    role: str
    static: Static
    files: dict[str, pathlib.Path]


def _unheard(fraction: float, sentence: Sentence) -> None:
    """Where nobody wants to know."""


def _at_once(work: Callable[[], Made]) -> Made:
    return work()


def prepare_passes(
    pair: ModelPair,
    progress: Progress = _unheard,
    compiling: bool = True,
    halt: threading.Event | None = None,
    turn: Turn = _at_once,
) -> Preparation:
    """Compiles the passes of the pair's models, or loads what was compiled before, and gives them to the pair.

    First both models', at one moment, because drafting and verifying would else be timed on different footings; then
    those of the target's parts. The first time on a machine it takes a minute or two, later a second. compiling: False
    loads what there is and compiles nothing. halt: once set, nothing more is compiled or given. turn: for work that
    uses the models or this process's processor time, in pieces of about a second; the rest goes on beside it. Nothing
    is raised for what cannot be done: the preparation says why.
    """
    work = _Work(pair, progress, halt or threading.Event(), turn)
    statics = work.statics()
    if pair.device.type == "cuda":
        work.record(statics)
        return work.done
    progress(0.0, Sentence("looking for compiled ones"))
    plans = work.plans(statics)
    groups = [[plan for plan in plans if (plan.role in _MODELS) is of_models] for of_models in (True, False)]
    for group in work.compiled(groups) if compiling else groups:
        work.take(group)
    compiler.forget_old()
    return work.done


class _Work:
    """One preparation while it goes on. made, wanted: programs."""

    def __init__(self, pair: ModelPair, progress: Progress, halt: threading.Event, turn: Turn):
        self.pair = pair
        self.progress = progress
        self.halt = halt
        self.turn = turn
        self.threads = pair.passes.threads or torch.get_num_threads()
        self.done = Preparation()
        self.made = self.wanted = 0

    def statics(self) -> dict[str, Static]:
        """The passes that can be prepared, by role; notes why the others cannot."""
        statics = {}
        for role, make in _makers(self.pair):
            try:
                _refuse_several_devices(self.pair)
                statics[role] = self.turn(make)
            except SpecvizError as error:
                self.done.refuse(role, error)
        return statics

    def record(self, statics: dict[str, Static]) -> None:
        """Passes on CUDA are recorded when a run first meets their shape; here each model's are tried once."""
        recorder = CudaRecorder(self.pair.device)
        ready: dict[str, FastPasses] = {}
        for role, static in statics.items():
            # An early exit reads on in the target's own buffers.
            shared = ready.get("target") if role.startswith("exit") else None
            self._try(role, functools.partial(_recorded, static, recorder, shared), ready)
        self.turn(lambda: self._give(ready))

    def plans(self, statics: dict[str, Static]) -> list[_PassFiles]:
        """Where the programs lie, or will."""
        return [
            _PassFiles(role, static, compiler.files(static, self.threads, _KINDS.get(role, (compiler.ANY,))))
            for role, static in statics.items()
        ]

    def compiled(self, groups: Sequence[Sequence[_PassFiles]]) -> Iterator[Sequence[_PassFiles]]:
        """Makes the programs that are missing, and yields each group as soon as none of its own is awaited.

        Within a group the largest come first: else one might still be on its way when the others are done. Notes why
        where a program could not be made.
        """
        roles = {
            ProgramJob(plan.static, kind, self.threads, plan.files[kind]): plan.role
            for group in groups
            for plan in sorted(group, key=lambda plan: _weight_bytes(plan.static), reverse=True)
            for kind in compiler.missing(plan.files)
        }
        made, awaited = self._making(roles), set(roles)
        with contextlib.closing(made):
            for group in groups:
                own = {job for job, role in roles.items() if role in [plan.role for plan in group]}
                while own & awaited and (job := next(made, None)):
                    awaited.remove(job)
                yield group

    def _making(self, roles: dict[ProgramJob, str]) -> Iterator[ProgramJob]:
        """Each job as it ends."""
        if not roles:
            return
        statics = {id(job.static): job.static for job in roles}.values()
        try:
            compiler.refuse_impossible(sum(map(_weight_bytes, statics)))
        except SpecvizError as error:
            for role in roles.values():
                self.done.refuse(role, error)
            return
        self.wanted = len(roles)
        self._tell()
        with contextlib.closing(compiler.compile_all(list(roles), os.cpu_count() or 1, self.halt)) as made:
            for job, error in made:
                self.made += 1
                self._tell()
                if error is not None:
                    self.done.refuse(roles[job], error)
                yield job

    def _tell(self) -> None:
        step = Sentence("{count} of {all} compiled", count=self.made, all=self.wanted)
        self.progress(self.made / self.wanted, step)

    def take(self, plans: Sequence[_PassFiles]) -> None:
        """Loads what there is, tries it, and gives it to the pair if it is right and faster."""
        ready: dict[str, FastPasses] = {}
        self.progress(1.0, Sentence("trying compiled ones"))
        for plan in plans:
            if not compiler.missing(plan.files):
                self._try(plan.role, functools.partial(_loaded, plan), ready)
            elif plan.role not in self.done.reasons:
                never = SpecvizError("This model's passes were never compiled here.", "passes")
                self.done.refuse(plan.role, never)
        self.turn(lambda: self._give(ready))

    def _try(self, role: str, make: Callable[[], FastPasses], ready: dict[str, FastPasses]) -> None:
        def tried() -> FastPasses:
            # torch keeps the number for each thread of the program.
            torch.set_num_threads(self.threads)
            return make()

        if self.halt.is_set():
            return
        try:
            ready[role] = self.turn(tried)
        except SpecvizError as error:
            self.done.refuse(role, error)

    def _give(self, ready: dict[str, FastPasses]) -> None:
        if self.halt.is_set():
            return
        # One assignment: a run that begins meanwhile, in another thread, sees all or nothing.
        self.pair.passes.fast = self.pair.passes.fast | ready
        self.done.ready += ready
        if "target" in ready:
            passes = ready["target"]
            self.pair.passes.seconds_by_width = time_passes(self.pair.target, SHOWN_WIDTHS, budget=0.5, passes=passes)


def _loaded(plan: _PassFiles) -> FastPasses:
    """The plan's programs, if they are right and faster than the model's own passes."""
    passes = FastPasses(plan.static, compiler.Program(plan.files), "compiled")
    check(passes)
    _refuse_slower(passes)
    return passes


def _recorded(static: Static, recorder: CudaRecorder, target: GraphedPasses | None) -> FastPasses:
    """A model's passes as graphs. target: the passes whose buffers it reads on in."""
    passes = GraphedPasses(static, recorder, None if target is None else target.kept)
    check(passes)
    return passes


def _makers(pair: ModelPair) -> Iterator[tuple[str, Callable[[], Static]]]:
    """What can be prepared of the pair, what matters most first."""
    yield "target", lambda: _static(pair.target, _feature_layers(pair))
    if pair.draft is not None:
        yield "draft", lambda: _static(pair.draft)
    if "eagle" in pair.parts:
        yield "eagle", lambda: StaticEagle(pair.parts["eagle"], pair.target)
    # A target that has no exit has no such pass either.
    with contextlib.suppress(SpecvizError):
        check_exit(pair.target, pair.target_name)
        layer = default_exit(pair.target)
        yield f"exit {layer}", lambda: _static(exit_after(pair.target, layer))


def _refuse_several_devices(pair: ModelPair) -> None:
    """The draft of a sharded target has one device, and still must not leave the hook out that keeps it in step."""
    if is_spread(pair.target) or is_sharded(pair.target):
        raise SpecvizError("Passes of a model on several devices run as they are.", "passes")


def _static(model: PreTrainedModel, feature_layers: Sequence[int] = ()) -> StaticPass:
    if getattr(model.config, "quantization_config", None) is not None:
        raise SpecvizError("A quantised model's passes run as they are.", "passes")
    return StaticPass(model, feature_layers)


def _feature_layers(pair: ModelPair) -> list[int]:
    """Every hidden state that a trained part of the target reads."""
    return sorted({layer for part in pair.parts.values() for layer in part.feature_layers})


def _weight_bytes(static: Static) -> int:
    return sum(weight.numel() * weight.element_size() for weight in static.parameters())


@torch.inference_mode()
def check(passes: FastPasses) -> None:
    """Raises SpecvizError (field ``passes``) where fast passes differ from the model's own by more than rounding."""
    kept = [_given_by_passes(run, passes) for run in (passes.static, passes.run)]
    for plain, fast in zip(*kept, strict=True):
        difference = (plain.float() - fast.float()).abs().max() / plain.float().abs().max()
        if not difference <= TOLERANCE[passes.static.dtype]:
            raise SpecvizError(
                "A fast pass differs from the model's own by {difference}, more than rounding: it is left alone.",
                "passes",
                difference=f"{difference:.3g}",
            )


class _Asking:
    """Asks for buffers in place of a run."""


def _given_by_passes(run: PassFunction, passes: FastPasses) -> list[Tensor]:
    """What a pass over several tokens, one over a further token, and one over two siblings give, and the rows left."""
    # Whoever asks for buffers has them for as long as it lives: a run, usually.
    static, asking = passes.static, _Asking()
    buffers, generator, given, length = passes.buffers(asking), torch.Generator().manual_seed(0), [], 0
    for width in (*_TRIED_WIDTHS[::-1], 2):
        where, visible = buffers.places(length, width, None)
        positions = where
        if width == 2 and not static.reads_chains_only:
            visible, positions = visible.clone(), where[:1].expand(2).clone()
            visible[1, where[0]] = False
        drawn = [torch.randn(width, size, generator=generator) for size in static.input_widths]
        inputs = [numbers.to(static.device, static.dtype) for numbers in drawn]
        given += run(2 + where, positions, where, visible, *inputs, *buffers.tensors)
        length += width
    return [*given, *(rows[:, :, :length].clone() for rows in buffers.tensors)]


@torch.inference_mode()
def _refuse_slower(passes: FastPasses) -> None:
    """Raises SpecvizError (field ``passes``) where the model's own passes are no slower, one token or several."""
    static, timers = passes.static, {"plain": passes.static, "fast": passes.run}
    arguments = {width: static.examples(width) for width in _TRIED_WIDTHS}
    seconds: dict[tuple[str, int], list[float]] = {}
    for _ in range(_REPEATS):
        for width, given in arguments.items():
            for kind, run in timers.items():
                start = time.perf_counter()
                run(*given)
                seconds.setdefault((kind, width), []).append(time.perf_counter() - start)
    typical = {kind: statistics.median(taken) for kind, taken in seconds.items()}
    if any(typical["fast", width] > typical["plain", width] for width in arguments):
        raise SpecvizError("Compiled passes are no faster here: the plain ones are used.", "passes")
