"""Output of `nodeagent interference`: the owners of exclusive CPUs, and other tasks that ran there and whether these
could run elsewhere.
"""
