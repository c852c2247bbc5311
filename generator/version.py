"""The version that artifacts carry."""

from importlib.metadata import version


def plugin_version() -> str:
    return version("hitlab")
