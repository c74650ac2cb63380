"""Programs for developers: they write files of the repository, and are not in the wheel."""
