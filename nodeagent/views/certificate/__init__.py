"""The report of one run as a document, with its verdict, and the comparison of reports."""
