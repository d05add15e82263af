"""How near passes come to the memory's bandwidth: ``python -m tools.bandwidth_limit``."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field, replace

import torch

from specviz.bench.contestants import PLAIN, Contestant, figures_of
from specviz.bench.lanes import lane, plain_request
from specviz.bench.machine import buffer_bytes, fastest, model_size, models_of, no_memory, read_bandwidth, weight_share
from specviz.bench.turns import Plan, runs_by_number
from specviz.models.loading import load_pair
from specviz.models.pair import ModelPair
from specviz.models.pass_timer import PassTimer
from specviz.models.preparation import prepare_passes
from specviz.models.refusals import refusing_out_of_memory
from specviz.passes.devices import home_of
from specviz.passes.model_twins import let_go_again
from specviz.records.prompts import PRESETS

TOKENS = 128

#: Passes over one token that are timed of each model.
REPEATS = 25


def main() -> None:
    """Prints the limits of target and draft model, and plain decoding's share of the target's."""
    pair = load_pair()
    prepare_passes(pair)
    plain = plain_request(pair, PRESETS[0], 0.0, TOKENS)
    [runs] = runs_by_number([lane(Contestant(PLAIN), plain)], Plan(TOKENS, 3))
    for one in measure_limits(pair, context=len(plain.prompt.ids) + TOKENS // 2):
        if one.role == "target":
            one = replace(one, plain_tokens_per_second=figures_of(runs).tokens_per_second)
        print(one)


@dataclass(slots=True)
class BandwidthLimit:
    """A pass over one token, and the least time in which this machine moves the bytes that it reads.

    Where a pass or a step of plain decoding was faster than that, the limit and the shares of it are None: not known.
    """

    role: str  # "target" or "draft"
    context: int  # cached tokens before the pass
    weight_bytes: int  # as the pass reads them: packed, and without tables that are only looked up
    cache_bytes: int  # keys and values of `context` positions
    copy_bandwidth: float  # bytes read plus bytes written a second, copying a buffer (see `buffer_bytes`)
    read_bandwidth: float  # bytes a second, summing up such a buffer
    pass_seconds: float  # median of passes timed alone
    #: The faster one: on some processors writing takes longer than reading.
    bandwidth: float = field(init=False)
    limit_seconds: float | None = field(init=False)  # (weight_bytes + cache_bytes) / bandwidth
    share_of_pass: float | None = field(init=False)  # limit_seconds / pass_seconds
    #: Of plain decoding on a preset; None for the draft model.
    plain_tokens_per_second: float | None = None
    share_of_plain: float | None = field(init=False)

    def __post_init__(self) -> None:
        self.bandwidth = max(self.copy_bandwidth, self.read_bandwidth)
        self.limit_seconds = (self.weight_bytes + self.cache_bytes) / self.bandwidth
        self.share_of_pass = self.limit_seconds / self.pass_seconds
        plain = self.plain_tokens_per_second
        self.share_of_plain = None if plain is None else plain * self.limit_seconds
        if self.share_of_pass > 1 or (self.share_of_plain or 0) > 1:
            self.limit_seconds = self.share_of_pass = self.share_of_plain = None


def measure_limits(pair: ModelPair, context: int, repeats: int = REPEATS) -> list[BandwidthLimit]:
    """Passes over one token after `context` cached ones, of target and draft model in turn, and their limit.

    The passes are those that runs make. A context too long for a model is shortened. Raises SpecvizError (field
    ``target``) where the device's memory does not hold it.
    """
    with refusing_out_of_memory(no_memory):
        timers = {
            role: PassTimer(model, (1,), context, pair.passes.fast.get(role)) for role, model in models_of(pair).items()
        }
        for timer in timers.values():
            if timer.passes is not None:
                let_go_again(timer.model)  # the weights that only transformers' runs read make room
        seconds: dict[str, list[float]] = {role: [] for role in timers}
        for _ in range(repeats):
            for role, timer in timers.items():
                seconds[role].append(timer.seconds(1))
        return [_limit(role, timer, statistics.median(seconds[role])) for role, timer in timers.items()]


def _limit(role: str, timer: PassTimer, pass_seconds: float) -> BandwidthLimit:
    size, share, device = model_size(timer), weight_share(timer), home_of(timer.model)
    return BandwidthLimit(
        role=role,
        context=timer.context,
        weight_bytes=size.weight_bytes,
        cache_bytes=round(size.position_bytes * size.positions),
        copy_bandwidth=copy_bandwidth(share, device),
        read_bandwidth=read_bandwidth(share, device),
        pass_seconds=pass_seconds,
    )


def copy_bandwidth(size: int, device: torch.device) -> float:
    """Bytes a second, read and written together, copying a buffer over and over. size: as in `read_bandwidth`.

    This is the usual meaning of a machine's bandwidth; with torch's threads as they are set. Buffer and copy together
    are as large as the weights.
    """
    count = buffer_bytes(size // 2, device) // 4
    source, copy = (torch.ones(count, dtype=torch.float32, device=device) for _ in range(2))
    return 2 * source.numel() * 4 / fastest(lambda: copy.copy_(source), device)


if __name__ == "__main__":
    main()
