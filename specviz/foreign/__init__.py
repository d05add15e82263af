"""What other engines report about their speculation, as plain values: no torch.

metrics: finds a server's requests in responses, logs, scrapes of /metrics or a benchmark's file
requests: the figures of one request
fields: what its server wrote, refused where that cannot be
rounds: other engines' rounds, token by token, as a run that the page can show
bounds: which passes reached a position, where some drafts were short
doctor: signs of a fault in such figures
nothing: why a text holds no such figures
answers: what an engine wrote, out of a file that may hold more
formats: the names that servers use, from assets/server_formats.json
text: from a text to the numbers in it
figures: in a line of a log or a printed table
wrappings: what figures come wrapped in: JSON of loggers, a terminal's width
"""
