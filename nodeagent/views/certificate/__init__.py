"""Report on one run of a command as a document with a verdict, and the comparison of several reports."""
