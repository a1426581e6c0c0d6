"""Tests run many times: which of them fail now and then."""
