"""The contract that every engine keeps, as a suite that anybody can run on an engine of their own."""
