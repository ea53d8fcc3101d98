"""Jobs: processes that ask for CPUs of their own, and who may ask."""
