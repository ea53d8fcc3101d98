"""A machine as a document, or as a short description. Pictures of it are in views/topology."""
