"""Comparing the version an engine states with the versions in which vLLM changed what it counts (vllm.md E.2)."""

import re
from typing import Final, NamedTuple

LONGEST_PART: Final = 6

_VERSION = re.compile(r"v?([0-9]+)\.([0-9]+)(?:\.([0-9]+))?(.*)", re.DOTALL)
_PRERELEASE = re.compile(r"[.\-_]?(?:dev|rc|a|b)\d*", re.IGNORECASE)


class EngineVersion(NamedTuple):
    """`release` is False for a pre-release, which comes before the release of the same number."""

    major: int
    minor: int
    patch: int
    release: bool


def parse_version(text: str | None) -> EngineVersion | None:
    """`0.32.0+cpu`, `0.11.2.dev3`, `v0.9.1`; None when the engine states none or something else.

    A build without a release number (`0.1.dev1+g0123abc`) tells nothing about its age and is None too.
    """
    found = _VERSION.fullmatch(text.strip()) if text else None
    if found is None:
        return None
    major, minor, patch, rest = found.groups()
    if patch is None and _PRERELEASE.match(rest):
        return None
    if max(map(len, found.groups("")[:3])) > LONGEST_PART:
        return None
    return EngineVersion(int(major), int(minor), int(patch or 0), _PRERELEASE.match(rest) is None)


def is_before(version: EngineVersion | None, release: str) -> bool | None:
    """Whether `version` is older than `release`; None when it is not known."""
    other = parse_version(release)
    if version is None or other is None:
        return None
    return version < other
