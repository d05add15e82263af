"""Trained parts that draft from the target's hidden states, in the formats in which they are published.

part_files: the files in a folder; formats: what they are, by the names and shapes of their tensors
published: what they share; head_passes: a head as a model that passes serve
eagle3: EAGLE-3 and P-EAGLE heads
dflash, dflash2, dspark: drafters that fill in blocks of masks; block_files: what their files say
mtp_modules: the multi-token-prediction modules of a checkpoint
"""
