"""Prints a folder as an archive in text between two marks; run from its source where the results lie."""

import base64
import io
import sys
import tarfile
from pathlib import Path

BEGIN, END = "-----BEGIN RAYSWEEP RESULTS-----", "-----END RAYSWEEP RESULTS-----"
LINE_LENGTH = 76


def as_text(folder: Path) -> str:
    """The folder as a compressed archive in base64, in lines, between the marks."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:xz") as archive:
        archive.add(folder, arcname=".")
    encoded = base64.b64encode(packed.getvalue()).decode()
    lines = [encoded[start : start + LINE_LENGTH] for start in range(0, len(encoded), LINE_LENGTH)]
    return "\n".join([BEGIN, *lines, END])


def main(folder: Path) -> int:
    """Print the folder; ends with 1 where it is not there."""
    if not folder.is_dir():
        print(f"{folder} is not there: the job has written no results on this node")
        return 1
    print(as_text(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
