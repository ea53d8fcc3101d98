"""The cgroups of the pods: single files (`files`), their processes (`processes`), and the tree as a whole (`tree`)."""
