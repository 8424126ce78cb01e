"""All of PySpark: one file for each form, the driver's and the worker's side together."""
