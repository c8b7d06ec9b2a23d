"""What rigbench itself costs, and how true its client is: measured by `python -m tests.bench`, never by a test."""
