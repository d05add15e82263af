"""Prepares a pair's passes to run faster, and checks what came of it before any run takes it.

A run takes what is ready when it begins. What cannot be prepared stays as it was, with a reason.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specviz import compiler
from specviz.compiler import Job
from specviz.drafters.early_exit import EarlyExit, exit_layer
from specviz.errors import SpecvizError
from specviz.exits import exit_after
from specviz.graphs import CudaRecorder, GraphedPasses
from specviz.models import ModelPair
from specviz.parallel import is_sharded, is_spread
from specviz.records import DraftParams
from specviz.static import FastPasses, Passes, Static, StaticPass
from specviz.static_heads import StaticEagle
from specviz.words import Sentence

#: Hears a fraction in [0, 1] and a sentence.
Progress = Callable[[float, Sentence], None]

#: How far a fast pass's logits may be from the plain one's, in parts of the largest: rounding, in another order.
TOLERANCE = {torch.float32: 1e-4, torch.float16: 0.02, torch.bfloat16: 0.1}

#: How often each pass is timed before the faster one is taken.
_REPEATS = 9


@dataclass
class Preparation:
    """What became of a pair's passes.

    ready: roles that have fast ones, see `ModelPair.passes`. reasons: why another role has none.
    """

    ready: list[str] = field(default_factory=list)
    reasons: dict[str, SpecvizError] = field(default_factory=dict)


@dataclass(frozen=True)
class _Plan:
    """One model's pass, and where its programs lie or will."""

    role: str
    static: Static
    files: dict[int, pathlib.Path]


def _unheard(fraction: float, sentence: Sentence) -> None:
    """Where nobody wants to know."""


def prepare_passes(pair: ModelPair, progress: Progress = _unheard, compiling: bool = True) -> Preparation:
    """Compiles the passes of the pair's models, or loads what was compiled before, and gives them to the pair.

    Each model's are there to be taken as soon as they are ready, the target's first. The first time on a machine it
    takes about a minute, later a second. compiling: False loads what there is and compiles nothing. Nothing is raised
    for what cannot be done: the preparation says why.
    """
    done = Preparation()
    statics = _statics(pair, done)
    if pair.device.type == "cuda":
        _record(pair, statics, done)
        return done
    threads = pair.threads or torch.get_num_threads()
    torch.set_num_threads(threads)
    progress(0.0, Sentence("Looking for compiled passes."))
    plans = {role: _Plan(role, static, compiler.files(static, threads)) for role, static in statics.items()}
    jobs = [
        Job(plan.static, width, threads, plan.files[width])
        for plan in plans.values()
        for width in compiler.missing(plan.files)
    ]
    _take(pair, plans, done)
    for count, (job, error) in enumerate(_compiled(pair, jobs) if compiling else (), start=1):
        progress(count / len(jobs), Sentence("Compiled {count} of {all} programs.", count=count, all=len(jobs)))
        if error is not None:
            role = next(plan.role for plan in plans.values() if plan.static is job.static)
            done.reasons[role] = error
        _take(pair, plans, done)
    for role in plans:
        done.reasons.setdefault(role, SpecvizError("This model's passes were never compiled here.", "passes"))
    compiler.forget_old()
    return done


def _statics(pair: ModelPair, done: Preparation) -> dict[str, Static]:
    """The passes that can be prepared, by role; of the others `done` hears why not."""
    statics = {}
    for role, make in _makers(pair):
        try:
            statics[role] = make()
        except SpecvizError as error:
            done.reasons[role] = error
    return statics


def _record(pair: ModelPair, statics: dict[str, Static], done: Preparation) -> None:
    """Passes on CUDA are recorded when a run first meets their shape; here each model's are tried once."""
    recorder = CudaRecorder(pair.device)
    for role, static in statics.items():
        # An early exit reads on in the target's own buffers.
        shared = pair.passes["target"].kept if role.startswith("exit") and "target" in pair.passes else None
        passes = GraphedPasses(static, recorder, shared)
        try:
            check(passes)
        except SpecvizError as error:
            done.reasons[role] = error
        else:
            pair.passes[role] = passes
            done.ready.append(role)


def _makers(pair: ModelPair) -> Iterator[tuple[str, Callable[[], Static]]]:
    """What can be prepared of the pair, what matters most first."""
    yield "target", lambda: _static(pair.target, _feature_layers(pair))
    if pair.draft is not None:
        yield "draft", lambda: _static(pair.draft)
    if pair.eagle is not None:
        yield "eagle", lambda: StaticEagle(pair.eagle, pair.target)
    # A target that has no exit has no such pass either.
    with contextlib.suppress(SpecvizError):
        EarlyExit.check(pair, DraftParams())
        layer = exit_layer(pair, DraftParams())
        yield f"exit {layer}", lambda: _static(exit_after(pair.target, layer))


def _static(model: PreTrainedModel, feature_layers: Sequence[int] = ()) -> StaticPass:
    if is_spread(model) or is_sharded(model):
        raise SpecvizError("Passes of a model on several devices run as they are.", "passes")
    if getattr(model.config, "quantization_config", None) is not None:
        raise SpecvizError("A quantised model's passes run as they are.", "passes")
    return StaticPass(model, feature_layers)


def _feature_layers(pair: ModelPair) -> list[int]:
    """Every hidden state that a trained part of the target reads."""
    parts = [part for part in (pair.medusa, pair.eagle) if part is not None]
    return sorted({layer for part in parts for layer in part.feature_layers})


def _compiled(pair: ModelPair, jobs: Sequence[Job]) -> Iterator[tuple[Job, SpecvizError | None]]:
    """Each job and what went wrong with it, as it ends."""
    if not jobs:
        return
    models = {id(job.static): job.static for job in jobs}.values()
    try:
        compiler.refuse_impossible(sum(_weight_bytes(static) for static in models))
    except SpecvizError as error:
        yield from ((job, error) for job in jobs)
    else:
        yield from compiler.compile_all(jobs, processes=os.cpu_count() or 1)


def _weight_bytes(static: Static) -> int:
    return sum(weight.numel() * weight.element_size() for weight in static.parameters())


def _take(pair: ModelPair, plans: dict[str, _Plan], done: Preparation) -> None:
    """Loads whatever is complete by now, tries it, and gives it to the pair if it is right and faster."""
    for role in [role for role, plan in plans.items() if not compiler.missing(plan.files)]:
        plan = plans.pop(role)
        try:
            passes = FastPasses(plan.static, compiler.Program(plan.files), "compiled")
            check(passes)
            _refuse_slower(passes)
        except SpecvizError as error:
            done.reasons[role] = error
        else:
            pair.passes[role] = passes
            done.ready.append(role)


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


def _given_by_passes(run: Passes, passes: FastPasses) -> list[Tensor]:
    """What a pass over several tokens, one over a further token, and one over two siblings give, and the rows left."""
    # Whoever asks for buffers has them for as long as it lives: a run, usually.
    static, asking = passes.static, _Asking()
    buffers, generator, given, length = passes.rows(asking), torch.Generator().manual_seed(0), [], 0
    for width in (compiler.SEVERAL, compiler.ONE, 2):
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
    arguments = {width: static.examples(width) for width in (compiler.ONE, compiler.SEVERAL)}
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
