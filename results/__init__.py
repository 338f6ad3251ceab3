"""What was measured: schemas, store, metrics, verdicts, and the data every report is drawn from. Imports no other floor."""
