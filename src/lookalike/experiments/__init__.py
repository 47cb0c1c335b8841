"""Many runs -> one table, under a protocol that says what is trained, measured and averaged."""
