"""A pair's passes: what is known of them on this machine (their times, those that were prepared to run faster, why
others were not), and how each is put over static buffers."""

import contextlib
import functools
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specviz.parts.head_passes import WithoutPass
from specviz.parts.reading import TrainedPart
from specviz.passes import programs
from specviz.passes.fast_passes import FastPasses, kind_of
from specviz.passes.kernels import kernel_library
from specviz.passes.kernels.few_rows import FewRows
from specviz.passes.model_twins import default_exit, take_back
from specviz.passes.reading_checks import check_exit
from specviz.passes.roles import DRAFT, TARGET, Role
from specviz.passes.states import keeps_state
from specviz.passes.static_passes import StaticPass
from specviz.records.errors import SpecvizError
from specviz.theory.draft_length import ChosenDepth, History
from specviz.theory.roofline import Memory
from specviz.theory.statistics import Ratio


@dataclass(frozen=True, eq=False)
class QuantisedTarget:
    """The target with its weights in few bits."""

    model: PreTrainedModel  # read by `passes`, or a twin with rounded weights that reads by itself
    passes: FastPasses | None  # over static buffers, where the target has such passes
    beside: FastPasses | None  # the target's passes it was made for, and whose buffers it uses
    bytes: int  # of its own weights, without those that are the target's


@dataclass(frozen=True, slots=True)
class Trial:
    """How a drafter did in the short trial after loading (`specviz.bench.advising`)."""

    ratio: Ratio  # of its speed to plain decoding's
    tokens_a_pass: float

    @property
    def pays(self) -> bool:
        """True if its whole interval is faster than plain decoding."""
        return (self.ratio.low or 0.0) > 1


@dataclass(repr=False)
class Preparation:
    """What became of a pair's passes, by role."""

    ready: list[Role] = field(default_factory=list)  # roles that got fast passes
    reasons: dict[Role, SpecvizError] = field(default_factory=dict)  # why the others did not, or got no faster ones
    complete: bool = False  # whether nothing is left to be tried

    def __repr__(self) -> str:
        return "\n".join([f"prepared: {', '.join(map(str, self.ready)) or 'nothing'}", *self.shortfalls()])

    def shortfalls(self) -> list[str]:
        """A line for each role without faster passes, or without still faster ones, with the reason."""
        outcomes = {role: "nothing faster" if role in self.ready else "plain passes" for role in self.reasons}
        return [f"{outcomes[role]}, {role}: {reason}" for role, reason in self.reasons.items()]


@dataclass(eq=False)
class PairPasses:
    """Times of a pair's passes on this machine, and the passes that were prepared to run faster.

    A run copies `fast` when it begins, so that it never mixes passes of two kinds.
    """

    #: Always replaced as a whole: another thread sees everything prepared together, or nothing.
    fast: dict[Role, FastPasses] = field(default_factory=dict)
    #: The outcome of the last preparation, also while it goes on.
    prepared: Preparation = field(default_factory=Preparation)
    #: T(K) of the target as it runs: tokens per pass -> median seconds.
    seconds_by_width: dict[int, float] = field(default_factory=dict)
    #: The memory from which those passes read the target's weights; None if not measured.
    memory: Memory | None = None
    #: What rounds have shown, by how they drafted, and the depths that the last runs chose, to repeat those runs
    #: (`specviz.decoding.lengths`).
    histories: dict[Hashable, History] = field(default_factory=dict)
    depths: dict[Hashable, list[ChosenDepth]] = field(default_factory=dict)
    #: The target in few bits, by their number, as it last drafted (`specviz.models.quantised_targets`).
    quantised: dict[int, QuantisedTarget] = field(default_factory=dict)
    #: How large the inputs of the target's layers are (`few_bits.input_squares`), once that was asked.
    input_squares: dict[str, Tensor] | None = None
    #: By drafter; empty where there was no trial. Always replaced as a whole.
    trials: dict[str, Trial] = field(default_factory=dict)
    #: Set once fast passes have been tried, or will not be: until then, a moment's patience pays.
    tried: threading.Event = field(default_factory=threading.Event)
    #: How many threads suit the target on a CPU; None if not measured. torch keeps this number per thread, so a run
    #: in any thread but the one that loaded the pair has to set it.
    threads: int | None = None
    #: How many threads our kernels use at most, once they run the target.
    kernel_threads: int | None = None

    @property
    def most_threads(self) -> int | None:
        """How many threads the target's passes use at most on a CPU; None if not measured."""
        return self.kernel_threads or self.threads

    def use_threads(self) -> None:
        """Sets the numbers of threads for a run in this thread."""
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        if self.kernel_threads is not None:
            kernel_library.use_threads(self.kernel_threads)

    @property
    def kind(self) -> str:
        """How the target's passes run now: ``plain``, ``kernels``, ``compiled`` or ``graphs``."""
        return kind_of(self.fast)


# Over static buffers


class Preparable(Protocol):
    """What of a `ModelPair` is prepared."""

    target: PreTrainedModel
    target_name: str
    draft: PreTrainedModel | None
    parts: dict[str, TrainedPart]
    device: torch.device
    passes: PairPasses


def pass_makers(
    pair: Preparable, statics: Mapping[Role, StaticPass], compiling: bool
) -> Iterator[tuple[Role, Callable[[FewRows | None], StaticPass]]]:
    """The passes of the pair that can be prepared, most important first.

    statics: those made so far, by role; the target's parts are on its weights. compiling: False for programs compiled
        earlier.
    """
    yield TARGET, lambda few_rows: static_pass(pair.target, feature_layers(pair), few_rows, compiling)
    if pair.draft is not None:
        yield DRAFT, lambda few_rows: static_pass(pair.draft, (), few_rows, compiling)
    if TARGET not in statics and not keeps_state(pair.target):
        return
    ends = functools.cache(functools.partial(WithoutPass.of, pair.target))
    for part in pair.parts.values():
        for role, make in part.statics().items():
            yield role, functools.partial(_of_part, make, statics, ends)
    if TARGET not in statics:
        return
    # A target without an early exit has no such pass.
    with contextlib.suppress(SpecvizError):
        check_exit(pair.target, pair.target_name)
        layer = default_exit(pair.target)
        yield Role.exit(layer), lambda few_rows: statics[TARGET].first_layers(layer)


def _of_part(
    make: Callable[..., StaticPass],
    statics: Mapping[Role, StaticPass],
    ends: Callable[[FewRows | None], WithoutPass],
    few_rows: FewRows | None,
) -> StaticPass:
    """The pass of a trained part, over the target's or, where there is none, over its ends."""
    return make(statics.get(TARGET) or ends(few_rows))


def feature_layers(pair: Preparable) -> list[int]:
    """Every hidden state that some trained part of the target reads."""
    return sorted({layer for part in pair.parts.values() for layer in part.feature_layers})


def static_pass(
    model: PreTrainedModel, feature_layers: Sequence[int], few_rows: FewRows | None, compiling: bool
) -> StaticPass:
    """The model's pass, whose weights move to our kernels where there are `few_rows`; not before there is a program,
    unless `compiling`. Raises SpecvizError (field ``passes``)."""
    if getattr(model.config, "quantization_config", None) is not None:
        raise SpecvizError("The passes of a quantised model cannot be prepared.", "passes")
    if few_rows is None:
        return StaticPass(model, feature_layers)
    few_rows = few_rows.fitting(model)
    described = StaticPass.description(model, feature_layers, few_rows)
    if not compiling and not programs.file(StaticPass, described).is_file():
        raise never_compiled()
    try:
        return StaticPass(model, feature_layers, few_rows, few_rows.twin(model, releasing=True))
    except BaseException:
        take_back(model, for_good=True)
        raise


def never_compiled() -> SpecvizError:
    """Why passes are not used that only a program makes fast."""
    return SpecvizError(
        "This model's passes were never compiled here: run python -m specviz compile, or prepare() in Python.",
        "passes",
    )
