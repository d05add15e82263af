"""The engine: from a prompt to rounds, and from rounds to the record of a run.

engine              the loop over rounds, until the text ends
decoder             the round: draft, verify, judge, keep
calls               `speculate` and `run`
request             a run's settings, checked against its pair
round_times         what rounds cost, by how deep they draft
coins               where coins are flipped
continuation        the growing text and why it ends
judging             who judges a round: the rule, or the same in one call
judged              a round as it was judged, before there is a record of it
round_record        its record, from the device to plain values
run_record          a whole run as a record
replay              two rules judging the same drafts and coins
lossless            the lab: many short runs against the exact distribution
exact_distribution  that distribution, enumerated
wrong_rules         wrong rules, for the lab to catch
"""
