"""Access to the pods' cgroups: their files (`files`), their processes (`processes`), and the whole tree (`tree`)."""
