"""Record anew what HitLab prints and writes:

python -m tests.hitlab.same_outputs             all scenarios
python -m tests.hitlab.same_outputs NAME...     these
"""

import json
import os
import sys
import tempfile
from pathlib import Path

from tests.hitlab.same_outputs.scenarios import SCENARIOS, outcome

RECORDED = Path(__file__).parent / "recorded"


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in SCENARIOS]
    if unknown:
        print(f"no such scenario: {', '.join(unknown)}; there are {', '.join(SCENARIOS)}", file=sys.stderr)
        return 2
    RECORDED.mkdir(exist_ok=True)
    for name in names or SCENARIOS:
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as runtime:
            os.environ["XDG_RUNTIME_DIR"] = runtime
            found = outcome(name, Path(folder).resolve())
        (RECORDED / f"{name}.json").write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
        print(name)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
