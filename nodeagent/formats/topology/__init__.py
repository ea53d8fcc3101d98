"""A machine as a document, or as a short description. views/topology draws machines."""
