"""What rows pass through in a task: order, bounds, markers, outputs. Knows no Arrow and no Spark."""
