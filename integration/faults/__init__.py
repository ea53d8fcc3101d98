"""Ends the agent in the middle of its work, in a guest: at a chosen step, not at a random time."""
