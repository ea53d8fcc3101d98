"""Sockets: listening, serving, gRPC over HTTP/2, and the local API. All other packages of edge may import this package."""
