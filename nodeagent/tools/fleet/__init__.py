"""`nodeagent fleet`: several nodes side by side, from captures or over ssh. It places no pods, which is a scheduler's task."""
