"""What a rank tells: reports, their spool, where its time went."""
