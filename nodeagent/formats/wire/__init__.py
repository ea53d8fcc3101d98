"""Messages of all protocols as text or bytes, such as the local API, gRPC and the launcher's protocol. Sockets are in
edge/.
"""
