"""`nodeagent fleet`: several nodes side by side, from captures or over ssh. The tool places no pods, which is a scheduler's task."""
