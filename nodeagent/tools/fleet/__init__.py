"""`nodeagent fleet`: several nodes side by side, from captures or over ssh. It places nothing: that is a scheduler's task."""
