"""Parts of the previous release beside parts of the present one, and a cluster that goes from one to the other."""
