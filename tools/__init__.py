"""Commands for those who maintain the project; no visitor needs them. Most need playwright and a Chromium.

    python -m tools.NAME

chromium    a headless browser
page_cost   what watching costs a run
page_speed  how fast the live view answers with a long run in it
pictures    takes the pictures of the README and of docs/ again
record_types  the types of records for the page's scripts
recorder    records the runs that come with the page again
sizes       how fast an oracle is at the sizes of real models
start_up    how soon after the command there is something to see
wider_target  trains further units of the embedded target
bench_table   a table for documentation, of a report of the benchmark
two_rules     token by token and block verification on the same drafts
gpu_bench     what passes and rounds cost on a GPU, on a pair of a large one's shape that is made there
trace_cost    the engine with its full trace against a bare loop
"""
