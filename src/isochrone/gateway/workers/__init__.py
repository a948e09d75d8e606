"""`--workers N`: relay processes that carry bytes, and one brain that decides for all of them.

    supervisor   starts the others and starts dead ones again; holds the listening sockets, which so outlive them
    brain        the cluster, heartbeats, scrapes, quotas, admin port, access log: a `Service` that listens for relays
    relay        clients, answers, connections to instances: a `Gateway` whose brain is a `BrainLink`

`frames` is what brain and relays say to each other, `channel` how it travels, `link` the relay's end, `session` and
`sessions` the brain's. What one process does in one call (event in, commands out) here crosses a Unix socket twice; all
that comes up in one turn of the event loop crosses in one write.
"""
