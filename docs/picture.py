"""Makes docs/report.png, a picture of report.html of the quickstart example: `make docs`, where it is absent.

Needs a Chromium (Debian: apt-get install chromium).
"""

import io
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml
from PIL import Image

REPOSITORY = Path(__file__).resolve().parents[1]
PICTURE = REPOSITORY / "docs" / "report.png"
EXAMPLE = REPOSITORY / "examples" / "quickstart" / "quickstart.yaml"
WIDTH, HEIGHT = 1180, 1680
COLOURS = 64


def report_of_the_example(folder: Path) -> Path:
    """Prepares and runs the example; the path of its report.html."""
    document = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    document["run"]["output_dir"] = str(folder / "outputs")
    scenario = folder / "quickstart.yaml"
    scenario.write_text(yaml.safe_dump(document), encoding="utf-8")
    hitlab = [str(Path(sys.executable).with_name("hitlab")), "--quiet"]
    for command in (["prepare", "--mode", "text"], ["run"]):
        subprocess.run([*hitlab, *command, "--scenario", str(scenario)], check=True, cwd=REPOSITORY)  # noqa: S603
    (report,) = folder.glob("outputs_*/result/runs/*/report.html")
    return report


def screenshot(chromium: str, page: Path, folder: Path) -> bytes:
    """The top of a page, as PNG with few colours."""
    raw = folder / "raw.png"
    subprocess.run(  # noqa: S603
        [chromium, "--headless", "--no-sandbox", "--hide-scrollbars", f"--window-size={WIDTH},{HEIGHT}",
         f"--user-data-dir={folder / 'profile'}", f"--screenshot={raw}", page.as_uri()],
        check=True, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    small = io.BytesIO()
    Image.open(raw).convert("RGB").quantize(COLOURS).save(small, "PNG", optimize=True)
    return small.getvalue()


def main() -> None:
    if PICTURE.exists():
        return
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        sys.exit("docs/report.png is absent and needs a browser: apt-get install chromium")
    with tempfile.TemporaryDirectory() as folder:
        PICTURE.write_bytes(screenshot(chromium, report_of_the_example(Path(folder)), Path(folder)))


if __name__ == "__main__":
    main()
