"""Decides: what pods get, in which order cgroups are written, what a turn does. Pure: no I/O, clock, randomness or logging.

From the values that all share (model) to whole turns (turn) and their explanations (explain); imports point down that order only:
`[tool.importlinter]` in pyproject.toml has it.
"""
