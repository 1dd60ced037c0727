import itertools

from control_plane.core.sampling import SamplingParams
from control_plane.core.sequence import Sequence
from control_plane.core.sibling_group import SiblingGroup
from control_plane.core.waiting_queue import WaitingQueue


def waiting(name, order=0.0, numerics_id=None, group=None) -> Sequence:
    sequence = Sequence(name, int(name), [1, 2, 3], 3, 8, 3, frozenset(), SamplingParams(), arrival_time=0.0, group=group)
    sequence.order, sequence.numerics_id = (order, 0.0, int(name)), numerics_id
    return sequence


def names(queue) -> list[str]:
    return [sequence.request_id for sequence in itertools.takewhile(bool, map(queue.candidate, itertools.count()))]


def test_candidates_come_in_order():
    queue = WaitingQueue()
    queue.strand({"n": 99}, 0.0)
    for name, order in (("1", 2.0), ("2", 0.0), ("3", 0.0)):
        queue.push(waiting(name, order), 0.0)
    assert names(queue) == ["2", "3", "1"]


def test_a_removed_sequence_does_not_come_again():
    queue = WaitingQueue()
    queue.strand({"n": 99}, 0.0)
    first, second = waiting("1"), waiting("2")
    queue.push(first, 0.0)
    queue.push(second, 0.0)
    queue.remove(first)
    assert names(queue) == ["2"]
    assert (len(queue), queue.num_tokens) == (1, 3)


def test_sequences_without_a_worker_are_in_nobodys_way():
    queue = WaitingQueue()
    queue.strand({"n": 99}, 0.0)
    queue.push(waiting("1", numerics_id="gone"), 0.0)
    queue.push(waiting("2"), 0.0)
    assert names(queue) == ["2"]
    assert queue.num_stranded == 1


def test_the_grace_time_starts_when_the_last_worker_goes():
    queue = WaitingQueue()
    queue.strand({"n": 99}, 0.0)
    sequence = waiting("1", numerics_id="n")
    queue.push(sequence, 1.0)
    assert queue.next_overdue(30.0) is None
    queue.strand({"other": 99}, 10.0)
    assert queue.next_overdue(30.0) == 40.0
    assert queue.overdue(39.0, 30.0) == []
    assert queue.overdue(40.0, 30.0) == [sequence]


def waiting_queue(num: int) -> tuple[WaitingQueue, list[Sequence]]:
    queue = WaitingQueue()
    queue.strand({"n": 99}, 0.0)
    sequences = [waiting(str(index)) for index in range(num)]
    for sequence in sequences:
        queue.push(sequence, 0.0)
    return queue, sequences


def pass_all(queue: WaitingQueue) -> list[str]:
    found = names(queue)
    while sequence := queue.candidate(0):
        queue.passed(sequence)
    return found


def test_the_first_that_did_not_fit_and_others_in_turn_are_recalled():
    queue, _ = waiting_queue(12)
    pass_all(queue)
    found = []
    for _ in range(3):
        queue.recall()
        found.append(pass_all(queue))
    assert found == [[*"0123", *turn] for turn in (["4", "5", "6", "7"], ["8", "9", "10", "11"], ["4", "5", "6", "7"])]


def test_only_the_first_is_recalled_while_there_are_enough_others():
    queue, sequences = waiting_queue(20)
    for sequence in sequences[:10]:
        queue.passed(sequence)
    queue.recall()
    assert names(queue) == ["0", *(str(index) for index in range(10, 20))]


def test_the_next_is_recalled_after_one_that_fits_now():
    queue, sequences = waiting_queue(20)
    pass_all(queue)
    queue.recall()
    queue.admitted(sequences[3])
    assert names(queue) == ["0", "1", "2", *"45678"]


def test_overtakes_count_from_when_a_sequence_did_not_fit():
    queue, sequences = waiting_queue(6)
    queue.admitted(sequences[5])
    queue.passed(sequences[1])
    queue.admitted(sequences[2])
    queue.passed(sequences[3])
    queue.admitted(sequences[4])
    queue.admitted(sequences[0])
    assert [queue.num_overtakes(sequences[index]) for index in (1, 3)] == [2, 1]


def test_a_parked_sequence_waits_but_is_no_candidate_until_it_is_unparked():
    queue, group = WaitingQueue(), SiblingGroup()
    queue.strand({"n": 99}, 0.0)
    sequences = [waiting(name, group=group) for name in "123"]
    for sequence in sequences:
        group.join(sequence)
        queue.push(sequence, 0.0)
    queue.strand({"n": 99, "m": 99}, 0.0)
    assert (names(queue), len(queue)) == (["1"], 3)
    queue.remove(sequences[2])
    group.open()
    queue.unpark(sequences[1])
    assert names(queue) == ["1", "2"]


def test_numerics_ids_under_which_nobody_waits_leave_nothing_behind():
    queue = WaitingQueue()
    queue.strand({"n": 99}, 0.0)
    for index in range(100):
        sequence = waiting(str(index), numerics_id=f"gone{index}")
        queue.push(sequence, 0.0)
        queue.remove(sequence)
    assert not queue._buckets


def test_overtakes_count_anew_for_a_sequence_that_was_away():
    queue, sequences = waiting_queue(4)
    for sequence in sequences[:2]:
        queue.passed(sequence)
    queue.remove(sequences[1])
    queue.admitted(sequences[2])
    queue.push(sequences[1], 0.0)
    queue.passed(sequences[1])
    queue.admitted(sequences[3])
    assert [queue.num_overtakes(sequence) for sequence in sequences[:2]] == [2, 1]


def test_a_sequence_that_is_too_long_for_every_worker_waits_apart_until_the_grace_time_is_over():
    queue = WaitingQueue()
    queue.strand({"n": 7, "m": 8}, 0.0)
    free, tied = waiting("1"), waiting("2", numerics_id="n")
    for sequence in (free, tied):
        queue.push(sequence, 1.0)
    assert (names(queue), queue.num_stranded, queue.next_overdue(30.0)) == (["1"], 1, 31.0)
    queue.strand({"n": 7}, 10.0)
    assert (names(queue), queue.overdue(31.0, 30.0)) == ([], [tied])
    queue.strand({"n": 8}, 20.0)
    assert (names(queue), queue.num_stranded) == (["1", "2"], 0)
