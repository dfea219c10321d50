"""Makes img/report.png, the top of the report of the tutorial's run, as chromium shows it.

python docs/report_picture.py
"""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

DOCS = Path(__file__).parent
SIZE = "1000,1150"


def main() -> None:
    text = (DOCS / "tutorial.md").read_text()
    model = re.search(r"```python\n(# counts\.py\n.*?)```", text, re.DOTALL)
    commands = re.findall(r"^onedraw ((?:run|report) counts\..*)$", text, re.MULTILINE)
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if model is None or len(commands) != 2 or chromium is None:
        sys.exit("this needs counts.py, its run and its report in tutorial.md, and chromium")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "counts.py").write_text(model[1])
        for command in commands:
            subprocess.run([sys.executable, "-m", "onedraw", *command.split()], cwd=folder, check=True)
        given = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size={SIZE}"]
        picture = f"--screenshot={(DOCS / 'img' / 'report.png').resolve()}"
        subprocess.run([chromium, *given, picture, Path(folder, "counts.html").as_uri()], check=True)


if __name__ == "__main__":
    main()
