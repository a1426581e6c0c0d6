"""Packets that no socket sends, and programs that the kernel runs on them in test runs.

May import the product's datapath and services, and the lab.
"""
