"""When an attempt may begin: the health of the service, budgets, shares of the job's calls, rate limits."""
