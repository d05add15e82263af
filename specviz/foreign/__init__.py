"""What other engines report about their speculation, as plain values: no torch.

metrics: figures of a server's requests, from responses, logs, scrapes of /metrics or a benchmark's file
rounds: other engines' rounds, token by token, as a run that the page can show
doctor: signs of a fault in such figures
formats: the names that servers use, from assets/server_formats.json
text: from a file's bytes to the numbers in it
"""
