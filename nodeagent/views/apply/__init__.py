"""Output of `apply`, `diff` and `delete`: the effect on each manifest, and the placement of its pod."""
