"""CPU plugins that come with nodeagent. Entry points declare them, and only plugins that the configuration names are loaded."""
