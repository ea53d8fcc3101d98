"""Why a pod was admitted or refused, what would admit it, and how many more would fit: decisions taken again, watched.

Nothing that the agent does depends on this package. Words and layout are for views/.
"""
