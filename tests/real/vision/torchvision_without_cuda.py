"""The Python part of torchvision, for an engine on the CPU.

vLLM's modules for LLaVA, Qwen2-VL and many others import torchvision, whose wheel on the public index is built for CUDA
and cannot load its compiled operators beside a CPU build of torch. Resizing and normalising images needs none of them:
they are declared, so that the import goes through, and left without an implementation.
"""

import shutil
import subprocess
import tempfile
from pathlib import Path

from environments.cached import NotAvailableError

PIN = Path(__file__).parents[3] / "requirements" / "torchvision.txt"

DECLARATIONS = '''"""Names of torchvision's compiled operators, without the operators."""

import torch

LIBRARY = torch.library.Library("torchvision", "DEF")
for _name in (
    *("nms", "qnms", "roi_align", "qroi_align", "_roi_align_backward", "ps_roi_align", "_ps_roi_align_backward"),
    *("roi_pool", "_roi_pool_backward", "ps_roi_pool", "_ps_roi_pool_backward"),
    *("deform_conv2d", "_deform_conv2d_backward"),
):
    LIBRARY.define(f"{_name}(Tensor input) -> Tensor")
'''


def torchvision_folder(python: Path, cache: Path) -> Path:
    """A folder for PYTHONPATH; made once for each pin.

    `python`: the engine's interpreter. Raises NotAvailableError: the wheel cannot be had.
    """
    version = PIN.read_text(encoding="utf-8").split("torchvision==")[1].split()[0]
    folder = cache / f"torchvision-{version}"
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix="draft-", dir=cache))
    try:
        done = subprocess.run(
            [
                *(python, "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes"),
                *("--only-binary", ":all:", "--target", draft, "-r", PIN),
            ],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            said = [line for line in done.stderr.splitlines() if line.strip()]
            raise NotAvailableError(
                f"torchvision {version} cannot be installed ({said[-1] if said else 'no reason'})"
            )
        for library in draft.glob("torchvision/*.so"):
            library.unlink()
        shutil.rmtree(draft / "torchvision.libs", ignore_errors=True)
        (draft / "torchvision_operators.py").write_text(DECLARATIONS, encoding="utf-8")
        package = draft / "torchvision" / "__init__.py"
        package.write_text(
            "import torchvision_operators\n" + package.read_text(encoding="utf-8"), encoding="utf-8"
        )
        draft.chmod(0o755)
        draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return folder
