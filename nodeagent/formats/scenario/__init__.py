"""The scenarios that `nodeagent simulate` replays."""
