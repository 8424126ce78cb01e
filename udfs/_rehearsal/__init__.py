"""A rehearsal: what a sample of real calls says of the whole job."""
