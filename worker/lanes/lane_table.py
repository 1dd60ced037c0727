"""The lanes of a worker: everything it keeps about live sequences."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pypto_serving.wire.digest import StateDigest
from worker.lanes.page_table import PageTables
from worker.lanes.step_rules import Bools, Ints, LaneRecords, Run, StepRules, lane_records
from worker.lanes.token_entries import LaneTokenLists
from worker.limits import RunnerLimits
from worker.sampling.sampling_rows import SamplingColumns, SamplingRows, SamplingTable, TokenMasks
from worker.step import CacheGroup, StepInput


class LaneTable:
    """State of every lane in columns. One thread owns it.

    A step is checked against a copy of the small columns; tokens, pages and digest follow once it is known to be valid.

           released              admitted            end token, final length, lane error
        FREE <------- any ... FREE -------> RUNNING ------------------------------------> ENDED (runs nothing until released)
    """

    def __init__(self, limits: RunnerLimits, groups: Sequence[CacheGroup]) -> None:
        self._rules = StepRules(limits, groups)
        self._records: LaneRecords = lane_records(limits.max_lanes, len(groups))
        # Touched, and thus backed by memory, only as far as sequences reach.
        self._tokens: npt.NDArray[np.int32] = np.zeros((limits.max_lanes, limits.max_model_len), dtype=np.int32)
        self._end_tokens = LaneTokenLists(limits.max_lanes)
        self._sampling = SamplingTable(limits.max_lanes)
        self._digest = StateDigest(limits.max_lanes, len(groups))
        self.pages = PageTables(limits.max_lanes, groups, self._rules.max_table_lengths)

    @property
    def digest(self) -> int:
        """Hash of the state."""
        return self._digest.value

    @property
    def generations(self) -> Ints:
        """Generation of each lane; -1 if it never had one."""
        generations: Ints = self._records["generation"]
        return generations

    def apply(self, step: StepInput) -> Run:
        """Release, admit, trim and grow, and pick the lanes that run; raises InvalidStep without any effect."""
        records = self._records.copy()
        run = self._rules.apply(records, step)
        self._records = records
        self._digest.release(step.released_lanes)
        for admission in step.admissions:
            lane = admission.lane
            self._tokens[lane, : len(admission.token_ids)] = admission.token_ids
            self._end_tokens.put(lane, admission.end_token_ids)
            self._sampling.admit(admission)
            self.pages.admit(lane, admission.partition, admission.page_tables)
            self._digest.admit(lane, admission.generation, admission.token_ids, admission.page_tables)
        self.pages.trim(step.trimmed_lanes, step.trimmed_groups, step.trimmed_entries)
        self._digest.trim(step.trimmed_lanes, step.trimmed_groups, step.trimmed_entries)
        self.pages.grow(step.grown_lanes, step.grown_groups, step.grown_pages)
        self._digest.grow(step.grown_lanes, step.grown_groups, step.grown_pages)
        return run

    def advance(self, run: Run) -> None:
        """Note that `run` has been computed."""
        self._records["num_computed"][run.lanes] += run.counts

    def append(self, lanes: Ints, token_ids: Ints) -> None:
        """Append one drawn token to each of `lanes`; an end token or the final length ends the lane."""
        self._tokens[lanes, self._records["num_tokens"][lanes]] = token_ids
        self._records["num_tokens"][lanes] += 1
        self._sampling.append(lanes, token_ids)
        self._digest.append(lanes.astype(np.uint32), token_ids.astype(np.uint32))
        ends = self._end_tokens.gather(lanes)
        ended = self._records["num_tokens"][lanes] >= self._records["final_length"][lanes]
        ended[ends.rows[token_ids[ends.rows] == ends.token_ids]] = True
        self._records["ended"][lanes[ended]] = True

    def end(self, lanes: Ints) -> None:
        """Note that `lanes` can not go on."""
        self._records["ended"][lanes] = True

    def clear(self) -> None:
        """Forget everything, generations too."""
        self._records = lane_records(len(self._records), self._records["num_pages"].shape[1])
        self._end_tokens.clear()
        self._sampling.clear()
        self._digest.clear()

    def token_ids(self, lanes: Ints, positions: Ints) -> Ints:
        """The known tokens of `lanes` at `positions`."""
        return self._tokens[lanes, positions].astype(np.int64)

    def sampling_columns(self, lanes: Ints) -> SamplingColumns:
        """Sampling parameters of `lanes`."""
        return self._sampling.columns(lanes)

    def sampling_rows(self, lanes: Ints, masks: dict[int, bytes]) -> SamplingRows:
        """How the next token of each of `lanes` is drawn; `masks` are those of the step."""
        num_tokens = self._records["num_tokens"][lanes]
        columns = self.sampling_columns(lanes)
        ends = self._end_tokens.gather(lanes)
        masked = [row for row, lane in enumerate(lanes.tolist()) if lane in masks] if masks else []
        return SamplingRows(
            columns=columns,
            indices=num_tokens,
            banned=ends.only((num_tokens < self._records["min_length"][lanes])[ends.rows]),
            biases=self._sampling.biases(lanes),
            history=self._sampling.history(lanes),
            masks=TokenMasks.unpack(masked, [masks[lane] for lane in lanes[masked].tolist()]),
        )

    def reports_prompt(self, run: Run) -> Bools:
        """For each token row of `run`, whether its logits tell about a prompt token of a lane that wants to know."""
        lanes = run.lanes[run.row_sequences]
        wanted: Bools = self.sampling_columns(run.lanes).prompt_logprobs[run.row_sequences] >= 0
        return wanted & (run.positions + 1 < self._records["num_prompt_tokens"][lanes])
