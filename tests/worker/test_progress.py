"""How long the slowest unit of work counts."""

from worker.progress import ProgressCounter, StallWatch, loading_facts


class Clock:
    """Nanoseconds that a test moves by hand."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


def count_unit(progress: ProgressCounter, clock: Clock, seconds: float) -> None:
    progress.begin()
    clock.now += int(seconds * 1e9)
    progress()


def test_slowest_unit_is_kept_for_a_minute_or_two() -> None:
    clock = Clock()
    progress = ProgressCounter(clock)
    count_unit(progress, clock, seconds=3600)  # it stood still
    for _ in range(599):
        assert progress.slowest_unit_us == 3_600_000_000
        count_unit(progress, clock, seconds=0.1)
    for _ in range(602):
        count_unit(progress, clock, seconds=0.1)
    assert (progress.slowest_unit_us, progress.count) == (100_000, 1202)


def test_slowest_unit_is_forgotten_after_an_idle_hour() -> None:
    clock = Clock()
    progress = ProgressCounter(clock)
    count_unit(progress, clock, seconds=30)
    clock.now += int(3600e9)
    progress.begin()  # what begins now may hang
    assert progress.slowest_unit_us == 0


def test_hst_06_slowest_unit_of_the_warm_up_counts_for_ever() -> None:
    clock = Clock()
    progress = ProgressCounter(clock)
    count_unit(progress, clock, seconds=9)  # loading
    progress.forget_slowest()
    count_unit(progress, clock, seconds=4)
    progress.end_warm_up()
    clock.now += int(3600e9)
    count_unit(progress, clock, seconds=0.1)
    assert progress.slowest_unit_us == 4_000_000


def test_a_stall_lasts_while_there_is_work_and_nothing_moves() -> None:
    watch = StallWatch()
    seconds = []
    for count, has_work, now in ((0, False, 0.0), (0, True, 50.0), (0, True, 200.0), (1, True, 210.0), (1, True, 211.0), (1, False, 900.0)):
        watch.look(count, has_work, now)
        seconds.append(watch.seconds)
    assert seconds == [0.0, 50.0, 200.0, 0.0, 1.0, 0.0]


def test_loading_tells_what_is_left_while_it_is_known() -> None:
    assert loading_facts(count=30, num_tensors=120, seconds=10.0) == {"tensors": "30 of 120", "seconds_left": 30}
    assert loading_facts(0, 120, 10.0) == loading_facts(5, 0, 10.0) == loading_facts(120, 120, 10.0) == {}
