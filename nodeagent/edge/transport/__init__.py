"""Access to sockets: listening, serving, gRPC over HTTP/2, and the local API. All other edges may import this package."""
