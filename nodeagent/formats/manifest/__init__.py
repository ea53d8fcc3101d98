"""Pod manifests: conversion between v1 Pod and Pod, the rules of the API server, and the arguments and environment of
containers' processes.
"""
