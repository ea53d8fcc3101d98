"""Explanations: why a pod was admitted or refused, what would admit it, and how many more pods fit. Decisions are repeated and observed.

The agent's decisions don't depend on this package. Words and layout are in views/.
"""
