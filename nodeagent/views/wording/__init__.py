"""Words and layout that all views share: columns, amounts, states, locations of CPUs, advice for refusals."""
