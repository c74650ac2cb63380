"""The pages of ``docs/``: their code runs, their links lead somewhere, and their words are found."""
