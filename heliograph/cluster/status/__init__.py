"""The status of a cluster at one moment, from what Ray, the metadata store and the listeners say.

Nothing here changes anything. What does not answer within its time is left out or noted.
"""
