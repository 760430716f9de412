"""What operations on large stores take: time, memory, and an innocent's patience (README.md)."""
