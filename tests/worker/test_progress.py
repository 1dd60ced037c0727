"""How long the slowest unit of work counts."""

from worker.progress import Phase, ProgressCounter, StallWatch, phase_bar, phase_facts


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


def test_a_phase_tells_what_is_left_while_it_is_known() -> None:
    loading = Phase("loading the model", 10, 120)
    assert phase_facts(loading, count=40, seconds=10.0) == {"done": "30 of 120", "seconds_left": 30}
    assert phase_facts(loading, 10, 10.0) == phase_facts(loading, 130, 10.0) == phase_facts(Phase("compiling", 0, 0), 5, 10.0) == {}
    assert phase_bar(loading, 40, 10.0) == f"loading the model {'━' * 6}{'╌' * 18} 30 of 120, 30 s left"
    assert phase_bar(Phase("compiling", 7, 0), 90, 12.0) == "compiling 12 s" and phase_bar(Phase("", 0, 0), 3, 1.0) == ""


def test_phases_count_from_where_they_begin() -> None:
    clock = Clock()
    progress = ProgressCounter(clock)
    progress.expect_tensors(3)
    for _ in range(3):
        progress()
    clock.now = 5_000_000_000
    progress.enter("warming up", 4)
    clock.now = 17_000_000_000
    progress()
    assert progress.seconds_since(progress.phase) == 12
    assert (progress.phase.name, progress.count - progress.phase.begins_at, progress.phase.num_units) == ("warming up", 1, 4)
