"""Commands for those who maintain the project; no visitor needs them. Most need playwright and a Chromium.

    python -m tools.NAME

chromium    a headless browser
pictures    takes the pictures of the README and of docs/ again
record_types  the types of records for the page's scripts
recorder    records the runs that come with the page again
sizes       how fast an oracle is at the sizes of real models
bench_table   a table for documentation, of a report of the benchmark
gpu_bench     what passes and rounds cost on a GPU, on a pair of a large one's shape that is made there
"""
