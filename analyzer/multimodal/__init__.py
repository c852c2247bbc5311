"""Analysis of runs with images: what all requests share is known from the probes, what hit from the engine."""
