"""What theory predicts, in closed form: numbers in, numbers out, no model and no torch.

formulas: expected tokens and speedup by acceptance rate, draft length and cost (Leviathan et al. 2023)
roofline: what a pass costs, over tokens of one request or of many: measured, and the least it can take
diagnosis: what limits a run, and which single change would help most
draft_length: chooses how many tokens to draft next from what earlier rounds took
along_texts: a rate that falls along a text, and a text that loops
statistics: how far counts lie from a distribution, and ratios of rates with their intervals
sample_tests: whether tokens were drawn from a known distribution
truncation: whether a filter was left on
gain: what a class learned, and how many people it takes to tell
shared_noise: what a recovered token comes from if it shares the draft's noise
"""
