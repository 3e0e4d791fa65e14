"""One rank's scoring: batches to nll, and the ledger of what is done."""
