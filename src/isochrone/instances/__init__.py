"""What we sent where and how far it is: ledger, step times, life cycle, slots, pools."""
