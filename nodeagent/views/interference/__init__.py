"""What `nodeagent interference` shows: whose the exclusive CPUs are, who else ran there, and what of it could run elsewhere."""
