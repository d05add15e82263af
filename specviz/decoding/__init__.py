"""The engine: from a prompt to rounds, and from rounds to the record of a run.

reference           speculative decoding in forty lines, to read first
request             a run's settings, checked against its pair and resolved
engine              `speculate` and `run`; the loop over rounds, until the text ends; two rules on the same drafts
decoder             one round: draft, verify, judge, keep; where coins are flipped, and who judges
one_call            the same round in one call of C++, where the target's passes are compiled for a CPU
rounds_ahead        several rounds in one such call, where nobody has to be asked in between
host_rounds         rounds one after the other, each when the host has heard of the last one
device_rounds       rounds that a GPU makes by itself, launched before the host knows the last one
recorded_rounds     a round as functions of tensors, in the parts that are recorded
continuation        a run's text as it grows, and where it ends
lengths             how deep each round drafts, and what is learned from it
fetched             what the record of a round is made of, from the device in one transfer
record              the record of a round, and a whole run's
supposed            what a round would have been: another coin, temperature or γ
lossless            the lab: many short runs against the exact distribution; wrong rules for it to catch
engine_rules        rules that engines offer and that change the output, for the lab
shipped_rules       wrong ones that they shipped without knowing it
exact_distribution  that distribution, enumerated
"""
