"""Speculative sampling in plain transformers, shown by specviz.

PYTHONPATH=. python examples/own_loop.py TARGET DRAFT
"""

import json
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import specviz


@torch.inference_mode()
def own_loop(target, draft, prompt: list[int], rounds: int, gamma: int, coin) -> dict[str, list]:
    """Leviathan et al. 2023, algorithm 1, at temperature 1 and without caches. coin: a function that flips one."""
    ids, log = list(prompt), {name: [] for name in ("tokens", "kept", "following", "p", "q", "u", "following_u")}

    def rows(model, count):
        return model(torch.tensor([ids])).logits[0, -count:].float().softmax(-1)

    def drawn(law, u):
        return int((law.double().cumsum(0) <= u * law.double().sum()).sum())

    for _ in range(rounds):
        q = []
        for _ in range(gamma):
            q.append(rows(draft, 1)[0])
            ids.append(drawn(q[-1], coin()))
        tokens, p, u, kept = ids[-gamma:], rows(target, gamma + 1), [coin() for _ in range(gamma)], 0
        while kept < gamma and u[kept] * q[kept][tokens[kept]] < p[kept][tokens[kept]]:
            kept += 1
        law, last = p[kept] if kept == gamma else (p[kept] - q[kept]).clamp(min=0), coin()
        following = drawn(law, last)
        ids[-gamma:] = [*tokens[:kept], following]
        coins = [*u[: kept + 1], *[None] * (gamma - kept - 1)]  # the other coins judged nothing
        for name, value in zip(log, (tokens, kept, following, p.tolist(), torch.stack(q).tolist(), coins, last)):
            log[name].append(value)
    return log


if __name__ == "__main__":
    names = sys.argv[1:3]
    target, draft = (AutoModelForCausalLM.from_pretrained(name, dtype="float32") for name in names)
    tokenizer = AutoTokenizer.from_pretrained(names[0])
    prompt, random = "Once upon a time", torch.Generator().manual_seed(0)
    log = own_loop(
        target, draft, tokenizer(prompt)["input_ids"], 12, 4, lambda: torch.rand((), generator=random).item()
    )
    with open("rounds.json", "w") as file:
        json.dump(log | {"schema": "specviz.rounds/1", "prompt": prompt, "engine": "my own loop"}, file)
    with open("rounds.json") as file:
        specviz.show(**json.load(file), texts=tokenizer.decode).save("rounds.html")
