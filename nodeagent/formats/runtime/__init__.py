"""NRI, the Node Resource Interface of containerd and CRI-O: conversion of the socket's bytes to typed calls, and of answers to bytes.

`mux` and `ttrpc` have the frames, `messages` the tables, and `calls` converts single calls to the values of
core/model/nri.py and back. Only an agent that serves a container runtime loads this package.
"""
