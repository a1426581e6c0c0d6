"""The documents as a site, and what is made of the code for it: pages of reference, man pages,
shell completion.

``mkdocs.yml`` has the chapters. ``python -m tests.docs.site`` writes what is kept in the checkout;
everything else is made while the site is built (:mod:`.hooks`).
"""
