"""Batch interfaces of services: rows are submitted as jobs, and their answers are collected later."""
