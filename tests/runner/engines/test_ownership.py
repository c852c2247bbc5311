"""Whether the run that made a container still lives."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from contract.errors import ArtifactError
from runner.engines.vllm.ownership import claim_of, new_claim, owner_labels


def labels(folder: Path, name: str = "c") -> dict[str, str]:
    """Of a container whose run has ended and left its lock behind."""
    claim = new_claim(folder, name)
    made = owner_labels(claim, run_id="r", configuration="x", keep=False)
    claim.release(remove=False)
    return made


def test_living_owner_and_dead_owner(tmp_path: Path) -> None:
    claim = new_claim(tmp_path, "c")
    made = owner_labels(claim, run_id="r", configuration="x", keep=True)
    assert made["com.hitlab.managed"] == "true"
    assert made["com.hitlab.keep"] == "true"
    assert claim_of(made) is None
    claim.release(remove=False)
    taken = claim_of(made)
    assert taken is not None
    assert claim_of(made) is None, "it has been taken over"
    taken.release(remove=True)
    assert not taken.path.exists()
    gone = claim_of(made)
    assert gone is not None
    gone.release(remove=True)


def test_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib; from runner.engines.vllm.ownership import *;"
        "claim = new_claim(pathlib.Path(sys.argv[1]), 'c'); import json;"
        "print(json.dumps(owner_labels(claim, run_id='r', configuration='x', keep=False)), flush=True);"
        "sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, tmp_path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        made = json.loads(owner.stdout.readline())
        assert made["com.hitlab.pid"] == str(owner.pid)
        assert claim_of(made) is None
        owner.kill()
        owner.wait()
    claim = claim_of(made)
    assert claim is not None
    claim.release(remove=True)


def test_another_volume_at_the_same_path_is_no_evidence(tmp_path: Path) -> None:
    made = {**labels(tmp_path), "com.hitlab.lock-folder": "1:1", "com.hitlab.host": "elsewhere"}
    assert claim_of(made) is None
    assert claim_of({**made, "com.hitlab.lock": str(tmp_path / "absent" / "x.lock")}) is None


def test_without_the_lock_the_process_counts(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    unseen = {**labels(tmp_path), "com.hitlab.lock-folder": "1:1"}
    assert unseen["com.hitlab.host"] == socket.gethostname()
    assert claim_of({**unseen, "com.hitlab.pid": str(os.getpid())}) is None
    assert claim_of({**unseen, "com.hitlab.pid": "1"}) is None, "another user's process lives as well"
    assert claim_of({**unseen, "com.hitlab.pid": "no number"}) is None
    claim = claim_of({**unseen, "com.hitlab.pid": str(ended.pid)})
    assert claim is not None
    claim.release(remove=True)


@pytest.mark.parametrize("foreign", [{}, {"com.hitlab.managed": "true"}, {"com.hitlab.lock": ""}])
def test_labels_that_say_nothing(foreign: dict[str, str]) -> None:
    assert claim_of(foreign) is None


def test_folder_that_takes_no_lock(tmp_path: Path) -> None:
    (tmp_path / ".hitlab-locks").write_text("a file")
    with pytest.raises(ArtifactError):
        new_claim(tmp_path, "c")
