"""One turn of the agent: what was observed and the state in; the next state, and what happened, out.

Also the lives of containers, and how a state is rebuilt from what runs.
"""
