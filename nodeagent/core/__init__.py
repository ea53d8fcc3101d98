"""All decisions: the allocations of pods, the order of cgroup writes, the actions of a turn. Pure: no I/O, clock, randomness or logging.

From the values that all share (model) to whole turns (turn) and their explanations (explain); imports point down that order only:
`[tool.importlinter]` in pyproject.toml has it.
"""
