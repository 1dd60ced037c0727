"""Text in, text out: tokenizer, chat template, incremental detokenization, stop strings."""
