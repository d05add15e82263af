"""Recipes for a pair's models and trained parts, on CPU or CUDA: `python -m specviz.training --help`.

models: a target from scratch, with losses at early exits; a draft model distilled from the target
heads: Medusa, EAGLE, MTP and parallel heads on the frozen target
loop: the loop that every recipe runs through, with its optimisers, checkpoints and validation
data: text as training blocks, and the target's own continuations
losses: how far a student is from its teacher
"""
