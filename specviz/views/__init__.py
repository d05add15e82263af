"""What the page and the terminal show, as messages and figures made from records: no torch, no gradio.

run_messages       a run and the race, for the components that draw them
charts             the live charts
compare_messages   the Compare tab
why_messages       the lab on why speculation works
lossless_messages  the Lossless tab
bench_figure       a benchmark report as one figure
terminal           a run in a terminal
"""
