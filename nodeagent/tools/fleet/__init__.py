"""`nodeagent fleet`: several nodes side by side, from captures or over ssh. Placing pods is a scheduler's task."""
