"""HitLab's requests, sent by AISBench: its dataset, model and inferencer, and what starts it."""

PROTOCOL = 1
"""Version of what HitLab and this package say to each other; HitLab refuses another one."""

RECORDS_VARIABLE = "HITLAB_AISBENCH_RECORDS"
"""Environment variable: the folder for attempts and turns of one load."""

API_KEY_VARIABLE = "OPENAI_API_KEY"
"""Environment variable: the bearer token; no file holds it."""
