"""A whole service on one machine: a control plane, workers and a gateway as children of one process."""
