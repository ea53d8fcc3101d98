"""Sockets: listening, serving, gRPC over HTTP/2, and the local API. Every other edge may import this package."""
