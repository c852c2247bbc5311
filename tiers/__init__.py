"""Benches of the tiers below the engine: LMCache's cache server and its L2 adapters."""
