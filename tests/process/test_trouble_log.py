import logging

import pytest

from pypto_serving.process.trouble_log import TroubleLog

_LOG = logging.getLogger("test.troubles")


class Story:
    """Troubles at times, and what is said of them."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO, "test.troubles")
        self._caplog = caplog
        self.now = 0.0
        self.log = TroubleLog(_LOG, lambda: self.now)

    def note(self, now: float, trouble: str = "connection refused", is_missing: bool = True) -> None:
        self.now = now
        self.log.note(trouble, is_missing, worker="w:1")

    @property
    def said(self) -> list[tuple[str, str]]:
        return [(record.levelname, record.getMessage()) for record in self._caplog.records]


@pytest.fixture
def story(caplog: pytest.LogCaptureFixture) -> Story:
    return Story(caplog)


def test_who_is_not_there_yet_is_no_warning_until_a_minute_has_passed(story: Story) -> None:
    for now in (0.1, 0.2, 5.0, 59.0, 60.2, 61.0, 150.0, 180.3, 181.0):
        story.note(now)
    assert story.said == [("INFO", "not there yet: connection refused"), *[("WARNING", "connection refused")] * 2]


def test_who_is_lost_is_a_warning_at_once(story: Story) -> None:
    story.note(0.1)
    story.log.reached()
    story.note(1.0)
    story.note(2.0)
    assert story.said[1:] == [("WARNING", "connection refused")]


def test_a_refusal_is_a_warning_at_the_start_too(story: Story) -> None:
    story.note(0.1, "held by another for 3.1 s", is_missing=False)
    story.note(1.0, "held by another for 2.2 s", is_missing=False)
    assert story.said == [("WARNING", "held by another for 3.1 s")]


def test_reminders_become_rare(story: Story) -> None:
    for now in range(1, 24 * 3600):
        story.note(float(now), is_missing=False)
    assert len(story.said) == 1 + 6 + 22  # after 1, 2, 4, ..., 32 minutes, and then every hour
