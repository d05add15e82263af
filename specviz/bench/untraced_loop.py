"""The engine's rounds without what is shown of them: the same decoder and coins, no clock, no Round.

What the benchmark measures tracing against. The coins fall in the same order, so the tokens are those of
`engine.rounds` at every temperature.
"""

from __future__ import annotations

import torch

from specviz.bench.bare_loop import Unwatched
from specviz.decoding.decoder import decoder_of
from specviz.decoding.request import Request
from specviz.decoding.round_times import length_of
from specviz.passes.static_passes import between_rounds


@torch.inference_mode()
def decode(request: Request) -> list[int]:
    """The new tokens of a checked request, up to an end token. Stop strings are text, and here is none."""
    decoder = decoder_of(request, length_of(request), clock=Unwatched(request.pair.device))
    text, made, wanted = list(request.prompt.ids), [], request.settings.max_new_tokens
    decoder.prefill(text)
    while len(made) < wanted:
        between_rounds(request.passes)
        budget = min(decoder.length.choose().depth, wanted - len(made) - 1)
        one = decoder.round(text, budget)
        for token in one.tokens:
            made.append(token)
            if token in request.pair.eos_ids:
                return made
        text += one.tokens
    return made
