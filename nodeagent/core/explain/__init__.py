"""Explanations: why a pod was admitted or refused, which changes would admit it, and how many more pods fit on the node. To explain a
decision, this package repeats the decision with observers.

The agent's decisions don't depend on this package. views/ contains the texts and the layout.
"""
