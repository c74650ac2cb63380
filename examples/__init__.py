"""Runnable examples, which use only the public interface and are not part of the package."""
