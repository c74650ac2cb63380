"""The MetadataStore on etcd 3.4 and later: leases as sessions, transactions as writes, one watch stream per session."""
