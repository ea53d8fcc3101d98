"""What pods hold, and what each resource keeps of the node, as JSON in the state file: one module for each resource."""
