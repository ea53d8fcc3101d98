"""Explanations: why a pod was admitted or refused, which changes would admit it, and how many more pods fit. Decisions are repeated and
observed.

The agent's decisions don't depend on this package. Texts and layout are in views/.
"""
