from control_plane.core.sampling import SamplingParams
from control_plane.core.sequence import Sequence
from control_plane.core.waiting_queue import WaitingQueue


def waiting(name, order=0.0, numerics_id=None) -> Sequence:
    sequence = Sequence(name, 0, [1, 2, 3], 3, 8, 3, frozenset(), SamplingParams(), arrival_time=0.0)
    sequence.order, sequence.numerics_id = (order, int(name)), numerics_id
    return sequence


def names(queue) -> list[str]:
    taken = list(queue.candidates())
    for sequence in taken:
        queue.put_back(sequence)
    return [sequence.request_id for sequence in taken]


def test_candidates_come_in_order_and_keep_their_place():
    queue = WaitingQueue()
    queue.strand(["n"], 0.0)
    for name, order in (("1", 2.0), ("2", 0.0), ("3", 0.0)):
        queue.push(waiting(name, order), 0.0)
    assert names(queue) == names(queue) == ["2", "3", "1"]


def test_a_removed_sequence_does_not_come_again():
    queue = WaitingQueue()
    queue.strand(["n"], 0.0)
    first, second = waiting("1"), waiting("2")
    queue.push(first, 0.0)
    queue.push(second, 0.0)
    queue.remove(first)
    assert names(queue) == ["2"]
    assert (len(queue), queue.num_tokens) == (1, 3)


def test_sequences_without_a_worker_are_in_nobodys_way():
    queue = WaitingQueue()
    queue.strand(["n"], 0.0)
    queue.push(waiting("1", numerics_id="gone"), 0.0)
    queue.push(waiting("2"), 0.0)
    assert names(queue) == ["2"]
    assert queue.num_stranded == 1


def test_the_grace_time_starts_when_the_last_worker_goes():
    queue = WaitingQueue()
    queue.strand(["n"], 0.0)
    sequence = waiting("1", numerics_id="n")
    queue.push(sequence, 1.0)
    assert queue.next_overdue(30.0) is None
    queue.strand(["other"], 10.0)
    assert queue.next_overdue(30.0) == 40.0
    assert queue.overdue(39.0, 30.0) == []
    assert queue.overdue(40.0, 30.0) == [sequence]


def test_the_heap_does_not_keep_removed_sequences():
    queue = WaitingQueue()
    queue.strand(["n"], 0.0)
    sequences = [waiting(str(index)) for index in range(1000)]
    for sequence in sequences:
        queue.push(sequence, 0.0)
    for sequence in sequences:
        queue.remove(sequence)
    assert sum(len(bucket.heap) for bucket in queue._buckets.values()) <= 64
