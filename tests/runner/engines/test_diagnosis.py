"""What vLLM says when it does not start, and the one line that is made of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.engines.vllm.diagnosis import plain, reason_of, tail

ROOT = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("vllm: error: unrecognized arguments: --foo 7", "engine.args: this vLLM does not know --foo 7"),
        (
            "vllm serve: error: argument --max-model-len: invalid int value: 'x'",
            "engine.args: argument --max-model-len: invalid int value: 'x'",
        ),
        (
            "(EngineCore_DP0 pid=85) ERROR 11-29 10:00:00 [core.py:1] ValueError: No common block size for 16.",
            "tokenizer.block_size: this engine has no blocks of 16 tokens",
        ),
        (
            "(EngineCore pid=1) torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
            "out of memory on the accelerator",
        ),
        (
            "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`",
            "out of memory for the KV cache",
        ),
        (
            "ValueError: Free memory on device cuda:0 (3/80 GiB) on startup is less than desired GPU memory",
            "out of memory for the KV cache",
        ),
        ("RuntimeError: Failed to infer device type, please set ...", "it found no GPU"),
        ("RuntimeError: No CUDA GPUs are available", "it found no GPU"),
        ("OSError: [Errno 28] No space left on device: '/dev/shm/psm_1'", "raise engine.shm_size"),
        (
            "pydantic: Invalid repository ID or local directory specified: '/models/x'.",
            "tokenizer.path: the model is missing",
        ),
        ("PermissionError: [Errno 13] Permission denied: '/m/model.safetensors'", "/m/model.safetensors"),
        ("huggingface_hub.errors.GatedRepoError: 401 Client Error.", "env_from: [HF_TOKEN]"),
    ],
)
def test_known_causes(log: str, words: str) -> None:
    said = f"INFO starting, trust_remote_code=False\n{log}\n{ROOT}\n"
    reason = reason_of(said, exit_code=1, out_of_memory=False)
    assert words in reason
    assert "\n" not in reason


def test_unknown_cause_is_the_last_error_that_names_one() -> None:
    log = f"ValueError: the first\n(ApiServer_0 pid=9) \x1b[31mKeyError: 'the real one'\x1b[0m\n{ROOT}\nTraceback"
    assert reason_of(log, exit_code=1, out_of_memory=False) == "KeyError: 'the real one'"


def test_without_any_error_line_the_way_it_ended_is_told() -> None:
    assert "exit code 3" in reason_of("INFO all is well", exit_code=3, out_of_memory=False)
    assert "was killed" in reason_of("INFO all is well", exit_code=137, out_of_memory=False)
    assert reason_of("", exit_code=None, out_of_memory=False) == "it named no cause"
    assert "kernel killed it" in reason_of("ValueError: x", exit_code=137, out_of_memory=True)


def test_prefixes_of_processes_and_loggers_are_taken_off() -> None:
    assert plain("(EngineCore_DP1 pid=86) ERROR 11-29 19:19:55 [core.py:3] x: y") == "x: y"
    assert plain("(APIServer) plain text") == "plain text"


def test_tail_is_the_end() -> None:
    assert tail("a\nb\nc", 2) == "b\nc"


@given(st.text(), st.sampled_from([None, 0, 1, 137]), st.booleans())
def test_any_log_gives_one_line(log: str, exit_code: int | None, out_of_memory: bool) -> None:
    reason = reason_of(log, exit_code=exit_code, out_of_memory=out_of_memory)
    assert reason
    assert len(reason.splitlines()) == 1
