"""What theory predicts, in closed form: numbers in, numbers out, no model and no torch.

formulas: expected tokens and speedup by acceptance rate, draft length and cost (Leviathan et al. 2023)
roofline: what a pass over K tokens costs, measured, and the least it can take
batches: what a pass costs that serves many requests at once
diagnosis: what limits a run, and which single change would help most
draft_length: chooses how many tokens to draft next from what earlier rounds took
statistics: how far counts lie from a distribution, and how far chance alone puts them
"""
