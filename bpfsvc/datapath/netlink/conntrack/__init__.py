"""Netfilter's connection table: entries, flows that netfilter translates, entries of ours."""
