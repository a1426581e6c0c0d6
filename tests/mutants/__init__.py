"""Small faults put into the product on purpose: do the tests see them?"""
