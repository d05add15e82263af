"""How a model reads, tried once on a few tokens: forwards, in several passes as in one, trees, left early.

Architectures differ in what they make of a mask, of positions and of a cache, and wrong logits look like any others:
MPT's bias counts places in the cache, RoBERTa's positions start at 2, BLOOM takes no mask for single tokens. What
differs by no more than rounding is right, whatever the architecture.
"""

import contextlib
import math
import threading
import weakref
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specviz.passes.cached_model import CachedModel, has_sliding_windows
from specviz.passes.devices import Stopwatch, home_of
from specviz.passes.fast_passes import FastPasses
from specviz.passes.model_twins import default_exit, exit_after, layer_count, layer_stack
from specviz.passes.readers import StaticModel, new_cached_model
from specviz.passes.states import keeps_state
from specviz.records.errors import SpecvizError, first_line
from specviz.rules.draft import tree_shape

#: The tried draft: siblings, children of some of them, branches of unequal length. Most tokens lie far from where they
#: would lie in a chain.
TREE = (-1, -1, -1, 0, 1, 1, 2, 4, 5, 5)

#: The accepted branch of it: no token of it comes first, so that its rows have to move.
ACCEPTED = (1, 5, 9)

#: How many tokens of text come before the draft.
TEXT = 6

#: The outcome for each model ever asked about; a pair's models are asked about all the time, and tried once.
_reads: weakref.WeakKeyDictionary[PreTrainedModel, bool] = weakref.WeakKeyDictionary()

#: One trial at a time: others that ask meanwhile wait for its outcome.
_trying = threading.Lock()


def reads_trees(model: PreTrainedModel) -> bool:
    """True if the model reads a tree in one pass as it reads the branches alone; tried when first asked.

    A trial takes eight passes over a few tokens, six more in doubt, with caches of its own.
    """
    with _trying:
        if model not in _reads:
            _reads[model] = not (has_sliding_windows(model) or keeps_state(model)) and _tried(model)
        return _reads[model]


def why_no_trees(model: PreTrainedModel, name: str) -> SpecvizError | None:
    """Why the model called `name` reads chains only (field ``branches``); None if it reads trees."""
    if reads_trees(model):
        return None
    if has_sliding_windows(model):
        return SpecvizError(
            "{name} has sliding-window attention and reads only chains: set branches to 1, or choose a drafter "
            "that makes chains.",
            "branches",
            name=name,
        )
    if keeps_state(model):
        return SpecvizError(
            "{name} ({kind}) keeps a running state, which has one past, and reads only chains: set branches to "
            "1, or choose a drafter that makes chains.",
            "branches",
            name=name,
            kind=model.config.model_type,
        )
    return SpecvizError(
        "A test showed that {name} ({kind}) reads a small tree differently from its branches alone: set branches "
        "to 1, or choose a drafter that makes chains.",
        "branches",
        name=name,
        kind=model.config.model_type,
    )


def rounding(dtype: torch.dtype) -> float:
    """The largest `difference` that rounding in another order makes between two ways to compute the same logits.

    Measured in bfloat16: 0.01 between a tree and its branches, and 0.08 for MPT's misplaced bias. Inputs in 8 bits
    (int8) are as coarse.
    """
    return max(1e-4, 5 * torch.finfo(torch.bfloat16 if dtype == torch.int8 else dtype).eps)


def difference(actual: Tensor, expected: Tensor) -> float:
    """How far rows [n, vocab or d] lie from the expected ones, relative to how these vary; infinite if not a number.

    What both rule out (−∞) counts for nothing.
    """
    out = actual.isneginf() & expected.isneginf()
    actual, expected = (rows.float().masked_fill(out, 0) for rows in (actual, expected))
    apart = (actual - expected).norm() / (expected - expected.mean(-1, keepdim=True)).norm()
    return apart.nan_to_num(math.inf).item()


def some_tokens(model: PreTrainedModel, count: int, seed: int = 0) -> list[int]:
    """Arbitrary token ids that the model knows."""
    vocab_size = model.get_input_embeddings().weight.shape[0]
    return torch.randint(vocab_size, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def read_draft(
    cached: CachedModel, tokens: Sequence[int], parents: tuple[int, ...], path: Sequence[int]
) -> Iterator[Tensor]:
    """A round as in a run: reads a text, its draft, and one token more after the draft tokens on `path`.

    tokens: first the text's, then the draft's, then the one after it. Yields the logits of the three passes,
    [1, vocab], [draft tokens + 1, vocab] and [1, vocab].
    """
    start = len(tokens) - len(parents) - 1
    text, draft = list(tokens[:start]), tokens[start:-1]
    yield cached.forward(cached.unread(text[:-1]), rows_wanted=1)
    cached.rewind(start - 1)
    yield cached.verify(text, torch.tensor(draft, device=cached.device), parents)
    cached.rewind_to_path(start, path)
    committed = [*text, *(draft[index] for index in path), tokens[-1]]
    yield cached.forward(cached.unread(committed), rows_wanted=1)
    cached.rewind(len(committed))


#: Settings that hide tokens farther back than their number, and the number with which a trial crosses it.
_WINDOWS, _NARROW = ("sliding_window", "attention_chunk_size"), 4

#: How many tokens are read to try it, and in what passes.
_PARTS = (6, 3, 1, 1, 1)


@torch.inference_mode()
def reads_ahead(model: PreTrainedModel) -> bool:
    """True if a token's logits depend on tokens after it, as in encoders and models made for embeddings.

    A configuration says so in one of several ways, and transformers heeds most of them only where there is no cache.
    """
    tokens = _to_try(model)
    changed = [*tokens[:-1], tokens[0] if tokens[0] != tokens[-1] else tokens[-1] - 1]
    both = [_rows_at_once(model, ids)[:-1] for ids in (tokens, changed)]
    return all(logits.isfinite().all() for logits in both) and difference(*both) > rounding(model.dtype)


@torch.inference_mode()
def reads_on(model: PreTrainedModel) -> bool:
    """True if a text read in several passes, with a cache, has the logits that one pass over it gives.

    That fails where the cache forgets what the architecture attends to: transformers makes caches by settings such as
    ``sliding_window``, which a configuration may hold though its architecture knows no windows.
    """
    tokens, rows = _to_try(model), []
    with _narrow_windows(model):
        cached, expected = _fresh(model), _rows_at_once(model, tokens)
        for part in torch.tensor(tokens, device=cached.device).split(_PARTS):
            rows.append(cached.forward(part, rows_wanted=len(part)))
            cached.rewind(cached.length)
        actual = torch.cat(rows)
        if not (actual.isfinite().all() and expected.isfinite().all()):
            return True  # a fault of another kind, which a run reports
        distance = difference(actual, expected)
        if distance <= rounding(model.dtype):
            return True
        # As far as rounding moves the rows of a shorter text.
        shorter = _rows_at_once(model, tokens[: -len(_PARTS[2:])])
        return distance <= 4 * difference(shorter, expected[: len(shorter)])


@torch.inference_mode()
def width_of_logits(model: PreTrainedModel) -> int:
    """How many logits a token gets, whatever the configuration says."""
    return _rows_at_once(model, _to_try(model)).shape[-1]


def _to_try(model: PreTrainedModel) -> list[int]:
    return some_tokens(model, sum(_PARTS))


def _rows_at_once(model: PreTrainedModel, tokens: Sequence[int]) -> Tensor:
    """Logits [n, vocab] of one pass without a cache."""
    return model(torch.tensor([tokens], device=home_of(model)), use_cache=False).logits[0]


@contextlib.contextmanager
def _narrow_windows(model: PreTrainedModel) -> Iterator[None]:
    """Within it, whatever windows the configuration has are so narrow that a few tokens cross them.

    Masks and caches are made by it anew in each pass.
    """
    settings = vars(model.config.get_text_config())
    original = {name: settings[name] for name in _WINDOWS if type(settings.get(name)) is int}
    settings |= {name: min(size, _NARROW) for name, size in original.items()}
    try:
        yield
    finally:
        settings |= original


def check_exit(model: PreTrainedModel, name: str, layer: int | None = None) -> None:
    """Raises SpecvizError if the model, called `name`, has no early exit (field ``drafter``) or none after `layer`
    (field ``exit_layer``)."""
    layers = layer_count(model)
    if layers < 2:
        raise SpecvizError("{name} has a single layer, so there is no early exit.", "drafter", name=name)
    if layer is not None and layer >= layers:
        raise SpecvizError(
            "{name} has {layers} layers: exit after layer 1 to {last}, not {asked}.",
            "exit_layer",
            name=name,
            layers=layers,
            last=layers - 1,
            asked=layer,
        )
    layer_stack(model)
    if (reason := why_no_exit(model, layer)) is not None:
        raise SpecvizError(
            "{name} ({kind}) cannot stop after some of its layers: {reason}.",
            "drafter",
            name=name,
            kind=model.config.model_type,
            reason=reason,
        )


#: Of each model ever asked about, why it does not run when it is left early, by the layer.
_reasons: weakref.WeakKeyDictionary[PreTrainedModel, dict[int, str | None]] = weakref.WeakKeyDictionary()


@torch.inference_mode()
def why_no_exit(model: PreTrainedModel, layer: int | None = None) -> str | None:
    """Why the model does not run when it is left after `layer` layers, by default `default_exit`; None if it does.

    Tried when first asked: its layers may read what others left for them, or have sizes of their own, and some models
    count by their first attention layer how far a text has been read.
    """
    reasons, layer = _reasons.setdefault(model, {}), layer or default_exit(model)
    if layer not in reasons:
        try:
            left = _fresh(exit_after(model, layer))
            left.forward(torch.zeros(2, dtype=torch.long, device=left.device), rows_wanted=1)
            reasons[layer] = None
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            # The trial's outcome: an architecture may raise anything over fewer layers than it is made for.
            reasons[layer] = first_line(error)
    return reasons[layer]


@torch.inference_mode()
def _tried(model: PreTrainedModel) -> bool:
    tokens = some_tokens(model, TEXT + len(TREE) + 1)
    try:
        _, judging, after = read_draft(_fresh(model), tokens, TREE, ACCEPTED)
    except torch.OutOfMemoryError:
        raise
    except Exception:
        # The trial's outcome: an architecture may raise anything over a mask of this form.
        return False
    actual, expected = torch.cat([judging, after]), _rows_alone(model, tokens)
    distance = difference(actual, expected)
    if distance <= rounding(model.dtype):
        return True
    # Some models round more in half precision: as far as the accepted branch's rows move if it is read token by token.
    path = [0, *(index + 1 for index in ACCEPTED), len(TREE) + 1]
    text = [*tokens[:TEXT], *(tokens[TEXT + index] for index in ACCEPTED), tokens[-1]]
    return distance <= 4 * difference(_rows_one_by_one(model, text), expected[path])


def _rows_alone(model: PreTrainedModel, tokens: Sequence[int]) -> Tensor:
    """The rows that the trial expects, [draft tokens + 2, vocab]: each branch of the tree read alone, in one pass."""
    ancestors = tree_shape(TREE, torch.device("cpu")).ancestors
    rows: dict[int, Tensor] = {}
    for leaf in sorted(set(range(len(TREE))) - set(TREE)):
        branch = tuple(ancestors[leaf].nonzero().flatten().tolist())
        # After the accepted branch comes the token after the draft.
        places = [*branch, len(TREE)] if branch == ACCEPTED else branch
        cached, text = _fresh(model), [*tokens[:TEXT], *(tokens[TEXT + place] for place in places)]
        rows |= zip((-1, *places), cached.forward(cached.unread(text), rows_wanted=len(places) + 1), strict=True)
    return torch.stack([rows[place] for place in sorted(rows)])


def _rows_one_by_one(model: PreTrainedModel, text: Sequence[int]) -> Tensor:
    """The rows from the `TEXT`th token on, each from a pass over one token."""
    cached = _fresh(model)
    cached.prefill(text[:TEXT])
    return torch.cat([cached.forward(cached.unread(text[:end]), rows_wanted=1) for end in range(TEXT, len(text) + 1)])


def _fresh(model: PreTrainedModel) -> CachedModel:
    return new_cached_model(model, Stopwatch(home_of(model)))


#: Tokens that are read: in one pass, and in passes over this many of them.
_TOKENS, _WIDTHS = 9, (1, 2, 4)

#: How many of them a tree continues; its first branch holds other tokens, its second one those that follow.
_STEM, _BRANCH = 4, 3


@torch.inference_mode()
def rows_are_alike(passes: FastPasses) -> bool:
    """True if logits and hidden states are the same, bit by bit, however many tokens share a pass, trees included."""
    static, generator = passes.static, torch.Generator().manual_seed(0)
    vocab_size = static.get_input_embeddings().weight.shape[0]
    ids = torch.randint(vocab_size, (_TOKENS + _BRANCH,), generator=generator)
    inputs = [torch.randn(len(ids), width, generator=generator).to(static.dtype) for width in static.input_widths]

    def fresh() -> StaticModel:
        return StaticModel(static.original, Stopwatch(static.device), passes, static.feature_layers)

    def read(cached: StaticModel, which: Tensor, *view: Tensor) -> list[Tensor]:
        """Logits and hidden states of the tokens at these indices. view: what they see, and their positions."""
        visible, positions = view or (None, None)
        token_inputs = next((rows[which] for rows in inputs), None)
        logits = cached.forward(ids[which], len(which) * static.logit_rows, visible, positions, token_inputs)
        return [logits, cached.features] if static.feature_layers else [logits]

    text = torch.arange(_TOKENS)
    at_once = read(fresh(), text)
    for width in _WIDTHS:
        cached = fresh()
        parts = [read(cached, indices) for indices in text.split(width)]
        if not _same([torch.cat(rows) for rows in zip(*parts, strict=True)], at_once):
            return False
    if static.reads_chains_only:
        return True
    stem, branch, cached = text[:_STEM], text[_STEM : _STEM + _BRANCH], fresh()
    read(cached, stem)
    triangle = torch.ones(_BRANCH, _BRANCH, dtype=torch.bool).tril()
    visible = torch.cat([triangle.new_ones(2 * _BRANCH, _STEM), torch.block_diag(triangle, triangle).bool()], -1)
    tree = read(cached, torch.cat([text[-1:] + 1 + torch.arange(_BRANCH), branch]), visible, branch.repeat(2))
    return _same([rows[_BRANCH:] for rows in tree], [rows[branch] for rows in at_once])


def _same(first: Sequence[Tensor], second: Sequence[Tensor]) -> bool:
    return all(torch.equal(tensor, expected) for tensor, expected in zip(first, second, strict=True))
