"""One turn of the deciding thread: look, decide, save, carry out, tell, act, report."""
