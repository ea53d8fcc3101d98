"""One turn of the deciding thread. Its steps are look, decide, save, plan, carry out, tell, act, confirm and report."""
