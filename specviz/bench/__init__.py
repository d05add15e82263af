"""The benchmark: every way to decode, timed in turn on the same prompts, and what the times come to.

    commands         the `bench` command: its options, and what it does with a report

What is checked
    check_command    the `check` command: does all of it run right here?
    pair_check       what it looks at: texts, distributions, trees, passes, memory, a race
    full_check       what takes longer: every rule, every precision, real sizes
    advise_command   the `advise` command: which drafter, measured
    work_command     what it shares with `bench`: prompts of one's own
    advice           what follows from such measurements, and the flags of servers; loads no torch

What is compared
    contestants      a contestant, and what several of its repeats come to; loads no torch
    bench_plan       the settings of a benchmark, and who takes part
    timed_runs       what a contestant does on a workload
    bare_loop        greedy decoding as short as it gets
    oracle           a drafter that knows the answer and is right as often as asked
    model_sizes      pairs of real shapes with random weights

What is measured
    turns            the one way to measure speed: contestants take turns over parts of a text
    benchmark        the whole plan on one pair
    advising         every drafter in the time that there is, then the fastest again
    forced           speculation at any acceptance rate, over the pair's own passes
    equal_texts      whether greedy texts are plain decoding's; comes before any time
    rule_replay      two acceptance rules on the same drafts and coins
    pass_times       T(K), the time of a pass over K tokens
    batch_times      T(B, K), passes over K tokens of each of B requests
    machine_limits   what a pass moves, and how fast this machine can move it
    machine          what this machine is, and how busy

What is told
    laps             turns and runs, and the speedup with its interval; loads no torch
    work             what drafters come to on several prompts, and by domain; loads no torch
    bench_rows       the rows of a report, and what they come to
    report           the values of the JSON file
    findings         what the rows say, in sentences
    printed          the report as text and tables
"""
