"""Figures of a run: what each task reports, how it reaches the driver, and which jobs a monitor sees."""
