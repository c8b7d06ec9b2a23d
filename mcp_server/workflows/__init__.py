"""What the worker does for each kind of job, as durable workflows of few steps."""
