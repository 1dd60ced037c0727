"""Edge ring: the only files that know protobuf, sockets, tokenizers and Prometheus."""
