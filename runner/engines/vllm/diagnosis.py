"""Why a vLLM did not start or died, in one line, from its log and how its container ended. Pure.

The causes are told apart by vLLM's own words (read in the wheels of 0.11 to 0.33); what is not among them is told by
the last error line that names a cause.
"""

import re
from dataclasses import dataclass

KILLED = 137  # 128 + SIGKILL

ANSI = re.compile(r"\x1b\[[0-9;]*m")
PROCESS_PREFIX = re.compile(
    r"^\(\w+(?: pid=\d+)?\)\s*|^(?:ERROR|WARNING|INFO) \d\d-\d\d [\d:]+ \[[^\]]*\]\s*"
)
ERROR_LINE = re.compile(r"^(?:[\w.]+\.)?\w*(?:Error|Exception)\b(?:: .+)$")
CONSEQUENCE = ("Engine core initialization failed", "Engine core proc", "WorkerProc initialization failed")
MAX_LENGTH = 300


@dataclass(frozen=True)
class Cause:
    """`pattern` is looked for in each line; its groups fill `reason`."""

    pattern: re.Pattern[str]
    reason: str


CAUSES = tuple(
    Cause(re.compile(pattern, re.IGNORECASE), reason)
    for pattern, reason in (
        (r"error: unrecognized arguments: (.+)", "engine.args: this vLLM does not know {0}"),
        (r"error: (argument .+)", "engine.args: {0}"),
        (r"error: (ambiguous option: .+)", "engine.args: {0}"),
        (
            r"No common block size for (\d+)",
            "tokenizer.block_size: this engine has no blocks of {0} tokens; try 32 (CPU) or 16, and prepare again",
        ),
        (
            r"(?:CUDA|HIP|NPU|XPU) out of memory|OutOfMemoryError|out of memory. Tried to allocate",
            (
                "out of memory on the accelerator; lower engine.kv_cache_gib or --gpu-memory-utilization, "
                "or give it more GPUs (--tensor-parallel-size)"
            ),
        ),
        (
            (
                r"No available memory for the cache blocks|larger than the available KV cache memory"
                r"|Free memory on device .* is less than desired|Not enough (?:CPU )?memory|Insufficient memory"
                r"|exceeds? (?:the )?available (?:CPU )?memory"
            ),
            (
                "out of memory for the KV cache; lower --max-model-len or engine.kv_cache_gib, "
                "or raise --gpu-memory-utilization"
            ),
        ),
        (
            r"No space left on device.*(?:shm|psm)|(?:shm|psm).*No space left on device|Bus error",
            "no room in shared memory; raise engine.shm_size",
        ),
        (
            (
                r"Failed to infer device type|No CUDA GPUs are available|Found no NVIDIA driver"
                r"|libcuda\.so\S*: cannot open|no NVIDIA GPU detected|CUDA-capable device"
            ),
            (
                "it found no GPU; install the NVIDIA Container Toolkit and set engine.gpus, "
                "or use a CPU image (engine.image)"
            ),
        ),
        (
            r"MemoryError|Cannot allocate memory|DefaultCPUAllocator: (?:can't|not enough)",
            "out of memory; lower engine.kv_cache_gib or the number of ranks",
        ),
        (
            (
                r"Repository Not Found|Invalid repository ID or local directory"
                r"|does not appear to have a file named config\.json|LocalEntryNotFoundError"
                r"|is not a local folder and is not a valid model identifier|Incorrect path_or_model_id"
                r"|Can't load the configuration of|Cannot find any model weights"
                r"|No such file or directory:? '?\S*\.safetensors"
            ),
            (
                "tokenizer.path: the model is missing or not whole there; name a directory that holds config, "
                "tokenizer and weights"
            ),
        ),
        (
            r"(?:GatedRepoError|401 Client Error|403 Client Error)",
            "the model hub refused access; hand on a token (engine.env_from: [HF_TOKEN])",
        ),
        (
            r"requires you to execute .* in that repo|set the option `?trust_remote_code=True",
            "the model brings its own code; set tokenizer.trust_remote_code",
        ),
        (
            r"Permission denied: '([^']+)'",
            "the engine's user may not read {0} in the container; make it readable (chmod -R a+rX)",
        ),
        (
            r"[Aa]ddress already in use",
            "its port is taken inside the container; remove port settings from engine.args",
        ),
    )
)


def reason_of(log: str, *, exit_code: int | None, out_of_memory: bool) -> str:
    """One line. `exit_code` None: it still runs; `out_of_memory`: the kernel killed a process of the container."""
    if out_of_memory:
        return "the kernel killed it: out of memory on the host; lower engine.kv_cache_gib or the number of ranks"
    lines = [plain(line) for line in log.splitlines()]
    for cause in CAUSES:
        for line in lines:
            found = cause.pattern.search(line)
            if found:
                return cause.reason.format(*(group.strip() for group in found.groups()))[:MAX_LENGTH]
    if exit_code == KILLED:
        return "it was killed (out of memory on the host, or by somebody)"
    named = [
        line for line in lines if ERROR_LINE.match(line) and not any(text in line for text in CONSEQUENCE)
    ]
    if named:
        return named[-1][:MAX_LENGTH]
    if exit_code is not None:
        return f"it ended with exit code {exit_code} and named no cause"
    return "it named no cause"


def plain(line: str) -> str:
    """A log line without colours and without the prefixes of process and logger."""
    text = ANSI.sub("", line).strip()
    while (shorter := PROCESS_PREFIX.sub("", text, count=1)) != text:
        text = shorter
    return text.strip()


def tail(log: str, lines: int = 40) -> str:
    return "\n".join(log.splitlines()[-lines:])
