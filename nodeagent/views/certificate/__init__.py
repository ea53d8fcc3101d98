"""Report on one run of a command as a document, with its verdict, and the comparison of reports."""
