"""The client that demo, benchmarks and tests use: open or closed loop, latency from the intended send time."""
