"""The agent's local API and the launcher's protocol: messages as text, no sockets."""
