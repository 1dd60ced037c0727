"""Frames of the worker protocol: protobuf on the wire, worker.step inside.

Decoding checks a frame as a whole, without looking at the worker's state; nothing has happened yet when it raises FrameError.
"""
