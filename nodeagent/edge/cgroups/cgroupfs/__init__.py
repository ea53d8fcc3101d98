"""Cgroups of the pods: single files (`files`), processes (`processes`), and the whole tree (`tree`)."""
