"""The names that people choose by: acceptance rules, rules of the Lossless lab.

Help texts and the page's first picture need them before torch is there. The functions behind them register in
`specviz.rules` and `specviz.decoding.lossless`; a test holds both lists equal.
"""

from __future__ import annotations

RULES = ("token", "block", "tree", "multi_path", "typical")

#: The drafter's usual rule first, the wrong ones last.
LAB_RULES = ("auto", "block", "multi_path", "everything", "likeliest", "typical", "mislabelled")

#: The lab's rule ``likeliest`` takes whatever is among this many of the target's likeliest tokens.
LIKELIEST = 3
