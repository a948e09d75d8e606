"""The second driver of the cluster: a heap of events, virtual time, twins of engines."""
