"""Numbers of the worker protocol that both sides hold each other to."""

#: The versions of the protocol that this build speaks, oldest and newest.
MIN_PROTOCOL_VERSION, PROTOCOL_VERSION = 1, 1

#: What this build knows beyond its version.
RECORDINGS, LOG_LEVELS = "recordings", "log-levels"
FEATURES = ("wide-generations", RECORDINGS, LOG_LEVELS)
MAX_FEATURES = 64

#: The first message of a session carries whole prompts; prompt log probabilities come back in bulk.
MAX_MESSAGE_BYTES = 256 * 1024 * 1024

#: Characters of a name: control plane, incarnation, fingerprint, numerics, cache group.
MAX_NAME_LENGTH = 256

#: Bounds of what a worker may say of itself; the control plane keeps books on every lane and page.
MAX_LANES = 65_536
MAX_PAGES = 2**21  # over all cache groups and partitions
MAX_CACHE_GROUPS = 64
MAX_VOCAB_SIZE = 2**24
MIN_LEASE_SECONDS = 0.1

#: Alternatives that a lane may ask for at each position.
MAX_ALTERNATIVES = 256

#: Smaller temperatures are greedy: logits divided by them would leave the range of float32.
MIN_TEMPERATURE = 1e-5

#: Trailing metadata of a refused Execute call: milliseconds after which the reason may be gone.
RETRY_AFTER_MS = "retry-after-ms"
