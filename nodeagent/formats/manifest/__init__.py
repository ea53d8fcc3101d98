"""Pod manifests: conversion between v1 Pod and Pod, the API server's rules, and arguments and environment of a
container's process.
"""
