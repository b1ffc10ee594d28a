"""What is installed: the package with its statements and its page, and no test."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_wheel_has_the_package_and_no_test(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    package = {name.partition("/")[2] for name in names if name.startswith("windlass/")}
    assert all(name.startswith(("windlass/", "windlass-")) for name in names)  # the second: about the distribution
    files = {path.relative_to(ROOT / "src/windlass").as_posix() for path in (ROOT / "src/windlass").rglob("*") if path.is_file()}
    assert package == {name for name in files if "__pycache__" not in name}
    assert {"page/index.html", "store/queries/runs.sql", "store/schema/0001_runs.sql", "py.typed"} <= package
    assert [name for name in package if Path(name).name.startswith(("test_", "conftest"))] == []
