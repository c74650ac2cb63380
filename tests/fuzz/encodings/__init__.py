"""Wire formats, written without the checks of the real encoders, so that a conversation can break any of them."""
