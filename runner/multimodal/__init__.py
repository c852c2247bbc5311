"""Runs with images: checks that learn what an image costs, resets of the caches it is kept in, and the requests."""
