"""Settings for all tests."""

from hypothesis import settings

# A deadline measures the machine, not the code.
settings.register_profile("hitlab", deadline=None, max_examples=60)
settings.load_profile("hitlab")
