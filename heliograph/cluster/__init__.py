"""Starting, inspecting and stopping a cluster: Ray itself, the actors in it, and their state on this machine."""
