"""Output of `apply`, `diff` and `delete`: the effect of each manifest, and the placement of the manifest's pod."""
