"""A machine as a document, or in a few words; pictures of it are in views/topology."""
