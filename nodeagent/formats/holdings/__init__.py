"""What pods hold, and the accounts of the node, as JSON in the state file, with one module for each resource."""
