"""What a grammar may cost."""

from typing import Any

#: Keywords of llguidance.LLParserLimits. The library's own defaults allow 20 ms a mask, and half a gigabyte for one sequence.
PARSER_LIMITS: dict[str, Any] = {
    "max_items_in_row": 1_000,
    "initial_lexer_fuel": 500_000,
    "step_lexer_fuel": 50_000,
    "step_max_items": 20_000,
    "max_lexer_states": 20_000,  # one to two kilobytes each
    "max_grammar_size": 100_000,
    "precompute_large_lexemes": False,
    "verbose_errors": False,
}

#: Of the engine's thread, for one sequence. A mask usually takes less than a tenth of its share; an ambiguous grammar takes ever more.
CPU_SECONDS_AT_ONCE = 0.2
CPU_SECONDS_PER_TOKEN = 0.002

#: Of the process that compiles a grammar for the first time. The stack is smaller than those of our own threads.
TRIAL_CPU_SECONDS = 2
TRIAL_MEMORY_BYTES = 768 << 20
TRIAL_STACK_BYTES = 4 << 20
