"""Every golden transcript, played again, must come out as it is written."""

from pathlib import Path

import pytest
from transcripts import play, transcripts


@pytest.mark.spec("J5", "J7", "J8", "J13", "J14", "H2", "H3", "H4", "H6", "N7", "N9")
@pytest.mark.parametrize("path", transcripts(), ids=lambda path: path.stem)
def test_transcript(path: Path) -> None:
    written = path.read_text()

    assert play(written) == written, (
        "read the difference; if it is right: python tests/scenarios/transcripts.py --rewrite"
    )
