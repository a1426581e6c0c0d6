"""Write what is made of the code and kept in the checkout, where it is not up to date."""

from __future__ import annotations

from tests.docs.site.kept import files

for path, text in files().items():
    if not path.exists() or path.read_text() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        print(path)
