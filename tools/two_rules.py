"""How many draft tokens two rules keep of the same drafts and coins: ``python -m tools.two_rules``."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from specviz.bench.contestants import Contestant
from specviz.bench.lanes import plain_request, request_of
from specviz.decoding.engine import replay
from specviz.drafters.draft_model import DraftModel
from specviz.models.loading import load_pair
from specviz.models.pair import ModelPair
from specviz.models.preparation import prepare_passes
from specviz.records.prompts import PRESETS, Preset

GAMMAS, TEMPERATURE, TOKENS, ROUNDS = (4, 8), 1.0, 128, 1200


def main() -> None:
    """Prints a line for each γ, by drafts of the draft model."""
    pair = load_pair()
    prepare_passes(pair, compiling=False)
    for gamma in GAMMAS:
        print(replay_rules(pair, PRESETS, gamma, TEMPERATURE, TOKENS, ROUNDS))


@dataclass(frozen=True, slots=True)
class RulesRow:
    """How many draft tokens two rules keep of the same rounds."""

    mode: str  # the drafter's name
    num_draft_tokens: int
    temperature: float
    rounds: int
    accepted_token: int  # draft tokens that the token rule kept, all rounds together
    accepted_block: int  # the same of the block rule
    difference: float  # block less token, mean per round
    standard_error: float  # of that mean
    block_longer: int  # rounds in which the block rule kept more
    token_longer: int  # rounds in which the token rule kept more

    @classmethod
    def of(cls, mode: str, num_draft_tokens: int, temperature: float, kept: Sequence[tuple[int, int]]) -> RulesRow:
        """kept: draft tokens kept in each round by the token rule and by the block rule; at least two rounds."""
        differences = [block - token for token, block in kept]
        return cls(
            mode=mode,
            num_draft_tokens=num_draft_tokens,
            temperature=temperature,
            rounds=len(kept),
            accepted_token=sum(token for token, _ in kept),
            accepted_block=sum(block for _, block in kept),
            difference=statistics.mean(differences),
            standard_error=statistics.stdev(differences) / len(kept) ** 0.5,
            block_longer=sum(difference > 0 for difference in differences),
            token_longer=sum(difference < 0 for difference in differences),
        )


def replay_rules(
    pair: ModelPair, presets: Sequence[Preset], gamma: int, temperature: float, max_new_tokens: int, rounds: int
) -> RulesRow:
    """Drafts of the draft model on the presets in turn, seed after seed, until there are enough rounds."""
    contestant, kept = Contestant(DraftModel.name, gamma), []
    for seed in itertools.count():
        for preset in presets:
            request = request_of(contestant, plain_request(pair, preset, temperature, max_new_tokens, seed))
            kept += [(token.accepted, block.accepted) for token, block in replay(request, "block")]
            if len(kept) >= rounds:
                return RulesRow.of(DraftModel.name, gamma, temperature, kept)


if __name__ == "__main__":
    main()
