"""Adapter specs, page cache and buffers."""

import json
import socket
from pathlib import Path

import pytest

from contract.errors import ScenarioError, ServiceError
from tiers.l2.arena import allocate
from tiers.l2.page_cache import drop, own_files, resident
from tiers.l2.specs import ENVIRONMENT, Spec, parse_specs, require_alignment, require_listening


def test_the_environment_is_asked_when_no_option_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENT, '{"type":"fs"}')
    assert parse_specs([])[0].type == "fs"
    assert parse_specs(['{"type":"mock"}'])[0].type == "mock"


@pytest.mark.parametrize("text", ["", "nonsense", "[]", "{}", '{"type": 3}', "null"])
def test_what_is_no_spec_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    with pytest.raises(ScenarioError, match="--l2-adapter"):
        parse_specs([text] if text else [])


def test_secrets_are_shown_to_nobody() -> None:
    spec = Spec(
        {
            "type": "fault_inject",
            "inner": {"type": "resp", "username": "u", "password": "canary-1"},
            "aws_secret_access_key": "canary-2",
            "adapter_params": {"api_token": "canary-3"},
        }
    )
    assert "canary" not in spec.shown
    assert json.loads(spec.shown)["inner"]["username"] == "u"


def test_direct_io_needs_aligned_buffers_and_sizes(tmp_path: Path) -> None:
    spec = Spec({"type": "fs", "base_path": str(tmp_path), "use_odirect": True})
    with pytest.raises(ScenarioError, match="--l1-align-bytes 4096"):
        require_alignment(spec, align_bytes=1, data_size_kb=(256,))
    with pytest.raises(ScenarioError, match="--data-size-kb 3"):
        require_alignment(spec, align_bytes=4096, data_size_kb=(3,))
    require_alignment(spec, align_bytes=4096, data_size_kb=(256,))
    require_alignment(Spec({"type": "fs", "base_path": str(tmp_path)}), align_bytes=1, data_size_kb=(3,))


def test_a_dead_service_is_named() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(ServiceError, match=f"nothing answers at 127.0.0.1:{port}"):
        require_listening(Spec({"type": "resp", "host": "127.0.0.1", "port": port}))


@pytest.mark.parametrize("align", [1, 64, 4096, 1 << 20])
def test_buffers_are_aligned_and_of_the_size(align: int) -> None:
    arena = allocate(12345, align_bytes=align)
    assert arena.nbytes == 12345
    assert arena.ctypes.data % align == 0
    arena[:] = 1
    assert int(arena.sum()) == 12345


def test_missing_huge_pages_are_named() -> None:
    free = int(Path("/proc/sys/vm/nr_hugepages").read_text())
    if free:
        pytest.skip("this host has huge pages")
    with pytest.raises(ServiceError, match="nr_hugepages"):
        allocate(1 << 20, hugepages=True)


def test_own_files_leave_the_page_cache_and_others_stay(tmp_path: Path) -> None:
    own, other = tmp_path / "deep" / "hitlab-l2-7-4096@x.data", tmp_path / "other.data"
    own.parent.mkdir()
    for file in (own, other):
        file.write_bytes(b"x" * (1 << 20))
    assert list(own_files(tmp_path, "hitlab-l2-7-4096")) == [own]
    assert resident([own]) == 1.0
    stays = drop(tmp_path, "hitlab-l2-7-4096")
    if stays:
        pytest.skip("this file system lives in memory")
    assert resident([own]) == 0.0
    assert resident([other]) == 1.0
    assert drop(tmp_path, "nobody") is None
