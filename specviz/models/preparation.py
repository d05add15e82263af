"""Prepares a pair's passes to run faster, and checks the result before any run uses it.

A run uses what is ready when it begins. What cannot be prepared stays as it was, with a reason.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import os
import pathlib
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from specviz.models.pair import ModelPair
from specviz.models.pass_timer import SHOWN_WIDTHS, fewest_threads, time_passes
from specviz.models.placement import release_memory
from specviz.models.refusals import refusing_out_of_memory
from specviz.passes import compiler
from specviz.passes.cached_model import CachedModel, StaticModel
from specviz.passes.chains import drafting_in_one_call
from specviz.passes.compiler import ProgramJob
from specviz.passes.cuda_graphs import CudaRecorder, GraphedPasses, refuse_unrecordable
from specviz.passes.devices import Stopwatch, is_sharded, is_spread
from specviz.passes.few_rows import FewRows, in_float32
from specviz.passes.kernel_library import cxx
from specviz.passes.model_twins import default_exit, layer_count
from specviz.passes.packed_weights import let_go_again, take_back
from specviz.passes.parallel_head import ParallelHead, ParallelReader
from specviz.passes.reading_checks import (
    KEPT,
    TREE,
    check_exit,
    difference,
    read_draft,
    reads_trees,
    rounding,
    rows_are_alike,
    some_tokens,
)
from specviz.passes.static_eagle import EagleReader, StaticEagle, StaticEagleReader, StaticHead
from specviz.passes.static_parallel import StaticParallel, StaticParallelReader
from specviz.passes.static_passes import FastPasses, FirstLayerBuffers, KeyValueBuffers, Static, StaticPass
from specviz.passes.trained_heads import EagleHead
from specviz.records.errors import SpecvizError, first_line
from specviz.records.words import Sentence

#: Called with the fraction done, in [0, 1], and a sentence.
Progress = Callable[[float, Sentence], None]

Made = TypeVar("Made")

#: Runs a piece of work at a time and in a thread of its choosing; returns what the work returns.
Turn = Callable[[Callable[[], Made]], Made]

#: How often passes are compared with the model's own, each time over other tokens: what gives the last ones' logits
#: again, as an empty graph does, is found out.
_COMPARISONS = 2

#: They may lie so many times further from the model's own than the model's own rounding moves these.
_MOVED = 4

#: The drafts with which they are compared, and what is kept of each: a chain, and for models that read them a tree.
_CHAIN = ((-1, 0, 1, 2), (0, 1))
_TREE = (TREE, KEPT)

#: Tokens of text before these drafts.
_TEXT = 24

#: Roles that are handed to the pair together.
_MODELS = ("target", "draft")

#: The widths on which a program is checked and timed.
_TRIED_WIDTHS = (1, 5)

#: How often each pass is timed before the faster one is chosen.
_REPEATS = 9


@dataclass
class Preparation:
    """What became of a pair's passes, by role (see `PairPasses.fast`)."""

    ready: list[str] = field(default_factory=list)  # roles that got fast passes
    reasons: dict[str, SpecvizError] = field(default_factory=dict)  # why the others did not

    def refuse(self, role: str, reason: SpecvizError) -> None:
        """Notes a copy of the reason: a raised error keeps its frames alive, and through them the models."""
        self.reasons[role] = reason.at("passes")


@dataclass(frozen=True)
class _PassFile:
    """One model's pass and the file of its compiled program, existing or yet to be made."""

    role: str
    static: Static
    file: pathlib.Path


def _unheard(fraction: float, sentence: Sentence) -> None:
    """Progress that nobody listens to."""


def _at_once(work: Callable[[], Made]) -> Made:
    return work()


def prepare_passes(
    pair: ModelPair,
    progress: Progress = _unheard,
    compiling: bool = True,
    halt: threading.Event | None = None,
    turn: Turn = _at_once,
) -> Preparation:
    """Puts the passes of the pair's models on our own kernels, then compiles them or loads what was compiled earlier.

    All that is ready at a time is handed to the pair together, target and draft model first, or else drafting and
    verifying would be timed on different footings. The kernels take a few seconds the first time on a machine, and
    compiling a minute; later there is little left to do. On CUDA passes are recorded as graphs instead.

    compiling: False loads what was compiled earlier and does nothing else. halt: once set, nothing more is compiled or
    handed over. turn: runs the work that uses the models or this process's processor time, in pieces of about a second;
    everything else goes on beside it. What cannot be prepared raises nothing: the result says why.
    """
    work = _Work(pair, progress, halt or threading.Event(), turn)
    statics = work.statics(compiling)
    if pair.device.type == "cuda":
        work.record(statics)
        return work.done
    progress(0.0, Sentence("looking for compiled ones"))
    every = work.pass_files(statics)
    if compiling:
        work.start_on_kernels([one for one in every if not one.file.is_file()])
    groups = [[one for one in every if (one.role in _MODELS) is of_models] for of_models in (True, False)]
    for group in work.compiled(groups) if compiling else groups:
        work.take(group)
    compiler.forget_old()
    turn(work.settle)
    return work.done


class _Work:
    """One preparation in progress."""

    def __init__(self, pair: ModelPair, progress: Progress, halt: threading.Event, turn: Turn):
        self.pair = pair
        self.progress = progress
        self.halt = halt
        self.turn = turn
        self.threads = pair.passes.threads or torch.get_num_threads()
        self.done = Preparation()
        pair.passes.refused = self.done.reasons
        self.made = self.wanted = 0  # programs

    def statics(self, compiling: bool) -> dict[str, Static]:
        """The passes that can be prepared, by role; notes why others cannot."""
        statics: dict[str, Static] = {}
        for role, make in _makers(self.pair, statics, compiling):
            try:
                _refuse_several_devices(self.pair)
                statics[role] = self.turn(functools.partial(make, self._few_rows()))
            except SpecvizError as error:
                self.done.refuse(role, error)
        return statics

    def _few_rows(self) -> FewRows | None:
        """How passes are put on our own kernels, which are for CPUs."""
        if self.pair.device.type != "cpu":
            return None
        compiler.refuse_crowded(sum(map(_weight_bytes, filter(None, (self.pair.target, self.pair.draft)))))
        return FewRows.ready()

    def record(self, statics: dict[str, Static]) -> None:
        """Tries each model's passes on CUDA and records a few; runs have more recorded as they need them."""
        recorder = CudaRecorder(self.pair.device)
        ready: dict[str, FastPasses] = {}
        for role, static in statics.items():
            # An early exit reads on in the target's own buffers.
            shared = ready.get("target") if role.startswith("exit") else None
            self._try(role, functools.partial(_recorded, static, recorder, shared), ready)
        self.turn(lambda: self._give(ready))

    def start_on_kernels(self, uncompiled: Sequence[_PassFile]) -> None:
        """Hands these passes over operation by operation, until they are compiled."""
        ready: dict[str, FastPasses] = {}
        for one in uncompiled:
            target = ready.get("target") if one.role.startswith("exit") else None
            self._try(one.role, functools.partial(_on_kernels, one.static, target), ready)
        self.turn(lambda: self._give(ready))

    def pass_files(self, statics: dict[str, Static]) -> list[_PassFile]:
        """The programs' files, existing or yet to be made."""
        return [
            _PassFile(role, static, compiler.file(type(static), static.described())) for role, static in statics.items()
        ]

    def compiled(self, groups: Sequence[Sequence[_PassFile]]) -> Iterator[Sequence[_PassFile]]:
        """Makes the missing programs and yields each group as soon as its own are done; notes why one was not made.

        Within a group the largest come first, or else one might still be compiling when all others are done.
        """
        roles = {
            ProgramJob(one.static, one.file): one.role
            for group in groups
            for one in sorted(group, key=lambda one: len(one.static.row_shapes), reverse=True)
            if not one.file.is_file()
        }
        made, awaited = self._making(roles), set(roles)
        with contextlib.closing(made):
            for group in groups:
                own = {job for job, role in roles.items() if role in [one.role for one in group]}
                while own & awaited and (job := next(made, None)):
                    awaited.remove(job)
                yield group

    def _making(self, roles: dict[ProgramJob, str]) -> Iterator[ProgramJob]:
        """Each job as it ends."""
        if not roles:
            return
        try:
            cxx()
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

    def take(self, group: Sequence[_PassFile]) -> None:
        """Loads what there is, tries it, and hands it to the pair if it is right and faster."""
        ready: dict[str, FastPasses] = {}
        self.progress(1.0, Sentence("trying compiled ones"))
        for one in group:
            if one.file.is_file():
                whole = self.pair.passes.fast.get("target") if one.role.startswith("exit") else None
                self._try(one.role, functools.partial(loaded, one.static, one.file, whole, _drafts(one.role)), ready)
            elif one.role not in self.done.reasons:
                self.done.refuse(one.role, _never_compiled())
        self.turn(lambda: self._give(ready))

    def _try(self, role: str, make: Callable[[], FastPasses], ready: dict[str, FastPasses]) -> None:
        def tried() -> FastPasses:
            # torch keeps this number per thread.
            torch.set_num_threads(self.threads)
            return make()

        if self.halt.is_set():
            return
        try:
            with refusing_out_of_memory(_no_memory):
                ready[role] = self.turn(tried)
        except SpecvizError as error:
            self.done.refuse(role, error)

    def settle(self) -> None:
        """Lets go of weights that came back meanwhile; gives models that do not run on the kernels theirs for good."""
        models = {} if self.halt.is_set() else {"target": self.pair.target, "draft": self.pair.draft}
        for role, model in models.items():
            if model is not None and role in self.pair.passes.fast:
                let_go_again(model)
            elif model is not None:
                take_back(model, for_good=True)
        release_memory()

    def _give(self, ready: dict[str, FastPasses]) -> None:
        if self.halt.is_set():
            return
        # One assignment: a run that begins meanwhile in another thread sees all of it or nothing.
        self.pair.passes.fast = self.pair.passes.fast | ready
        self.done.ready += [role for role in ready if role not in self.done.ready]
        for role in ready:
            self.done.reasons.pop(role, None)  # why there was nothing better before
        if "target" in ready:
            passes = ready["target"]
            if passes.by_kernels and self.pair.passes.threads is not None:
                self.threads = self.pair.passes.threads = fewest_threads(self.pair.target, passes, self.threads)
            self.pair.passes.seconds_by_width = time_passes(self.pair.target, SHOWN_WIDTHS, budget=0.5, passes=passes)


def loaded(static: Static, file: pathlib.Path, target: FastPasses | None = None, drafts: bool = False) -> FastPasses:
    """The passes compiled to `file`, if they are right and faster than operation by operation. target: see `check`.
    drafts: whether they shall draft chains in one call.

    Raises SpecvizError (field ``passes``) if they are not.
    """
    program = compiler.Program(static, file)
    passes = _tried(FastPasses(static, program, "compiled"), static, target)
    if drafts:
        passes.draft = drafting_in_one_call(static, program)
    return passes


def _on_kernels(static: Static, target: FastPasses | None) -> FastPasses:
    """The passes operation by operation on our kernels, if they are right and faster than by torch's own operations.

    The first layers are timed for all, where a model has early exits: it has let go of its weights, and so only these
    layers' come back.
    """
    passes, first = FastPasses(static, static, "kernels"), static
    with contextlib.suppress(SpecvizError):
        if isinstance(static, StaticPass) and target is None:
            check_exit(static.original, static.name)
            first = static.first_layers(default_exit(static.original))
    check(passes, target)
    _refuse_slower(FastPasses(first, first, "kernels"), first.plain())
    passes.rows_are_alike = rows_are_alike(passes)
    return passes


def _tried(passes: FastPasses, slower: Static, target: FastPasses | None) -> FastPasses:
    """Passes on a CPU, if they are right and faster than `slower`. target: see `check`."""
    check(passes, target)
    _refuse_slower(passes, slower)
    passes.rows_are_alike = rows_are_alike(passes)
    return passes


def _recorded(static: Static, recorder: CudaRecorder, target: GraphedPasses | None) -> FastPasses:
    """A model's passes as CUDA graphs, checked before and after recording. target: the passes whose buffers it
    continues in."""
    passes = GraphedPasses(static, recorder, None if target is None else target.kept)
    check(passes, target)
    refuse_unrecordable(static)
    passes.between_rounds(meetings=1)
    if passes.refusal is not None:
        raise passes.refusal
    check(passes, target)
    return passes


def _drafts(role: str) -> bool:
    """Whether its passes draft step by step."""
    return role in ("draft", "eagle", "mtp") or role.startswith("exit")


def _no_memory() -> SpecvizError:
    return SpecvizError("There is not enough memory to prepare this model's passes.", "passes")


def _makers(
    pair: ModelPair, made: Mapping[str, Static], compiling: bool
) -> Iterator[tuple[str, Callable[[FewRows | None], Static]]]:
    """What can be prepared of the pair, most important first. made: earlier ones, by role; the target's parts are on
    its weights. compiling: or else only what was compiled earlier."""
    yield "target", lambda few_rows: _static(pair.target, _feature_layers(pair), few_rows, compiling)
    if pair.draft is not None:
        yield "draft", lambda few_rows: _static(pair.draft, (), few_rows, compiling)
    if "target" not in made:
        return
    for name, part in pair.parts.items():
        if isinstance(part, EagleHead):
            yield name, lambda few_rows, part=part: StaticEagle(part, made["target"])
        elif isinstance(part, ParallelHead):
            yield name, lambda few_rows, part=part: StaticParallel(part, made["target"])
    # A target without an early exit has no such pass.
    with contextlib.suppress(SpecvizError):
        check_exit(pair.target, pair.target_name)
        layer = default_exit(pair.target)
        yield f"exit {layer}", lambda few_rows: made["target"].first_layers(layer)


def _refuse_several_devices(pair: ModelPair) -> None:
    """Refuses spread and sharded pairs; even a sharded target's draft model, which a hook keeps in step."""
    if is_spread(pair.target) or is_sharded(pair.target):
        raise SpecvizError("The passes of a model on several devices cannot be prepared.", "passes")


def _static(
    model: PreTrainedModel, feature_layers: Sequence[int], few_rows: FewRows | None, compiling: bool
) -> StaticPass:
    if getattr(model.config, "quantization_config", None) is not None:
        raise SpecvizError("The passes of a quantised model cannot be prepared.", "passes")
    if few_rows is None:
        return StaticPass(model, feature_layers)
    few_rows = few_rows.fitting(model)
    described = StaticPass.description(model, feature_layers, few_rows)
    if not compiling and not compiler.file(StaticPass, described).is_file():
        raise _never_compiled()
    try:
        return StaticPass(model, feature_layers, few_rows, few_rows.twin(model, releasing=True))
    except BaseException:
        take_back(model, for_good=True)
        raise


def _never_compiled() -> SpecvizError:
    return SpecvizError("This model's passes were never compiled here: python -m specviz compile does it.", "passes")


def _feature_layers(pair: ModelPair) -> list[int]:
    """Every hidden state that some trained part of the target reads."""
    return sorted({layer for part in pair.parts.values() for layer in part.feature_layers})


def _weight_bytes(model: nn.Module) -> int:
    return sum(weight.numel() * weight.element_size() for weight in model.parameters())


@torch.inference_mode()
def check(passes: FastPasses, target: FastPasses | None = None) -> None:
    """Raises SpecvizError (field ``passes``) if fast passes differ from the model's own by more than rounding.

    What computes in float32 is compared with the model computing in float32, on the same weights.
    target: for an early exit, the passes of the model in whose buffers it reads on. Every shape of pass comes several
    times, each time with other tokens and over rows of zeros.
    """
    static = passes.static
    compared = _head_outputs(passes) if isinstance(static, StaticHead) else _model_outputs(passes, target)
    try:
        for dtype, expected, given, moved in compared:
            apart = difference(given, expected)
            if apart > rounding(dtype) and apart > _MOVED * moved():
                raise SpecvizError(
                    "A fast pass differs from the model's own by {difference}, more than rounding: it is not used.",
                    "passes",
                    difference=float(f"{apart:.3g}"),
                )
    except (SpecvizError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        # An architecture may raise anything over buffers of this form.
        raise SpecvizError(
            "{name} does not run over static buffers: {reason}.",
            "passes",
            name=static.name,
            reason=first_line(error),
        ) from error


#: In which dtype something was computed, what was expected, what fast passes gave; and how far that dtype's rounding
#: moves what was expected, where it was tried.
_Compared = tuple[torch.dtype, Tensor, Tensor, Callable[[], float]]


def _untried() -> float:
    return 0.0


def _model_outputs(passes: FastPasses, target: FastPasses | None) -> Iterator[_Compared]:
    """Logits and features of the model's own passes over a growing cache, and of the fast ones over the same tokens."""
    static, stopwatch = passes.static, Stopwatch(passes.static.device)
    model, layers, reference = static.original, static.feature_layers, static.reference()
    whole, passes_of_whole = (model, passes) if target is None else (target.static.original, target)
    fast: CachedModel = StaticModel(whole, stopwatch, passes_of_whole)
    if target is not None:
        fast = fast.sharing_first_layers(model, layer_count(model), passes)
    fast.feature_layers = layers
    # Asked of the whole model, which was tried when it was loaded.
    drafts = [_CHAIN, _TREE] if reads_trees(whole) else [_CHAIN]
    for seed, (parents, kept) in itertools.product(range(_COMPARISONS), drafts):
        tokens = some_tokens(model, _TEXT + len(parents) + 1, seed)
        own = CachedModel(reference, stopwatch, layers)
        fast.rewind(0)
        _clear(fast.buffers)
        both = [read_draft(cached, tokens, parents, kept) for cached in (own, fast)]
        moved = functools.cache(functools.partial(_moved_by_rounding, static, tokens, parents, kept))
        for logits in zip(*both, strict=True):
            yield static.product_dtype, *logits, moved
            if layers:
                yield static.dtype, own.features, fast.features, moved


def _moved_by_rounding(
    static: StaticPass, tokens: Sequence[int], parents: tuple[int, ...], kept: Sequence[int]
) -> float:
    """How far apart the logits of these passes lie with the model's rounding and without, at the most.

    Gemma 3 in bfloat16 moves by up to a seventh over arbitrary tokens, and as far if only the order of sums changes.
    """
    if static.product_dtype == torch.float32:
        return 0.0
    wide = in_float32(static.original, None if static.few_rows is None else static.model)
    both = [
        read_draft(CachedModel(one, Stopwatch(static.device)), tokens, parents, kept)
        for one in (static.reference(), wide)
    ]
    return max(map(difference, *both))


def _head_outputs(passes: FastPasses) -> Iterator[_Compared]:
    """What the head itself gives, and its fast passes."""
    static = passes.static
    head, target = static.original, static.target
    if static.inner_dtype != static.dtype:
        head, target = copy.deepcopy(head).to(static.inner_dtype), in_float32(target, inputs=static.product_dtype)
    outputs = _parallel_outputs if isinstance(static, StaticParallel) else _eagle_outputs
    yield from outputs(passes, head, target)


def _parallel_outputs(passes: FastPasses, head: ParallelHead, target: PreTrainedModel) -> Iterator[_Compared]:
    """Logits of drafts after several tokens and after one."""
    static, generator = passes.static, torch.Generator().manual_seed(0)
    fast = StaticParallelReader(passes)
    for seed in range(_COMPARISONS):
        own = ParallelReader(head, target)
        fast.length = 0
        _clear(fast.buffers)
        for width in _TRIED_WIDTHS[::-1]:
            features = torch.randn(width, *static.input_widths, generator=generator).to(static.device, static.dtype)
            tokens = torch.tensor(some_tokens(static, width, seed), device=static.device)
            expected = own.read(features.to(static.inner_dtype), tokens, head.config.depths)
            yield static.product_dtype, expected, fast.read(features, tokens, head.config.depths), _untried


def _eagle_outputs(passes: FastPasses, head: EagleHead, target: PreTrainedModel) -> Iterator[_Compared]:
    """Logits and hidden states after several tokens, one, two siblings."""
    static, generator = passes.static, torch.Generator().manual_seed(0)
    fast = StaticEagleReader(passes)
    for seed in range(_COMPARISONS):
        own = EagleReader(head, target)
        fast.rewind(0)
        _clear(fast.buffers)
        for width in (*_TRIED_WIDTHS[::-1], 2):
            features = torch.randn(width, *static.input_widths, generator=generator).to(static.device, static.dtype)
            given = [torch.tensor(some_tokens(static, width, seed), device=static.device), width]
            if width == 2:
                siblings = torch.eye(2, own.length + 2, dtype=torch.bool, device=static.device).roll(own.length, 1)
                siblings[:, : own.length] = True
                given += [torch.full_like(given[0], own.length), siblings]
            expected = own.read(features.to(static.inner_dtype), *given)
            dtypes, given = (static.product_dtype, static.dtype), fast.read(features, *given)
            yield from zip(dtypes, expected, given, (_untried, _untried), strict=True)


def _clear(buffers: KeyValueBuffers | FirstLayerBuffers) -> None:
    """Or else a pass that writes nothing might find what another one left."""
    for rows in buffers.tensors:
        rows.zero_()


@torch.inference_mode()
def _refuse_slower(passes: FastPasses, slower: Static) -> None:
    """Raises SpecvizError (field ``passes``) if fast passes, over one token or several, take longer than `slower`.

    Over one too: plain decoding would lose by them, and speculation would only seem to gain.
    """
    runs = {"slower": (slower, slower), "fast": (passes.static, passes.run)}
    seconds: dict[tuple[str, int], list[float]] = {}
    for _, width, (kind, (static, run)) in itertools.product(range(_REPEATS), _TRIED_WIDTHS, runs.items()):
        given = static.examples(width)
        start = time.perf_counter()
        run(*given)
        seconds.setdefault((kind, width), []).append(time.perf_counter() - start)
    typical = {shape: statistics.median(taken) for shape, taken in seconds.items()}
    if any(typical["fast", width] > typical["slower", width] for width in _TRIED_WIDTHS):
        raise SpecvizError("They were made and are no faster here than those there are.", "passes")
