"""The command line. Nothing slow is imported before a command runs."""
