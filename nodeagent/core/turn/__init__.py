"""One turn of the agent, as a function from the state and the observations to the next state and events. This package also contains the
lifecycle of containers, and the recovery of a lost state from running pods.
"""
