"""Recipes for a pair's models and trained parts, on CPU or CUDA: `python -m specviz.training --help`.

target: a target from scratch, with losses at early exits
draft: a draft model distilled from the target
medusa, eagle, mtp, parallel: heads on the frozen target; head: what they have in common
loop: the loop that every recipe runs through, with checkpoints and validation
data: text as training blocks, and the target's own continuations
frozen: the target as a teacher, without gradients for its weights
losses: what students are trained and measured by
optimisers: Muon, AdamW and the learning rate over a run
"""
