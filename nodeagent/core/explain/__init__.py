"""Why a pod was admitted or refused, what would admit it, and how many more would fit: decisions repeated and observed.

Nothing that the agent does depends on this package. Words and layout are for views/.
"""
