"""What calls say of their service: that it refuses them, that it is down, or that rows fail."""
