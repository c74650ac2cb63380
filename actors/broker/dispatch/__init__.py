"""Dispatchers: which consumer of a subscription gets the next entry, by subscription type. Pure. No entry is pending at
two consumers, under Key_Shared no key (I16); pending acknowledgements have bounds (I15)."""
