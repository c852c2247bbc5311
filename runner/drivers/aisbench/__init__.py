"""The formal load by AISBench: a process in its own environment, told by files and read while it works."""
