"""The worker protocol as the control plane speaks it: what it writes, and how what it reads is checked."""
