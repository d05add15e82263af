"""The engine with its full trace against a bare loop, in turn: ``python -m tools.trace_cost``.

The bare loop is greedy decoding as short as it gets, in the manner of gpt-fast's `generate.py`: the same models through
the same `CachedModel`, but no coins, probabilities or records.
"""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from specviz.bench.contestants import PLAIN, Contestant, speedup_of
from specviz.bench.lanes import Block, Unwatched, lane, plain_request
from specviz.bench.turns import Lane, Plan, runs_by_number
from specviz.drafters.draft_model import DraftModel
from specviz.models.loading import load_pair
from specviz.models.pair import ModelPair
from specviz.models.preparation import prepare_passes
from specviz.passes.cached_model import CachedModel, reader
from specviz.passes.static_passes import between_rounds
from specviz.records.prompts import STORIES
from specviz.rules.draft import chain
from specviz.rules.sampling import fit_width, in_order

GAMMA, TOKENS, REPEATS = 4, 128, 3


def main() -> None:
    """Prints a line for plain decoding and for the draft model on each story: the traced speed over the bare one."""
    pair = load_pair()
    prepare_passes(pair)
    for preset in STORIES:
        plain = plain_request(pair, preset, 0.0, TOKENS)
        given = pair, plain.prompt.ids, plain.settings.max_new_tokens
        loops = {
            Contestant(PLAIN): lambda given=given: bare_plain(*given),
            Contestant(DraftModel.name, GAMMA): lambda given=given: bare_drafting(*given, GAMMA),
        }
        for contestant, loop in loops.items():
            base, own = runs_by_number([_lane(loop), lane(contestant, plain)], Plan(TOKENS, REPEATS))
            print(f"{preset.name}, {contestant.title}: {speedup_of(own, base)}")


def _lane(loop: Callable[[], list[int]]) -> Lane:
    def start(repeat: int) -> Iterator[Block]:
        yield Block(loop())

    loop()
    return Lane(start, divisible=False, warm=True)


def _reader(pair: ModelPair, role: str) -> CachedModel:
    """The pair's ``target`` or ``draft`` with the fast passes that the engine would use, and no clock."""
    return reader(getattr(pair, role), Unwatched(pair.device), pair.passes.fast.get(role))


@torch.inference_mode()
def bare_plain(pair: ModelPair, prompt: Sequence[int], max_new_tokens: int) -> list[int]:
    """The target's greedy continuation of token ids up to an end token, one pass a token. Returns the new tokens."""
    target = _reader(pair, "target")
    text, made = list(prompt), []
    target.prefill(text)
    while len(made) < max_new_tokens and not pair.eos_ids.intersection(made[-1:]):
        between_rounds(pair.passes.fast)
        made.append(int(target.forward(target.unread(text), keep=1).argmax(-1)))
        target.rewind(len(text))
        text.append(made[-1])
    return made


@torch.inference_mode()
def bare_drafting(pair: ModelPair, prompt: Sequence[int], max_new_tokens: int, num_draft_tokens: int) -> list[int]:
    """The same continuation, drafted by the pair's draft model and verified by the target in one pass a round.

    Draft tokens stay on the device until they are judged: one transfer a round. The draft model reads the target's
    tokens, so there must be no translation between the two vocabularies.
    """
    target, draft = _reader(pair, "target"), _reader(pair, "draft")
    text, made = list(prompt), []
    target.prefill(text)
    draft.prefill(text)
    while len(made) < max_new_tokens and not pair.eos_ids.intersection(made[-1:]):
        between_rounds(pair.passes.fast)
        committed = len(text)
        drafted = _chain_of(pair, draft, text, min(num_draft_tokens, max_new_tokens - len(made) - 1))
        choices = target.verify(text, drafted, chain(len(drafted))).argmax(-1)
        agreed = (choices[: len(drafted)] == drafted).cumprod(0).sum(0, keepdim=True)
        *chosen, accepted = torch.cat([choices, agreed]).tolist()
        target.keep(committed, range(accepted))
        draft.rewind(min(draft.length, committed + accepted))
        # Accepted draft tokens are the target's own choices; its next choice is the bonus or the correction.
        new = _up_to_end(chosen[: accepted + 1], pair.eos_ids)
        made += new
        text += new
    return made


def _chain_of(pair: ModelPair, draft: CachedModel, text: Sequence[int], depth: int) -> Tensor:
    """The draft model's greedy continuation, [depth] int64 on the device."""
    tokens = torch.empty(0, dtype=torch.long, device=draft.device)
    # A padding id that only the target has is read as another one, as in `DraftModel`.
    unread = draft.unread(text).clamp_max(draft.model.get_input_embeddings().num_embeddings - 1)
    for _ in range(depth):
        row = draft.forward(unread, keep=1)
        row = row if pair.draft_columns is None else in_order(row, pair.draft_columns)
        unread = fit_width(row, pair.vocab_size).argmax(-1)
        tokens = torch.cat([tokens, unread])
    return tokens


def _up_to_end(tokens: list[int], eos_ids: frozenset[int]) -> list[int]:
    """The tokens up to and including the first end token."""
    ends = [place for place, token in enumerate(tokens) if token in eos_ids]
    return tokens[: ends[0] + 1] if ends else tokens


if __name__ == "__main__":
    main()
