"""The engine: from a prompt to rounds, and from rounds to the record of a run.

engine              the loop: draft, verify, judge, keep, yield
calls               `speculate` and `run`
request             a run's settings, checked against the pair that carries them out
coins               where coins are flipped
continuation        the growing text, and why it ends
round_record        a round's decision, from the device to plain values
run_record          a whole run as a record
replay              two rules on the same drafts and coins
lossless            the lab: many short runs beside the exact distribution
exact_distribution  that distribution, enumerated
wrong_rules         rules that the lab must find out
"""
