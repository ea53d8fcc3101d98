"""Ends the agent in the middle of its work, in a guest: at a step that is chosen, not at a moment that happens to be."""
