"""CPU plugins that are shipped with nodeagent. They are declared as entry points, and loaded only if the configuration names them."""
