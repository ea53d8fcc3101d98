"""NRI, the Node Resource Interface of containerd and CRI-O: bytes of its socket to typed calls, and answers to bytes.

`mux` and `ttrpc` are the frames, `messages` the tables, `values` what the agent works with, `calls` one call at a time. No decisions;
loaded only where a runtime is to be talked to.
"""
