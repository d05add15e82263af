"""The cost of a pass over K tokens of one request or of many: measured, and the least possible.

Williams, Waterman, Patterson: Roofline, CACM 2009: a pass moves bytes and does operations; the slower one decides.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy

from specviz.records.words import Bytes, Sentence

#: A pass over K tokens is "about as fast as one" while it takes less than this many times as long.
ABOUT_ONE = 1.5

#: Times are extrapolated to this many times the range of the timed widths: beyond every tree.
_FURTHER = 64


def pass_seconds(measured: Mapping[int, float], widths: Sequence[int]) -> list[float]:
    """T(K) for each width, interpolated linearly; extrapolated beyond the widest pass that was timed.

    measured: K -> seconds, for two widths or more.
    """
    timed, seconds = map(list, zip(*sorted(measured.items())))
    timed.append(timed[-1] + _FURTHER * (timed[-1] - timed[0]))
    seconds.append(seconds[-1] + _FURTHER * max(0.0, seconds[-1] - seconds[0]))
    return numpy.interp(widths, timed, seconds).tolist()


def expected_experts(number: int, chosen: int, tokens: int) -> float:
    """The different experts of a layer that a pass over so many tokens reads if each token's `chosen` of the `number`
    are any, alike and independent: E (1 − (1 − k/E)^K)."""
    return number * (1 - (1 - chosen / number) ** tokens)


@dataclass(frozen=True, slots=True)
class Experts:
    """Of a mixture of experts. Of several layers with experts, weights are those of one expert in each."""

    number: int  # in a layer
    chosen: int  # by a token
    parameters: int
    weight_bytes: int
    read: Mapping[int, float]  # tokens in a pass -> different experts that it read, counted, the mean over layers


@dataclass(frozen=True, slots=True)
class ModelSize:
    """What a pass moves and computes."""

    parameters: int  # multiplied with every token; an untied input embedding is only looked up and does not count
    weight_bytes: int  # of these parameters
    position_bytes: float  # keys and values of one cached position, all layers
    positions: float  # cached positions, averaged over the layers
    attention_width: int  # layers × query heads × head size
    experts: Experts | None = None  # of a mixture; its passes are bounded only over as many tokens as were counted

    def bytes_moved(self, width: int) -> float:
        """Weights once, of experts those that were read; keys and values of all positions once."""
        weights = float(self.weight_bytes)
        if self.experts is not None:
            weights -= (self.experts.number - self.experts.read[width]) * self.experts.weight_bytes
        return weights + self.position_bytes * (self.positions + width)

    def operations(self, width: int) -> float:
        """2 · parameters · K, plus 4 · attention width for each pair of a new token and a token it attends to."""
        attended = width * self.positions + width * (width + 1) / 2
        idle = 0 if self.experts is None else (self.experts.number - self.experts.chosen) * self.experts.parameters
        return 2 * (self.parameters - idle) * width + 4 * self.attention_width * attended


@dataclass(frozen=True, slots=True)
class Limits:
    """The best this machine was measured to do, which may be less than it can do, see `PassTimes.limits_hold`."""

    bandwidth: float  # bytes a second
    peak: float  # operations a second

    def seconds(self, size: ModelSize, width: int) -> float:
        """The roofline: max(bytes / bandwidth, operations / peak). No pass is faster; a real one has overhead too."""
        return max(size.bytes_moved(width) / self.bandwidth, size.operations(width) / self.peak)


@dataclass(frozen=True, slots=True)
class Memory:
    """A memory's bandwidth, as measured."""

    bandwidth: float  # bytes a second
    buffer_bytes: int  # of the buffer by which it was measured, larger than the cache
    threads: int | None  # that read it; None on a GPU


@dataclass(frozen=True, slots=True)
class MemoryShare:
    """How near a pass over one token comes to its memory's bandwidth, if it does nothing but read each weight once."""

    weight_bytes: int  # as they are stored
    seconds: float  # of the pass
    memory: Memory

    @property
    def rate(self) -> Bytes:
        """Weights a second."""
        return Bytes(self.weight_bytes / self.seconds)

    @property
    def bandwidth(self) -> Bytes:
        return Bytes(self.memory.bandwidth)

    @property
    def share(self) -> float:
        """Above 1 where the weights come from the cache."""
        return self.rate / self.bandwidth

    @property
    def from_cache(self) -> bool:
        """True if weights were faster than memory, and so few that the cache can hold them, or some of them."""
        return self.share > 1 and self.weight_bytes < self.memory.buffer_bytes

    @property
    def sentence(self) -> Sentence:
        """The share and the numbers behind it; on a GPU with those of others (sources: docs/performance.md)."""
        percent, on_gpu = 100 * self.share, self.memory.threads is None
        facts = {"size": Bytes(self.weight_bytes), "ms": float(f"{1000 * self.seconds:.2f}"), "rate": self.rate}
        facts |= {"percent": round(percent) if percent >= 10 else float(f"{percent:.2g}"), "bandwidth": self.bandwidth}
        sentence = Sentence(
            "{size} of weights in {ms} ms: {rate}/s, {percent} % of the {bandwidth}/s that memory gives here", **facts
        )
        if not on_gpu:
            sentence = Sentence("{found} (threads: {threads})", found=sentence, threads=self.memory.threads)
        if self.from_cache:
            return Sentence(
                "{found}, so weights come from the processor's cache (or other work slowed memory while it was "
                "measured)",
                found=sentence,
            )
        if not on_gpu:
            return sentence
        return Sentence(
            "{found} (others: vLLM and SGLang at most 50 %, a megakernel 78 %, with 1B on an H100, by Hazy "
            "Research; gpt-fast 82 % with 7B on an A100, by its README)",
            found=sentence,
        )


@dataclass(frozen=True, slots=True)
class Point:
    """Timed passes over `width` tokens."""

    width: int
    seconds: float  # median
    low: float  # first quartile
    high: float  # third quartile
    repeats: int


@dataclass(frozen=True, slots=True)
class Curve:
    """T(K) of one model."""

    role: str  # ``target`` or ``draft``
    size: ModelSize
    limits: Limits
    points: tuple[Point, ...] = ()  # those measured so far, by ascending width

    @property
    def one_token(self) -> float | None:
        """T(1) in seconds."""
        return self.points[0].seconds if self.points and self.points[0].width == 1 else None

    @property
    def about_one(self) -> int | None:
        """The largest measured K up to which T(K)/T(1) stays below `ABOUT_ONE`; None before anything is measured."""
        if self.one_token is None:
            return None
        limit = ABOUT_ONE * self.one_token
        fast = takewhile(lambda point: point.seconds < limit, self.points)
        return max((point.width for point in fast), default=1)

    def ratio(self, width: float) -> float | None:
        """T(width)/T(1), interpolated linearly between measured widths; None outside them."""
        widths, seconds = [point.width for point in self.points], [point.seconds for point in self.points]
        if self.one_token is None or not widths[0] <= width <= widths[-1]:
            return None
        return float(numpy.interp(width, widths, seconds)) / self.one_token


@dataclass(frozen=True, slots=True)
class Setup:
    """What was timed, and where."""

    target: str  # the models' names
    draft: str | None
    context: int  # cached tokens of each request before each pass
    device: str
    dtype: str
    kind: str  # what ran the target's passes, see `PairInfo.passes`; of many requests ``plain`` or our ``kernels``
    threads: int | None  # on a CPU


@dataclass(frozen=True, slots=True)
class PassTimes(Setup):
    """T(K) of a pair's models, complete or still being measured."""

    curves: tuple[Curve, ...]
    fraction: float  # share of the measuring that is done

    def curve(self, role: str) -> Curve | None:
        return next((curve for curve in self.curves if curve.role == role), None)

    @property
    def limits_hold(self) -> bool:
        """True if every pass took as long as its limit says. If one was faster, this machine's limits are not known:
        they are the same for both models."""
        return all(
            point.low >= curve.limits.seconds(curve.size, point.width)
            for curve in self.curves
            for point in curve.points
        )

    @property
    def cost_coefficient(self) -> float | None:
        """c: one draft step / one target pass, both timed as bare passes."""
        draft, target = self.curve("draft"), self.curve("target")
        return draft.one_token / target.one_token if draft and target and draft.one_token and target.one_token else None


@dataclass(frozen=True, slots=True)
class BatchPoint:
    """Timed passes over `width` tokens of each of `requests` requests."""

    role: str  # ``target``, or ``draft``, whose steps read one token of each
    requests: int
    width: int
    seconds: float  # median
    repeats: int


@dataclass(frozen=True, slots=True)
class BatchTimes(Setup):
    """T(B, K) of a pair's models, complete or still being measured; what would have taken too long is left out.

    With γ draft tokens each, B requests are verified in one pass over B · (γ + 1) tokens. The arithmetic that
    verification finds idle with a single request is then needed by the other requests.
    """

    batches: tuple[int, ...]  # the B asked for
    points: tuple[BatchPoint, ...]
    fraction: float  # share of the measuring that is done
