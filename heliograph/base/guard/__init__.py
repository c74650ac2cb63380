"""Guards of a process: its callers prove the cluster's secret, and a loop that
does not turn ends it, and strangers fill neither its log nor its disk.
"""
