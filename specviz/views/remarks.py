"""What a reader of a run's figures has to know of it; nothing where there is nothing to say."""

from collections.abc import Sequence

from specviz.records.runs import Round, unflipped
from specviz.records.words import Said, joined, said
from specviz.theory.along_texts import find_fall, flatters, looped, passes_of


def remarks(rounds: Sequence[Round], prompt_tokens: int, coins: str = "") -> list[Said]:
    """Sentences about coins that were set by hand and never flipped, drafts that γ = auto did not ask for, loops in the
    text and a rate of acceptance that falls; of plain decoding only about coins."""
    found, unasked = [], sum(round_.choice is not None and round_.choice.depth == 0 for round_ in rounds)
    if unused := unflipped(coins, rounds):
        found.append(said("generate.unflipped", coins=", ".join(unused), n=len(rounds)))
    if 2 * unasked > len(rounds):
        found.append(said("generate.unasked", unasked=unasked, rounds=len(rounds)))
    if not any(round_.judged for round_ in rounds):
        return found
    fall = find_fall([passes_of(rounds)])
    if fall is not None:
        shares = {"before": 100 * fall.before, "after": 100 * fall.after}
        found.append(said("generate.falls", n=fall.position, context=prompt_tokens + fall.position, **shares))
    ids, tokens = [id for round_ in rounds for id in round_.known_ids], sum(len(round_.emitted) for round_ in rounds)
    repeated = looped(ids) if len(ids) == tokens else 0
    if flatters(repeated, tokens):
        found.append(said("generate.loops", repeated=repeated, tokens=tokens))
    return found


def remarked(ending: Said, rounds: Sequence[Round], prompt_tokens: int, coins: str = "") -> Said:
    """Why a run ended, after what there is to remark: a line on the screen may be cut."""
    return joined([*remarks(rounds, prompt_tokens, coins), ending], " ")
