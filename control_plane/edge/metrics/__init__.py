"""What operators see at /metrics. Recorders are written by one thread each; a scrape copies, and holds nobody up."""
