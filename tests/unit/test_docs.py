"""The documentation against the code."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/troubleshooting.md").read_text()
# torch's own messages, which stand in no file of dda.
OF_TORCH = {"Failed to load the backend extension: dda"}
QUOTED = sorted(set(re.findall(r"^### `(.+)`$", PAGE, re.MULTILINE)) - OF_TORCH)


def literals(text: str) -> str:
    """Joins neighbouring string literals, as a compiler does, so that a message is in one piece."""
    return re.sub(r'"\s*\n\s*f?"', "", text)


@pytest.fixture(scope="module")
def code() -> str:
    files = [ROOT / "setup.py", *(ROOT / "csrc").rglob("*.cpp"), *(ROOT / "csrc").rglob("*.h")]
    files += (ROOT / "dda").rglob("*.py")
    return "\n".join(literals(path.read_text()) for path in files)


def test_page_quotes_messages():
    assert len(QUOTED) >= 10


@pytest.mark.parametrize("text", QUOTED)
def test_quoted_message_exists(text, code):
    assert text in code
