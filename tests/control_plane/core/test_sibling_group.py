from control_plane.core.sampling import SamplingParams
from control_plane.core.sequence import Sequence
from control_plane.core.sibling_group import SiblingGroup


def group_of(*choices: int) -> tuple[SiblingGroup, list[Sequence]]:
    group = SiblingGroup()
    sequences = [Sequence("r", choice, [1], 1, 8, 1, frozenset(), SamplingParams(), 0.0, group=group) for choice in choices]
    for sequence in sequences:
        group.join(sequence)
    return group, sequences


def test_siblings_are_parked_until_the_group_opens():
    group, sequences = group_of(0, 1, 2)
    assert [sequence.is_parked for sequence in sequences] == [False, True, True]
    assert group.open() == sequences[1:]
    assert not any(sequence.is_parked for sequence in sequences)


def test_the_lowest_choice_takes_over_from_a_leader_that_leaves():
    group, (first, second, third) = group_of(0, 2, 1)
    assert group.leave(first) is third
    assert (third.is_parked, second.is_parked) == (False, True)
    assert group.leave(second) is None


def test_nobody_takes_over_in_an_open_group():
    group, (first, second) = group_of(0, 1)
    group.open()
    assert group.leave(first) is None
    assert not second.is_parked


def test_a_group_is_served_when_its_last_sibling_runs_or_is_gone():
    group, (_, second, third) = group_of(0, 1, 2)
    group.open()
    group.admitted(second)
    assert not group.is_served
    group.leave(third)
    assert group.is_served


def test_who_comes_later_waits_for_nobody():
    group, (first,) = group_of(0)
    group.open()
    group.leave(first)
    group.join(first)
    assert not first.is_parked
