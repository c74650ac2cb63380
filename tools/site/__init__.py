"""The documentation as a site: the pages of ``docs/`` and a reference made of the code, built by Sphinx."""
