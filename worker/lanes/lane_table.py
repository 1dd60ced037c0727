"""The lanes of a worker: everything it keeps about live sequences."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from pypto_serving.wire.digest import StateDigest
from worker.batch import BatchColumns, ScheduledLanes, UnreadTokens
from worker.lanes.page_table import PageTables
from worker.lanes.step_rules import LaneRecords, StepRules, lane_records
from worker.sampling.logprobs import PromptRows
from worker.sampling.sampling_rows import SamplingRows, SamplingTable, TokenMasks
from worker.sampling.token_entries import LaneTokenLists, TokenEntries
from worker.step import Bools, CacheGroup, Ints, RunnerLimits, Step


@dataclass(frozen=True, slots=True)
class LaneOutcomes:
    """What became of the lanes that ran, as the host reads it."""

    lanes: Ints  # [B]
    generations: Ints  # [B]
    indices: Ints  # [B]: of the token that is drawn, in its sequence
    token_ids: Ints  # [B]
    drawn: Bools  # [B]: whether there is one
    failed: Bools  # [B]: whether the lane cannot go on

    def only(self, wanted: Bools) -> "LaneOutcomes":
        """Those of the lanes marked in `wanted`."""
        return LaneOutcomes(*(getattr(self, name)[wanted] for name in LaneOutcomes.__slots__))


class LaneTable:
    """State of every lane in columns. One thread owns it.

    A step is checked against a copy of the small columns; tokens and pages follow once it is known to be valid.

           released              admitted            end token, final length, lane error
        FREE <------- any ... FREE -------> RUNNING ------------------------------------> ENDED (runs nothing until released)

    A step is applied and advanced when it is launched, and settled when the host has read what was drawn. One more step may be launched in
    between: it takes every lane that draws for one that goes on. So the digest, which needs the tokens, follows when a step is settled.
    """

    def __init__(self, limits: RunnerLimits, groups: Sequence[CacheGroup]) -> None:
        self._rules = StepRules(limits, groups)
        self._records: LaneRecords = lane_records(limits.max_lanes, len(groups))
        # Touched, and thus backed by memory, only as far as sequences reach.
        self._tokens: npt.NDArray[np.int32] = np.zeros((limits.max_lanes, limits.max_model_len), dtype=np.int32)
        self._end_tokens = LaneTokenLists(limits.max_lanes)
        self._sampling = SamplingTable(limits.max_lanes)
        self._digest = StateDigest(limits.max_lanes, len(groups))
        self._unread: tuple[Ints, Tensor] | None = None  # by lane, the place of its last token in the other, -1: the host knows it
        self.pages = PageTables(limits.max_lanes, groups, self._rules.max_table_lengths)

    @property
    def digest(self) -> int:
        """Hash of the state as far as it is settled."""
        return self._digest.value

    @property
    def generations(self) -> Ints:
        """Generation of each lane; -1 if it never had one."""
        generations: Ints = self._records["generation"]
        return generations

    def apply(self, step: Step) -> ScheduledLanes:
        """Release, admit, trim and grow, and pick the lanes that run; raises InvalidStep without any effect."""
        records = self._records.copy()
        scheduled = self._rules.apply(records, step)
        self._records = records
        for admission in step.admissions:
            lane = admission.lane
            self._tokens[lane, : len(admission.token_ids)] = admission.token_ids
            self._end_tokens.put(lane, admission.end_token_ids)
            self._sampling.admit(admission)
            self.pages.admit(lane, admission.partition, admission.page_tables)
            if self._unread is not None:
                self._unread[0][lane] = -1
        self.pages.trim(step.trimmed_lanes, step.trimmed_groups, step.trimmed_entries)
        self.pages.grow(step.grown_lanes, step.grown_groups, step.grown_pages)
        return scheduled

    def advance(self, scheduled: ScheduledLanes) -> None:
        """Note that `scheduled` is computed and that every lane of it that samples gets a token; the final length ends a lane."""
        self._records["num_computed"][scheduled.lanes] += scheduled.counts
        lanes = scheduled.lanes[scheduled.samples]
        self._records["num_tokens"][lanes] += 1
        self._records["ended"][lanes] = self._records["num_tokens"][lanes] >= self._records["final_length"][lanes]

    def leave_unread(self, lanes: Ints, token_ids: Tensor) -> None:
        """Let the next step take the last token of each of `lanes` from `token_ids` [lanes] on the device."""
        places = np.full(len(self._records), -1)
        places[lanes] = np.arange(len(lanes))
        self._unread = places, token_ids

    def settle(self, step: Step, outcomes: LaneOutcomes) -> Ints:
        """Take in what came of `step`; every step is settled, in order. Returns the lanes that end with an end token or have failed."""
        self._settle_digest(step, outcomes.only(outcomes.drawn))
        # A step launched since may have given a lane to another sequence.
        lanes = outcomes.lanes
        here = self._records["live"][lanes] & (self._records["generation"][lanes] == outcomes.generations)
        drawn = outcomes.only(here & outcomes.drawn)
        self._tokens[drawn.lanes, drawn.indices] = drawn.token_ids
        self._sampling.append(drawn.lanes, drawn.token_ids)
        ends = self._end_tokens.gather(drawn.lanes)
        at_end = ends.rows[drawn.token_ids[ends.rows] == ends.token_ids]
        ended = np.concatenate([drawn.lanes[at_end], lanes[here & outcomes.failed]])
        self._records["ended"][ended] = True
        return ended

    def _settle_digest(self, step: Step, drawn: LaneOutcomes) -> None:
        self._digest.release(step.released_lanes)
        for admission in step.admissions:
            self._digest.admit(admission.lane, admission.generation, admission.token_ids, admission.page_tables)
        self._digest.trim(step.trimmed_lanes, step.trimmed_groups, step.trimmed_entries)
        self._digest.grow(step.grown_lanes, step.grown_groups, step.grown_pages)
        self._digest.append(drawn.lanes.astype(np.uint32), drawn.token_ids.astype(np.uint32))

    def clear(self) -> None:
        """Forget everything, generations too."""
        self._records = lane_records(len(self._records), self._records["num_pages"].shape[1])
        self._end_tokens.clear()
        self._sampling.clear()
        self._digest.clear()
        self._unread = None

    def token_ids(self, lanes: Ints, positions: Ints) -> Ints:
        """The tokens of `lanes` at `positions`, as far as the host knows them."""
        return self._tokens[lanes, positions].astype(np.int64)

    def unread(self, lanes: Ints, positions: Ints) -> UnreadTokens | None:
        """Which of the tokens of `lanes` at `positions` only the device knows."""
        if self._unread is None:
            return None
        places, token_ids = self._unread
        sources = np.where(positions == self._records["num_tokens"][lanes] - 1, places[lanes], -1)
        rows = np.flatnonzero(sources >= 0)
        return UnreadTokens(rows, sources[rows], token_ids) if len(rows) else None

    def end_tokens(self, lanes: Ints) -> TokenEntries:
        """The tokens that end `lanes`; row i is lane `lanes[i]`."""
        return self._end_tokens.gather(lanes)

    def sampling_rows(self, lanes: Ints, masks: dict[int, bytes]) -> SamplingRows:
        """How the next token of each of `lanes` is drawn; `masks` are those of the step."""
        num_tokens = self._records["num_tokens"][lanes]
        columns = self._sampling.columns(lanes)
        ends = self._end_tokens.gather(lanes)
        masked = [row for row, lane in enumerate(lanes.tolist()) if lane in masks] if masks else []
        return SamplingRows(
            columns=columns,
            indices=num_tokens,
            banned=ends.only((num_tokens < self._records["min_length"][lanes])[ends.rows]),
            biases=self._sampling.biases(lanes),
            history=self._sampling.history(lanes),
            unread=self.unread(lanes, np.where(columns.penalised, num_tokens - 1, -1)),
            masks=TokenMasks.unpack(masked, [masks[lane] for lane in lanes[masked].tolist()]),
        )

    def batch_columns(self, scheduled: ScheduledLanes, prompt_rows: Ints) -> BatchColumns:
        """The batch of some lanes, at least one; wanted are the logits of the rows that sample, in order, and then of `prompt_rows`."""
        row_lanes = scheduled.lanes[scheduled.row_sequences]
        max_tokens = int((scheduled.starts + scheduled.counts).max())
        groups = range(self.pages.num_groups)
        return BatchColumns(
            token_ids=self.token_ids(row_lanes, scheduled.positions),
            positions=scheduled.positions,
            slots=tuple(self.pages.slots(group, row_lanes, scheduled.positions) for group in groups),
            page_tables=tuple(self.pages.gather(group, scheduled.lanes, max_tokens) for group in groups),
            row_ends=scheduled.row_ends,
            logit_rows=np.concatenate([scheduled.row_ends[scheduled.samples] - 1, prompt_rows]),
            max_tokens=max_tokens,
            unread=self.unread(row_lanes, scheduled.positions),
        )

    def prompt_rows(self, scheduled: ScheduledLanes) -> PromptRows:
        """The token rows whose logits tell about prompt tokens, of the lanes that want their log probabilities."""
        row_lanes = scheduled.lanes[scheduled.row_sequences]
        num_top = self._sampling.columns(scheduled.lanes).prompt_logprobs[scheduled.row_sequences]
        rows = np.flatnonzero((num_top >= 0) & (scheduled.positions + 1 < self._records["num_prompt_tokens"][row_lanes]))
        lanes, indices = row_lanes[rows], scheduled.positions[rows] + 1
        return PromptRows(rows, lanes, self.generations[lanes], num_top[rows], self.token_ids(lanes, indices), indices)
