"""Settings for all tests."""

import signal

from hypothesis import settings

# A deadline measures the machine, not the code.
settings.register_profile("hitlab", deadline=None, max_examples=60)
settings.load_profile("hitlab")

# A shell starts background jobs with SIGINT ignored, and children inherit that; the commands under test are not in the
# background.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
