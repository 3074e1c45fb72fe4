"""Running schedules on real memory: plans, the transport between ranks, and what executes them."""
