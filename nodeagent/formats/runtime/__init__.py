"""NRI, the Node Resource Interface of containerd and CRI-O: bytes of its socket to typed calls, and answers to bytes.

`mux` and `ttrpc` have the frames, `messages` the tables, and `calls` converts single calls to the values of
core/model/nri.py and back. Loaded only by an agent that serves a container runtime.
"""
