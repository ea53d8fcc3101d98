"""Explanations: why a pod was admitted or refused, which changes would admit the pod, and how many more pods fit. To explain a decision,
this package repeats it with observers.

The agent's decisions don't depend on this package. Texts and layout are in views/.
"""
