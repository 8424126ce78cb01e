"""Results that are paid for once: bytes under keys, on a host or in Redis. No Arrow, no pickle, no engine."""
