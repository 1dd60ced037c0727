"""How the choices of a request come to run on the pages of one prompt."""

from collections.abc import Sequence as Replicas

from control_plane.core.replica import Replica
from control_plane.core.sequence import Sequence
from control_plane.core.sibling_group import SiblingGroup
from control_plane.core.waiting_queue import WaitingQueue


class PromptSharing:
    """Opens groups when the prompt is acknowledged, and sees to it that workers keep its pages no longer than a sibling may need them."""

    def __init__(self, replicas: Replicas[Replica], waiting: WaitingQueue) -> None:
        self._replicas = replicas
        self._waiting = waiting
        self._leaders: list[Sequence] = []  # that ran, and whose groups are closed

    def started(self, group: SiblingGroup, sequence: Sequence) -> None:
        """Note that a choice was admitted."""
        assert group.is_open or sequence is group.leader
        group.admitted(sequence)
        if not group.is_open and sequence not in self._leaders:
            self._leaders.append(sequence)
        self._unshare_if_served(group)

    def open_groups(self) -> None:
        """Let the siblings of leaders run whose prompt was acknowledged, on its pages or elsewhere."""
        for leader in [leader for leader in self._leaders if leader.num_acked_tokens >= leader.num_prompt_tokens]:
            group, replica = leader.group, leader.replica
            assert group is not None and replica is not None
            self._leaders.remove(leader)
            siblings = group.open()
            if siblings:
                replica.share(leader, group)
            for sibling in siblings:
                sibling.hashes.adopt(leader.hashes, leader.num_prompt_tokens)
                self._waiting.unpark(sibling)

    def leave(self, group: SiblingGroup, sequence: Sequence) -> None:
        """Note that a choice ended or is held; the next one leads if need be."""
        if sequence in self._leaders:
            self._leaders.remove(sequence)
        next_leader = group.leave(sequence)
        if next_leader is not None:
            self._waiting.unpark(next_leader)
        self._unshare_if_served(group)

    def clear(self) -> None:
        """Forget all."""
        self._leaders.clear()

    def _unshare_if_served(self, group: SiblingGroup) -> None:
        if group.is_served:
            for replica in self._replicas:
                replica.unshare(group)
