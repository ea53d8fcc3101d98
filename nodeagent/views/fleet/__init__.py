"""`nodeagent fleet`: several nodes side by side, each as its capture has it. Places nothing: that is a scheduler's, or the user's."""
