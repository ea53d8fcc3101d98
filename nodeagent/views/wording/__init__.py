"""Words and layout that all views share: columns, amounts, states, places of CPUs, advice for refusals."""
