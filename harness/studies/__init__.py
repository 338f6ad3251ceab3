"""Studies: what each mechanism of an engine buys, one switch at a time, with a verdict from the step log."""
