"""Search for inputs that break a reader, guided by coverage.

    python tests/fuzz/search.py TARGET SECONDS [FOLDER]

``make fuzz`` runs all targets, ten minutes in all. atheris comes with the extra ``fuzz``; no test
needs it. What is found lies in FOLDER/TARGET (default: .fuzz) as ``crash-…``: copy it to
``tests/fuzz/crashes/TARGET/``, where `test_fuzz.py` replays it for ever, and mend it.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

# It has no types, and is not installed everywhere.
atheris: Any = importlib.import_module("atheris")

sys.path[0] = str(Path(__file__).parents[1])

with atheris.instrument_imports(include=["ctxpipe"]):
    from fuzz.targets import SEEDS, TARGETS


def main() -> None:
    name, seconds = sys.argv[1], int(sys.argv[2])
    folder = Path(sys.argv[3] if len(sys.argv) > 3 else ".fuzz") / name
    corpus = folder / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(SEEDS[name]):
        (corpus / f"seed-{number}").write_bytes(seed)
    options = [
        f"-max_total_time={seconds}",
        "-max_len=4096",
        "-timeout=20",
        f"-artifact_prefix={folder}{os.sep}",
    ]
    atheris.Setup([sys.argv[0], *options, str(corpus)], TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
