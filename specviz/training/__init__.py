"""Recipes for a pair's models and trained parts, on CPU or CUDA: `python -m specviz.training --help`.

models: a target from scratch, with losses at early exits; a draft model distilled from the target
parts: what recipes of trained parts share: the frozen target, the files, the loss
heads: EAGLE-3 heads, MTP modules, Medusa heads; dspark: DSpark heads
loop: the loop that every recipe runs through, with its optimisers, checkpoints and validation
losses: how far a student is from the target, to train it and to measure it
forecast: how long all of it will take, said before it begins
data: text as training blocks, and the target's own continuations
"""
