"""Keeps the results of runs as those that the README's figures are made of.

    python -m demos.lab.keep DIR...

Each directory is what `suspended lab EXPERIMENT --out DIR` wrote, in a checkout without changes. Results that must not be
quoted are refused, each with its reason, and then none is kept. Afterwards `python -m tests.readme` writes the figures.
Run all experiments before the first is kept: a checkout that holds new results has changes that are in no commit.
"""

import gzip
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from demos.lab.kept_results import KEPT, complaints
from demos.lab.results import COMPRESSED, ResultsError, ResultsReader, plain_bytes, result_files

OK, FAILED, USAGE, REFUSED = 0, 1, 2, 3


def keep(directory: Path, folder: Path = KEPT) -> Path:
    """Keep what a directory holds, in place of what was kept of that experiment. The same results give the same bytes.

    The folder of the experiment. `OSError`, `ResultsError`; `complaints` is to be asked before.
    """
    paths = result_files(directory)
    into = folder / ResultsReader(paths[0]).header.experiment
    contents = {f"{path.name.removesuffix(COMPRESSED)}{COMPRESSED}": plain_bytes(path) for path in paths}
    if into.exists():
        shutil.rmtree(into)
    into.mkdir(parents=True)
    for name, content in contents.items():
        (into / name).write_bytes(gzip.compress(content, mtime=0))
    return into


def main(arguments: Sequence[str]) -> int:
    """The exit code: 0 kept, 1 a file could not be read or written, 2 wrong usage, 3 refused."""
    if not arguments or any(argument.startswith("-") for argument in arguments):
        print(__doc__)
        return OK if {"-h", "--help"} & {*arguments} else USAGE
    directories = [Path(argument) for argument in arguments]
    try:
        found = [(place, complaint) for place in directories for complaint in complaints(place)]
        for place, complaint in found:
            print(f"{place}: refused: {complaint}", file=sys.stderr)
        if found:
            return REFUSED
        for place in directories:
            into = keep(place)
            size = sum(path.stat().st_size for path in into.iterdir())
            print(f"{place}: kept as {into.name}, {size:,} bytes")
    except (ResultsError, OSError) as error:
        print(error, file=sys.stderr)
        return FAILED
    return OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
