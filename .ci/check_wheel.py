"""The wheel holds every file of the three packages, and besides them only its metadata."""

# ruff: noqa: T201  # printing is what it is for

import sys
from pathlib import Path
from zipfile import ZipFile

PACKAGES = ("demos", "engine", "protocol")


def main() -> int:
    """Compare the wheel named on the command line with the checkout; the exit code."""
    held = {name for name in ZipFile(sys.argv[1]).namelist() if ".dist-info/" not in name}
    wanted = {
        path.as_posix()
        for package in PACKAGES
        for path in Path(package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    for name in sorted(wanted - held):
        print(f"not in the wheel: {name}")
    for name in sorted(held - wanted):
        print(f"in the wheel, but not in the checkout: {name}")
    print(
        f"{len(held)} files, of these {sum(name.startswith('demos/broken/') for name in held)} to be repaired"
    )
    return 0 if held == wanted else 1


if __name__ == "__main__":
    sys.exit(main())
