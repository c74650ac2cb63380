"""What the tests of foreign clients share: the running cluster, tools, Maven projects, programs and the record."""
