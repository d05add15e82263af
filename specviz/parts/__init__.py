"""Trained parts that draft from the target's hidden states: our own, and those that others published.

part_files: the files in a folder; formats: what they are, by the names and shapes of their tensors
published: what published parts share
heads: our own as one-layer Llamas, and Medusa heads; head_passes: a head as a model that passes serve
head_files: their files, and the fingerprint of the target that they belong to
eagle3: EAGLE-3 and P-EAGLE heads
dflash, dflash2, dspark: drafters that fill in blocks of masks; block_files: what their files say
mtp_modules: the multi-token-prediction modules of a checkpoint
"""
