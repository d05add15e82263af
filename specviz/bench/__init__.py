"""The benchmark: every way to decode, timed in turn on the same prompts, and what the times come to.

    commands         the `bench` command: its options, and what it does with a report

What is checked
    check_command    the `check` command: does all of it run right here?
    pair_check       what it looks at: texts, distributions, trees, passes, memory, a race
    full_check       what takes longer: every rule, every precision, real sizes
    advise_command   the `advise` command: which drafter, measured
    advice           what follows from such measurements, and the flags of servers; loads no torch

What is compared
    contestants      a contestant, and what several of its repeats come to; loads no torch
    bench_plan       the settings of a benchmark, and who takes part
    timed_runs       one timed run of a contestant on a workload
    bare_loop        greedy decoding as short as it gets
    untraced_loop    the engine's loop without records
    oracle           a drafter that knows the answer and is right as often as asked
    model_sizes      pairs of real shapes with random weights

What is measured
    benchmark        the whole plan on one pair
    size_benchmark   a random pair of a real size, drafted for by the oracle
    forced           speculation at any acceptance rate, over the pair's own passes
    equal_texts      whether greedy texts are plain decoding's; comes before any time
    rule_replay      two acceptance rules on the same drafts and coins
    pass_times       T(K), the time of a pass over K tokens
    batch_times      T(B, K), passes over K tokens of each of B requests
    machine_limits   what a pass moves, and how fast this machine can move it
    growth           how times grow with text, rounds and draft length
    machine          what this machine is, and how busy

What is told
    bench_rows       the rows of a report, and what they come to
    report           the values of the JSON file
    findings         what the rows say, in sentences
    printed          both reports as text and tables
"""
