"""CPU plugins that are shipped with nodeagent. Entry points declare them, and only plugins that the configuration names are loaded."""
