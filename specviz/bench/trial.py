"""Which drafter to start with where none was named: a short trial in turns with plain decoding, after loading."""

from __future__ import annotations

import math
import threading

from specviz.bench.contest import Contest
from specviz.bench.contestants import Contestant
from specviz.bench.contesting import entry_of, measure_contest, plain_request
from specviz.bench.turns import WARM_UP_TOKENS, Amount
from specviz.drafters.registry import able, named_for
from specviz.models.pair import ModelPair
from specviz.models.pair_passes import Trial
from specviz.records.errors import SpecvizError
from specviz.records.prompts import CHAT_PRESETS, PRESETS, TEMPERATURE
from specviz.records.settings import PLAIN

#: New tokens of each text, and the most repeats.
TOKENS, REPEATS = 32, 4

#: Seconds that it takes, warming up aside; and the most seconds of one text of each: a visitor may be waiting.
SECONDS, MOST_SECONDS = 4.0, 12.0


def try_drafters(pair: ModelPair, halt: threading.Event) -> None:
    """Puts into `pair.passes.trials` how each drafter did on the page's first prompt, with the page's own settings.

    Nothing where something was named to draft with, where passes take so long that a trial would, or were not timed, or
    once `halt` is set. A drafter that fails is left out.
    """
    names = able(pair)
    texts = (1 + len(names)) * (WARM_UP_TOKENS + TOKENS)
    if named_for(pair) or pair.passes.seconds_by_width.get(1, math.inf) * texts > MOST_SECONDS:
        return
    preset, *_ = CHAT_PRESETS if pair.has_chat_template else PRESETS
    contestants = [Contestant.of(name) for name in (PLAIN, *names)]
    try:
        plain = plain_request(pair, preset, TEMPERATURE, TOKENS)
        contest = Contest([entry_of(contestant, plain) for contestant in contestants], [""])
    except SpecvizError:
        return  # the context has no room for this prompt
    for event in measure_contest([plain], contestants, Amount(TOKENS, REPEATS, SECONDS, whole=False)):
        contest.hear(event)
        if halt.is_set():
            return
    rows = [row for row in contest.rows()[1:] if row.title not in contest.failed]
    pair.passes.trials = {
        row.mode: Trial(row.ratio, row.acceptance_length) for row in rows if row.ratio and row.acceptance_length
    }
