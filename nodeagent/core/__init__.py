"""All decisions: the allocations of pods, the order of cgroup writes, the actions of a turn. The code is pure: it has no I/O, clock,
randomness or logging.

The packages reach from shared values (model) to whole turns (turn) and their explanations (explain). A package imports only packages before
it in this order, which `[tool.importlinter]` in pyproject.toml defines.
"""
