"""Real inputs that lie beside the checkout and are not part of it."""

from pathlib import Path

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
"""`../shared/data`, seen from the checkout; tests skip where it is absent."""
