"""The gRPC side: frames, the session with a control plane, the thread that owns the device."""
