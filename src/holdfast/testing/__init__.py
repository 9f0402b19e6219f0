"""The public test kit: conformance suites and processes to kill. Import its modules by name."""
