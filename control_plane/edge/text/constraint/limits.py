"""What a grammar may cost."""

from typing import Any

#: Keywords of llguidance.LLParserLimits. All of them count work, none of them time, so that a mask depends on nothing but tokens.
#: An object may have some 120 optional properties with these. A mask usually takes 0.1 ms, and takes 20 ms with the worst grammars that we
#: have found: ambiguous ones, which take ever more from token to token. Rows of 1,000 and steps of 20,000 items allowed 100 ms and more.
PARSER_LIMITS: dict[str, Any] = {
    "max_items_in_row": 500,
    "initial_lexer_fuel": 500_000,
    "step_lexer_fuel": 50_000,
    "step_max_items": 2_000,
    "max_lexer_states": 20_000,  # one to two kilobytes each
    "max_grammar_size": 100_000,
    "precompute_large_lexemes": False,
    "verbose_errors": False,
}

#: Of the process that compiles a grammar for the first time. The stack is smaller than those of our own threads.
TRIAL_CPU_SECONDS = 2
TRIAL_MEMORY_BYTES = 768 << 20
TRIAL_STACK_BYTES = 4 << 20
