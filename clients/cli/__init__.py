"""The command line: one module per command. Nothing slow is imported before a command runs."""
