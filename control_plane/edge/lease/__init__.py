"""The lease that decides which one of several schedulers serves."""
