"""CPU plugins that come with nodeagent. Found by entry points like any other; loaded only where the configuration names them."""
