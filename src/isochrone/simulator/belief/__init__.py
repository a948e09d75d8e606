"""Belief: the simulator's parts, checked against measurements that nobody here made. One file a check."""
