"""NRI, the Node Resource Interface of containerd and CRI-O: bytes of its socket to typed calls, and answers to bytes.

`mux` and `ttrpc` are the frames, `messages` the tables, `calls` one call at a time, to the values of core/model/nri.py and back. No
decisions; loaded only where a runtime is to be talked to.
"""
